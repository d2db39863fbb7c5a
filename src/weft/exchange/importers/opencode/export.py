"""What `opencode export` writes: one JSON document, `{info, messages: [{info, parts}]}`; version 2 gives its messages
as they are, `{info, messages: [{id, type, …}]}`.

The document is read into memory once; its messages stay unread bytes of it until they are mapped. One that is cut or
damaged is taken as far as it goes.
"""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

from weft.exchange.importers.limits import SOURCE_LIMITS
from weft.exchange.importers.opencode.rows import MessageRow, Row, Session
from weft.exchange.importers.opencode.versions import SETTINGS, Reshaped, Version2, is_known
from weft.exchange.importers.port import Report
from weft.exchange.importers.records.jsonl import BOM
from weft.exchange.importers.records.values import canonical, json_object, json_value, mapping, sequence, text
from weft.kernel.foreign_input import check_json

ANNOUNCED = re.compile(rb"\s*Exporting session: [^{]{0,200}(?=\{)")
KEY = re.compile(r'"(info|messages)"\s*:\s*')
KNOWN = frozenset({"info", "messages", "todos"})


class _Message(Struct):
    info: Raw
    parts: list[Raw] = field(default_factory=list)


class _Kind(Struct):
    type: Any = None
    info: Raw | UnsetType = UNSET


_kinds = msgspec.json.Decoder(list[_Kind])
_document = msgspec.json.Decoder(dict[str, Raw])
_messages = msgspec.json.Decoder(list[_Message])
_list = msgspec.json.Decoder(list[Raw])


def read_export(data: bytes, report: Report) -> Session:
    """Raises LimitExceeded for one that would take too much memory."""
    check_json(data, SOURCE_LIMITS)
    try:
        document = _sections(data.removeprefix(BOM)[announced(data.removeprefix(BOM)) :])
        info = json_value(document["info"]) if "info" in document else None
        session = Session(info=mapping(info), has_record=isinstance(info, dict))
        _take_messages(session, document.get("messages", Raw(b"[]")), data, report)
        session.todos = sequence(json_value(document["todos"])) if "todos" in document else []
    except (ValueError, RecursionError) as error:
        return _recovered(data, report, str(error))
    if info is not None and not session.has_record:
        _damaged(report, f"the session's info is a JSON {type(info).__name__}")
    for name in document.keys() - KNOWN:
        session.keep(f"export.{name}", is_unknown=True)
    return session


def announced(data: bytes) -> int:
    """How much stands before the document: releases before 1.2 said there what they exported."""
    match = ANNOUNCED.match(data)
    return match.end() if match else 0


def _take_messages(session: Session, raw: Raw, data: bytes, report: Report) -> None:
    newer = _newer(raw)
    if newer is None:
        session.messages = _rows(raw, report)
        _place(data, session.messages)
        return
    folder = mapping(session.info.get("location")).get("directory")
    session.info.setdefault("directory", folder)
    _reshape(session, newer, data)


def _newer(raw: Raw) -> list[Raw] | list[bytes] | None:
    """The messages of version 2: none of them has an info."""
    try:
        kinds = _kinds.decode(raw)
    except (ValueError, RecursionError):
        return None
    is_newer = any(isinstance(kind.type, str) for kind in kinds) and all(kind.info is UNSET for kind in kinds)
    return _each(raw) if is_newer else None


def _reshape(session: Session, raws: list[Raw] | list[bytes], data: bytes) -> None:
    taker, at = Version2(), 0
    drafted: list[tuple[MessageRow, Reshaped]] = []
    for raw in raws:
        at = max(data.find(raw, at), at)
        value = mapping(json_value(raw))
        kind = text(value.get("type")) or "none"
        made = taker.take(kind, text(value.get("id")), value)
        if made is None:
            session.count(kind, kind in SETTINGS, is_known(kind))
            continue
        parts = [Row(canonical(part)) for part in made.parts]
        drafted.append((MessageRow(Row(b""), parts, at, at + len(raw)), made))
        at += len(raw)
    for message, made in drafted:
        message.row = Row(canonical(made.info))
    session.messages = [message for message, _ in drafted]
    if session.messages:
        session.messages[-1].end = len(data)


def _sections(data: bytes) -> dict[str, Raw]:
    """The document's values, unread where the quick reader takes it: it refuses lone surrogates, for one."""
    try:
        return _document.decode(data)
    except (ValueError, RecursionError):
        return {name: Raw(canonical(value)) for name, value in json_object(data).items()}


def _damaged(report: Report, what: str) -> None:
    report.found += 1
    report.damaged += 1
    report.problem(None, what)


def _rows(raw: Raw, report: Report) -> list[MessageRow]:
    try:
        return [MessageRow(Row(each.info), [Row(part) for part in each.parts]) for each in _messages.decode(raw)]
    except (ValueError, RecursionError):  # one of them has another shape than it should
        rows = [_row(each, report) for each in _each(raw)]
        return [row for row in rows if row is not None]


def _each(raw: Raw) -> list[Raw] | list[bytes]:
    try:
        return _list.decode(raw)
    except (ValueError, RecursionError):
        messages = json_value(raw)
        if not isinstance(messages, list):
            raise ValueError(f"its messages are a JSON {type(messages).__name__}") from None
        return [canonical(message) for message in messages]


def _row(raw: Raw | bytes, report: Report) -> MessageRow | None:
    """What of an odd message is a message and its parts."""
    try:
        value = mapping(json_value(raw))
    except ValueError:
        value = {}
    if "info" not in value:
        _damaged(report, "a message has no info")
        return None
    parts = value.get("parts")
    rows = parts if isinstance(parts, list) else [] if parts is None else [parts]
    return MessageRow(Row(canonical(value["info"])), [Row(canonical(part)) for part in rows])


def _place(data: bytes, messages: list[MessageRow]) -> None:
    """Where each begins; it ends where the next one does."""
    at = 0
    for message in messages:
        if isinstance(message.row.data, Raw):  # else it was put right, and its bytes are not these
            at = max(data.find(message.row.data, at), at)
        message.offset = max(data.rfind(b"{", 0, at), 0)
    for message, after in pairwise(messages):
        message.end = after.offset
    if messages:
        messages[-1].end = len(data)


def _recovered(data: bytes, report: Report, why: str) -> Session:
    """As much as can be read of a document that is no JSON as a whole."""
    words = data.decode("utf-8", "surrogateescape")
    session = Session(info={}, has_record=False)
    reader = json.JSONDecoder(parse_constant=str, strict=False)
    at = 0
    for name in ("info", "messages"):
        match = next((match for match in KEY.finditer(words, at) if match[1] == name), None)
        if match is None:
            continue
        if name == "messages":
            _recover_messages(session, words, match.end(), reader, report)
            break
        try:
            info, at = reader.raw_decode(words, match.end())
        except (ValueError, RecursionError):
            continue
        session.info, session.has_record = mapping(info), isinstance(info, dict)
    _damaged(report, f"the document is damaged: {why}"[:300])
    return session


def _recover_messages(session: Session, words: str, at: int, reader: json.JSONDecoder, report: Report) -> None:
    offset = _size(words[:at])
    while at < len(words):
        while at < len(words) and words[at] in " \t\r\n,[":
            at, offset = at + 1, offset + 1
        try:
            value, end = reader.raw_decode(words, at)
        except (ValueError, RecursionError):
            return
        size = _size(words[at:end])
        if (row := _row(canonical(value), report)) is not None:
            row.offset, row.end = offset, offset + size
            session.messages.append(row)
        at, offset = end, offset + size


def _size(words: str) -> int:
    return len(words.encode("utf-8", "surrogateescape"))
