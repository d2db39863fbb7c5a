"""The rows of a session as JSON lines: what is kept of a container that holds more than one session or file.

Rows are read again from these lines, so that a session is in memory once.
"""

from __future__ import annotations

from io import BytesIO
from typing import Any

import msgspec
import orjson
from msgspec import Raw, Struct

from weft.exchange.importers.opencode.rows import MessageRow, Row

_json = msgspec.json.Decoder(Raw)


class Span(Struct, frozen=True):
    """Where a row's JSON lies in the lines; what is no JSON stands here itself."""

    start: int
    end: int
    id: str | None
    odd: bytes | None = None


class Drafted(Struct):
    """A message whose lines are written."""

    message: Span
    parts: list[Span]
    number: int
    """How many records stand before it."""


class Verbatim:
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

    def finish(self, drafted: list[Drafted]) -> tuple[bytes, list[MessageRow]]:
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
