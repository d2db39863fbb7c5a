"""What an import knows of a source, of a transcript on its way in, and of the turns that have landed."""

from __future__ import annotations

from msgspec import Struct, field
from msgspec.structs import astuple

from weft.ledger.imports.kept_sources import RawFile
from weft.ledger.imports.natives import NativeSession
from weft.ledger.imports.provisional import OpenTail


class ImportSource(Struct, frozen=True, kw_only=True):
    """A file as it was when it was read."""

    name: str
    size: int
    stamp: int
    """Modification time in nanoseconds."""
    digest: bytes
    mapping: str = ""
    open: bool = False
    """Its last turn was still being written and was left out."""
    kept: int | None = None
    """So many of its bytes are kept verbatim; None: all of them."""
    read_at: int = 0
    """When its reading began, in Unix milliseconds."""

    @property
    def origin(self) -> str:
        return self.mapping.rpartition("/")[0]


class ImportCounts(Struct):
    """What an import brought."""

    sessions: int = 0
    turns: int = 0
    known: int = 0
    superseded: int = 0
    links: int = 0
    open_turns: int = 0
    erased: int = 0
    """Turns that were passed over, since they were erased."""


class Landed(Struct, frozen=True):
    """A turn of the transcript at hand, as the ledger has it."""

    id: str
    digest: str
    end: int
    """Where it ends in its source."""
    erased: bool = False
    outdated: bool = False
    """It was here already, and another version stood in its place."""


class Task(Struct):
    """One transcript on its way in."""

    session: NativeSession
    file: str
    counts: ImportCounts
    reread: bool
    raw: RawFile | None
    tail: OpenTail | None = None
    end: int = 0
    landed: list[Landed] = field(default_factory=list)

    def mark(self) -> TaskMark:
        return TaskMark(len(self.landed), self.raw.at if self.raw else 0, astuple(self.counts))

    def go_back(self, mark: TaskMark) -> None:
        """What came since has not lasted."""
        del self.landed[mark.landed :]
        if self.raw:
            self.raw.at = mark.at
        for name, value in zip(ImportCounts.__struct_fields__, mark.counts, strict=True):
            setattr(self.counts, name, value)


class TaskMark(Struct, frozen=True):
    """How far a task was."""

    landed: int
    at: int
    counts: tuple[int, ...]
