"""Importing: every source is recognised, read by its importer, and written into the ledger, one after the other.

A source that failed is reported and harms no other. A killed run is simply run again: what is in the ledger is passed
over, and a source that was read to its end is not opened a second time unless it has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from weft.exchange.importers.port import Importer, Problem, Report, Source
from weft.exchange.importers.servers import Address, OnServer
from weft.exchange.importers.sources import Candidate, candidates
from weft.exchange.importers.transcript import NativeTurn
from weft.kernel.ambient import Clock
from weft.kernel.errors import StoreError
from weft.ledger.imports import ImportCounts, ImportDesk, ImportSource, RawBytes, RawFile, Tail
from weft.ledger.ledger import Ledger


class OriginTotals(Struct):
    """What one origin's sources brought."""

    files: int = 0
    unchanged: int = 0
    bytes: int = 0
    records: int = 0
    kept: int = 0
    unknown: dict[str, int] = field(default_factory=dict)
    counts: ImportCounts = field(default_factory=ImportCounts)


class ImportSummary(Struct):
    """What an import did."""

    origins: dict[str, OriginTotals] = field(default_factory=dict)
    unrecognised: list[str] = field(default_factory=list)
    """Files that no importer knows."""
    problems: list[Problem] = field(default_factory=list)

    def of(self, origin: str) -> OriginTotals:
        return self.origins.setdefault(origin, OriginTotals())


class Step(Struct, frozen=True):
    """How far an import is."""

    files: int
    of_files: int
    bytes: int
    of_bytes: int
    sessions: int
    name: str


class Unit(Struct, frozen=True):
    """A candidate that somebody recognised."""

    candidate: Candidate | OnServer
    importer: Importer
    unread: bool = True
    """There is something to read: it is not as it was when it was read last."""


class Plan(Struct, frozen=True):
    """What an import is about to read, the latest first."""

    units: list[Unit]

    @property
    def files(self) -> int:
        return sum(unit.unread for unit in self.units)

    @property
    def bytes(self) -> int:
        return sum(unit.candidate.size for unit in self.units if unit.unread)


Progress = Callable[[Step], None]


def _silent(step: Step) -> None:
    """No progress wanted."""


class Importing:
    """One run of `weft import`."""

    def __init__(
        self,
        ledger: Ledger | None,
        importers: Sequence[Importer],
        clock: Clock,
        *,
        since: int | None = None,
        remap: bool = False,
        force: bool = False,
        progress: Progress = _silent,
    ) -> None:
        """Without a ledger nothing is written: a dry run. `force`: the one importer given takes every file."""
        self._ledger, self._importers, self._clock = ledger, importers, clock
        self._since, self._remap, self._force = since, remap, force
        self._progress = progress
        self._desks: dict[str, ImportDesk] = {}
        self.summary = ImportSummary()

    def run(self, paths: Iterable[Path | Address]) -> ImportSummary:
        return self.carry_out(self.plan(paths))

    def plan(self, paths: Iterable[Path | Address]) -> Plan:
        """The latest first, so that lists of sessions are of use long before all is done."""
        return Plan(sorted(self._units(paths), key=lambda unit: -unit.candidate.changed_ms))

    def carry_out(self, plan: Plan) -> ImportSummary:
        files, size, of_files, of_bytes = 0, 0, plan.files, plan.bytes
        try:
            for unit in plan.units:
                if unit.unread:
                    self._progress(self._step(files, of_files, size, of_bytes, unit.candidate.name))
                self.take(unit)
                files, size = files + unit.unread, size + unit.candidate.size * unit.unread
        finally:  # also where it is stopped: what was read is not read again
            self.finish()
        if of_files:
            self._progress(self._step(files, of_files, size, of_bytes, ""))
        return self.summary

    def note(self) -> None:
        """What was read up to now is not read again."""
        for desk in self._desks.values():
            desk.finish()

    def finish(self) -> None:
        """Note what was read, and let go of what only a run needs."""
        self.note()
        if self._desks:
            self.forget_gone()
        self._desks.clear()

    def forget_gone(self) -> list[str]:
        """Open tails of sources that are not there any more; their names."""
        desk = next(iter(self._desks.values()), None) or (self._importers and self._desk(self._importers[0]))
        return desk.forget_tails(_is_there) if desk else []

    def _index(self) -> None:
        """Search keeps up with a long import, a piece at a time; the rest is done when the ledger is closed."""
        if self._ledger is not None:
            self._ledger.index_if_behind()

    def _step(self, files: int, of_files: int, done: int, of_bytes: int, name: str) -> Step:
        sessions = sum(totals.counts.sessions for totals in self.summary.origins.values())
        return Step(files, of_files, done, of_bytes, sessions, name)

    def _units(self, paths: Iterable[Path | Address]) -> Iterable[Unit]:
        """What is to be read. A source that was read to its end and has not changed is not opened."""
        for path in paths:
            for candidate in candidates(path, self.failed):
                if (unit := self.recognise(candidate)) is not None:
                    yield unit

    def recognise(self, candidate: Candidate | OnServer) -> Unit | None:
        """With the importer that reads it; one that was read and has not changed is not opened for that."""
        if self._since is not None and candidate.changed_ms < self._since:
            return None
        return self._unchanged(candidate) or self._recognised(candidate)

    def _unchanged(self, candidate: Candidate | OnServer) -> Unit | None:
        """One that was read to its end and is as it was then: told without opening it."""
        desk = self._desk(self._importers[0]) if self._importers else None
        before = desk.last_read(candidate.name) if desk else None
        if desk is None or before is None or not candidate.is_as(before):
            return None
        found = next((each for each in self._importers if each.origin == before.origin), None)
        if found is None:
            return None
        desk = self._desk(found) or desk
        return Unit(candidate, found, desk.is_due(before, candidate.is_quiet(self._clock.now_ms() / 1000)))

    def _recognised(self, candidate: Candidate | OnServer) -> Unit | None:
        try:
            with candidate.open(self._clock.now_ms() / 1000) as source:
                part = any(importer.is_part(source) for importer in self._importers)
                found = [] if part else [each for each in self._importers if self._force or each.recognises(source)]
        except OSError as error:
            self.failed(_where(candidate), error)
            return None
        except Exception as error:  # whatever an importer makes of it, the other files go on
            self.failed(_where(candidate), OSError(f"it cannot be recognised: {type(error).__name__}: {error}"[:500]))
            return None
        if not found and not part:
            self.summary.unrecognised.append(candidate.name)
        return Unit(candidate, found[0]) if found else None

    def failed(self, path: Path | Address, error: OSError) -> None:
        name = path.shown if isinstance(path, Address) else Candidate(path, 0, 0).name
        self.summary.problems.append(Problem(source=name, line=None, what=error.strerror or str(error)))

    def _desk(self, importer: Importer) -> ImportDesk | None:
        if self._ledger is not None and importer.origin not in self._desks:
            desk = self._ledger.import_desk(importer.origin, importer.mapping, remap=self._remap)
            self._desks[importer.origin] = desk
        return self._desks.get(importer.origin)

    def take(self, unit: Unit) -> None:
        """Everything of one source that is new; nothing where there is nothing."""
        self._take(unit)
        self._index()

    def _take(self, unit: Unit) -> None:
        importer, candidate = unit.importer, unit.candidate
        totals, desk = self.summary.of(importer.origin), self._desk(importer)
        totals.files += 1
        before = desk.last_read(candidate.name) if desk else None
        quiet = candidate.is_quiet(self._clock.now_ms() / 1000)
        if desk and before and candidate.is_as(before) and not desk.is_due(before, quiet):
            totals.unchanged += 1
            return
        report = Report(candidate.name)
        try:
            with candidate.open(self._clock.now_ms() / 1000) as source:
                if source.is_cut:
                    report.problem(None, "it ends too early; what could be unpacked was taken")
                if desk is None:
                    self._walk(importer, source, report, totals)
                else:
                    self._write(desk, importer, source, candidate, report, totals)
        except OSError as error:
            self.failed(_where(candidate), error)
        except StoreError:
            raise
        except Exception as error:  # whatever an importer makes of a source, the others go on
            what = f"the {importer.origin} importer failed: {type(error).__name__}: {error}"
            self.summary.problems.append(Problem(source=candidate.name, line=None, what=what[:500]))
        totals.bytes += candidate.size
        totals.records += report.found
        totals.kept += sum(report.kept.values())
        for kind, count in report.unknown.items():
            totals.unknown[kind] = totals.unknown.get(kind, 0) + count
        self.summary.problems += report.problems

    def _walk(self, importer: Importer, source: Source, report: Report, totals: OriginTotals) -> None:
        """A dry run: everything is read, nothing written."""
        for transcript in importer.read(source, report):
            totals.counts.sessions += 1
            for turn in transcript.turns:
                closed = turn.closed or source.quiet
                totals.counts.turns += closed
                totals.counts.open_turns += not closed

    def _write(
        self,
        desk: ImportDesk,
        importer: Importer,
        source: Source,
        candidate: Candidate | OnServer,
        report: Report,
        totals: OriginTotals,
    ) -> None:
        read = ImportSource(
            name=source.name,
            size=_size(source, candidate),
            stamp=candidate.stamp,
            digest=_fingerprint(source, candidate),
        )
        before = desk.last_read(source.name)
        same = before is not None and (before.size, before.digest) == (read.size, read.digest)
        if before and same and not desk.is_due(before, source.quiet):
            desk.remember(replace(read, open=before.open, kept=before.kept), alike=True)
            totals.unchanged += 1
            return
        waiting = totals.counts.open_turns
        file = _still_to_keep(source, before)
        for transcript in importer.read(source, report):
            file.end = source.size if transcript.until is None else transcript.until
            raw = file if transcript.raw is None else RawBytes(transcript.raw)
            tail = Tail(candidate.stamp)
            desk.take(
                transcript.session,
                _closed(transcript.turns, source.quiet, totals.counts, raw, tail),
                source.name,
                totals.counts,
                reread=before is not None,
                raw=raw,
                tail=tail,
            )
        is_open = totals.counts.open_turns > waiting
        desk.remember(replace(read, open=is_open, kept=file.at if is_open else None))


def _is_there(name: str) -> bool:
    return Address.is_one(name) or Path(name).exists()


def _where(candidate: Candidate | OnServer) -> Path | Address:
    return candidate.address if isinstance(candidate, OnServer) else candidate.path


def _still_to_keep(source: Source, before: ImportSource | None) -> RawFile:
    """What of the file is not kept yet: all of it, unless it has only grown."""
    if before is None:
        return RawFile(source.path, 0, source.size)
    grown = before.digest == _digest(source.path, before.size)
    start = before.size if before.kept is None else before.kept
    return RawFile(source.path, start if grown else 0, source.size, grows=grown)


def _closed(
    turns: Iterable[NativeTurn], quiet: bool, counts: ImportCounts, raw: RawFile | None = None, tail: Tail | None = None
) -> Iterable[NativeTurn]:
    """The open tail of a source that is still written to is not a fact yet, nor is what grew from it. Nor is what
    stands there kept: a source that grows up to its last closed turn, another one once it is quiet."""
    places: dict[int | None, int | None] = {None: None}
    taken = reach = left = 0
    for number, turn in enumerate(turns):
        named = {turn.parent} | ({turn.compaction.through, turn.compaction.first_kept} if turn.compaction else set())
        if not quiet and not (turn.closed and named <= places.keys()):
            counts.open_turns += 1
            left += 1
            if tail is not None:
                tail.add(turn, places.get(turn.parent))
            continue
        places[number] = taken
        taken += 1
        reach = max(reach, turn.end)
        yield turn if number < taken else _placed(turn, places)

    if left and raw is not None:
        raw.end = max(raw.at, min(raw.end, reach)) if raw.grows else raw.at


def _placed(turn: NativeTurn, places: Mapping[int | None, int | None]) -> NativeTurn:
    """With its places counted among the turns that are taken."""
    compaction = turn.compaction
    if compaction is not None:
        through, kept = places[compaction.through], places[compaction.first_kept]
        compaction = replace(compaction, through=through, first_kept=kept)
    return replace(turn, parent=places[turn.parent], compaction=compaction)


def _log(source: Source, candidate: Candidate | OnServer) -> Path | None:
    """What a database in use has beside it."""
    if isinstance(candidate, OnServer):
        return None
    log = candidate.path.with_name(f"{candidate.path.name}-wal")
    return log if candidate.size > source.size and log.is_file() else None


def _size(source: Source, candidate: Candidate | OnServer) -> int:
    """So many bytes as the fingerprint is of: a file that is written to has grown since it was found."""
    return candidate.size if candidate.is_packed or _log(source, candidate) else source.size


def _fingerprint(source: Source, candidate: Candidate | OnServer) -> bytes:
    """Of the file, and of a database's log beside it."""
    own, log = _digest(source.path, source.size), _log(source, candidate)
    return own if log is None else sha256(own + _digest(log, log.stat().st_size)).digest()


def _digest(path: Path, size: int) -> bytes:
    hasher = sha256()
    with path.open("rb") as file:
        while size > 0 and (chunk := file.read(min(size, 1 << 20))):
            hasher.update(chunk)
            size -= len(chunk)
    return hasher.digest()
