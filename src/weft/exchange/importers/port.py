"""The port of an importer: how a format is recognised, where it usually lies, how it is read, and what reading gives.

Importers are plugins: objects of the shape `Importer`, named by entry points of the group `weft.importers`. Reading a
source gives one `Transcript` for each session: its description and its turns, in the ledger's words for such history.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Protocol, runtime_checkable

from msgspec import Struct, field

from weft.exchange.importers.foreign_values import SOURCE_LIMITS
from weft.kernel.errors import InvalidInput, quoted
from weft.kernel.foreign_input import ReadBudget
from weft.ledger.imports.imported_turns import (
    Item,
    NativeCall,
    NativeCompaction,
    NativeLink,
    NativeMessage,
    NativeSession,
    NativeTurn,
    Tokens,
)

__all__ = [
    "GROUP",
    "HEAD_BYTES",
    "FollowingImporter",
    "GatheringImporter",
    "GenericImporter",
    "Importer",
    "Item",
    "NamedImporter",
    "NativeCall",
    "NativeCompaction",
    "NativeLink",
    "NativeMessage",
    "NativeSession",
    "NativeTurn",
    "Place",
    "Problem",
    "Reader",
    "Report",
    "Source",
    "Tokens",
    "Transcript",
    "importer_names",
    "load_importers",
    "registered_name",
]


HEAD_BYTES = 65536
"""So much of a source is looked at to recognise its format."""
GROUP = "weft.importers"
"""The group of entry points that name importers."""


class Transcript(Struct, kw_only=True):
    """One native session, or the part of it that one file holds. `turns` may be lazy: it is walked once, in order."""

    session: NativeSession
    turns: Iterable[NativeTurn]
    raw: bytes | None = None
    """What to keep verbatim, where it is not the source file itself (a database's rows as JSON lines)."""
    known_turns: int = 0
    """So many turns stand before those given here, as an earlier reading of the same reader gave them."""
    until: int | None = None
    """Where its part of the source file ends, if the file goes on with another session's."""


class Place(Struct, frozen=True):
    """A folder or file where a tool keeps its sessions by itself."""

    path: Path
    what: str


OVER_SECONDS = 1800
"""A turn whose last record is so old is over. Longer than a file has to be quiet: a tool may run for a while and write
nothing, and what comes after that is written to the same turn."""


ANSWERED_SECONDS = 3
"""A turn whose last record is the end of an answer, and so old, is over: what hooks of the tool add comes sooner."""


class Source(Struct, frozen=True, kw_only=True):
    """One file to read. `path` can be opened and sought in; `name` is what people know it by."""

    path: Path
    name: str
    size: int
    head: bytes
    quiet: bool = True
    """Nobody has written to it for a while: its last turn, though never closed, is all there will be."""
    now: float | None = None
    """When it is read, in Unix seconds: an open turn whose own times are long before it is over, too, although the file
    is new, as a copy is."""
    is_cut: bool = False
    """It was unpacked from something that ends too early: this is what came before."""

    def is_over(self, turn: NativeTurn) -> bool:
        """Will nobody add to this turn, though it was never closed?"""
        if self.quiet or self.now is None:
            return self.quiet
        last = turn.last_time
        pause = ANSWERED_SECONDS if turn.answered else OVER_SECONDS
        return last is not None and last / 1000 <= self.now - pause


class Problem(Struct, frozen=True, kw_only=True):
    """Something in a source that could not be taken as it is; the rest was."""

    source: str
    line: int | None
    what: str


class Report(Struct):
    """What became of every record of a source. Records found = mapped + kept + damaged."""

    source: str
    found: int = 0
    mapped: Counter[str] = field(default_factory=Counter)
    """Records, by their kind, that a turn or its session is made of."""
    kept: Counter[str] = field(default_factory=Counter)
    """Records, by their kind, that only the verbatim copy holds: unknown kinds, and known ones that say nothing."""
    unknown: Counter[str] = field(default_factory=Counter)
    """Those of the kept ones whose kind this importer does not know."""
    damaged: int = 0
    problems: list[Problem] = field(default_factory=list)
    open_tail: bool = False
    """The last line is not finished: it is being written."""
    budget: ReadBudget = field(default_factory=lambda: ReadBudget(SOURCE_LIMITS))
    """What reading the source may still take."""
    held_bytes: int = 0
    """Of files beside the source that are in memory."""

    def problem(self, line: int | None, what: str) -> None:
        self.problems.append(Problem(source=self.source, line=line, what=what))


class Importer(Protocol):
    """What every importer of an origin offers."""

    origin: str
    """The name in every column and event, such as `claude-code`."""
    mapping: int
    """Raised whenever the same records would give other turns."""

    def places(self, home: Path, environment: Mapping[str, str]) -> list[Place]:
        """Where this tool keeps its sessions, whether or not they exist."""

    def recognises(self, source: Source) -> bool:
        """Is this one of the tool's session files? Told by its content, helped by its name; never opens the network,
        never raises."""

    def is_part(self, source: Source) -> bool:
        """Is it a file that another session file brings in by itself (a part, a sidecar)? It is then passed over."""

    def read(self, source: Source, report: Report) -> Iterator[Transcript]:
        """Every session of this file. Damaged records go into the report and harm no others."""


@runtime_checkable
class GatheringImporter(Protocol):
    """An importer of sessions that lie in several files each, of which one stands for all."""

    def session_file(self, source: Source) -> Path | None:
        """The file that brings in this part (`is_part`); None where none does, or too many."""

    def part_files(self, path: Path) -> list[Path]:
        """The files that the one at `path` stands for, where the session grows in them while it stays as it is."""


@runtime_checkable
class NamedImporter(Protocol):
    """An importer of sessions whose names lie in one file for all, which changes while theirs do not."""

    def is_renamed(self, path: Path, since: int) -> bool:
        """Did the session of the file at `path` get its name then, in Unix milliseconds, or later?"""


@runtime_checkable
class GenericImporter(Protocol):
    """An importer of a form that many programs write: it is asked where no tool's own importer recognises a file."""

    is_generic: bool


class Reader(Protocol):
    """Reads one file again and again while it grows, each time only what is new."""

    def read(self, source: Source, report: Report, turns_taken: Mapping[str, int]) -> Iterator[Transcript]:
        """Every session of the file, which still begins as it was when it was read last. `turns_taken` tells how many
        turns of each session, by its native id, were taken of what was given then; as many of them as
        stand as they were are only counted (`Transcript.known_turns`). The report tells of the new records."""


@runtime_checkable
class FollowingImporter(Protocol):
    """An importer that can go on where it was in a file, for as long as somebody keeps the reader."""

    def reader(self) -> Reader:
        """A new one, for one file. What it reads first is what `Importer.read` reads."""


def importer_names() -> list[str]:
    return sorted({point.name for point in _points()})


def load_importers(only: str | None = None) -> list[Importer]:
    """All of them, or the one called `only`."""
    points = {point.name: point for point in _points()}
    if only is not None and only not in points:
        raise InvalidInput(f"there is no importer {quoted(only)}", f"known: {', '.join(sorted(points))}")
    return [points[name].load()() for name in sorted(points) if only in (None, name)]


def registered_name(importer: Importer) -> str | None:
    """The name by which `load_importers` gives one like it; None where it does not."""
    points = {point.name: point for point in _points()}
    point = points.get(importer.origin)
    return point.name if point is not None and point.load() is type(importer) else None


@cache
def _points() -> tuple[EntryPoint, ...]:
    """Looked for once: every package that is installed has to be asked."""
    return tuple(entry_points(group=GROUP))
