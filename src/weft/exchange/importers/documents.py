"""One JSON document that holds a whole session, read also where it is cut or damaged: as far as it goes.

Of a list whose text breaks off, the elements before that are taken; of an object, the fields before it. A document with
many sessions, which may be larger than memory, is read piece by piece: `pieces.py`.
"""

from __future__ import annotations

import json
import re
from typing import Any

from msgspec import Struct

from weft.exchange.importers.loading import loaded
from weft.exchange.importers.port import Report
from weft.kernel.contents import bytes_text

DEEPEST = 64
_NOTHING = object()
_space = re.compile(r"[\s\0\ufeff]*")


class Document(Struct, frozen=True):
    """What a text says; `damage` tells what is wrong with it, if anything is."""

    value: Any
    damage: str | None = None


def read_document(data: bytes) -> Document:
    try:
        return Document(loaded(data))
    except ValueError as error:
        return Document(_Prefix(bytes_text(data)).read(), str(error))


def report_damage(document: Document, report: Report) -> None:
    """A damaged document counts as one damaged record, beside those that could be read of it."""
    if document.damage is not None:
        report.found += 1
        report.damaged += 1
        report.problem(None, f"the document is damaged: {document.damage}"[:300])


class _Prefix:
    """Reads as much of a broken text as can be."""

    def __init__(self, words: str) -> None:
        self._words, self._at, self._is_over = words, 0, False
        self._decoder = json.JSONDecoder(parse_constant=str, strict=False)

    def read(self) -> Any:
        value, _ = self._value(0)
        return None if value is _NOTHING else value

    def _skip(self) -> str:
        """The next letter that says something."""
        match = _space.match(self._words, self._at)
        self._at = match.end() if match else self._at
        return self._words[self._at : self._at + 1]

    def _value(self, depth: int) -> tuple[Any, bool]:
        """The value that begins here, and whether it is whole."""
        letter = self._skip()
        try:
            value, self._at = self._decoder.raw_decode(self._words, self._at)
        except (ValueError, RecursionError):
            if letter in ("{", "[") and letter and depth < DEEPEST:
                value = self._object(depth) if letter == "{" else self._list(depth)
                return value, not self._is_over
            self._is_over = True
            return _NOTHING, False
        return value, True

    def _goes_on(self, end: str) -> bool:
        """Does another element follow?"""
        letter = "" if self._is_over else self._skip()
        if letter == ",":
            self._at += 1
            letter = self._skip()
        if letter == end:  # only a comma was missing, or too many
            self._at += 1
            return False
        self._is_over = not letter
        return not self._is_over

    def _list(self, depth: int) -> list[Any]:
        found: list[Any] = []
        self._at += 1
        while self._goes_on("]"):
            value, is_whole = self._value(depth + 1)
            if is_whole:
                found.append(value)
        return found

    def _object(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        self._at += 1
        while self._goes_on("}"):
            name, is_whole = self._value(DEEPEST)
            if not is_whole or not isinstance(name, str) or self._skip() != ":":
                self._is_over = True
                break
            self._at += 1
            value, _ = self._value(depth + 1)
            if value is not _NOTHING:
                found[name] = value
        return found
