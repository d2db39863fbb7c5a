"""The second pass: the records of one turn of a droid, mapped to what the ledger takes.

Blocks of messages are words, thoughts, images, documents, calls and their outcomes. A prompt stands without the tool's
own reminders, which go into its context.
"""

from __future__ import annotations

import re
from typing import Any

from msgspec import UNSET, Struct, field

from weft.exchange.importers.factory_droid.index import HUMAN, REMINDER, blocks, is_injected, own_words, role_of
from weft.exchange.importers.port import NativeCompaction, NativeMessage
from weft.exchange.importers.records.builder import PendingCall, TurnBuilder
from weft.exchange.importers.records.file_notes import patched_paths
from weft.exchange.importers.records.planned_turns import Entry
from weft.exchange.importers.records.roles import Role
from weft.exchange.importers.records.values import mapping, millis, present, sequence, text, whole
from weft.kernel.enums import FileKind, MessageRole, MessageSource, ToolCallStatus
from weft.ledger.model import FileNote, ImagePart, Part, ReasoningPart, TextPart

KNOWN = frozenset({"text", "thinking", "redacted_thinking", "tool_use", "tool_result", "image", "document"})
WRITERS = frozenset({"Edit", "MultiEdit", "Create", "Write", "ApplyPatch", "NotebookEdit"})
SEARCHERS = frozenset({"LS", "Grep", "Glob"})
PATHS = ("file_path", "path", "directory_path", "folder", "notebook_path")
REFUSED = re.compile(
    r"(?:Error: )?(?:Tool execution|Request|Permission|Command) (?:was )?(?:cancel|reject|denied)", re.IGNORECASE
)


def message_parts(message: dict[str, Any], is_prompt: bool) -> list[Part]:
    """A prompt without the tool's reminders; those stand beside it."""
    message_parts: list[Part] = []
    for block in blocks(message):
        kind = block.get("type")
        words = text(block.get("text")) if kind == "text" else None
        if words is not None and not (is_prompt and own_words(block) is None):
            message_parts.append(TextPart(words))
        elif kind == "thinking" and (thought := text(block.get("thinking")) or text(block.get("text"))):
            message_parts.append(ReasoningPart(thought))
        elif kind == "image" and (url := _image_url(block)) is not None:
            message_parts.append(ImagePart(url))
    return message_parts


def _image_url(block: dict[str, Any]) -> str | None:
    source = mapping(block.get("source"))
    data, url = text(source.get("data")), text(source.get("url"))
    if data is None:
        return url
    return data if data.startswith("data:") else f"data:{text(source.get('media_type')) or 'image/png'};base64,{data}"


def reminders(message: dict[str, Any]) -> list[str]:
    texts = (text(block.get("text")) for block in blocks(message) if block.get("type") == "text")
    return [words for words in texts if words is not None and words.lstrip().startswith(REMINDER)]


def documents(message: dict[str, Any]) -> tuple[list[dict[str, Any]], list[FileNote]]:
    """What is attached beside images, without the contents that the verbatim copy has, and where it lies."""
    sources = [mapping(block.get("source")) for block in blocks(message) if block.get("type") == "document"]
    descriptions = [
        present(name=file.get("name"), type=file.get("media_type"), path=file.get("path")) or {} for file in sources
    ]
    notes = [FileNote(kind=FileKind.ATTACHED, path=path) for source in sources if (path := text(source.get("path")))]
    return descriptions, notes


def others(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Blocks of kinds that nobody knows."""
    return [block for block in blocks(message) if block and block.get("type") not in KNOWN]


def message_calls(message: dict[str, Any], at: int | None) -> list[PendingCall]:
    return [_call(block, at) for block in blocks(message) if block.get("type") == "tool_use"]


def _call(block: dict[str, Any], at: int | None) -> PendingCall:
    return PendingCall(
        id=text(block.get("id")) or "",
        name=text(block.get("name")) or "",
        arguments=block.get("input"),
        at=at,
        detail=present(namespace=block.get("namespace"), script=block.get("script_execution")),
    )


def outcomes(message: dict[str, Any]) -> list[dict[str, Any]]:
    return [block for block in blocks(message) if block.get("type") == "tool_result"]


def settle(call: PendingCall, block: dict[str, Any], at: int | None) -> None:
    """Give a call its outcome."""
    call.result, call.done = plain(block.get("content", UNSET)), at
    words = call.result if isinstance(call.result, str) else ""
    if block.get("is_error") is True or block.get("isError") is True:
        call.fail(words or "error", ToolCallStatus.CANCELED if REFUSED.match(words) else ToolCallStatus.ERROR)
    else:
        call.status = ToolCallStatus.OK
        call.files = files(call.name, call.arguments)


def plain(result: Any) -> Any:
    """Blocks of text alone are the text that they hold."""
    contents = [mapping(block) for block in sequence(result)]
    if contents and all(block.get("type") == "text" and isinstance(block.get("text"), str) for block in contents):
        return "\n".join(block["text"] for block in contents)
    return result


def files(name: str, arguments: Any) -> tuple[FileNote, ...]:
    fields = mapping(arguments)
    path = next((value for key in PATHS if (value := text(fields.get(key)))), None)
    if name in WRITERS:
        patch = next((words for key in ("input", "patch") if isinstance(words := fields.get(key), str)), "")
        paths = [path] if path else patched_paths(patch)
        return tuple(FileNote(kind=FileKind.WRITTEN, path=written) for written in paths)
    if path is None:
        return ()
    if name == "Read":
        start, limit = whole(fields.get("offset")), whole(fields.get("limit"))
        first = None if start is None else start + 1  # droid counts lines from 0
        last = None if limit is None else (first or 1) + limit - 1
        return (FileNote(kind=FileKind.READ, path=path, line_start=first, line_end=last),)
    return (FileNote(kind=FileKind.REFERENCED, path=path),) if name in SEARCHERS else ()


FAILED = ("error", "fail", "timeout", "limit")
STOPPED = ("interrupt", "cancel", "abort", "reject", "stop")


class Setting(Struct, frozen=True):
    """What holds for every message of a session."""

    model: str | None = None
    provider: str | None = None
    is_subagent: bool = False


class DroidBuilder(TurnBuilder, kw_only=True):
    """A turn of a droid, record by record."""

    setting: Setting
    names: list[str] = field(default_factory=list)
    compaction: NativeCompaction | None = None
    anchor: str | None = None
    """The last message that the compaction summarised."""
    result: Any = None

    def take(self, entry: Entry, value: dict[str, Any]) -> None:
        role = role_of(value)
        if role is Role.END:
            self._end(value)
            return
        self.note_time(value.get("timestamp"))
        if entry.id is not None:
            self.names.append(entry.id)
        if role is Role.COMPACTION:
            self._sum_up(value)
            return
        message, at = mapping(value.get("message")), millis(value.get("timestamp"))
        self.add_identity(message.get("role"), entry.id, [_block_identity(block) for block in blocks(message)])
        if role in (Role.PROMPT, Role.INJECTED):
            self.items.append(self._prompt(message, entry.id, at))
        elif message.get("role") == "assistant":
            self.items += self._answer(message, entry.id, at)
        for block in outcomes(message):
            self._settle(block, at)

    def _prompt(self, message: dict[str, Any], id: str | None, at: int | None) -> NativeMessage:
        is_own = not is_injected(message) and message.get("role") == "user"
        attached, notes = documents(message)
        hook = {name: field for name, field in message.items() if name.startswith("hook")}
        return NativeMessage(
            role=MessageRole.SYSTEM if message.get("role") == "system" else MessageRole.USER,
            parts=tuple(message_parts(message, is_prompt=is_own)),
            native=id,
            at=at,
            source=self._source(message) if is_own else MessageSource.EVENT,
            context=present(reminders=reminders(message) if is_own else None),
            metadata=present(
                visibility=message.get("visibility"),
                source=message.get("userMessageSource"),
                hook=hook,
                documents=attached,
                blocks=others(message),
            ),
            files=tuple(notes),
        )

    def _source(self, message: dict[str, Any]) -> MessageSource:
        source = text(message.get("userMessageSource"))
        if source is not None and source not in HUMAN:
            return MessageSource.TRIGGER
        return MessageSource.AGENT if self.setting.is_subagent else MessageSource.HUMAN

    def _answer(self, message: dict[str, Any], id: str | None, at: int | None) -> list[NativeMessage | PendingCall]:
        answer = NativeMessage(
            role=MessageRole.ASSISTANT,
            parts=tuple(message_parts(message, is_prompt=False)),
            native=id,
            at=at,
            model=text(message.get("modelId")) or text(message.get("model")) or self.setting.model,
            provider=text(message.get("apiProvider")) or self.setting.provider,
            metadata=present(
                effort=message.get("reasoningEffort"),
                router=message.get("routerId"),
                response=message.get("openaiMessageId"),
                reasoning=message.get("openaiReasoningSummary"),
                blocks=others(message),
            ),
        )
        return [answer, *message_calls(message, at)]

    def _settle(self, block: dict[str, Any], at: int | None) -> None:
        """The outcome of the call that it names, of those with this id the first that waits."""
        id = text(block.get("tool_use_id"))
        for item in self.items:
            if isinstance(item, PendingCall) and item.is_open and item.id == id:
                settle(item, block, at)
                return

    def _sum_up(self, value: dict[str, Any]) -> None:
        """Newer versions have the words beside the record, older ones a title and a body."""
        summary = mapping(value.get("summary"))
        texts = (
            text(value.get("summaryText")),
            text(value.get("summary")),
            text(summary.get("body")),
            text(summary.get("title")),
        )
        words = next((candidate for candidate in texts if candidate), "")
        self.anchor = text(mapping(value.get("anchorMessage")).get("id"))
        self.add_identity("summary", text(value.get("id")), words, self.anchor)
        self.compaction = NativeCompaction(
            summary=words,
            tokens_after=whole(value.get("summaryTokens")),
            metadata=present(
                kind=value.get("summaryKind"), removed=value.get("removedCount"), title=summary.get("title")
            ),
        )

    def _end(self, value: dict[str, Any]) -> None:
        """How the turn ended, in the tool's own words."""
        reason = text(value.get("reason")) or "ended"
        self.result = present(kind=value.get("resultKind"), result=value.get("result"))
        self.add_identity("ended", reason, self.result)
        error = text(value.get("error")) or text(mapping(value.get("error")).get("message"))
        if error is not None:
            reason = f"{reason}: {error}" if _names_one(reason, FAILED) else f"error: {error}"
        self.error = reason if _names_one(reason, FAILED) else None
        self.is_interrupted = self.error is None and _names_one(reason, STOPPED)


def _names_one(reason: str, words: tuple[str, ...]) -> bool:
    return any(word in reason.lower() for word in words)


def _block_identity(block: dict[str, Any]) -> Any:
    """What makes the identity of a block: not the provider's signatures, which are made anew."""
    volatile = ("signature", "signatureProvider", "durationMs", "thought_signature", "cache_control")
    return {name: value for name, value in block.items() if name not in volatile}
