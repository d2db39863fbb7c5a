"""What lies where: every file that may hold sessions, by its size and time alone. Nothing is opened.

A sweep over twenty thousand files takes some tenths of a second, so it can be made again and again: what differs from
the last one has changed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Struct

from weft.exchange.importers.port import Importer
from weft.exchange.importers.sources import DATABASES, SUFFIXES, is_likely, stamp_of

LOG = "-wal"
_MORE = frozenset({".txt", ".md"})
"""Suffixes of which only some names are likely. The rest is told by the suffix alone: this is asked of every file."""

Look = tuple[int, int]
"""Size and modification time (ns) of a file; of a database together with the log beside it."""


def look(path: str) -> Look | None:
    """A file as it is now; None where there is none, or a folder."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    if stat.S_ISDIR(found.st_mode):
        return None
    size, stamp = found.st_size, stamp_of(found)
    if is_database(path):
        try:
            log = os.stat(path + LOG)
        except OSError:
            return size, stamp
        return size + log.st_size, max(stamp, stamp_of(log))
    return size, stamp


def is_database(path: str) -> bool:
    return os.path.splitext(path)[1] in DATABASES


def source_of(path: str) -> str | None:
    """The file that a change at this path is a change of; None where it is of no interest."""
    path = path.removesuffix(LOG)
    return path if is_likely(Path(path)) else None


def sweep(root: str) -> Iterator[tuple[str, Look]]:
    """Every likely file at or below a path. Folders that cannot be read are passed over; links are not followed out."""
    if not os.path.isdir(root):
        if (found := look(root)) is not None:
            yield root, found
        return
    top = os.path.realpath(root)
    waiting = [root]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    elif _is_wanted(entry, top) and (found := _glance(entry)) is not None:
                        yield entry.path, found
        except OSError:  # gone meanwhile, or not ours to read: an import that is told to read it says so
            continue


def _is_wanted(entry: os.DirEntry[str], top: str) -> bool:
    suffix = os.path.splitext(entry.name)[1]
    if suffix not in SUFFIXES and not (suffix in _MORE and is_likely(Path(entry.path))):
        return False
    return not entry.is_symlink() or Path(os.path.realpath(entry.path)).is_relative_to(top)


def _glance(entry: os.DirEntry[str]) -> Look | None:
    if is_database(entry.path):
        return look(entry.path)
    try:
        found = entry.stat()
    except OSError:
        return None
    return found.st_size, stamp_of(found)


class FoundPlace(Struct, frozen=True, kw_only=True):
    """A place where a tool keeps its sessions, and how much lies there."""

    origin: str
    what: str
    path: str
    exists: bool
    files: int = 0
    bytes: int = 0
    newest_ms: int | None = None


def discover(importers: Iterable[Importer], home: Path, environment: dict[str, str]) -> list[FoundPlace]:
    """Where the tools keep their sessions, whether or not there is something."""
    places = [(importer.origin, place) for importer in importers for place in importer.places(home, environment)]
    return [_found(origin, place.what, str(place.path)) for origin, place in dict.fromkeys(places)]


def _found(origin: str, what: str, path: str) -> FoundPlace:
    if not os.path.exists(path):
        return FoundPlace(origin=origin, what=what, path=path, exists=False)
    looks = [found for _, found in sweep(path)]
    newest = max((stamp for _, stamp in looks), default=None)
    return FoundPlace(
        origin=origin,
        what=what,
        path=path,
        exists=True,
        files=len(looks),
        bytes=sum(size for size, _ in looks),
        newest_ms=None if newest is None else newest // 1_000_000,
    )
