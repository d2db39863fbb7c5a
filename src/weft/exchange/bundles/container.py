"""The file itself: a first line that names the form, one zlib stream of lines, and the SHA-256 of all bytes before it.

Nothing in it is a path or a name of a file. The digest at the end is there so that no byte can change unnoticed, be it
one that unpacking would not miss; what a bundle says is proved by its lines.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from hashlib import sha256
from typing import BinaryIO

from weft.exchange.bundles.form import LIMITS, MAGIC
from weft.kernel.errors import InvalidBundle, LimitExceeded
from weft.kernel.foreign_input import ReadBudget

CHUNK = 256 * 1024
DIGEST = 32
LEVEL = 6


class Packer:
    """Writes a bundle's lines to an open file."""

    def __init__(self, out: BinaryIO) -> None:
        self._out, self._whole = out, sha256()
        self._zlib = zlib.compressobj(LEVEL, zlib.DEFLATED, 15, 8)
        self.lines = sha256()
        """Over all lines so far."""
        self._write(MAGIC)

    def add(self, line: bytes) -> None:
        self.lines.update(line + b"\n")
        self._write(self._zlib.compress(line + b"\n"))

    def finish(self) -> None:
        self._write(self._zlib.flush())
        self._out.write(self._whole.digest())

    def _write(self, data: bytes) -> None:
        if data:
            self._whole.update(data)
            self._out.write(data)


def unpacked_lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines, each without its end. Refuses whatever is not exactly one such file; holds one line at a time."""
    held, pieces = bytearray(), _unpacked(file)
    for piece in pieces:
        start = 0
        while (end := piece.find(b"\n", start)) >= 0:
            line = bytes(held) + piece[start:end] if held else piece[start:end]
            held.clear()
            start = end + 1
            _check_line(len(line))
            yield line
        held += piece[start:]
        _check_line(len(held))
    if held:
        raise InvalidBundle("the last line has no end")


def _check_line(size: int) -> None:
    if size > LIMITS.held_bytes:
        raise InvalidBundle(f"a line is longer than {LIMITS.held_bytes} bytes")


def _unpacked(file: BinaryIO) -> Iterator[bytes]:
    """The unpacked bytes in pieces of a bounded size, however well they were packed."""
    unpacker, budget = zlib.decompressobj(15), ReadBudget(LIMITS)
    for packed in _sealed(file, budget):
        if unpacker.eof:
            raise InvalidBundle("something follows its last line")
        waiting = packed
        while waiting and not unpacker.eof:
            try:
                piece = unpacker.decompress(waiting, CHUNK)
                budget.take_bytes(len(piece))
            except zlib.error as error:
                raise InvalidBundle(f"it cannot be unpacked: {error}") from error
            except LimitExceeded as error:
                raise InvalidBundle(f"it unpacks to more than its size allows: {error}") from error
            waiting = unpacker.unconsumed_tail
            yield piece
    if not unpacker.eof or unpacker.unused_data:
        raise InvalidBundle("it was cut short" if not unpacker.eof else "something follows its last line")


def _sealed(file: BinaryIO, budget: ReadBudget) -> Iterator[bytes]:
    """What lies between the first line and the digest, which must be of everything before it."""
    whole, held = sha256(), file.read(len(MAGIC))
    if held != MAGIC:
        raise InvalidBundle("it does not begin as a bundle of a form that is known here")
    whole.update(held)
    budget.note_read(len(held))
    held = b""
    while data := file.read(CHUNK):
        budget.note_read(len(data))
        held += data
        if len(held) > DIGEST:
            body, held = held[:-DIGEST], held[-DIGEST:]
            whole.update(body)
            yield body
    if held != whole.digest():
        raise InvalidBundle("its bytes do not hash to the digest at its end: it was changed or cut short")
