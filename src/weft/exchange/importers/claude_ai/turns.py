"""Making turns of a conversation's messages: an assistant's holds several responses where tools were used between."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, field

from weft.exchange.importers.port import NativeMessage
from weft.exchange.importers.records.builder import PendingCall, TurnBuilder
from weft.exchange.importers.records.values import canonical, mapping, millis, present, sequence, text
from weft.kernel.enums import FileKind, MessageRole, MessageSource, ToolCallStatus
from weft.ledger.model import FileNote, Part, ReasoningPart, TextPart

READERS = frozenset({"view", "read_file"})
WRITERS = frozenset({"create_file", "str_replace", "edit_file", "write_file"})
ENVELOPE = frozenset({"start_timestamp", "stop_timestamp", "flags"})
"""Of a block: what is not said."""


class Call(PendingCall, kw_only=True):
    block: dict[str, Any]

    def settle(self, outcome: dict[str, Any]) -> None:
        """Take the block with the tool's result."""
        failed = outcome.get("is_error") is True
        result = _plain(outcome.get("content"))
        words = result if isinstance(result, str) else None
        self.result = UNSET if result is None or (failed and words is not None) else result
        self.error = (words or "error") if failed else None
        self.status = ToolCallStatus.ERROR if failed else ToolCallStatus.OK
        self.done = millis(outcome.get("stop_timestamp")) or millis(outcome.get("start_timestamp"))
        self.detail = _detail(self.block, outcome)
        self.files = () if failed else self.files


def call_of(block: dict[str, Any], id: str) -> Call:
    name, arguments = text(block.get("name")) or "", block.get("input")
    return Call(
        id=id,
        name=name,
        arguments=arguments,
        block=block,
        at=millis(block.get("start_timestamp")),
        detail=_detail(block, {}),
        files=_touched(name, mapping(arguments)),
    )


def _detail(block: dict[str, Any], outcome: dict[str, Any]) -> dict[str, Any] | None:
    return present(
        said=block.get("message"),
        integration=block.get("integration_name"),
        shown=outcome.get("display_content"),
    )


class ClaudeAiBuilder(TurnBuilder, kw_only=True):
    """A turn of Claude.ai, message by message."""

    waiting: list[Call] = field(default_factory=list)

    def take(self, message: dict[str, Any], native: str) -> None:
        for name in ("created_at", "updated_at"):
            self.note_time(message.get(name))
        blocks = blocks_of(message)
        reduced = [{name: value for name, value in block.items() if name not in ENVELOPE} for block in blocks]
        attached = [
            [attachment.get("file_name"), attachment.get("extracted_content")] for attachment in _attachments(message)
        ]
        self.add_identity(message.get("sender"), native, reduced, attached)
        if message.get("sender") == "assistant":
            self._answer(message, native, blocks)
        else:
            self._prompt(message, native, blocks)

    def _prompt(self, message: dict[str, Any], native: str, blocks: list[dict[str, Any]]) -> None:
        parts: list[Part] = []
        rest = [block for block in blocks if not _say(parts, block)]
        attachments, carried = _attachments(message), _files(message)
        parts += [
            TextPart(words)
            for attachment in attachments
            if (words := text(attachment.get("extracted_content"))) is not None
        ]
        names = (text(attachment.get("file_name")) for attachment in (*attachments, *carried))
        attachment_fields = [
            {name: value for name, value in attachment.items() if name != "extracted_content"}
            for attachment in attachments
        ]
        self.items.append(
            NativeMessage(
                role=MessageRole.USER,
                parts=tuple(parts),
                native=native,
                at=millis(message.get("created_at")),
                source=MessageSource.HUMAN,
                metadata=present(attachments=attachment_fields, files=carried, blocks=rest),
                files=tuple(FileNote(kind=FileKind.ATTACHED, path=name) for name in dict.fromkeys(names) if name),
            )
        )

    def _answer(self, message: dict[str, Any], native: str, blocks: list[dict[str, Any]]) -> None:
        """Responses one after another: what is said after a call's outcome is a response of its own."""
        parts: list[Part] = []
        rest: list[Any] = []
        number, has_calls = 0, False
        for place, block in enumerate(blocks):
            kind = block.get("type")
            if kind == "tool_result":
                self._result(block)
            elif kind == "tool_use":
                if parts or not has_calls:
                    self._response(message, native, number, parts, [])
                    parts, number = [], number + 1
                has_calls = True
                self._call(block, f"{native}#{place}")
            elif not _say(parts, block):
                rest.append(block)
        if parts or rest or not number:
            self._response(message, native, number, parts, rest)

    def _response(self, message: dict[str, Any], native: str, number: int, parts: list[Part], rest: list[Any]) -> None:
        self.items.append(
            NativeMessage(
                role=MessageRole.ASSISTANT,
                parts=tuple(parts),
                native=f"{native}#{number}" if number else native,
                at=millis(message.get("created_at")),
                model=text(message.get("model")),
                provider="anthropic",
                finish_reason=text(message.get("stop_reason")),
                metadata=present(blocks=rest, truncated=message.get("truncated") or None),
            )
        )

    def _call(self, block: dict[str, Any], fallback: str) -> None:
        call = call_of(block, text(block.get("id")) or fallback)
        self.items.append(call)
        self.waiting.append(call)

    def _result(self, block: dict[str, Any]) -> None:
        """To the call that it names; exports mostly name none, so then to the first that waits, of that tool if any."""
        named, tool = text(block.get("tool_use_id")), text(block.get("name"))
        found = next((call for call in self.waiting if call.id == named), None)
        if found is None and named is None:
            found = next((call for call in self.waiting if call.name == tool), None) or next(iter(self.waiting), None)
        if found is None:
            words = _plain(block.get("content"))
            shown = words if isinstance(words, str) else canonical(words).decode(errors="replace")
            fields = present(call=named, tool=tool)
            self.items.append(NativeMessage(role=MessageRole.TOOL, parts=(TextPart(shown),), metadata=fields))
            return
        found.settle(block)
        self.waiting.remove(found)


def blocks_of(message: dict[str, Any]) -> list[dict[str, Any]]:
    """What a message says. Newer exports say it in blocks, and their `text` repeats some of it or is empty."""
    blocks = [block for block in sequence(message.get("content")) if isinstance(block, dict)]
    words = text(message.get("text"))
    return blocks or ([{"type": "text", "text": words}] if words is not None else [])


def _say(parts: list[Part], block: dict[str, Any]) -> bool:
    """As a part of a message; False if it is none."""
    kind = block.get("type")
    if kind in ("text", "voice_note") and isinstance(words := block.get("text"), str):
        if words:
            parts.append(TextPart(words))
        return True
    if kind == "thinking" and isinstance(thought := block.get("thinking"), str):
        if thought:
            parts.append(ReasoningPart(thought))
        return True
    return kind in ("token_budget", "flag")


def _plain(content: Any) -> Any:
    """What a tool gave back: a text where it is nothing but texts."""
    blocks = sequence(content)
    texts = [words for block in blocks if isinstance(words := mapping(block).get("text"), str)]
    return "\n".join(texts) if blocks and len(texts) == len(blocks) else content


def _attachments(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Texts that a person pasted or attached, with what was read from them."""
    return [attachment for attachment in sequence(message.get("attachments")) if isinstance(attachment, dict)]


def _files(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Files whose bytes the export does not hold; newer ones tell them twice."""
    fields: dict[str, dict[str, Any]] = {}
    for each in (*sequence(message.get("files")), *sequence(message.get("files_v2"))):
        file = mapping(each)
        name = text(file.get("file_uuid")) or text(file.get("file_name"))
        if name is not None:
            fields.setdefault(name, file)
    return list(fields.values())


def _touched(name: str, arguments: dict[str, Any]) -> tuple[FileNote, ...]:
    path = text(arguments.get("path")) or text(arguments.get("file_path"))
    kind = FileKind.READ if name in READERS else FileKind.WRITTEN if name in WRITERS else None
    return () if path is None or kind is None else (FileNote(kind=kind, path=path),)
