"""Importing: every source is recognised, read by its importer, and written into the ledger, one
after the other.

Closed turns of a session become facts, its open tail is noted. Of files that grow, the place of the
last reading is remembered, so that the next one reads only what is new.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from weft.exchange.importers.foreign_values import SOURCE_LIMITS
from weft.exchange.importers.port import (
    FollowingImporter,
    GatheringImporter,
    Importer,
    NamedImporter,
    NativeSession,
    NativeTurn,
    Problem,
    Reader,
    Report,
    Source,
    Transcript,
    load_importers,
    registered_name,
)
from weft.exchange.importing.reading_ahead import (
    EarlyWorker,
    ImporterFailed,
    OpenedSource,
    ReadingAhead,
    SourceAhead,
    WantedSource,
    usable_cores,
)
from weft.exchange.importing.sources import (
    Address,
    OnServer,
    SourceCandidate,
    bytes_digest,
    candidates,
    claiming,
    digests,
    file_state,
    fingerprint,
    read_size,
    still_to_keep,
)
from weft.kernel.clock import Clock
from weft.kernel.errors import InvalidInput, LimitExceeded, StoreError, quoted
from weft.kernel.foreign_input import ReadBudget
from weft.ledger.api import Ledger
from weft.ledger.imports import (
    ImportCounts,
    ImportSource,
    ImportWriter,
    OpenTail,
    PreparedWords,
    RawBytes,
    RawFile,
    TranscriptTurn,
    whole_turn,
)

# --- The sessions of one source on their way into the ledger: closed turns become facts, the open tail is noted.


class EndedTurn(Struct, frozen=True, kw_only=True):
    """A turn that was not in the ledger before, and that its tool has ended."""

    session: str
    """The ids under which the ledger has them."""
    turn: str
    workspace: str | None
    ended_at: int | None
    """The latest time that its records tell, in Unix milliseconds."""
    is_subagent: bool = False
    """Whether a call of another session started its session."""


OnEnded = Callable[[Sequence[EndedTurn]], None]
"""Told of turns once they are facts. It must not raise, nor take long."""


class SourceIntake(Struct):
    """Takes what one reading of a source gives."""

    writer: ImportWriter
    source: Source
    stamp: int
    """The source's time."""
    file: RawFile
    """What of it is still to be kept."""
    counts: ImportCounts
    reread: bool
    known: Mapping[str, list[TranscriptTurn]]
    """What an earlier reading by the same reader took, by session."""
    landed: dict[str, list[TranscriptTurn]] = field(default_factory=dict)
    """What is taken now: of each session the turns before the first that was left open."""
    is_open: bool = False
    is_plain: bool = True
    """Nothing was passed over because it was erased, and no session came twice: a reader can go on from here."""
    on_ended: OnEnded | None = None

    def take(self, transcript: Transcript) -> None:
        session, counts = transcript.session, self.counts
        known = self.known.get(session.id, [])[: transcript.known]
        if len(known) < transcript.known:
            raise AssertionError(f"a reader passes over turns of {session.id} that nobody took")
        self.file.end = self.source.size if transcript.until is None else transcript.until
        raw = self.file if transcript.raw is None else RawBytes(transcript.raw)
        sieve, erased = OpenTailFilter(self.source, raw, OpenTail(self.stamp), known), counts.erased
        ends = None if self.on_ended is None else TurnEnds(session)
        closed = sieve.closed(transcript.turns)
        landed = self.writer.take(
            session,
            closed if ends is None else ends.noted(closed),
            self.source.name,
            counts,
            reread=self.reread,
            raw=raw,
            tail=sieve.tail,
            known=known,
        )
        counts.open_turns += sieve.left
        counts.answered_turns += sieve.answered
        self.is_open |= sieve.left > 0
        if session.id in self.landed or counts.erased > erased or self.writer.refuses(session):
            self.is_plain = False
        self.landed[session.id] = landed[: sieve.leading]
        if self.on_ended is not None and ends is not None:
            self.on_ended(ends.of_new(self.writer.secret.session_id(session.id), landed[len(known) :]))


class TurnEnds:
    """Where and when the turns of one transcript ended."""

    def __init__(self, session: NativeSession) -> None:
        self._session = session
        self._ends: list[tuple[str | None, int | None]] = []

    def noted(self, turns: Iterable[NativeTurn]) -> Iterator[NativeTurn]:
        for turn in turns:
            self._ends.append((turn.workspace, turn.last_time))
            yield turn

    def of_new(self, session: str, landed: Sequence[TranscriptTurn]) -> list[EndedTurn]:
        """Of those that the ledger did not have before. A session that was erased has landed none."""
        return [
            EndedTurn(
                session=session,
                turn=at.id,
                workspace=workspace or self._session.workspace,
                ended_at=ended_at,
                is_subagent=self._session.parent is not None,
            )
            for at, (workspace, ended_at) in zip(landed, self._ends, strict=False)
            if at.is_new
        ]


class OpenTailFilter:
    """The open tail of a source that is still written to is not a fact yet, nor is what grew from it. Nor is what
    stands there kept: a source that grows up to its last closed turn, another one once it is quiet. A tail whose
    records are old is closed, however new the file is."""

    def __init__(self, source: Source, raw: RawFile, tail: OpenTail, known: list[TranscriptTurn]) -> None:
        """`known` are turns that came before."""
        self.tail, self.left, self.answered = tail, 0, 0
        """Turns that are left out, how many, and how many of them end with their last record unless more comes."""
        self.leading = self._taken = len(known)
        """So many turns were taken before the first that was left out."""
        self._source, self._raw = source, raw
        self._places: dict[int | None, int | None] = {None: None, **{number: number for number in range(len(known))}}
        self._reach = max((turn.end for turn in known), default=0)

    def closed(self, turns: Iterable[NativeTurn]) -> Iterator[NativeTurn]:
        for number, turn in enumerate(turns, self._taken):
            if not self._source.quiet and not self._is_closed(turn):
                self.left += 1
                self.answered += turn.answered
                self.tail.add(whole_turn(turn), self._places.get(turn.parent))
                continue
            self._places[number] = self._taken
            self._taken += 1
            self.leading += self.left == 0
            self._reach = max(self._reach, turn.end)
            yield turn if number < self._taken else _placed(turn, self._places)
        raw = self._raw
        if self.left:
            raw.end = max(raw.at, min(raw.end, self._reach)) if raw.grows else raw.at

    def _is_closed(self, turn: NativeTurn) -> bool:
        compaction = turn.compaction
        named = {turn.parent} | ({compaction.through, compaction.first_kept} if compaction else set())
        return named <= self._places.keys() and (turn.closed or self._source.is_over(turn))


def _placed(turn: NativeTurn, places: Mapping[int | None, int | None]) -> NativeTurn:
    """With its places counted among the turns that are taken."""
    compaction = turn.compaction
    if compaction is not None:
        through, kept = places[compaction.through], places[compaction.first_kept]
        compaction = replace(compaction, through=through, first_kept=kept)
    return replace(turn, parent=places[turn.parent], compaction=compaction)


# --- Files that grow: what a watch remembers of its last reading of each, so that the next one reads only what is new.

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


# --- Importing: every source is recognised, read by its importer, and written into the ledger, one after the other.

TWO_PROCESSES_BYTES = 4 * 1024 * 1024
"""Of sources that a worker can read: with fewer it takes longer to start one than it saves."""
HEAD_START_BYTES = 1024 * 1024
"""Of the first sources, read in this process while the worker starts."""
LONG_HEAD_STARTS = 2
"""A source that is longer than so many head starts is left to the worker."""
SPARE_LAG_EVENTS = 2_048
"""So many that search has not seen are worth a batch of their own, while there is nothing else to do."""


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
    looked_at: int = 0
    """Files that were met, of whatever name; members of an archive count each."""
    mistaken: set[str] = field(default_factory=set)
    """Formats that sources look like of which the one that was forced gave nothing."""
    problems: list[Problem] = field(default_factory=list)
    older: int = 0
    """Files that were last changed before the time from which on files are wanted."""
    lost_worker: str | None = None
    """How a worker ended that did not hold out, for people: what it left was read without it."""

    def of(self, origin: str) -> OriginTotals:
        return self.origins.setdefault(origin, OriginTotals())


class ImportStep(Struct, frozen=True):
    """How far an import is."""

    files: int
    of_files: int
    bytes: int
    of_bytes: int
    sessions: int
    name: str
    turns: int = 0
    problems: int = 0


class Unit(Struct, frozen=True):
    """A candidate that somebody recognised."""

    candidate: SourceCandidate | OnServer
    importer: Importer
    unread: bool = True
    """There is something to read: it is not as it was when it was read last."""
    is_stale: bool = False
    """A file that it brings in has changed: it is read, however it looks itself."""
    looks_like: str | None = None
    """Where its importer was forced: the origin of another one that recognises it, while that one does not."""


class ImportPart(Struct, frozen=True):
    """A candidate that another file brings in."""

    whole: Path | None


class Plan(Struct, frozen=True):
    """What an import is about to read, the latest first."""

    units: list[Unit]

    @property
    def files(self) -> int:
        return sum(unit.unread for unit in self.units)

    @property
    def bytes(self) -> int:
        return sum(unit.candidate.size for unit in self.units if unit.unread)


Progress = Callable[[ImportStep], None]


def _silent(step: ImportStep) -> None:
    """No progress wanted."""


class ImportRun:
    """One run of an import."""

    def __init__(
        self,
        ledger: Ledger | None,
        importers: Sequence[Importer],
        clock: Clock,
        *,
        since: int | None = None,
        remap: bool = False,
        force: bool = False,
        follow: bool = False,
        progress: Progress = _silent,
        on_ended: OnEnded | None = None,
        processes: int | None = None,
    ) -> None:
        """Without a ledger nothing is written: a dry run. `force`: the one importer given takes every file, also one
        that another recognises; where it makes no turn of such a file, that is a problem, and nothing of it is written.
        `follow`: the same files will be read again and again, and are remembered for that. `on_ended` is told of turns
        that were not in the ledger before. `processes`: 2, a worker reads while this process writes; 1, this process
        does both; None, whichever is better."""
        if processes not in (None, 1, 2):
            raise InvalidInput(f"processes is {quoted(processes)}", "give 1 or 2, or nothing")
        self._ledger, self._importers, self._clock = ledger, importers, clock
        self._since, self._remap, self._force = since, remap, force
        self._progress, self._on_ended = progress, on_ended
        self._followers = Followers() if follow else None
        self._processes = 1 if follow or ledger is None else processes
        self._others: list[Importer] | None = None
        """All but the one that was forced; loaded when they are first asked."""
        self._ahead: ReadingAhead | None = None
        self._starts_early = False
        self._early: EarlyWorker | None = None
        self._words: PreparedWords | None = None
        self._writers: dict[str, ImportWriter] = {}
        self.summary = ImportSummary()

    def run(self, paths: Iterable[Path | Address], on_planned: Callable[[Plan], None] | None = None) -> ImportSummary:
        """Plan and carry out; `on_planned` is told the plan in between. The worker starts while the plan is made, as
        soon as that is large enough for one."""
        self._starts_early = True
        try:
            plan = self.plan(paths)
            if on_planned is not None:
                on_planned(plan)
            return self.carry_out(plan)
        finally:
            self._starts_early = False
            if self._early is not None:
                self._early.close()
                self._early = None

    def plan(self, paths: Iterable[Path | Address]) -> Plan:
        """The latest first, so that lists of sessions are of use long before all is done."""
        return Plan(sorted(self._units(paths), key=lambda unit: -unit.candidate.changed_ms))

    def carry_out(self, plan: Plan) -> ImportSummary:
        files, size, of_files, of_bytes = 0, 0, plan.files, plan.bytes
        with ExitStack() as stack:
            stack.callback(self.finish)  # also where it is stopped: what was read is not read again
            self._begin_worker(plan, stack)
            for unit in plan.units:
                if unit.unread:
                    self._progress(self._step(files, of_files, size, of_bytes, unit.candidate.name))
                self.take(unit)
                files, size = files + unit.unread, size + unit.candidate.size * unit.unread
            self._index_all()
        if of_files:
            self._progress(self._step(files, of_files, size, of_bytes, ""))
        return self.summary

    def _begin_worker(self, plan: Plan, stack: ExitStack) -> None:
        """Where two processes are wanted, or are better than one."""
        sources = [wanted for unit in plan.units if (wanted := self._for_worker(unit)) is not None]
        is_large = sum(wanted.candidate.size for wanted in sources) >= TWO_PROCESSES_BYTES
        if sources and self._has_worker(is_large):
            self._words = PreparedWords()
            self._writers.clear()  # those that looked at sources take no words
            ordered = _after_head_start(sources) if is_large else sources
            ahead = ReadingAhead(ordered, self._clock, self._index_between, self._note_lost, self._early)
            self._ahead = stack.enter_context(ahead)

    def _has_worker(self, is_large: bool) -> bool:
        return self._processes == 2 or (self._processes is None and is_large and usable_cores() > 1)

    def _start_early(self, size: int) -> None:
        is_due = self._starts_early and self._early is None and size >= TWO_PROCESSES_BYTES
        if is_due and self._has_worker(is_large=True):
            self._early = EarlyWorker()

    def _note_lost(self, why: str) -> None:
        self.summary.lost_worker = why

    def _for_worker(self, unit: Unit) -> WantedSource | None:
        """A file that is to be read, by an importer that another process can load."""
        if self._processes == 1 or not unit.unread or not isinstance(unit.candidate, SourceCandidate):
            return None
        name, writer = registered_name(unit.importer), self._writer(unit.importer)
        return None if name is None or writer is None else WantedSource(unit.candidate, name, writer.secret.key)

    def note(self) -> None:
        """What was read up to now is not read again."""
        for writer in self._writers.values():
            writer.finish()

    def finish(self) -> None:
        """Note what was read, and let go of what only a run needs."""
        self.note()
        if self._writers:
            self.forget_gone()
        self._writers.clear()
        self._ahead = self._words = None

    def forget_gone(self) -> list[str]:
        """Open tails of sources that are not there any more; their names."""
        writer = next(iter(self._writers.values()), None) or (self._importers and self._writer(self._importers[0]))
        return writer.forget_tails(_is_there) if writer else []

    def _index(self) -> None:
        """Search keeps up with a long import, a piece at a time; the rest is left to the closing and the next
        search."""
        if self._ledger is not None:
            self._ledger.imports.index(self._words)

    def _index_between(self, is_idle: bool) -> None:
        """Search takes prepared words before they are more than there is room for, and catches up while this process
        would only wait for its worker."""
        if self._ledger is None or self._words is None:
            return
        if self._words.is_full:
            self._index()
        elif is_idle:
            self._ledger.imports.index(self._words, beyond=SPARE_LAG_EVENTS)

    def _index_all(self) -> None:
        """What is prepared for search is used before it is gone."""
        if self._ledger is not None and self._words is not None:
            self._ledger.imports.index(self._words, beyond=0)

    def _step(self, files: int, of_files: int, done: int, of_bytes: int, name: str) -> ImportStep:
        counts = [totals.counts for totals in self.summary.origins.values()]
        sessions, turns = sum(each.sessions for each in counts), sum(each.turns for each in counts)
        return ImportStep(files, of_files, done, of_bytes, sessions, name, turns, len(self.summary.problems))

    def _units(self, paths: Iterable[Path | Address]) -> Iterable[Unit]:
        """What is to be read. A source that was read to its end is opened only if it, or something it brings in, has
        changed."""
        units: list[Unit] = []
        beside: dict[Path, int] = {}
        size = 0
        for path in paths:
            for candidate in candidates(path, self.failed, self._pass_over):
                self.summary.looked_at += 1
                found = self.recognise(candidate)
                if isinstance(found, Unit):
                    units.append(found)
                    size += found.candidate.size if self._for_worker(found) else 0
                    self._start_early(size)
                elif found is not None and found.whole is not None:
                    beside[found.whole] = max(beside.get(found.whole, 0), candidate.changed_ms)
        for unit in units:
            is_stale = not unit.unread and self._has_newer_part(unit, beside)
            yield replace(unit, unread=True, is_stale=True) if is_stale else unit

    def _pass_over(self, path: Path) -> None:
        """A file that is not called as session files are."""
        self.summary.looked_at += 1

    def _has_newer_part(self, unit: Unit, beside: Mapping[Path, int]) -> bool:
        """Was a part written since the file that brings it in was read? One that stands for its parts tells itself."""
        candidate, writer = unit.candidate, self._writer(unit.importer)
        if writer is None or isinstance(candidate, OnServer) or candidate.beside or candidate.path not in beside:
            return False
        before = writer.last_read(candidate.name)
        return before is not None and beside[candidate.path] >= before.read_at

    def recognise(self, candidate: SourceCandidate | OnServer) -> Unit | ImportPart | None:
        """With the importer that reads it; one that was read and has not changed is not opened for that."""
        if self._since is not None and candidate.changed_ms < self._since:
            self.summary.older += 1
            return None
        return self._unchanged(candidate) or self._recognised(candidate)

    def _unchanged(self, candidate: SourceCandidate | OnServer) -> Unit | None:
        """One that was read to its end and is as it was then: told without opening it."""
        writer = self._writer(self._importers[0]) if self._importers else None
        before = writer.last_read(candidate.name) if writer else None
        if writer is None or before is None:
            return None
        found = next((each for each in self._importers if each.origin == before.origin), None)
        if found is None:
            return None
        candidate = _gathered(candidate, found)
        if not candidate.is_as(before):
            return None
        writer = self._writer(found) or writer
        if _is_renamed(candidate, found, before):
            return Unit(candidate, found, is_stale=True)
        return Unit(candidate, found, writer.is_due(before, candidate.is_quiet(self._clock.now_ms() / 1000)))

    def _recognised(self, candidate: SourceCandidate | OnServer) -> Unit | ImportPart | None:
        try:
            with candidate.open(self._clock.now_ms() / 1000, self._budget()) as source:
                part = next((_part(each, source) for each in self._importers if each.is_part(source)), None)
                found = [] if part else list(self._importers) if self._force else claiming(self._importers, source)
                looks_like = self._other_format(found[0], source) if self._force and found else None
        except OSError as error:
            self.failed(_where(candidate), error)
            return None
        except LimitExceeded as error:
            self.failed(_where(candidate), OSError(f"{error}; {error.hint}"))
            return None
        except Exception as error:  # whatever an importer makes of it, the other files go on
            self.failed(_where(candidate), OSError(f"it cannot be recognised: {type(error).__name__}: {error}"[:500]))
            return None
        if not found and not part:
            self.summary.unrecognised.append(candidate.name)
        return Unit(_gathered(candidate, found[0]), found[0], looks_like=looks_like) if found else part

    def _other_format(self, forced: Importer, source: Source) -> str | None:
        """The origin of the importer that would take a source, where that is not the one that was forced."""
        try:
            if self._others is None:
                self._others = [importer for importer in load_importers() if importer.origin != forced.origin]
            claims = claiming([forced, *self._others], source)
        except Exception:  # another importer's fault: the one that was forced may do without it
            return None
        return None if not claims or forced in claims else claims[0].origin

    def _budget(self) -> ReadBudget:
        """Of one source, which is opened now."""
        return ReadBudget(SOURCE_LIMITS, self._clock.monotonic)

    def failed(self, path: Path | Address, error: OSError) -> None:
        name = path.shown if isinstance(path, Address) else SourceCandidate(path, 0, 0).name
        self.summary.problems.append(Problem(source=name, line=None, what=error.strerror or str(error)))

    def _writer(self, importer: Importer) -> ImportWriter | None:
        if self._ledger is not None and importer.origin not in self._writers:
            imports = self._ledger.imports
            writer = imports.writer(importer.origin, importer.mapping, remap=self._remap, words=self._words)
            self._writers[importer.origin] = writer
        return self._writers.get(importer.origin)

    def take(self, unit: Unit) -> None:
        """Everything of one source that is new; nothing where there is nothing."""
        self._take(unit)
        self._index()

    def _take(self, unit: Unit) -> None:
        importer, candidate = unit.importer, unit.candidate
        totals, writer = self.summary.of(importer.origin), self._writer(importer)
        totals.files += 1
        ahead = None if self._ahead is None else self._ahead.take(candidate)
        before = writer.last_read(candidate.name) if writer else None
        quiet = candidate.is_quiet(self._clock.now_ms() / 1000)
        is_known = before is not None and candidate.is_as(before) and not unit.is_stale
        if writer and before and is_known and not writer.is_due(before, quiet):
            totals.unchanged += 1
            return
        report = Report(candidate.name, budget=self._budget())
        try:
            with candidate.open(self._clock.now_ms() / 1000, report.budget) as source:
                if source.is_cut:
                    report.problem(None, "it ends too early; what could be unpacked was taken")
                if unit.looks_like is not None and not self._gives_turns(importer, source):
                    report.problem(None, f"no turn could be read as {importer.origin}: it looks like {unit.looks_like}")
                    self.summary.mistaken.add(unit.looks_like)
                elif writer is None:
                    self._walk(importer, source, report, totals)
                else:
                    self._write(writer, unit, source, report, totals, ahead)
        except OSError as error:
            self.failed(_where(candidate), error)
        except LimitExceeded as error:  # what it gave before that is written
            self.failed(_where(candidate), OSError(f"{error}; {error.hint}"))
        except StoreError:
            raise
        except Exception as error:  # whatever an importer makes of a source, the others go on
            reason = str(error) if isinstance(error, ImporterFailed) else f"{type(error).__name__}: {error}"
            what = f"the {importer.origin} importer failed: {reason}"
            self.summary.problems.append(Problem(source=candidate.name, line=None, what=what[:500]))
        totals.bytes += candidate.size
        totals.records += report.found
        totals.kept += sum(report.kept.values())
        for kind, count in report.unknown.items():
            totals.unknown[kind] = totals.unknown.get(kind, 0) + count
        self.summary.problems += report.problems

    def _gives_turns(self, importer: Importer, source: Source) -> bool:
        """Is there a turn in it for this importer? It is read up to the first one."""
        report = Report(source.name, budget=self._budget())
        return any(True for transcript in importer.read(source, report) for _ in transcript.turns)

    def _walk(self, importer: Importer, source: Source, report: Report, totals: OriginTotals) -> None:
        """A dry run: everything is read, nothing written."""
        for transcript in importer.read(source, report):
            totals.counts.sessions += 1
            for turn in transcript.turns:
                closed = turn.closed or source.is_over(turn)
                totals.counts.turns += closed
                totals.counts.open_turns += not closed

    def _write(
        self,
        writer: ImportWriter,
        unit: Unit,
        source: Source,
        report: Report,
        totals: OriginTotals,
        ahead: SourceAhead | None,
    ) -> None:
        importer, candidate = unit.importer, unit.candidate
        before = writer.last_read(source.name)
        opened = None if ahead is None else ahead.opened()
        own, beginning = _digests(source, candidate, before, opened)
        read = ImportSource(
            name=source.name,
            size=read_size(source, candidate),
            stamp=candidate.stamp,
            digest=fingerprint(source, candidate, own),
            read_at=self._clock.now_ms() if ahead is None else ahead.ordered_ms,
        )
        same = before is not None and (before.size, before.digest) == (read.size, read.digest) and not unit.is_stale
        if before and same and not writer.is_due(before, source.quiet):
            writer.remember(replace(read, open=before.open, kept=before.kept), alike=True)
            totals.unchanged += 1
            return
        file = still_to_keep(source, before, beginning)
        follower = self._follower(writer, importer, before, file.grows)
        known = {} if follower is None else follower.landed
        intake = SourceIntake(
            writer, source, candidate.stamp, file, totals.counts, before is not None, known, on_ended=self._on_ended
        )
        read_bytes = (source.size, bytes_digest(source, candidate, own))
        if ahead is not None and opened is not None and (opened.size, opened.digest) == read_bytes:
            transcripts = ahead.transcripts(importer, source, report)
        else:
            transcripts = (importer if follower is None else follower).read(source, report)
        for transcript in transcripts:
            intake.take(transcript)
        writer.remember(replace(read, open=intake.is_open, kept=file.at if intake.is_open else None))
        if follower is not None and self._followers is not None and intake.is_plain:
            follower.note(read, intake.landed)
            self._followers.keep(source.name, follower)

    def _follower(
        self, writer: ImportWriter, importer: Importer, before: ImportSource | None, grown: bool
    ) -> Follower | None:
        """Who reads a file that will be read again; the one who read it last, if all that it knows still holds."""
        if self._followers is None or not isinstance(importer, FollowingImporter):
            return None
        last = self._followers.take(before.name) if before is not None else None
        erasures = writer.erasures()
        if last is not None and grown and last.is_true(writer.mapping, before, erasures):
            return last
        return Follower(importer.reader(), writer.mapping, erasures)


def _after_head_start(sources: Sequence[WantedSource]) -> Sequence[WantedSource]:
    """What is left for the worker. The source that the head start ends in is read here, too, unless it is long."""
    done = own = 0
    for wanted in sources:
        if done >= HEAD_START_BYTES or wanted.candidate.size > LONG_HEAD_STARTS * HEAD_START_BYTES:
            break
        done, own = done + wanted.candidate.size, own + 1
    return sources[own:]


def _digests(
    source: Source, candidate: SourceCandidate | OnServer, before: ImportSource | None, opened: OpenedSource | None
) -> tuple[bytes, bytes | None]:
    """Of its bytes, and of as many as it had when it was read before. Of a new file the worker's is taken, where it is
    the very one that the worker has hashed."""
    if before is None and opened is not None:
        state = file_state(source, candidate)
        if state is not None and state == opened.state:
            return opened.digest, None
    return digests(source.path, source.size, before.size if before else 0)


def _part(importer: Importer, source: Source) -> ImportPart:
    return ImportPart(importer.whole(source) if isinstance(importer, GatheringImporter) else None)


def _gathered(candidate: SourceCandidate | OnServer, importer: Importer) -> SourceCandidate | OnServer:
    """With the files that it stands for."""
    if isinstance(candidate, OnServer) or candidate.is_packed or not isinstance(importer, GatheringImporter):
        return candidate
    parts = importer.parts(candidate.path)
    return candidate.with_parts(parts) if parts else candidate


def _is_renamed(candidate: SourceCandidate | OnServer, importer: Importer, read: ImportSource) -> bool:
    if isinstance(candidate, OnServer) or candidate.is_packed or not isinstance(importer, NamedImporter):
        return False
    return importer.is_renamed(candidate.path, read.read_at)


def _is_there(name: str) -> bool:
    return Address.is_one(name) or Path(name).exists()


def _where(candidate: SourceCandidate | OnServer) -> Path | Address:
    return candidate.address if isinstance(candidate, OnServer) else candidate.path


USUAL_RATE = 6_000_000.0
"""Bytes a second, before anything was measured: what a small machine does with sessions of coding agents."""
TRUSTED_SECONDS = 10.0
"""After so long the measured rate counts as much as the assumed one; later it counts for more."""


class Pace:
    """Begins with a rate that is assumed, or was measured the last time, and learns."""

    def __init__(self, clock: Clock, rate: float | None = None) -> None:
        self._clock, self._assumed = clock, rate or USUAL_RATE
        self._begun = clock.monotonic()

    def rate(self, done: int) -> float:
        """Bytes a second, now that so many are done."""
        seconds = self._clock.monotonic() - self._begun
        return (self._assumed * TRUSTED_SECONDS + done) / (TRUSTED_SECONDS + seconds)

    def seconds_left(self, done: int, of: int) -> float:
        return max(0, of - done) / max(1.0, self.rate(done))
