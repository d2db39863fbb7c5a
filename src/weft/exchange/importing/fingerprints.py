"""What tells whether a source is what it was: digests of its bytes, its size, and what lies beside it."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from weft.exchange.importers.port import Source
from weft.exchange.importers.servers import OnServer
from weft.exchange.importers.sources import Candidate, is_log
from weft.ledger.imports import ImportSource, RawFile

if TYPE_CHECKING:
    from hashlib import _Hash as Hash


def still_to_keep(source: Source, before: ImportSource | None, beginning: bytes | None) -> RawFile:
    """What of the file is not kept yet: all of it, unless it has only grown."""
    if before is None:
        return RawFile(source.path, 0, source.size)
    grown = before.digest == beginning
    start = before.size if before.kept is None else before.kept
    return RawFile(source.path, start if grown else 0, source.size, grows=grown)


def _beside(candidate: Candidate | OnServer) -> tuple[tuple[str, int, int], ...]:
    return () if isinstance(candidate, OnServer) else candidate.beside


def _log(source: Source, candidate: Candidate | OnServer) -> Path | None:
    """What a database in use has beside it."""
    if isinstance(candidate, OnServer):
        return None
    log = candidate.path.with_name(f"{candidate.path.name}-wal")
    return log if candidate.size > source.size and is_log(log) else None


def read_size(source: Source, candidate: Candidate | OnServer) -> int:
    """So many bytes as the fingerprint is of: a file that is written to has grown since it was found."""
    is_more = candidate.is_packed or _beside(candidate) or _log(source, candidate)
    return candidate.size if is_more else source.size


def fingerprint(source: Source, candidate: Candidate | OnServer, own: bytes) -> bytes:
    """Of the file, and of a database's log beside it; of files that it stands for their sizes and times."""
    if beside := _beside(candidate):
        return sha256(own + repr(beside).encode("utf-8", "surrogateescape")).digest()
    return bytes_digest(source, candidate, own)


def bytes_digest(source: Source, candidate: Candidate | OnServer, own: bytes) -> bytes:
    """Of the file, and of a database's log beside it."""
    log = _log(source, candidate)
    return own if log is None else sha256(own + digests(log, log.stat().st_size, 0)[0]).digest()


def file_state(source: Source, candidate: Candidate | OnServer) -> tuple[int, ...] | None:
    """What changes with a file that is written to or replaced, as far as a file system tells. None where it has grown
    since it was opened, and of what is no single file of its own: unpacked, or a database with a log beside it."""
    found = source.path.stat()
    if candidate.is_packed or _log(source, candidate) is not None or found.st_size != source.size:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def digests(path: Path, size: int, start: int) -> tuple[bytes, bytes | None]:
    """Of so many bytes of a file, and of those before `start`, if there are as many: it is read once."""
    hasher, beginning = sha256(), None
    with path.open("rb") as file:
        if start <= size:
            _hash(file, start, hasher)
            beginning, size = hasher.copy().digest(), size - start
        _hash(file, size, hasher)
    return hasher.digest(), beginning


def _hash(file: BinaryIO, size: int, hasher: Hash) -> None:
    while size > 0 and (chunk := file.read(min(size, 1 << 20))):
        hasher.update(chunk)
        size -= len(chunk)
