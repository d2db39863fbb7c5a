"""Conversations and projects of Claude.ai, as its data export holds them.

One document has all conversations, each a tree of messages. A message of the assistant holds
several responses where tools were used between them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import UNSET, field

from weft.exchange.importers.foreign_files import BOM, Conversation, conversations
from weft.exchange.importers.foreign_values import canonical, json_value, mapping, millis, present, sequence, text
from weft.exchange.importers.native_turns import (
    PendingCall,
    PlannedBranch,
    Tree,
    TreePart,
    TurnBuilder,
    ends_of,
    finished_items,
    in_order,
    keys_of,
)
from weft.exchange.importers.port import NativeMessage, NativeSession, NativeTurn, Place, Report, Source, Transcript
from weft.kernel.enums import FileKind, MessageRole, MessageSource, ToolCallStatus
from weft.ledger.model import FileNote, Part, ReasoningPart, TextPart

# --- Making turns of a conversation's messages: an assistant's holds several responses where tools were used between.

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

    def add_message(self, message: dict[str, Any], native: str) -> None:
        for name in ("created_at", "updated_at"):
            self.note_time(message.get(name))
        blocks = blocks_of(message)
        reduced = [{name: value for name, value in block.items() if name not in ENVELOPE} for block in blocks]
        attached = [
            [attachment.get("file_name"), attachment.get("extracted_content")] for attachment in _attachments(message)
        ]
        self.add_identity(message.get("sender"), native, reduced, attached)
        if message.get("sender") == "assistant":
            self._add_answer(message, native, blocks)
        else:
            self._add_prompt(message, native, blocks)

    def _add_prompt(self, message: dict[str, Any], native: str, blocks: list[dict[str, Any]]) -> None:
        parts: list[Part] = []
        other_blocks = [block for block in blocks if not _add_part(parts, block)]
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
                metadata=present(attachments=attachment_fields, files=carried, blocks=other_blocks),
                files=tuple(FileNote(kind=FileKind.ATTACHED, path=name) for name in dict.fromkeys(names) if name),
            )
        )

    def _add_answer(self, message: dict[str, Any], native: str, blocks: list[dict[str, Any]]) -> None:
        """Responses one after another: what is said after a call's outcome is a response of its own."""
        parts: list[Part] = []
        other_blocks: list[Any] = []
        number, has_calls = 0, False
        for place, block in enumerate(blocks):
            kind = block.get("type")
            if kind == "tool_result":
                self._settle_call(block)
            elif kind == "tool_use":
                if parts or not has_calls:
                    self._add_response(message, native, number, parts, [])
                    parts, number = [], number + 1
                has_calls = True
                self._add_call(block, f"{native}#{place}")
            elif not _add_part(parts, block):
                other_blocks.append(block)
        if parts or other_blocks or not number:
            self._add_response(message, native, number, parts, other_blocks)

    def _add_response(
        self, message: dict[str, Any], native: str, number: int, parts: list[Part], other_blocks: list[Any]
    ) -> None:
        self.items.append(
            NativeMessage(
                role=MessageRole.ASSISTANT,
                parts=tuple(parts),
                native=f"{native}#{number}" if number else native,
                at=millis(message.get("created_at")),
                model=text(message.get("model")),
                provider="anthropic",
                finish_reason=text(message.get("stop_reason")),
                metadata=present(blocks=other_blocks, truncated=message.get("truncated") or None),
            )
        )

    def _add_call(self, block: dict[str, Any], fallback: str) -> None:
        call = call_of(block, text(block.get("id")) or fallback)
        self.items.append(call)
        self.waiting.append(call)

    def _settle_call(self, block: dict[str, Any]) -> None:
        """To the call that it names; exports mostly name none, so then to the first that waits, of that tool if any."""
        call_id, tool = text(block.get("tool_use_id")), text(block.get("name"))
        waiting_call = next((call for call in self.waiting if call.id == call_id), None)
        if waiting_call is None and call_id is None:
            waiting_call = next((call for call in self.waiting if call.name == tool), None) or next(
                iter(self.waiting), None
            )
        if waiting_call is None:
            words = _plain(block.get("content"))
            result_text = words if isinstance(words, str) else canonical(words).decode(errors="replace")
            fields = present(call=call_id, tool=tool)
            self.items.append(NativeMessage(role=MessageRole.TOOL, parts=(TextPart(result_text),), metadata=fields))
            return
        waiting_call.settle(block)
        self.waiting.remove(waiting_call)


def blocks_of(message: dict[str, Any]) -> list[dict[str, Any]]:
    """What a message says. Newer exports say it in blocks, and their `text` repeats some of it or is empty."""
    blocks = [block for block in sequence(message.get("content")) if isinstance(block, dict)]
    words = text(message.get("text"))
    return blocks or ([{"type": "text", "text": words}] if words is not None else [])


def _add_part(parts: list[Part], block: dict[str, Any]) -> bool:
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
    for listed_file in (*sequence(message.get("files")), *sequence(message.get("files_v2"))):
        file = mapping(listed_file)
        name = text(file.get("file_uuid")) or text(file.get("file_name"))
        if name is not None:
            fields.setdefault(name, file)
    return list(fields.values())


def _touched(name: str, arguments: dict[str, Any]) -> tuple[FileNote, ...]:
    path = text(arguments.get("path")) or text(arguments.get("file_path"))
    kind = FileKind.READ if name in READERS else FileKind.WRITTEN if name in WRITERS else None
    return () if path is None or kind is None else (FileNote(kind=kind, path=path),)


# --- Claude.ai: a data export, with all conversations in one document, each a tree of messages.


def is_project(value: dict[str, Any]) -> bool:
    is_named = text(value.get("uuid")) is not None and "name" in value
    return is_named and isinstance(value.get("docs"), list) and "chat_messages" not in value


def project_session(id: str) -> str:
    return f"project/{id}"


def project(conversation: Conversation, report: Report) -> Transcript:
    """One turn without an answer: the instructions, and each document."""
    value = conversation.value
    id = text(value.get("uuid")) or ""
    docs = [doc for doc in sequence(value.get("docs")) if isinstance(doc, dict)]
    spoiled = len(sequence(value.get("docs"))) - len(docs)
    report.found += 1 + len(docs) + spoiled
    report.mapped["project"] += 1
    report.mapped["project.document"] += len(docs)
    report.damaged += spoiled
    created = millis(value.get("created_at"))
    session = NativeSession(
        id=project_session(id),
        title=text(value.get("name")),
        created=created,
        archived=value.get("archived_at") is not None,
        told_at=millis(value.get("updated_at")),
        metadata=present(description=value.get("description"), private=value.get("is_private")),
    )
    words = text(value.get("prompt_template")) or ""
    items = [_message(id, words, created), *(_document(doc, id) for doc in docs)]
    reduced = [[doc.get("uuid"), doc.get("filename"), doc.get("content")] for doc in docs]
    turn = NativeTurn(
        key=f"project/{id}",
        records=(canonical(["project", id, words, reduced]),),
        items=tuple(items),
        started=created,
        ended=millis(value.get("updated_at")) or created,
        end=len(conversation.data),
    )
    return Transcript(session=session, turns=[turn], raw=conversation.data)


def _message(native: str, words: str, time: int | None, **fields: Any) -> NativeMessage:
    parts = (TextPart(words),) if words else ()
    return NativeMessage(
        role=MessageRole.SYSTEM, parts=parts, native=native, at=time, source=MessageSource.EVENT, **fields
    )


def _document(doc: dict[str, Any], project: str) -> NativeMessage:
    name, id = text(doc.get("filename")), text(doc.get("uuid"))
    notes = () if name is None else (FileNote(kind=FileKind.ATTACHED, path=name),)
    native = id or f"{project}/{name}"
    return _message(native, text(doc.get("content")) or "", millis(doc.get("created_at")), files=notes)


def project_of(value: dict[str, Any]) -> Any:
    """The project that a conversation belongs to, as it tells."""
    fields = mapping(value.get("project"))
    return present(uuid=fields.get("uuid") or value.get("project_uuid"), name=fields.get("name"))


SIGN = re.compile(rb'[,\[]\s*(\{\s*"uuid"\s*:\s*"[^"]*"\s*,\s*"name"\s*:)')
BEGINNING = re.compile(rb"\s*(?:\[\s*)?\{")
ROOTS = frozenset({"00000000-0000-4000-8000-000000000000", "00000000-0000-0000-0000-000000000000"})
"""What a first message names as its parent."""
SENDERS = {"human": TreePart.PROMPT, "user": TreePart.PROMPT, "assistant": TreePart.ANSWER}
NOTED = ("summary", "is_starred", "is_temporary", "model", "settings", "platform")


class ClaudeAi:
    origin = "claude-ai"
    mapping = 1

    def places(self, home: Path, environment: Mapping[str, str]) -> list[Place]:
        """An export lies where it was saved; it has no place of its own."""
        return []

    def recognises(self, source: Source) -> bool:
        head = source.head.removeprefix(BOM)
        if not BEGINNING.match(head) or b'"uuid"' not in head:
            return False
        is_likely = b'"chat_messages"' in head or (b'"docs"' in head and b'"prompt_template"' in head)
        if not is_likely or len(source.head) < source.size:
            return is_likely
        try:
            value = json_value(head)
        except ValueError:
            return True
        listed = value if isinstance(value, list) else sequence(mapping(value).get("conversations")) or [value]
        return any(is_conversation(mapping(candidate)) or is_project(mapping(candidate)) for candidate in listed)

    def is_part(self, source: Source) -> bool:
        return False

    def read(self, source: Source, report: Report) -> Iterator[Transcript]:
        for conversation in conversations(source, report, SIGN, is_conversation_or_project, "conversations"):
            if is_conversation(conversation.value):
                yield _transcript(conversation, source.path.stem, report)
            elif is_project(conversation.value):
                yield project(conversation, report)
            else:
                report.found += 1
                report.kept["other"] += 1
                report.unknown["other"] += 1


def is_conversation(value: dict[str, Any]) -> bool:
    return isinstance(value.get("chat_messages"), list)


def is_conversation_or_project(value: dict[str, Any]) -> bool:
    return is_conversation(value) or is_project(value)


def _transcript(conversation: Conversation, fallback: str, report: Report) -> Transcript:
    value = conversation.value
    id = text(value.get("uuid")) or fallback
    session = NativeSession(
        id=id,
        title=text(value.get("name")),
        created=millis(value.get("created_at")),
        told_at=millis(value.get("updated_at")),
        metadata=present(**{name: value[name] for name in NOTED if value.get(name)}, project=project_of(value)),
    )
    report.found += 1
    report.mapped["conversation"] += 1
    messages = Messages(id, sequence(value.get("chat_messages")), report)
    turns = messages.native_turns(text(value.get("current_leaf_message_uuid")), len(conversation.data))
    return Transcript(session=session, turns=turns, raw=conversation.data)


class Messages:
    """The messages of a conversation. Older exports tell no parents: then each follows the one before it."""

    def __init__(self, conversation: str, messages: list[Any], report: Report) -> None:
        self._conversation, self._report = conversation, report
        self._by_id: dict[str, dict[str, Any]] = {}
        for number, message in enumerate(messages):
            report.found += 1
            if not isinstance(message, dict):
                report.damaged += 1
                report.problem(None, f"message {number} of the conversation {conversation[:80]} is no object")
                continue
            id = text(message.get("uuid")) or f"#{number}"
            while id in self._by_id:
                id += "~"
            self._by_id[id] = message
            self._count(message)
        self._parents = self._read_parents()

    def _read_parents(self) -> dict[str, str | None]:
        if not any("parent_message_uuid" in message for message in self._by_id.values()):
            ids = list(self._by_id)
            return dict(zip(ids, [None, *ids[:-1]], strict=True)) if ids else {}
        parents: dict[str, str | None] = {}
        for id, message in self._by_id.items():
            words = text(message.get("parent_message_uuid"))
            parents[id] = None if words in ROOTS else words
        return parents

    def _count(self, message: dict[str, Any]) -> None:
        sender = text(message.get("sender")) or "none"
        if sender in SENDERS:
            self._report.mapped[f"message.{sender}"] += 1
        else:
            self._report.kept[f"message.{sender}"] += 1
            self._report.unknown[f"message.{sender}"] += 1

    def native_turns(self, leaf: str | None, size: int) -> list[NativeTurn]:
        below: dict[str, list[str]] = {}
        for id, parent in self._parents.items():
            below.setdefault(parent or "", []).append(id)
        order = in_order(self._parents, lambda id: below.get(id, []))
        tree = Tree(whole_answers=True)
        for id in order:
            tree_part = SENDERS.get(text(self._by_id[id].get("sender")) or "", TreePart.NOTHING)
            tree.add(id, self._parents[id], tree_part)
        last = self._last(order, leaf)
        keys, ends = keys_of(tree.plans, self._name), ends_of(tree, order, last, size)
        return [self._turn(*planned) for planned in zip(tree.plans, keys, ends, strict=True)]

    def _name(self, id: str) -> str:
        return id if len(id) >= 32 else f"{self._conversation}/{id}"

    def _last(self, order: list[str], leaf: str | None) -> str | None:
        """The message that the conversation stands on; where that is not told, the one that was made last."""
        if leaf in self._by_id:
            return leaf
        times = [millis(self._by_id[id].get("created_at")) or 0 for id in order]
        return order[max(range(len(order)), key=lambda number: (times[number], number))] if order else None

    def _turn(self, plan: PlannedBranch, key: str, end: int) -> NativeTurn:
        builder = ClaudeAiBuilder()
        for id in plan.nodes:
            builder.add_message(self._by_id[id], self._name(id))
        last = self._by_id[plan.nodes[-1]]
        return NativeTurn(
            key=key,
            records=tuple(builder.records) or (canonical([key]),),
            names=tuple(map(self._name, plan.nodes)),
            items=finished_items(builder.items),
            parent=plan.parent,
            interrupted=last.get("stop_reason") == "user_canceled" or _is_cut(last),
            started=min(builder.times, default=None),
            ended=max(builder.times, default=None),
            end=end,
        )


def _is_cut(message: dict[str, Any]) -> bool:
    """Thinking that was stopped."""
    blocks = blocks_of(message)
    return bool(blocks) and blocks[-1].get("type") == "thinking" and blocks[-1].get("cut_off") is True
