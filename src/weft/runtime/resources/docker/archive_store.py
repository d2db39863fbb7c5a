"""A folder of archives, each named by the SHA-256 of its bytes.

An archive is read in as a whole, judged, and only then written in its one form under its name: a crash leaves a file
named `incoming-…`, which `remove_incoming` takes away, and never half an archive. Nothing is unpacked here.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct

from weft.kernel.errors import Damaged, InUse, InvalidInput, LimitExceeded, StoreFailed
from weft.runtime.resources.docker.archive_entries import ArchiveEntry, ArchiveRules
from weft.runtime.resources.docker.tar_reader import read_archive
from weft.runtime.resources.docker.tar_writer import CHUNK, archive_chunks
from weft.runtime.resources.held_work import ensure_held

_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
_INCOMING = "incoming-"
_SMALLER_HINT = "leave out what is large, or allow more"


class StoredArchive(Struct, frozen=True, kw_only=True):
    digest: str
    size_bytes: int
    entries: int


class ArchiveStore:
    """Opened by its folder, which is made, for its owner alone, when the first archive comes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def keep(self, key: str, chunks: Iterable[bytes], rules: ArchiveRules) -> StoredArchive:
        """Stores the archive that `chunks` are; the same files give the same name. `key` names the operation: two at
        once under one key are refused."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.remove_incoming()
            with self._incoming(key, "raw") as raw, self._incoming(key, "tar") as tar:
                _write_limited(raw, chunks, rules.archive_bytes)
                entries = read_archive(raw, rules)
                digest, size = _write_hashed(tar, archive_chunks(entries, raw))
                os.replace(tar.name, self._path(digest))
                self._sync_folder()
        except OSError as error:
            raise StoreFailed(f"{self.folder}: the archive could not be stored ({error.strerror})") from error
        return StoredArchive(digest=digest, size_bytes=size, entries=len(entries))

    @contextmanager
    def opened(self, digest: str, rules: ArchiveRules) -> Iterator[tuple[tuple[ArchiveEntry, ...], BinaryIO]]:
        """The entries of a stored archive, judged again, and the file in which their bytes are."""
        with self._opened_file(digest) as file:
            hashed = _hashed(file)
            if hashed != digest:
                raise Damaged(f"the archive {digest} in {self.folder} is damaged: its bytes give {hashed}")
            yield read_archive(file, rules), file

    def has(self, digest: str) -> bool:
        return self._path(digest).is_file()

    def digests(self) -> frozenset[str]:
        return frozenset(path.stem for path in self.folder.glob("*.tar") if _DIGEST.match(path.stem))

    def remove(self, digest: str) -> bool:
        """Whether it was there."""
        try:
            self._path(digest).unlink()
        except FileNotFoundError:
            return False
        return True

    def remove_incoming(self) -> int:
        """Removes what crashed operations left, and says how many files that were. What is being written now stays."""
        count = 0
        for path in self.folder.glob(f"{_INCOMING}*"):
            with suppress(FileNotFoundError), open(path, "rb", opener=_open_plain_file) as file:
                if _locked(file):
                    path.unlink()
                    count += 1
        return count

    def _opened_file(self, digest: str) -> BinaryIO:
        try:
            return open(self._path(digest), "rb", opener=_open_plain_file)
        except FileNotFoundError:
            raise Damaged(f"there is no archive {digest} in {self.folder}") from None
        except OSError as error:
            raise StoreFailed(f"{self.folder}: the archive {digest} cannot be read ({error.strerror})") from error

    def _path(self, digest: str) -> Path:
        if not _DIGEST.match(digest):
            raise InvalidInput(f"{digest!r} is no SHA-256 of an archive")
        return self.folder / f"{digest}.tar"

    @contextmanager
    def _incoming(self, key: str, suffix: str) -> Iterator[BinaryIO]:
        """A file of this process alone. One that another took for left over, and removed, is made again."""
        path = self.folder / f"{_INCOMING}{hashlib.sha256(key.encode()).hexdigest()[:32]}.{suffix}"
        while True:
            with open(path, "w+b", opener=_open_own_file) as file:
                if not _locked(file):
                    raise InUse(str(path), "another process, which stores the same archive")
                if not os.fstat(file.fileno()).st_nlink:
                    continue
                file.truncate()
                try:
                    yield file
                finally:
                    if path.exists():
                        path.unlink()
                return

    def _sync_folder(self) -> None:
        descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _write_limited(file: BinaryIO, chunks: Iterable[bytes], limit: int) -> None:
    size = 0
    for chunk in chunks:
        ensure_held()
        size += len(chunk)
        if size > limit:
            raise LimitExceeded("the bytes of the archive", size, limit, _SMALLER_HINT)
        file.write(chunk)
    file.flush()


def _write_hashed(file: BinaryIO, chunks: Iterable[bytes]) -> tuple[str, int]:
    hashed, size = hashlib.sha256(), 0
    for chunk in chunks:
        hashed.update(chunk)
        size += len(chunk)
        file.write(chunk)
    file.flush()
    os.fsync(file.fileno())
    return hashed.hexdigest(), size


def _hashed(file: BinaryIO) -> str:
    hashed = hashlib.sha256()
    while chunk := file.read(CHUNK):
        hashed.update(chunk)
    return hashed.hexdigest()


def _open_plain_file(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC)


def _open_own_file(path: str, flags: int) -> int:
    """Does not empty it: another process may hold it."""
    return os.open(path, flags & ~os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _locked(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
