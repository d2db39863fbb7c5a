"""Files of messages: one conversation as a document, many in a list, or lines that are messages or conversations.

It takes what no tool's own importer recognises. Nothing in such a file says which tool wrote it, so its ids are
not trusted: sessions and turns are known by what was said.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from weft.exchange.importers.documents import pieces, read_document, report_damage
from weft.exchange.importers.messages.conversations import (
    Conversation,
    conversation_of,
    conversations_in,
    is_message_list,
    session_id,
)
from weft.exchange.importers.messages.turns import SourceSpan, native_turns, read_messages
from weft.exchange.importers.port import NativeSession, Place, Report, Source, Transcript
from weft.exchange.importers.records.jsonl import BOM, Record, first_objects, read_whole, records
from weft.exchange.importers.records.values import fingerprint, present, text
from weft.ledger.dialects import is_api_message
from weft.ledger.model import NewMessage

LINES = frozenset({".jsonl", ".ndjson"})
LIST_BEGINS = re.compile(rb"\s*\[")


class Messages:
    origin = "messages"
    mapping = 1
    is_generic = True

    def places(self, home: Path, environment: Mapping[str, str]) -> list[Place]:
        """They lie wherever somebody saved them."""
        return []

    def recognises(self, source: Source) -> bool:
        head = source.head.removeprefix(BOM)
        if source.path.suffix in LINES:
            objects = first_objects(head, 4)
            return bool(objects) and (
                all(conversation_of(value) is not None for value in objects) or is_message_list(objects)
            )
        if head.lstrip()[:1] not in (b"{", b"["):
            return False
        value = read_document(head).value
        if conversation_of(value) is not None:
            return True
        first = next(conversations_in(value), None)
        return first is not None and conversation_of(first) is not None

    def is_part(self, source: Source) -> bool:
        return False

    def read(self, source: Source, report: Report) -> Iterator[Transcript]:
        if source.path.suffix in LINES:
            yield from _read_lines(source, report)
        elif LIST_BEGINS.match(source.head.removeprefix(BOM)):
            yield from _read_list(source, report)
        else:
            yield from _read_object(source, report)


def _read_lines(source: Source, report: Report) -> Iterator[Transcript]:
    """Conversations are given one by one; messages are one conversation together."""
    lines: list[Record] = []
    for record in records(source, report):
        if (conversation := conversation_of(record.value)) is not None:
            report.mapped["conversation"] += 1
            messages = read_messages(conversation.messages, report, counts=False, line=record.line)
            yield _one_of_many(conversation, messages, SourceSpan(record.offset, record.end))
        elif is_api_message(record.value):
            lines.append(record)
        else:
            report.kept["line"] += 1
            report.unknown["line"] += 1
    if lines:
        report.found -= len(lines)  # they are counted again, by their roles
        messages = read_messages((record.value for record in lines), report, counts=True)
        place = SourceSpan(lines[0].offset, lines[-1].end)
        yield _alone(Conversation([], {}), messages, place)


def _read_list(source: Source, report: Report) -> Iterator[Transcript]:
    """A list of conversations, or of the messages of one."""
    values: list[Any] = []
    for piece in pieces(source.path):
        report.budget.take_bytes(len(piece.data))
        if not piece.is_whole:
            report.found += 1
            report.damaged += 1
            report.problem(None, f"what lies from byte {piece.offset} to {piece.end} cannot be read")
        elif (conversation := conversation_of(piece.value)) is not None:
            report.found += 1
            report.mapped["conversation"] += 1
            messages = read_messages(conversation.messages, report, counts=False)
            yield _one_of_many(conversation, messages, SourceSpan(piece.offset, piece.end))
        else:
            values.append(piece.value)
    if values:
        messages = read_messages(values, report, counts=True)
        if messages:
            yield _alone(Conversation([], {}), messages, SourceSpan(0, source.size))


def _read_object(source: Source, report: Report) -> Iterator[Transcript]:
    document = read_document(read_whole(source))
    report_damage(document, report)
    place = SourceSpan(0, source.size)
    if (conversation := conversation_of(document.value)) is not None:
        yield _alone(conversation, read_messages(conversation.messages, report, counts=True), place)
        return
    for value in conversations_in(document.value):
        report.found += 1
        if (conversation := conversation_of(value)) is None:
            report.kept["entry"] += 1
            report.unknown["entry"] += 1
            continue
        report.mapped["conversation"] += 1
        yield _one_of_many(conversation, read_messages(conversation.messages, report, counts=False), place)


def _alone(conversation: Conversation, messages: list[NewMessage], place: SourceSpan) -> Transcript:
    """The only conversation of its source, which may still grow: it is known by its first turn."""
    turns = native_turns(messages, place, is_open=True, model=_model(conversation))
    return Transcript(session=_session(conversation, turns[0].key if turns else ""), turns=turns)


def _one_of_many(conversation: Conversation, messages: list[NewMessage], place: SourceSpan) -> Transcript:
    """One of the conversations of a source: known by all that it says."""
    turns = native_turns(messages, place, is_open=False, model=_model(conversation))
    records = [record.decode("utf-8", "replace") for turn in turns for record in turn.records]
    return Transcript(session=_session(conversation, fingerprint(records, 32)), turns=turns)


def _model(conversation: Conversation) -> str | None:
    return text(conversation.around.get("model"))


def _session(conversation: Conversation, beginning: Any) -> NativeSession:
    around = conversation.around
    return NativeSession(
        id=session_id(conversation, beginning),
        title=text(around.get("title")),
        created=conversation.created,
        metadata=present(id=conversation.id, source=text(around.get("source")), metadata=around.get("metadata")),
    )
