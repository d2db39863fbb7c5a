"""Files that other tools left, read without trust.

- JSON lines as tools really leave them: glued, cut, oversized or badly encoded lines harm no
others.
- JSON documents of any size: a session that is one document, a document that holds many sessions.
- Files beside a source: opened below a folder without following links, regular files alone, up to a
size.
- Databases: copied while in use, read without trust in their schema, kept verbatim as JSON lines.
"""

from __future__ import annotations

import base64
import errno
import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO
from urllib.parse import quote

import apsw
import msgspec
import orjson
from msgspec import Raw, Struct
from msgspec.structs import replace

from weft.exchange.importers.foreign_values import (
    SESSION_BYTES,
    SIDECAR_BYTES,
    SOURCE_LIMITS,
    STATEMENT_LIMITS,
    canonical,
    json_fault,
    json_value,
)
from weft.exchange.importers.port import Report, Source
from weft.kernel.contents import bytes_text
from weft.kernel.errors import LimitExceeded
from weft.kernel.foreign_input import ReadBudget, check_json

# --- JSON lines as tools really leave them: glued, cut, oversized or badly encoded lines harm no others.

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


class ReadPosition(Struct):
    """How far a file was read, in whole lines: a later reading can go on there."""

    offset: int = 0
    lines: int = 0
    is_torn: bool = False
    """What came of a last line without an end was taken, too: whoever went on here would take it twice."""


def records(source: Source, report: Report, read_position: ReadPosition | None = None) -> Iterator[Record]:
    """Every object of the file in order, or those behind `read_position`, which moves along. An unfinished last
    line is left for the next time, and so is what was written since the source was opened."""
    read_position = ReadPosition() if read_position is None else read_position
    with source.path.open("rb") as file:
        file.seek(read_position.offset)
        for number, offset, line in _lines(file, source.size, report, read_position):
            found_before, is_last = report.found, not line.endswith(b"\n")
            yield from _objects(number, offset, line, report, is_last)
            read_position.is_torn |= is_last and report.found > found_before


def _lines(file: BinaryIO, until: int, report: Report, read_position: ReadPosition) -> Iterator[tuple[int, int, bytes]]:
    offset, number = read_position.offset, read_position.lines
    while line := file.readline(min(LINE_LIMIT, max(until - offset, 0))):
        number += 1
        start, offset, is_whole = offset, offset + len(line), line.endswith(b"\n")
        if len(line) == LINE_LIMIT and not is_whole:
            skipped, is_whole = _skip_line(file, until - offset)
            offset += skipped
            read_position.is_torn |= not is_whole
            report.found += 1
            report.damaged += 1
            report.problem(number, f"a line of {offset - start} bytes; {LINE_LIMIT} are taken at most")
            line = b""
        # Only a whole line moves the position: a torn one is read again when it is finished.
        if is_whole:
            read_position.offset, read_position.lines = offset, number
        if line.strip(b" \t\r\n\0"):
            yield number, start, line


def _skip_line(file: BinaryIO, size: int) -> tuple[int, bool]:
    """How many of the next bytes belong to the line at hand, and whether it ends among them."""
    skipped = 0
    while line_part := file.readline(min(1 << 20, max(size - skipped, 0))):
        skipped += len(line_part)
        if line_part.endswith(b"\n"):
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
    position, passed = _next_value(text, 0), 0
    while position < len(text):
        start = offset + _size(text[passed:position])
        passed = position
        try:
            value, after = _decoder.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            if is_last and _looks_cut(error):
                report.open_tail = True
                return
            report.found += 1
            report.damaged += 1
            report.problem(number, f"not JSON from byte {start - line_start} on: {json_fault(error)}")
            return
        report.found += 1
        offset, passed = start + _size(text[position:after]), after
        position = _next_value(text, after)
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


def _next_value(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\r\n\0\ufeff":
        position += 1
    return position


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
    objects: list[dict[str, Any]] = []
    for line in head.removeprefix(BOM).split(b"\n")[:limit]:
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        if isinstance(value, dict):
            objects.append(value)
    return objects


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


def read_sample(path: Path, size: int) -> bytes:
    with open(regular_descriptor(path), "rb") as file:
        return file.read(size)


# --- JSON documents of any size: a session that is one document, a document that holds many sessions, and damaged
# ones.

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
        self._words, self._position, self._is_over = words, 0, False
        self._decoder = json.JSONDecoder(parse_constant=str, strict=False)

    def read(self) -> Any:
        value, _ = self._value(0)
        return None if value is _NOTHING else value

    def _skip(self) -> str:
        """The next letter that says something."""
        match = _blank.match(self._words, self._position)
        self._position = match.end() if match else self._position
        return self._words[self._position : self._position + 1]

    def _value(self, depth: int) -> tuple[Any, bool]:
        """The value that begins here, and whether it is whole."""
        letter = self._skip()
        try:
            value, self._position = self._decoder.raw_decode(self._words, self._position)
        except (ValueError, RecursionError):
            if letter in ("{", "[") and letter and depth < DEEPEST_LEVEL:
                value = self._object(depth) if letter == "{" else self._list(depth)
                return value, not self._is_over
            self._is_over = True
            return _NOTHING, False
        return value, True

    def _goes_on(self, bracket: str) -> bool:
        """Does another element follow?"""
        letter = "" if self._is_over else self._skip()
        if letter == ",":
            self._position += 1
            letter = self._skip()
        if letter == bracket:  # only a comma was missing, or too many
            self._position += 1
            return False
        self._is_over = not letter
        return not self._is_over

    def _list(self, depth: int) -> list[Any]:
        values: list[Any] = []
        self._position += 1
        while self._goes_on("]"):
            value, is_whole = self._value(depth + 1)
            if is_whole:
                values.append(value)
        return values

    def _object(self, depth: int) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        self._position += 1
        while self._goes_on("}"):
            name, is_whole = self._value(DEEPEST_LEVEL)
            if not is_whole or not isinstance(name, str) or self._skip() != ":":
                self._is_over = True
                break
            self._position += 1
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


class DocumentElement(Struct, frozen=True):
    """A value of the document: where it lies, and its bytes. `name` is that of an object's member."""

    offset: int
    end: int
    data: bytes
    name: str | None = None
    value: Any = None
    is_whole: bool = True
    """False: it cannot be read, since the document ends or goes wrong within it. Its bytes go up to where the document
    is taken up again, at most."""


def document_elements(
    path: Path, list_name: str | None = None, sign: re.Pattern[bytes] | None = None
) -> Iterator[DocumentElement]:
    """The elements of a document that is a list, or of the member `list_name` of one that is an object; in the latter
    case its other members too, by name. `sign` tells where an element may begin (its first group): a document that goes
    wrong is taken up again there."""
    with path.open("rb") as file:
        scan, attempts = _Scan(file, list_name, 0), 0
        while True:
            broken = None
            for element in scan.run():
                try:
                    value = json_value(element.data) if element.is_whole else None
                except ValueError:
                    broken = element
                    break
                if not element.is_whole:
                    broken = element
                    break
                yield replace(element, value=value)
            stopped = scan.offset if broken is None else broken.offset + 1
            is_resumed, attempts = attempts > 0, attempts + (broken is not None and not broken.is_whole)
            goes_on = sign is not None and attempts <= MOST_ATTEMPTS and (broken is not None or is_resumed)
            resume_offset = _find_sign(file, stopped, sign) if sign is not None and goes_on else None
            if broken is not None:
                damage_end = broken.end if resume_offset is None else min(resume_offset, broken.end)
                data = broken.data[: damage_end - broken.offset]
                yield DocumentElement(broken.offset, damage_end, data, broken.name, is_whole=False)
            if resume_offset is None:
                return
            scan, attempts = _Scan(file, list_name, resume_offset), max(attempts, 1)


def _find_sign(file: BinaryIO, offset: int, sign: re.Pattern[bytes]) -> int | None:
    """A sign may lie across two chunks, so each is looked at together with the end of the one before."""
    overlap, offset = b"", max(offset - 1, 0)
    file.seek(offset)
    while chunk := file.read(CHUNK):
        window = overlap + chunk
        if (match := sign.search(window, 1 if not overlap else 0)) is not None:
            return offset - len(overlap) + match.start(1)
        overlap, offset = window[-256:], offset + len(chunk)
    return None


class _Scan:
    """One walk over the file's signs. `level` is how deep the pieces lie."""

    def __init__(self, file: BinaryIO, list_name: str | None, start: int) -> None:
        """From the beginning, or from where an element begins."""
        self._file, self._list_name, self._from = file, list_name, start
        self._buffer, self._base = b"", 0
        self._depth, self._level = 0, 1
        self._in_object = False
        self._start: int | None = None
        self._name: str | None = None
        self._last_string = b""
        self._is_over = False
        self._position = 0

    @property
    def offset(self) -> int:
        """Where it is."""
        return self._base + self._position

    def run(self) -> Iterator[DocumentElement]:
        self._file.seek(self._from)
        head = self._file.read(CHUNK)
        skipped = len(BOM) if not self._from and head.startswith(BOM) else 0
        self._base, self._buffer = self._from + skipped, head[skipped:]
        if self._from:  # as if the elements' list had just been entered here
            self._depth = self._level = 1 if self._list_name is None else 2
            self._start = self._from
        yield from self._walk()

    def _walk(self) -> Iterator[DocumentElement]:
        position, chunk, waited = 0, CHUNK, -1
        while not self._is_over:
            position, is_waiting, element = (
                self._deep(position) if self._depth > self._level else self._shallow(position)
            )
            self._position = position
            if element is not None:
                yield element
            if self._is_over or (position < len(self._buffer) and not is_waiting):
                continue
            place = self._base + position
            chunk = chunk * 2 if is_waiting and place == waited else CHUNK  # a long string is not looked at too often
            position = self._position = self._drop_before(position)
            waited = place
            if not self._fill(chunk):
                break
        if not self._is_over:
            yield from self._unfinished_element()

    def _deep(self, position: int) -> tuple[int, bool, DocumentElement | None]:
        """Inside a piece: on to its end, or that of what is read. Gives where, and whether a string waits there."""
        buffer, depth, level = self._buffer, self._depth, self._level
        for match in NESTING.finditer(buffer, position):
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

    def _shallow(self, position: int) -> tuple[int, bool, DocumentElement | None]:
        """Between pieces: on to the end of one, or into one."""
        for match in TOKEN.finditer(self._buffer, position):
            position, sign = match.start(), self._buffer[match.start()]
            if match.end() - position == 1 and sign == QUOTE:
                return position, True, None
            element = self._read_token(sign, match)
            if element is not None or self._is_over or self._depth > self._level:
                return match.end(), False, element
        return len(self._buffer), False, None

    def _read_token(self, sign: int, match: re.Match[bytes]) -> DocumentElement | None:
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
                self._name, self._start = _text_of_document(self._last_string), self._base + match.end()
            return None
        return self._close(sign, match)

    def _open(self, sign: int, depth: int, after: int) -> None:
        if depth == 0:
            self._in_object = sign == b"{"[0]
            self._start = None if self._in_object else self._base + after
        elif depth == self._level == 1 and self._in_object and self._name == self._list_name and sign == b"["[0]:
            self._level, self._in_object = 2, False
            self._start = self._base + after

    def _close(self, sign: int, match: re.Match[bytes]) -> DocumentElement | None:
        """A comma or a bracket at the level of the pieces."""
        element = self._element_until(match.start())
        if sign == COMMA:
            self._name, self._start = None, None if self._in_object else self._base + match.end()
            return element
        self._depth -= 1
        if self._level == 2:
            self._level, self._in_object, self._start = 1, True, None
            self._name = ""  # the list is a member whose elements were told
        else:
            self._is_over = True
        return element

    def _element_until(self, end: int, is_whole: bool = True) -> DocumentElement | None:
        if self._start is None or (self._in_object and self._name is None):
            return None
        data = self._buffer[self._start - self._base : end]
        lead = len(data) - len(data.lstrip(SPACE))
        stripped = data.strip(SPACE)
        if not stripped:
            return None
        offset = self._start + lead
        name = self._name if self._in_object else None
        return DocumentElement(offset, offset + len(stripped), stripped, name, is_whole=is_whole)

    def _drop_before(self, position: int) -> int:
        """What no piece under way needs."""
        needed = position if self._start is None else min(position, max(self._start - self._base, 0))
        self._buffer, self._base = self._buffer[needed:], self._base + needed
        return position - needed

    def _fill(self, size: int) -> bool:
        if len(self._buffer) > LINE_LIMIT:
            return False
        data = self._file.read(size)
        self._buffer += data
        return bool(data)

    def _unfinished_element(self) -> Iterator[DocumentElement]:
        """What has no end."""
        element = self._element_until(len(self._buffer), is_whole=False)
        if element is not None:
            yield element


def _text_of_document(string: bytes) -> str:
    try:
        return str(json_value(string))
    except ValueError:
        return string.decode(errors="replace")


class Conversation(Struct, frozen=True):
    """One conversation of an export: what it says, and its bytes."""

    value: dict[str, Any]
    data: bytes


def conversations(
    source: Source,
    report: Report,
    sign: re.Pattern[bytes],
    is_conversation: Callable[[dict[str, Any]], bool],
    list_name: str,
) -> Iterator[Conversation]:
    """Those of a document that is a list of them, one of them, or an object that has the list as its member. What is
    damaged is kept with the conversation before it."""
    conversation: Conversation | None = None
    spoiled = b""
    for element in _conversation_elements(source, sign, is_conversation, list_name):
        if isinstance(element.value, dict):
            if conversation is not None:
                yield Conversation(conversation.value, conversation.data + spoiled)
                spoiled = b""
            conversation = Conversation(element.value, element.data)
            continue
        report.found += 1
        report.damaged += 1
        report.problem(
            None, f"what lies from byte {element.offset} to {element.end} is no conversation that can be read"
        )
        spoiled += b"\n" + element.data
    if conversation is not None:
        yield Conversation(conversation.value, conversation.data + spoiled)


def _conversation_elements(
    source: Source, sign: re.Pattern[bytes], is_conversation: Callable[[dict[str, Any]], bool], list_name: str
) -> Iterator[DocumentElement]:
    if source.head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
        document = read_whole(source) if source.size <= LINE_LIMIT else b""
        try:
            value = json_value(document)
        except ValueError:
            value = None
        if isinstance(value, dict) and is_conversation(value):
            yield DocumentElement(0, len(document), document, value=value)
            return
    for element in document_elements(source.path, list_name, sign):
        if element.name is None or not element.is_whole:
            yield element


# --- Files beside a source: opened below a folder without following links, regular files alone, up to a size.

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = FILE_FLAGS | os.O_NOFOLLOW
_LINKED = (errno.ELOOP, errno.ENOTDIR)


@contextmanager
def open_beneath(path: Path, root: Path) -> Iterator[BinaryIO]:
    """A regular file at a path below the folder `root`, on a way without links."""
    folder = _open_folder(path.parent, root)
    try:
        if not stat.S_ISREG(os.stat(path.name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise FileRefused(errno.EINVAL, "it is a link or no regular file, and is not read")
        descriptor = os.open(path.name, _FILE, dir_fd=folder)
    finally:
        os.close(folder)
    with open(checked_regular(descriptor), "rb") as file:
        yield file


def read_beneath(path: Path, root: Path, most: int = SIDECAR_BYTES) -> bytes:
    """All of a file; one of more than `most` bytes is refused."""
    with open_beneath(path, root) as file:
        data = file.read(most + 1)
        if len(data) > most:
            size = max(os.fstat(file.fileno()).st_size, len(data))
            raise FileRefused(errno.EFBIG, f"it has {size} bytes; {most} is the most that is read of such a file")
    return data


def read_beside(path: Path, root: Path, report: Report) -> bytes | None:
    """All of a file that a session is spread over; None, and a problem in the report, where it cannot be read. It may
    vanish between being listed and being read."""
    try:
        data = read_beneath(path, root)
    except OSError as error:
        report.problem(None, f"{path.name}: {error.strerror}")
        return None
    report.budget.take_entries()
    report.held_bytes += len(data)
    if report.held_bytes > SESSION_BYTES:
        raise LimitExceeded(
            "the bytes of the files of one session", report.held_bytes, SESSION_BYTES, report.budget.limits.advice
        )
    return data


def names_beneath(folder: Path, root: Path) -> list[str]:
    """The names of the regular files in a folder below `root`, in order; none where the way to it has a link."""
    try:
        descriptor = _open_folder(folder, root)
    except OSError:
        return []
    try:
        with os.scandir(descriptor) as entries:
            return sorted(entry.name for entry in entries if entry.is_file(follow_symlinks=False))
    finally:
        os.close(descriptor)


def _open_folder(path: Path, root: Path) -> int:
    """The descriptor of a folder at or below `root`."""
    folder_names = path.relative_to(root).parts
    if ".." in folder_names:
        raise FileRefused(errno.EINVAL, "it lies elsewhere, and is not read")
    folder = os.open(root, _FOLDER)
    for folder_name in folder_names:
        try:
            inner = os.open(folder_name, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
        except OSError as error:
            if error.errno in _LINKED:
                raise FileRefused(error.errno, "a link or a file is on the way to it, and it is not read") from error
            raise
        finally:
            os.close(folder)
        folder = inner
    return folder


_raw_json = msgspec.json.Decoder(Raw)


class RowLines:
    """One line a row: its key, other columns, and its JSON to the letter; what is no JSON stands there as base64."""

    def __init__(self) -> None:
        self._file = BytesIO()
        self.count = 0

    def add(self, key: str, data: bytes | None, **columns: Any) -> int:
        """The number of this row among those that were added."""
        head = canonical({"key": key, **{name: value for name, value in columns.items() if value is not None}})[:-1]
        json_bytes = b"null" if data is None else _as_json(data)
        name = b"data" if json_bytes is not None else b"bytes"
        self._file.write(head + b',"' + name + b'":')
        self._file.write(b'"' + base64.b64encode(data or b"") + b'"' if json_bytes is None else json_bytes)
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
        _raw_json.decode(data)
    except (ValueError, RecursionError):
        return None
    return data.replace(b"\r", b" ").replace(b"\n", b" ")


MAGIC = b"SQLite format 3\0"
TRIES = 3
UNREADABLE = (apsw.Error, UnicodeDecodeError)
"""What reading a damaged database raises."""


class Database:
    """The plain tables of a database that a stranger wrote. Nothing in its schema runs: views, triggers and virtual
    tables are not named by `columns`, and a table of it has no generated columns. A statement gives no more than its
    file can hold, and all of them end with the budget."""

    def __init__(self, connection: apsw.Connection, size: int, budget: ReadBudget) -> None:
        self._connection, self._size = connection, size
        confine(connection)
        self._budget, self._steps = budget, 0
        connection.set_progress_handler(self._check_steps, HANDLED_STEPS)
        self.columns: dict[str, list[str]] = {
            name: [row[1] for row in self.rows(COLUMNS, (name,))] for (name,) in self.rows(TABLES)
        }

    def rows(self, sql: str, values: tuple[Any, ...] = ()) -> list[Any]:
        return list(self.walk(sql, values))

    def walk(self, sql: str, values: tuple[Any, ...] = ()) -> Iterator[Any]:
        """One row after the other, for those that are too many or too large to hold."""
        self._steps = 0
        return _rows(self._connection, sql, values, self._size)

    def _check_steps(self) -> bool:
        """SQLite asks now and then whether to stop: also while it sorts, before there is a first row."""
        self._budget.check_time()
        self._steps += HANDLED_STEPS
        most = STATEMENT_STEPS + STEPS_A_BYTE * self._size
        if self._steps > most:
            raise LimitExceeded("the instructions of one statement", self._steps, most, STATEMENT_LIMITS.advice)
        return False

    def has(self, table: str, *columns: str) -> bool:
        return table in self.columns and set(columns) <= set(self.columns[table])


TABLES = "SELECT name FROM sqlite_schema WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'"
COLUMNS = "SELECT * FROM pragma_table_info(?)"
"""Without the columns that are generated."""
ROW_BYTES = 64
"""That a row of nothing takes in memory."""
HANDLED_STEPS = 50_000
"""Instructions of SQLite between two looks at the clock: about a millisecond."""
STATEMENT_STEPS, STEPS_A_BYTE = 400_000_000, 200
"""A statement takes so many instructions at most, and so many more for each byte of its database: some ten seconds. To
visit and sort a row takes about thirty."""
PEEK_STEPS = 100_000_000
"""A look at what a database is takes so many instructions at most: some seconds."""


def _rows(connection: apsw.Connection, sql: str, values: tuple[Any, ...], size: int) -> Iterator[Any]:
    """Of a database of so many bytes. Pages that are used twice let a small file hold rows without end."""
    budget = ReadBudget(STATEMENT_LIMITS)
    budget.note_read(size)
    for row in connection.execute(sql, values):
        budget.take_bytes(ROW_BYTES + sum(len(value) for value in row if isinstance(value, str | bytes)))
        yield row


def confine(connection: apsw.Connection) -> None:
    """Nothing of the schema is trusted; values and texts of statements have a most."""
    connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
    connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_VIEW, 0)
    connection.limit(apsw.SQLITE_LIMIT_LENGTH, SOURCE_LIMITS.held_bytes)
    connection.limit(apsw.SQLITE_LIMIT_ATTACHED, 0)


@contextmanager
def open_database(path: Path, report: Report, root: Path | None = None) -> Iterator[Database | None]:
    """A copy, to be read; None where it is no database, which is reported. `root`: it lies beside the source, below
    this folder, and no link leads to it."""
    with copy_database(path, report, root) as copy:
        connection = None
        try:
            connection = apsw.Connection(str(copy), flags=apsw.SQLITE_OPEN_READONLY)
            database = Database(connection, _copy_bytes(copy), report.budget)
        except UNREADABLE as error:
            report.problem(None, f"the database cannot be read: {error}"[:300])
            yield None
        else:
            yield database
        finally:
            if connection is not None:
                connection.close()


@contextmanager
def copy_database(path: Path, report: Report, root: Path | None = None) -> Iterator[Path]:
    """The database and its log as they were at one moment, if nobody wrote all the time."""
    log = path.with_name(f"{path.name}-wal")
    with TemporaryDirectory(prefix="weft-import-") as folder:
        target = Path(folder) / "copy.db"
        for _ in range(TRIES):
            before = _stamps(path, log)
            _copy(path, target, root)
            if log.is_file() and not log.is_symlink():
                _copy(log, target.with_name("copy.db-wal"), root or log.parent)
            # Neither file changed while both were copied: the copies are of one moment.
            if _stamps(path, log) == before:
                break
        else:
            report.problem(None, "the database was written to while it was copied; import it again")
        yield target


def _copy(path: Path, target: Path, root: Path | None) -> None:
    """A regular file; not more of it than it had when it was opened."""
    with open(regular_descriptor(path), "rb") if root is None else open_beneath(path, root) as file:
        remaining = os.fstat(file.fileno()).st_size
        with target.open("wb") as copy:
            while remaining > 0 and (chunk := file.read(min(remaining, 1 << 20))):
                copy.write(chunk)
                remaining -= len(chunk)


def _copy_bytes(copy: Path) -> int:
    """Of a database and its log."""
    return sum(size for _, size in filter(None, _stamps(copy, copy.with_name(f"{copy.name}-wal"))))


def _stamps(*paths: Path) -> list[tuple[int, int] | None]:
    stats = (path.stat() if path.exists() else None for path in paths)
    return [None if stat is None else (stat.st_mtime_ns, stat.st_size) for stat in stats]


def peek(path: Path, sql: str, values: tuple[Any, ...] = (), table: str | None = None) -> list[Any]:
    """A few rows of the file as it lies there, without its log: nothing is written, locked or made beside it. For
    telling what a database is; empty where it cannot be told, or where `table` is no plain table."""
    try:
        connection = apsw.Connection(
            f"file:{quote(str(path))}?immutable=1", flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        )
    except apsw.Error:
        return []
    try:
        confine(connection)
        connection.set_progress_handler(lambda: True, PEEK_STEPS)
        size = path.stat().st_size
        plain = {name for (name,) in _rows(connection, TABLES, (), size)}
        return list(_rows(connection, sql, values, size)) if table is None or table in plain else []
    except (OSError, LimitExceeded, *UNREADABLE):
        return []
    finally:
        connection.close()
