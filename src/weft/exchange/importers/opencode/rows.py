"""A session as rows, whichever of the three containers they come from.

Rows keep their JSON unread: an index takes from it what turns are made of, and each message is read when it is mapped.

The rows are kept as JSON lines, where a container holds more than one session or file.
"""

from __future__ import annotations

from io import BytesIO
from typing import Any

import msgspec
import orjson
from msgspec import Raw, Struct, field

from weft.exchange.importers.records.values import Json, canonical, json_value, text

HIDDEN = "REDACTED"
"""What a redacted export has for every id."""


class Row(Struct, frozen=True):
    """A message or a part; a database keeps its id beside the JSON, the other containers in it."""

    data: Json
    id: str | None = None


class MessageRow(Struct):
    """A message with its parts, and where it lies in the source."""

    row: Row
    parts: list[Row]
    offset: int = 0
    end: int = 0
    """Where it lies in the source: bytes of an export, else numbers of records."""


class Session(Struct):
    """One native session."""

    info: dict[str, Any]
    has_record: bool = True
    """There is a record of the session itself."""
    messages: list[MessageRow] = field(default_factory=list)
    todos: list[Any] = field(default_factory=list)
    mapped: dict[str, int] = field(default_factory=dict)
    """Records that are no messages and tell something of the session or its turns, by kind."""
    kept: dict[str, int] = field(default_factory=dict)
    """Records of this session that are told by the verbatim copy alone, by kind."""
    unknown: dict[str, int] = field(default_factory=dict)
    raw: bytes | None = None

    def count_mapped(self, kind: str) -> None:
        self.mapped[kind] = self.mapped.get(kind, 0) + 1

    def count(self, kind: str, is_mapped: bool, is_known: bool) -> None:
        """A row of version 2 that is no message."""
        if is_mapped:
            self.count_mapped(f"session_message.{kind}")
        else:
            self.keep(f"session_message.{kind}", is_unknown=not is_known)

    def keep(self, kind: str, is_unknown: bool) -> None:
        self.kept[kind] = self.kept.get(kind, 0) + 1
        if is_unknown:
            self.unknown[kind] = self.unknown.get(kind, 0) + 1


class _Info(Struct):
    id: Any = None
    role: Any = None
    parentID: Any = None  # noqa: N815 - as opencode spells it
    summary: Raw = Raw(b"null")
    begins: Any = None


class _Part(Struct):
    type: Any = None
    ignored: Any = None


class Head(Struct, frozen=True):
    """What the index knows of a message."""

    id: str | None
    role: str
    parent: str | None
    is_summary: bool
    compacts: bool = False
    is_notice: bool = False
    """A user's message that the model was not shown: a plugin tells the person something."""
    begins: bool | None = None
    """Whether a turn begins with it, where its place among the others tells and not what it names."""


_info = msgspec.json.Decoder(_Info)
_part = msgspec.json.Decoder(_Part)


def head_of(message: MessageRow) -> Head | None:
    """None: this is no message."""
    info = _decoded(_info, message.row)
    if info is None:
        return None
    role = text(info.role) or ""
    kinds = [part for each in message.parts if (part := _decoded(_part, each)) is not None] if role == "user" else []
    return Head(
        id=message.row.id or text(info.id),
        role=role,
        parent=text(info.parentID),
        is_summary=role == "assistant" and bytes(info.summary).strip() == b"true",
        compacts=any(part.type == "compaction" for part in kinds),
        is_notice=bool(kinds) and all(part.type == "text" and part.ignored is True for part in kinds),
        begins=info.begins if isinstance(info.begins, bool) else None,
    )


def _decoded(decoder: msgspec.json.Decoder[Any], row: Row) -> Any:
    try:
        return decoder.decode(row.data)
    except (ValueError, RecursionError):
        return _slowly(decoder.type, row)


def _slowly(kind: type[Struct], row: Row) -> Any:
    """By the patient reader, for JSON that the quick one refuses."""
    try:
        value = json_value(row.data)
    except ValueError:
        return None
    if not isinstance(value, dict):
        return None
    known: dict[str, Any] = {name: value[name] for name in kind.__struct_fields__ if name in value}
    if "summary" in known:
        known["summary"] = Raw(canonical(known["summary"]))
    return kind(**known)


_json = msgspec.json.Decoder(Raw)


class Span(Struct, frozen=True):
    """Where a row's JSON lies in the lines; what is no JSON stands here itself."""

    start: int
    end: int
    id: str | None
    odd: bytes | None = None


class RowDraft(Struct):
    """A message whose lines are written."""

    message: Span
    parts: list[Span]
    number: int
    """How many records stand before it."""


class Verbatim:
    """The records that were read, written one after the other as lines to be kept."""

    def __init__(self) -> None:
        self._file = BytesIO()
        self.count = 0

    def add(self, kind: str, id: str | None, data: bytes, **columns: Any) -> Span:
        self.count += 1
        head = orjson.dumps({"kind": kind, "id": id, **columns}, default=str)[:-1]
        is_json = _is_json(data)
        shown = data if is_json else orjson.dumps(data.decode(errors="replace"))
        self._file.write(head)
        self._file.write(b',"data":')
        start = self._file.tell()
        self._file.write(shown.replace(b"\r", b" ").replace(b"\n", b" "))
        end = self._file.tell()
        self._file.write(b"}\n")
        return Span(start, end, id, None if is_json else data)

    def finish(self, drafted: list[RowDraft]) -> tuple[bytes, list[MessageRow]]:
        raw = self._file.getvalue()
        view = memoryview(raw)
        rows = [
            MessageRow(
                _row(view, each.message),
                [_row(view, part) for part in each.parts],
                each.number,
                each.number + 1 + len(each.parts),
            )
            for each in drafted
        ]
        return raw, rows


def _is_json(data: bytes) -> bool:
    try:
        _json.decode(data)
    except (ValueError, RecursionError):
        return False
    return True


def _row(view: memoryview, span: Span) -> Row:
    return Row(view[span.start : span.end] if span.odd is None else span.odd, span.id)
