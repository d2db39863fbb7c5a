"""Files that grow: what a watch remembers of its last reading of each, so that the next one reads only what is new.

It is remembered in the process alone, and believed only while it must be true: the file still begins with the bytes
that were read, the ledger still says that these were read, and nothing was erased since. Else the file is read from its
beginning, as an import reads it.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct, field

from weft.exchange.importers.port import Reader, Report, Source, Transcript
from weft.ledger.imports import ImportSource, TranscriptTurn

ROOM = 16
"""So many files are followed at once, the latest; few are written to at the same time."""


class Follower(Struct):
    """One file on the way from one reading to the next."""

    reader: Reader
    mapping: str
    erasures: int
    size: int = 0
    digest: bytes = b""
    landed: dict[str, list[TranscriptTurn]] = field(default_factory=dict)
    """By the native id of a session, the turns that were taken, as far as none before them was left out."""

    def is_true(self, mapping: str, source: ImportSource | None, erasures: int) -> bool:
        """Is what it read what the ledger says was read of the file, and is all of that still there?"""
        recorded = None if source is None else (source.size, source.digest)
        return (mapping, erasures, recorded) == (self.mapping, self.erasures, (self.size, self.digest))

    def read(self, source: Source, report: Report) -> Iterator[Transcript]:
        return self.reader.read(source, report, {session: len(turns) for session, turns in self.landed.items()})

    def note(self, read: ImportSource, landed: dict[str, list[TranscriptTurn]]) -> None:
        """It has read so much, and this was taken of it."""
        self.size, self.digest, self.landed = read.size, read.digest, landed


class Followers:
    """Those of one watch, by the name of their file."""

    def __init__(self) -> None:
        self._all: dict[str, Follower] = {}

    def take(self, name: str) -> Follower | None:
        """For a reading: should that fail, it is not there any more."""
        return self._all.pop(name, None)

    def keep(self, name: str, follower: Follower) -> None:
        self._all[name] = follower
        if len(self._all) > ROOM:
            del self._all[next(iter(self._all))]
