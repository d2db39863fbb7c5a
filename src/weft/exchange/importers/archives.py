"""Archives and compressed files, unpacked one member at a time into a file, within a budget."""

from __future__ import annotations

import io
import lzma
import os
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO
from zipfile import ZipFile, ZipInfo

import zstandard

from weft.exchange.importers.limits import PACKED_MEMBER_LIMITS, SOURCE_LIMITS
from weft.exchange.importers.records.jsonl import regular_descriptor
from weft.kernel.errors import LimitExceeded
from weft.kernel.foreign_input import MIB, ReadBudget

BROKEN = (
    zstandard.ZstdError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error,
    RuntimeError, NotImplementedError, ValueError,
)  # fmt: skip
"""What unpacking raises where an archive is damaged or of a kind that cannot be read."""
FED_BYTES = 1024
"""At a time: a few packed bytes can stand for very many, which come out at once."""
DIRECTORY_BYTES = 16 * MIB
"""Of the list of an archive's members, which is read as a whole."""
LOCAL_HEADER_BYTES = 30
"""At least, before the data of each member."""


class Archives:
    """The members of zip archives. The archive that was opened last stays open: its list of members is read once, not
    once for each of them."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._archive: ZipFile | None = None
        self._state: tuple[Path, int, int] | None = None

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        for open_file in (self._archive, self._file):
            if open_file is not None:
                open_file.close()
        self._file = self._archive = self._state = None

    def members(self, path: Path) -> list[ZipInfo]:
        """In order of name; of several with one name the last, as other programs take it. Raises LimitExceeded where
        they lie over each other or unpack to too much."""
        archive = self._opened(path)
        infos = archive.infolist()
        _check_places(infos, archive.start_dir)
        return [archive.NameToInfo[name] for name in sorted(archive.NameToInfo)]

    def unpack(self, path: Path, name: str, target: Path, budget: ReadBudget) -> None:
        archive = self._opened(path)
        info = archive.getinfo(name)
        budget.note_read(info.compress_size)
        with archive.open(info) as member:
            if not name.endswith(".zst"):
                _copy(iter(lambda: member.read(MIB), b""), target, budget)
                return
            inner = ReadBudget(PACKED_MEMBER_LIMITS)
            inner.note_read(info.compress_size)
            _copy(_within(inner, _frames(member)), target, budget)

    def _opened(self, path: Path) -> ZipFile:
        found = path.stat()
        state = (path, found.st_mtime_ns, found.st_size)
        if self._archive is None or self._state != state:
            self.close()
            self._file = _ShortReads(io.FileIO(regular_descriptor(path)))
            self._archive = ZipFile(self._file)
            self._state = state
        return self._archive


class _ShortReads(io.BufferedReader):
    """A file of which so much at a time is read as the list of an archive's members may take."""

    def read(self, size: int | None = -1, /) -> bytes:
        wanted = os.fstat(self.fileno()).st_size - self.tell() if size is None or size < 0 else size
        if wanted > DIRECTORY_BYTES:
            raise LimitExceeded("the list of its members in bytes", wanted, DIRECTORY_BYTES, SOURCE_LIMITS.advice)
        return super().read(size)


def check_total(infos: Iterable[ZipInfo], packed: int) -> None:
    """All members that are to be read, as they say themselves; none gives more than it says."""
    budget = ReadBudget(SOURCE_LIMITS)
    budget.note_read(packed)
    for info in infos:
        budget.take_entries()
        budget.take_bytes(info.file_size)


def _check_places(infos: Iterable[ZipInfo], end: int) -> None:
    """Members that lie over each other let some kilobytes be read thousands of times."""
    places = sorted((info.header_offset, LOCAL_HEADER_BYTES + info.compress_size) for info in infos)
    starts = [start for start, _ in places[1:]]
    for (start, size), following in zip(places, [*starts, end], strict=True):
        if start + size > following:
            over = start + size - following
            raise LimitExceeded("bytes that two of its members share", over, 0, "do not trust where it comes from")


def unpack_zst(path: Path, target: Path, budget: ReadBudget) -> None:
    with open(regular_descriptor(path), "rb") as packed:
        _copy(_frames(packed), target, budget)


def _frames(packed: IO[bytes]) -> Iterator[bytes]:
    """What all frames hold."""
    frame = zstandard.ZstdDecompressor().decompressobj()
    while chunk := packed.read(FED_BYTES):
        while chunk:
            if frame.eof:
                frame = zstandard.ZstdDecompressor().decompressobj()
            yield frame.decompress(chunk)
            chunk = frame.unused_data
    if not frame.eof:
        raise EOFError("it ends too early")


def _within(budget: ReadBudget, chunks: Iterable[bytes]) -> Iterator[bytes]:
    for chunk in chunks:
        budget.take_bytes(len(chunk))
        yield chunk


def _copy(chunks: Iterable[bytes], target: Path, budget: ReadBudget) -> None:
    with target.open("wb") as file:
        for chunk in chunks:
            budget.take_bytes(len(chunk))
            budget.check_time()
            file.write(chunk)
