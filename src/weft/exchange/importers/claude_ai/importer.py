"""Claude.ai: a data export, with all conversations in one document, each a tree of messages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from weft.exchange.importers.claude_ai.turns import ClaudeAiBuilder, blocks_of
from weft.exchange.importers.documents import Conversation, conversations
from weft.exchange.importers.port import NativeMessage, NativeSession, NativeTurn, Place, Report, Source, Transcript
from weft.exchange.importers.records.builder import finished_items
from weft.exchange.importers.records.jsonl import BOM
from weft.exchange.importers.records.values import canonical, json_value, mapping, millis, present, sequence, text
from weft.exchange.importers.trees import Part, PlannedBranch, Tree, ends_of, in_order, keys_of
from weft.kernel.enums import FileKind, MessageRole, MessageSource
from weft.ledger.model import FileNote, TextPart


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


def _message(native: str, words: str, at: int | None, **more: Any) -> NativeMessage:
    parts = (TextPart(words),) if words else ()
    return NativeMessage(role=MessageRole.SYSTEM, parts=parts, native=native, at=at, source=MessageSource.EVENT, **more)


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
SENDERS = {"human": Part.PROMPT, "user": Part.PROMPT, "assistant": Part.ANSWER}
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
        return any(is_conversation(mapping(each)) or is_project(mapping(each)) for each in listed)

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
    turns = messages.made(text(value.get("current_leaf_message_uuid")), len(conversation.data))
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

    def made(self, leaf: str | None, size: int) -> list[NativeTurn]:
        below: dict[str, list[str]] = {}
        for id, parent in self._parents.items():
            below.setdefault(parent or "", []).append(id)
        order = in_order(self._parents, lambda id: below.get(id, []))
        tree = Tree(whole_answers=True)
        for id in order:
            part = SENDERS.get(text(self._by_id[id].get("sender")) or "", Part.NOTHING)
            tree.add(id, self._parents[id], part)
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
            builder.take(self._by_id[id], self._name(id))
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
