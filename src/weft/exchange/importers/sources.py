"""From the paths that people name to files that an importer can read: folders walked, archives unpacked one member
at a time into a temporary file, compressed files likewise."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

import zstandard
from msgspec import Struct

from weft.exchange.importers.jsonl import sample
from weft.exchange.importers.port import HEAD_BYTES, Source

SUFFIXES = frozenset({".jsonl", ".json", ".ndjson", ".db", ".sqlite", ".zst", ".zip"})
QUIET_SECONDS = 300
MEMBER_LIMIT = 4 * 1024**3
"""An archive's member is unpacked up to this size; a small file that claims to hold more is a trap."""


class Candidate(Struct, frozen=True):
    """A file, or a member of an archive, that may be somebody's session."""

    path: Path
    size: int
    stamp: int
    member: str | None = None

    @property
    def name(self) -> str:
        return str(self.path) if self.member is None else f"{self.path}!{self.member}"

    def is_quiet(self, now: float) -> bool:
        """Has nobody written to it for a while?"""
        return self.member is not None or now - self.stamp / 1e9 > QUIET_SECONDS

    @contextmanager
    def open(self, now: float) -> Iterator[Source]:
        """As a file that can be sought in."""
        quiet = self.is_quiet(now)
        if self.member is None and self.path.suffix != ".zst":
            yield _source(self.path, self.name, quiet)
            return
        with TemporaryDirectory(prefix="weft-import-") as folder:
            name = Path(self.member or self.path.stem).name or "member"
            target = Path(folder) / name.removesuffix(".zst")
            self._unpack(target)
            yield _source(target, self.name, quiet)

    def _unpack(self, target: Path) -> None:
        if self.member is None:
            with self.path.open("rb") as packed:
                _copy(zstandard.ZstdDecompressor().stream_reader(packed), target)
            return
        with zipfile.ZipFile(self.path) as archive, archive.open(self.member) as member:
            if self.member.endswith(".zst"):
                _copy(zstandard.ZstdDecompressor().stream_reader(member), target)
            else:
                _copy(member, target)


def _source(path: Path, name: str, quiet: bool) -> Source:
    return Source(path=path, name=name, size=path.stat().st_size, head=sample(path, HEAD_BYTES), quiet=quiet)


def _copy(packed: IO[bytes] | zstandard.ZstdDecompressionReader, target: Path) -> None:
    written = 0
    with target.open("wb") as file:
        while chunk := packed.read(1 << 20):
            written += len(chunk)
            if written > MEMBER_LIMIT:
                raise OSError(f"it unpacks to more than {MEMBER_LIMIT} bytes")
            file.write(chunk)


def candidates(path: Path, failed: Callable[[Path, OSError], None]) -> Iterator[Candidate]:
    """Every file at or below a path that may hold sessions, in order of name. Links are not followed out of it."""
    if path.is_dir():
        for folder, folders, names in os.walk(path, onerror=lambda error: failed(path, error)):
            folders.sort()
            for name in sorted(names):
                if Path(name).suffix in SUFFIXES:
                    yield from _file(Path(folder) / name, failed)
    else:
        yield from _file(path, failed)


def _file(path: Path, failed: Callable[[Path, OSError], None]) -> Iterator[Candidate]:
    try:
        found = path.stat()
        if path.suffix == ".zip":
            yield from _members(path, found.st_mtime_ns)
        else:
            yield Candidate(path, found.st_size, found.st_mtime_ns)
    except (OSError, zipfile.BadZipFile) as error:
        failed(path, error if isinstance(error, OSError) else OSError(f"it is no zip archive: {error}"))


def _members(path: Path, stamp: int) -> Iterator[Candidate]:
    with zipfile.ZipFile(path) as archive:
        for member in sorted(archive.infolist(), key=lambda info: info.filename):
            if not member.is_dir() and Path(member.filename).suffix in SUFFIXES - {".zip"}:
                yield Candidate(path, member.file_size, stamp, member.filename)
