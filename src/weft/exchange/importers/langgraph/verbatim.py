"""A thread's rows to the letter, as JSON lines. Each checkpoint holds the whole list of messages again; here a message
stands once, and a list as what it keeps of the list before it and what follows: all rows come back from that.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import orjson

from weft.exchange.importers.langgraph.values import Stored
from weft.exchange.importers.lines import Lines

Columns = dict[str, Any]


class Verbatim:
    def __init__(self) -> None:
        self.lines = Lines()
        self._written: set[str] = set()
        self._before: list[str] = []

    def row(self, table: str, columns: Columns, data: bytes, listed: list[Stored] | None = None) -> None:
        """A row, whose `data` may hold a list of messages one after the other."""
        told: Columns = {name: value for name, value in columns.items() if value is not None}
        inner = b"".join(each.data for each in listed or ())
        at = data.find(inner) if inner else -1
        if at < 0 or listed is None:
            self.lines.add_value(table, {**told, "data": _packed(data)})
            return
        digests = [self._message(each.data) for each in listed]
        before = self._before
        keep = next((n for n, (a, b) in enumerate(zip(before, digests, strict=False)) if a != b), None)
        keep = min(len(before), len(digests)) if keep is None else keep
        self._before = digests
        parts = {
            "head": _packed(data[:at]),
            "keep": keep,
            "then": digests[keep:],
            "tail": _packed(data[at + len(inner) :]),
        }
        self.lines.add_value(table, {**told, **parts})

    def _message(self, data: bytes) -> str:
        digest = sha256(data).hexdigest()[:32]
        if digest not in self._written:
            self._written.add(digest)
            self.lines.add_value("message", {"digest": digest, "data": _packed(data)})
        return digest

    def finish(self) -> bytes:
        return self.lines.finish()


def rows_of(raw: bytes) -> Iterator[tuple[str, Columns, bytes]]:
    """Every row again: its table, its other columns, and its value to the letter."""
    messages: dict[str, bytes] = {}
    listed: list[str] = []
    for line in raw.splitlines():
        record = orjson.loads(line)
        table, told = record["key"], record["data"]
        if table == "message":
            messages[told["digest"]] = _unpacked(told["data"])
            continue
        if "data" in told:
            yield table, told, _unpacked(told.pop("data"))
            continue
        listed = [*listed[: told.pop("keep")], *told.pop("then")]
        head, tail = (_unpacked(told.pop(name)) for name in ("head", "tail"))
        yield table, told, head + b"".join(messages[each] for each in listed) + tail


def _packed(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _unpacked(told: str) -> bytes:
    return base64.b64decode(told)
