"""JSON lines as tools really leave them: glued, cut, oversized or badly encoded lines harm no others.

`records` gives each object with where it lies, so that an importer can index a file in one pass, keeping only ids and
places, and read a turn's records again when it maps them: memory then does not grow with the file.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import orjson
from msgspec import Struct

from weft.exchange.importers.limits import SOURCE_LIMITS
from weft.exchange.importers.port import Report, Source
from weft.exchange.importers.records.values import json_fault
from weft.kernel.errors import LimitExceeded
from weft.kernel.foreign_input import check_json

LINE_LIMIT = SOURCE_LIMITS.held_bytes
BOM = b"\xef\xbb\xbf"
FILE_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""A pipe or a device is opened without waiting for it, and then refused."""


class FileRefused(OSError):
    """A file that is not read: a link beside a source, no regular file, or too large."""


def regular_descriptor(path: Path) -> int:
    """Of a file that somebody named, links followed; refused if it is a pipe, a device or a folder."""
    return checked_regular(os.open(path, FILE_FLAGS))


def checked_regular(descriptor: int) -> int:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileRefused(errno.EINVAL, "it is no regular file")
    return descriptor


class Record(Struct, frozen=True):
    """One JSON object of a source: its line, its bytes from `offset` to `end`, and what it says."""

    line: int
    offset: int
    end: int
    value: dict[str, Any]


class Reached(Struct):
    """How far a file was read, in whole lines: a later reading can go on there."""

    offset: int = 0
    lines: int = 0
    is_torn: bool = False
    """What came of a last line without an end was taken, too: whoever went on here would take it twice."""


def records(source: Source, report: Report, reached: Reached | None = None) -> Iterator[Record]:
    """Every object of the file in order, or those behind the place that was `reached`, which moves along. An unfinished
    last line is left for the next time, and so is what was written since the source was opened."""
    reached = Reached() if reached is None else reached
    with source.path.open("rb") as file:
        file.seek(reached.offset)
        for number, offset, line in _lines(file, source.size, report, reached):
            found, is_last = report.found, not line.endswith(b"\n")
            yield from _objects(number, offset, line, report, is_last)
            reached.is_torn |= is_last and report.found > found


def _lines(file: BinaryIO, until: int, report: Report, reached: Reached) -> Iterator[tuple[int, int, bytes]]:
    offset, number = reached.offset, reached.lines
    while line := file.readline(min(LINE_LIMIT, max(until - offset, 0))):
        number += 1
        start, offset, is_whole = offset, offset + len(line), line.endswith(b"\n")
        if len(line) == LINE_LIMIT and not is_whole:
            skipped, is_whole = _skip_line(file, until - offset)
            offset += skipped
            reached.is_torn |= not is_whole
            report.found += 1
            report.damaged += 1
            report.problem(number, f"a line of {offset - start} bytes; {LINE_LIMIT} are taken at most")
            line = b""
        if is_whole:
            reached.offset, reached.lines = offset, number
        if line.strip(b" \t\r\n\0"):
            yield number, start, line


def _skip_line(file: BinaryIO, size: int) -> tuple[int, bool]:
    """How many of the next bytes belong to the line at hand, and whether it ends among them."""
    skipped = 0
    while rest := file.readline(min(1 << 20, max(size - skipped, 0))):
        skipped += len(rest)
        if rest.endswith(b"\n"):
            return skipped, True
    return skipped, False


def _objects(number: int, offset: int, line: bytes, report: Report, is_last: bool) -> Iterator[Record]:
    try:
        check_json(line, SOURCE_LIMITS)
        value = orjson.loads(line)
    except LimitExceeded as error:
        report.found += 1
        report.damaged += 1
        report.problem(number, str(error))
        return
    except orjson.JSONDecodeError:
        yield from _recovered(number, offset, line, report, is_last)
        return
    report.found += 1
    if isinstance(value, dict):
        yield Record(number, offset, offset + len(line), value)
    else:
        report.damaged += 1
        report.problem(number, f"a JSON {type(value).__name__}, not an object")


def _recovered(number: int, offset: int, line: bytes, report: Report, is_last: bool) -> Iterator[Record]:
    """What a strict reader refuses: objects glued together, bytes that are not UTF-8, lone surrogates, NaN."""
    text, line_start = _text(number, line, report), offset
    at, passed = _next_value(text, 0), 0
    while at < len(text):
        start = offset + _size(text[passed:at])
        passed = at
        try:
            value, after = _decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            if is_last and _looks_cut(error):
                report.open_tail = True
                return
            report.found += 1
            report.damaged += 1
            report.problem(number, f"not JSON from byte {start - line_start} on: {json_fault(error)}")
            return
        report.found += 1
        offset, passed = start + _size(text[at:after]), after
        at = _next_value(text, after)
        if isinstance(value, dict):
            yield Record(number, start, offset, value)
        else:
            report.damaged += 1
            report.problem(number, f"a JSON {type(value).__name__}, not an object")


_EXACT = ("utf-8", "surrogateescape")


def _text(number: int, line: bytes, report: Report) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        report.problem(
            number, f"not UTF-8 at byte {error.start}; its bytes are kept, shown with replacement characters"
        )
        return line.decode(*_EXACT)


def _size(text: str) -> int:
    return len(text.encode(*_EXACT))


def _next_value(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n\0\ufeff":
        at += 1
    return at


def _looks_cut(error: Exception) -> bool:
    """Did the text end where more was expected?"""
    if not isinstance(error, json.JSONDecodeError):
        return False
    unterminated = error.msg.startswith("Unterminated")
    return unterminated or not error.doc[error.pos :].strip() or len(error.doc) - error.pos < 8


def _constant(name: str) -> str:
    """NaN and the infinities have no place in JSON; they stay as their names."""
    return name


_decoder = json.JSONDecoder(parse_constant=_constant)


def record_at(file: BinaryIO, offset: int, end: int) -> dict[str, Any]:
    """A record that `records` found, read again."""
    file.seek(offset)
    data = file.read(end - offset)
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        text = data.decode(*_EXACT)
        value, _ = _decoder.raw_decode(text, _next_value(text, 0))
    if not isinstance(value, dict):
        raise ValueError("the source changed while it was read")
    return value


def first_objects(head: bytes, limit: int = 64) -> list[dict[str, Any]]:
    """The objects that a file begins with, as far as they parse: for recognising a format."""
    found: list[dict[str, Any]] = []
    for line in head.removeprefix(BOM).split(b"\n")[:limit]:
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        if isinstance(value, dict):
            found.append(value)
    return found


def text_lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a text with their ends; one that is too long to be held comes in pieces."""
    return iter(partial(file.readline, LINE_LIMIT), b"")


def read_whole(source: Source) -> bytes:
    """All of a source that is one document; raises LimitExceeded for one that is too large to be held."""
    with open(regular_descriptor(source.path), "rb") as file:
        data = file.read(LINE_LIMIT + 1)
    if len(data) > LINE_LIMIT:
        raise LimitExceeded("a document in bytes", max(source.size, len(data)), LINE_LIMIT, SOURCE_LIMITS.advice)
    return data


def sample(path: Path, size: int) -> bytes:
    with open(regular_descriptor(path), "rb") as file:
        return file.read(size)
