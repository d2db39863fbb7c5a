"""Rows of a database as JSON lines: what is kept verbatim of a container that holds more than one session."""

from __future__ import annotations

import base64
from io import BytesIO
from typing import Any

import msgspec
from msgspec import Raw

from weft.exchange.importers.values import canonical

_json = msgspec.json.Decoder(Raw)


class Lines:
    """One line a row: its key, other columns, and its JSON to the letter; what is no JSON stands there as base64."""

    def __init__(self) -> None:
        self._file = BytesIO()
        self.count = 0

    def add(self, key: str, data: bytes | None, **columns: Any) -> int:
        """The number of this row among those that were added."""
        head = canonical({"key": key, **{name: value for name, value in columns.items() if value is not None}})[:-1]
        shown = b"null" if data is None else _as_json(data)
        name = b"data" if shown is not None else b"bytes"
        self._file.write(head + b',"' + name + b'":')
        self._file.write(b'"' + base64.b64encode(data or b"") + b'"' if shown is None else shown)
        self._file.write(b"}\n")
        self.count += 1
        return self.count - 1

    def add_value(self, key: str, value: Any, **columns: Any) -> int:
        """A part of a row, as one line of its own."""
        return self.add(key, canonical(value), **columns)

    def finish(self) -> bytes:
        return self._file.getvalue()


def _as_json(data: bytes) -> bytes | None:
    """JSON on one line; line ends lie between its tokens only."""
    try:
        _json.decode(data)
    except (ValueError, RecursionError):
        return None
    return data.replace(b"\r", b" ").replace(b"\n", b" ")
