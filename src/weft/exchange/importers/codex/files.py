"""From a file to its entries, whichever generation it is of."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from weft.exchange.importers.codex.kinds import EVENTS, ITEMS, TOP, Entry, Sort, entry_of, item_entry
from weft.exchange.importers.jsonl import BOM, LINE_LIMIT, Reached, first_objects, records
from weft.exchange.importers.port import Report, Source
from weft.exchange.importers.values import mapping, sequence, text

_EXACT = ("utf-8", "surrogateescape")
_GENERATION_A = re.compile(rb'\s*\{\s*"(?:session|items)"\s*:\s*[{\[]')
_CUT_META = re.compile(rb'\{[^{}]{0,200}"type"\s*:\s*"session_meta"[^{}]{0,200}"payload"\s*:\s*\{')
_ITEM_SIGNS = {
    "message": lambda item: isinstance(item.get("role"), str) and _has_blocks(item.get("content")),
    "reasoning": lambda item: "summary" in item,
}


def _has_blocks(content: Any) -> bool:
    kinds = ("input_text", "output_text", "input_image")
    return any(mapping(block).get("type") in kinds for block in sequence(content))


def is_rollout(head: bytes) -> bool:
    """Does a file that begins like this hold a session of Codex?"""
    if is_generation_a(head):
        return True
    objects = first_objects(head)
    if not objects:
        return _CUT_META.match(head.removeprefix(BOM)) is not None
    if any(each.get("type") == "session_meta" and isinstance(each.get("payload"), dict) for each in objects):
        return True
    return sum(map(_is_sign, objects)) * 2 >= len(objects)


def is_generation_a(head: bytes) -> bool:
    """`{"session": {"id", "timestamp", "instructions"}, "items": [...]}`; long instructions may hide the items."""
    start = head.removeprefix(BOM)
    if _GENERATION_A.match(start) is None:
        return False
    items = re.search(rb'"items"\s*:\s*\[', start)
    return items is not None or re.search(rb'"instructions"\s*:\s*"', start[:400]) is not None


def _is_sign(record: dict[str, Any]) -> bool:
    top, payload = text(record.get("type")), record.get("payload")
    if isinstance(payload, dict):
        if top == "event_msg":
            return text(payload.get("type")) in EVENTS or payload.get("type") == "item_completed"
        return top in TOP or (top == "response_item" and ("role" in payload or text(payload.get("type")) in ITEMS))
    if top is None:
        return record.get("record_type") == "state" or {"id", "timestamp", "instructions"} <= record.keys()
    if top in _ITEM_SIGNS:
        return _ITEM_SIGNS[top](record)
    return top == "response_item" or (top in ITEMS and ("call_id" in record or "action" in record))


def entries(source: Source, report: Report, reached: Reached) -> Iterator[Entry]:
    """All of them, or those of the lines behind the place that was reached."""
    if is_generation_a(source.head):
        reached.is_torn = True
        yield from _of_one_object(source, report)
        return
    for record in records(source, report, reached):
        yield entry_of(record.line, record.offset, record.end, record.value)


def _of_one_object(source: Source, report: Report) -> Iterator[Entry]:
    """Generation A. Values are decoded one by one, so that a cut or damaged file gives all that is whole in it."""
    with source.path.open("rb") as file:
        data = file.read(LINE_LIMIT)
    scanner = _Scanner(data.removeprefix(BOM).decode(*_EXACT), len(data) - len(data.removeprefix(BOM)))
    try:
        for name, line, start, end, value in scanner.members():
            report.found += 1
            if not isinstance(value, dict):
                report.damaged += 1
                report.problem(line, f"a JSON {type(value).__name__} as {name}, not an object")
            elif name == "session":
                yield Entry(line, start, end, "session", Sort.META, "session", value, at=value.get("timestamp"))
            else:
                yield item_entry(line, start, end, value)
    except (ValueError, RecursionError) as error:
        report.found += 1
        report.damaged += 1
        report.problem(None, f"not JSON to its end: {error!s:.200}")


class _Scanner:
    """Walks `{"session": …, "items": [ … ]}` value by value, with the place of each in the file's bytes."""

    def __init__(self, text: str, skipped: int) -> None:
        self._text, self._at = text, 0
        self._decoder = json.JSONDecoder(parse_constant=str)
        self._known_at, self._known_byte, self._known_line = 0, skipped, 1

    def members(self) -> Iterator[tuple[str, int, int, int, Any]]:
        """Name, line, where it begins and ends, and value of the session and of each item."""
        self._take("{")
        while not self._ends("}"):
            name = self._value()[3]
            self._take(":")
            if name == "items" and self._peek() == "[":
                self._take("[")
                while not self._ends("]"):
                    yield "items", *self._value()
            elif name == "session":
                yield "session", *self._value()
            else:
                self._value()

    def _value(self) -> tuple[int, int, int, Any]:
        self._peek()
        start = self._byte(self._at)
        line = self._known_line
        value, self._at = self._decoder.raw_decode(self._text, self._at)
        return line, start, self._byte(self._at), value

    def _byte(self, at: int) -> int:
        passed = self._text[self._known_at : at]
        self._known_line += passed.count("\n")
        self._known_byte += len(passed.encode(*_EXACT))
        self._known_at = at
        return self._known_byte

    def _peek(self) -> str:
        while self._text[self._at : self._at + 1].isspace():
            self._at += 1
        return self._text[self._at : self._at + 1]

    def _take(self, sign: str) -> None:
        if self._peek() != sign:
            raise ValueError(f"{sign!r} expected at character {self._at}, found {self._peek()!r}")
        self._at += 1

    def _ends(self, bracket: str) -> bool:
        """Past the comma before another member, or past the bracket at the end."""
        if self._peek() == ",":
            self._at += 1
        if self._peek() != bracket:
            return False
        self._at += 1
        return True
