"""JSON documents of any size: a session that is one document, a document that holds many sessions, and damaged ones.

`read_document` holds a document whole and takes it as far as it goes: of a list whose text breaks off, the elements
before that; of an object, the fields before it. `pieces` reads a document piece by piece, with memory for one piece.
`conversations` reads exports with many conversations one after another, each with what is to be kept of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from msgspec import Struct
from msgspec.structs import replace

from weft.exchange.importers.limits import SOURCE_LIMITS
from weft.exchange.importers.port import Report, Source
from weft.exchange.importers.records.jsonl import BOM, LINE_LIMIT, read_whole
from weft.exchange.importers.records.values import json_value
from weft.kernel.contents import bytes_text
from weft.kernel.errors import LimitExceeded
from weft.kernel.foreign_input import check_json

DEEPEST_LEVEL = 64
_NOTHING = object()
_blank = re.compile(r"[\s\0\ufeff]*")


class Document(Struct, frozen=True):
    """What a text says; `damage` tells what is wrong with it, if anything is."""

    value: Any
    damage: str | None = None


def read_document(data: bytes) -> Document:
    try:
        check_json(data, SOURCE_LIMITS)
    except LimitExceeded as error:  # nothing of it is parsed
        return Document(None, str(error))
    try:
        return Document(json_value(data))
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
        match = _blank.match(self._words, self._at)
        self._at = match.end() if match else self._at
        return self._words[self._at : self._at + 1]

    def _value(self, depth: int) -> tuple[Any, bool]:
        """The value that begins here, and whether it is whole."""
        letter = self._skip()
        try:
            value, self._at = self._decoder.raw_decode(self._words, self._at)
        except (ValueError, RecursionError):
            if letter in ("{", "[") and letter and depth < DEEPEST_LEVEL:
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
        values: list[Any] = []
        self._at += 1
        while self._goes_on("]"):
            value, is_whole = self._value(depth + 1)
            if is_whole:
                values.append(value)
        return values

    def _object(self, depth: int) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        self._at += 1
        while self._goes_on("}"):
            name, is_whole = self._value(DEEPEST_LEVEL)
            if not is_whole or not isinstance(name, str) or self._skip() != ":":
                self._is_over = True
                break
            self._at += 1
            value, _ = self._value(depth + 1)
            if value is not _NOTHING:
                fields[name] = value
        return fields


CHUNK = 1 << 20
MOST_ATTEMPTS = 64
"""So often a document that goes wrong to its end is taken up again."""
TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{},:]|"', re.DOTALL)
"""Whole strings and signs; a quote alone is a string whose end is not read yet."""
NESTING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{}]|"', re.DOTALL)
QUOTE, COMMA, COLON = b'",:'
OPENING, CLOSING = frozenset(b"[{"), frozenset(b"]}")
SPACE = b" \t\r\n"


class Piece(Struct, frozen=True):
    """A value of the document: where it lies, and its bytes. `name` is that of an object's member."""

    offset: int
    end: int
    data: bytes
    name: str | None = None
    value: Any = None
    is_whole: bool = True
    """False: it cannot be read, since the document ends or goes wrong within it. Its bytes go up to where the document
    is taken up again, at most."""


def pieces(path: Path, inside: str | None = None, sign: re.Pattern[bytes] | None = None) -> Iterator[Piece]:
    """The elements of a document that is a list, or of the member `inside` of one that is an object; in the latter
    case its other members too, by name. `sign` tells where an element may begin (its first group): a document that goes
    wrong is taken up again there."""
    with path.open("rb") as file:
        scan, attempts = _Scan(file, inside, 0), 0
        while True:
            broken = None
            for piece in scan.run():
                try:
                    value = json_value(piece.data) if piece.is_whole else None
                except ValueError:
                    broken = piece
                    break
                if not piece.is_whole:
                    broken = piece
                    break
                yield replace(piece, value=value)
            stopped = scan.stopped if broken is None else broken.offset + 1
            is_resumed, attempts = attempts > 0, attempts + (broken is not None and not broken.is_whole)
            goes_on = sign is not None and attempts <= MOST_ATTEMPTS and (broken is not None or is_resumed)
            at = _next_sign(file, stopped, sign) if sign is not None and goes_on else None
            if broken is not None:
                end = broken.end if at is None else min(at, broken.end)
                data = broken.data[: end - broken.offset]
                yield Piece(broken.offset, end, data, broken.name, is_whole=False)
            if at is None:
                return
            scan, attempts = _Scan(file, inside, at), max(attempts, 1)


def _next_sign(file: BinaryIO, at: int, sign: re.Pattern[bytes]) -> int | None:
    """A sign may lie across two chunks, so each is looked at together with the end of the one before."""
    kept, at = b"", max(at - 1, 0)
    file.seek(at)
    while chunk := file.read(CHUNK):
        window = kept + chunk
        if (match := sign.search(window, 1 if not kept else 0)) is not None:
            return at - len(kept) + match.start(1)
        kept, at = window[-256:], at + len(chunk)
    return None


class _Scan:
    """One walk over the file's signs. `level` is how deep the pieces lie."""

    def __init__(self, file: BinaryIO, inside: str | None, start: int) -> None:
        """From the beginning, or from where an element begins."""
        self._file, self._inside, self._from = file, inside, start
        self._buffer, self._base = b"", 0
        self._depth, self._level = 0, 1
        self._in_object = False
        self._start: int | None = None
        self._name: str | None = None
        self._last_string = b""
        self._is_over = False
        self._at = 0

    @property
    def stopped(self) -> int:
        """Where it is."""
        return self._base + self._at

    def run(self) -> Iterator[Piece]:
        self._file.seek(self._from)
        head = self._file.read(CHUNK)
        skipped = len(BOM) if not self._from and head.startswith(BOM) else 0
        self._base, self._buffer = self._from + skipped, head[skipped:]
        if self._from:  # as if the elements' list had just been entered here
            self._depth = self._level = 1 if self._inside is None else 2
            self._start = self._from
        yield from self._walk()

    def _walk(self) -> Iterator[Piece]:
        at, chunk, waited = 0, CHUNK, -1
        while not self._is_over:
            at, is_waiting, piece = self._deep(at) if self._depth > self._level else self._shallow(at)
            self._at = at
            if piece is not None:
                yield piece
            if self._is_over or (at < len(self._buffer) and not is_waiting):
                continue
            place = self._base + at
            chunk = chunk * 2 if is_waiting and place == waited else CHUNK  # a long string is not looked at too often
            at = self._at = self._forget(at)
            waited = place
            if not self._fill(chunk):
                break
        if not self._is_over:
            yield from self._rest()

    def _deep(self, at: int) -> tuple[int, bool, Piece | None]:
        """Inside a piece: on to its end, or that of what is read. Gives where, and whether a string waits there."""
        buffer, depth, level = self._buffer, self._depth, self._level
        for match in NESTING.finditer(buffer, at):
            sign = buffer[match.start()]
            if sign in OPENING:
                depth += 1
            elif sign in CLOSING:
                depth -= 1
                if depth == level:
                    self._depth = depth
                    return match.end(), False, None
            elif match.end() - match.start() == 1:
                self._depth = depth
                return match.start(), True, None
        self._depth = depth
        return len(buffer), False, None

    def _shallow(self, at: int) -> tuple[int, bool, Piece | None]:
        """Between pieces: on to the end of one, or into one."""
        for match in TOKEN.finditer(self._buffer, at):
            at, sign = match.start(), self._buffer[match.start()]
            if match.end() - at == 1 and sign == QUOTE:
                return at, True, None
            piece = self._sign(sign, match)
            if piece is not None or self._is_over or self._depth > self._level:
                return match.end(), False, piece
        return len(self._buffer), False, None

    def _sign(self, sign: int, match: re.Match[bytes]) -> Piece | None:
        """One token; the piece that ends with it, if any does."""
        depth = self._depth
        if sign == QUOTE:
            if depth == self._level and self._in_object and self._name is None:
                self._last_string = match.group()
            return None
        if sign in OPENING:
            self._depth += 1
            self._open(sign, depth, match.end())
            return None
        if depth < self._level:  # outside of the document
            return None
        if sign == COLON:
            if self._in_object and self._name is None:
                self._name, self._start = _text(self._last_string), self._base + match.end()
            return None
        return self._close(sign, match)

    def _open(self, sign: int, depth: int, after: int) -> None:
        if depth == 0:
            self._in_object = sign == b"{"[0]
            self._start = None if self._in_object else self._base + after
        elif depth == self._level == 1 and self._in_object and self._name == self._inside and sign == b"["[0]:
            self._level, self._in_object = 2, False
            self._start = self._base + after

    def _close(self, sign: int, match: re.Match[bytes]) -> Piece | None:
        """A comma or a bracket at the level of the pieces."""
        piece = self._piece(match.start())
        if sign == COMMA:
            self._name, self._start = None, None if self._in_object else self._base + match.end()
            return piece
        self._depth -= 1
        if self._level == 2:
            self._level, self._in_object, self._start = 1, True, None
            self._name = ""  # the list is a member whose elements were told
        else:
            self._is_over = True
        return piece

    def _piece(self, end: int, is_whole: bool = True) -> Piece | None:
        if self._start is None or (self._in_object and self._name is None):
            return None
        data = self._buffer[self._start - self._base : end]
        lead = len(data) - len(data.lstrip(SPACE))
        kept = data.strip(SPACE)
        if not kept:
            return None
        offset = self._start + lead
        name = self._name if self._in_object else None
        return Piece(offset, offset + len(kept), kept, name, is_whole=is_whole)

    def _forget(self, at: int) -> int:
        """What no piece under way needs."""
        needed = at if self._start is None else min(at, max(self._start - self._base, 0))
        self._buffer, self._base = self._buffer[needed:], self._base + needed
        return at - needed

    def _fill(self, size: int) -> bool:
        if len(self._buffer) > LINE_LIMIT:
            return False
        more = self._file.read(size)
        self._buffer += more
        return bool(more)

    def _rest(self) -> Iterator[Piece]:
        """What has no end."""
        piece = self._piece(len(self._buffer), is_whole=False)
        if piece is not None:
            yield piece


def _text(string: bytes) -> str:
    try:
        return str(json_value(string))
    except ValueError:
        return string.decode(errors="replace")


class Conversation(Struct, frozen=True):
    """One conversation of an export: what it says, and its bytes."""

    value: dict[str, Any]
    data: bytes


def conversations(
    source: Source, report: Report, sign: re.Pattern[bytes], is_one: Callable[[dict[str, Any]], bool], inside: str
) -> Iterator[Conversation]:
    """Those of a document that is a list of them, one of them, or an object that has the list as its member. What is
    damaged is kept with the conversation before it."""
    held: Conversation | None = None
    spoiled = b""
    for piece in _conversation_pieces(source, sign, is_one, inside):
        if isinstance(piece.value, dict):
            if held is not None:
                yield Conversation(held.value, held.data + spoiled)
                spoiled = b""
            held = Conversation(piece.value, piece.data)
            continue
        report.found += 1
        report.damaged += 1
        report.problem(None, f"what lies from byte {piece.offset} to {piece.end} is no conversation that can be read")
        spoiled += b"\n" + piece.data
    if held is not None:
        yield Conversation(held.value, held.data + spoiled)


def _conversation_pieces(
    source: Source, sign: re.Pattern[bytes], is_one: Callable[[dict[str, Any]], bool], inside: str
) -> Iterator[Piece]:
    if source.head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
        whole = read_whole(source) if source.size <= LINE_LIMIT else b""
        try:
            value = json_value(whole)
        except ValueError:
            value = None
        if isinstance(value, dict) and is_one(value):
            yield Piece(0, len(whole), whole, value=value)
            return
    for piece in pieces(source.path, inside, sign):
        if piece.name is None or not piece.is_whole:
            yield piece
