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
    known_turns: Mapping[str, list[TranscriptTurn]]
    """What an earlier reading by the same reader took, by session."""
    recorded_turns: dict[str, list[TranscriptTurn]] = field(default_factory=dict)
    """What is taken now: of each session the turns before the first that was left open."""
    is_open: bool = False
    is_plain: bool = True
    """Nothing was passed over because it was erased, and no session came twice: a reader can go on from here."""
    on_ended: OnEnded | None = None

    def take_transcript(self, transcript: Transcript) -> None:
        session, counts = transcript.session, self.counts
        known_turns = self.known_turns.get(session.id, [])[: transcript.known_turns]
        if len(known_turns) < transcript.known_turns:
            raise AssertionError(f"a reader passes over turns of {session.id} that nobody took")
        self.file.end = self.source.size if transcript.until is None else transcript.until
        raw = self.file if transcript.raw is None else RawBytes(transcript.raw)
        sieve, erased = OpenTailFilter(self.source, raw, OpenTail(self.stamp), known_turns), counts.erased
        ends = None if self.on_ended is None else TurnEnds(session)
        closed = sieve.closed(transcript.turns)
        recorded_turns = self.writer.take(
            session,
            closed if ends is None else ends.noted(closed),
            self.source.name,
            counts,
            reread=self.reread,
            raw=raw,
            tail=sieve.tail,
            known=known_turns,
        )
        counts.open_turns += sieve.left_out
        counts.answered_turns += sieve.answered_count
        self.is_open |= sieve.left_out > 0
        if session.id in self.recorded_turns or counts.erased > erased or self.writer.refuses(session):
            self.is_plain = False
        self.recorded_turns[session.id] = recorded_turns[: sieve.leading]
        if self.on_ended is not None and ends is not None:
            self.on_ended(ends.of_new(self.writer.secret.session_id(session.id), recorded_turns[len(known_turns) :]))


class TurnEnds:
    """Where and when the turns of one transcript ended."""

    def __init__(self, session: NativeSession) -> None:
        self._session = session
        self._ends: list[tuple[str | None, int | None]] = []

    def noted(self, turns: Iterable[NativeTurn]) -> Iterator[NativeTurn]:
        for turn in turns:
            self._ends.append((turn.workspace, turn.last_time))
            yield turn

    def of_new(self, session: str, recorded_turns: Sequence[TranscriptTurn]) -> list[EndedTurn]:
        """Of those that the ledger did not have before. A session that was erased has landed none."""
        return [
            EndedTurn(
                session=session,
                turn=recorded_turn.id,
                workspace=workspace or self._session.workspace,
                ended_at=ended_at,
                is_subagent=self._session.parent is not None,
            )
            for recorded_turn, (workspace, ended_at) in zip(recorded_turns, self._ends, strict=False)
            if recorded_turn.is_new
        ]


class OpenTailFilter:
    """The open tail of a source that is still written to is not a fact yet, nor is what grew from it. Nor is what
    stands there kept: a source that grows up to its last closed turn, another one once it is quiet. A tail whose
    records are old is closed, however new the file is."""

    def __init__(self, source: Source, raw: RawFile, tail: OpenTail, known_turns: list[TranscriptTurn]) -> None:
        """`known` are turns that came before."""
        self.tail, self.left_out, self.answered_count = tail, 0, 0
        """Turns that are left out, how many, and how many of them end with their last record unless more comes."""
        self.leading = self._taken = len(known_turns)
        """So many turns were taken before the first that was left out."""
        self._source, self._raw = source, raw
        self._places: dict[int | None, int | None] = {
            None: None,
            **{number: number for number in range(len(known_turns))},
        }
        self._reach = max((turn.end for turn in known_turns), default=0)

    def closed(self, turns: Iterable[NativeTurn]) -> Iterator[NativeTurn]:
        for number, turn in enumerate(turns, self._taken):
            if not self._source.quiet and not self._is_closed(turn):
                self.left_out += 1
                self.answered_count += turn.answered
                self.tail.add(whole_turn(turn), self._places.get(turn.parent))
                continue
            self._places[number] = self._taken
            self._taken += 1
            self.leading += self.left_out == 0
            self._reach = max(self._reach, turn.end)
            yield turn if number < self._taken else _placed(turn, self._places)
        raw = self._raw
        if self.left_out:
            raw.end = max(raw.at, min(raw.end, self._reach)) if raw.grows else raw.at

    def _is_closed(self, turn: NativeTurn) -> bool:
        compaction = turn.compaction
        needed_turns = {turn.parent} | ({compaction.through, compaction.first_kept} if compaction else set())
        return needed_turns <= self._places.keys() and (turn.closed or self._source.is_over(turn))


def _placed(turn: NativeTurn, places: Mapping[int | None, int | None]) -> NativeTurn:
    """With its places counted among the turns that are taken."""
    compaction = turn.compaction
    if compaction is not None:
        through, first_kept = places[compaction.through], places[compaction.first_kept]
        compaction = replace(compaction, through=through, first_kept=first_kept)
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
    recorded_turns: dict[str, list[TranscriptTurn]] = field(default_factory=dict)
    """By the native id of a session, the turns that were taken, as far as none before them was left out."""

    def is_true(self, mapping: str, source: ImportSource | None, erasures: int) -> bool:
        """Is what it read what the ledger says was read of the file, and is all of that still there?"""
        recorded = None if source is None else (source.size, source.digest)
        return (mapping, erasures, recorded) == (self.mapping, self.erasures, (self.size, self.digest))

    def read(self, source: Source, report: Report) -> Iterator[Transcript]:
        return self.reader.read(source, report, {session: len(turns) for session, turns in self.recorded_turns.items()})

    def note(self, read: ImportSource, recorded_turns: dict[str, list[TranscriptTurn]]) -> None:
        """It has read so much, and this was taken of it."""
        self.size, self.digest, self.recorded_turns = read.size, read.digest, recorded_turns


class Followers:
    """Those of one watch, by the name of their file."""

    def __init__(self) -> None:
        self._all: dict[str, Follower] = {}

    def remove(self, name: str) -> Follower | None:
        """For a reading: should that fail, it is not there any more."""
        return self._all.pop(name, None)

    def add(self, name: str, follower: Follower) -> None:
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


TRIED_FILES, TRIED_BYTES = 3, 1 << 20
"""So many files of no known format, each no longer than this, are tried with every importer."""


class ImportSummary(Struct):
    """What an import did."""

    origins: dict[str, OriginTotals] = field(default_factory=dict)
    unrecognised: list[str] = field(default_factory=list)
    """Files that no importer knows."""
    readable: dict[str, str] = field(default_factory=dict)
    """Of these the first few that an importer makes turns of all the same, if it is told to: its origin by the file."""
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


class RecognisedFile(Struct, frozen=True):
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

    session_file: Path | None


class ImportPlan(Struct, frozen=True):
    """What an import is about to read, the latest first."""

    units: list[RecognisedFile]

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

    def run(
        self, paths: Iterable[Path | Address], on_planned: Callable[[ImportPlan], None] | None = None
    ) -> ImportSummary:
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

    def plan(self, paths: Iterable[Path | Address]) -> ImportPlan:
        """The latest first, so that lists of sessions are of use long before all is done."""
        return ImportPlan(sorted(self._units(paths), key=lambda unit: -unit.candidate.changed_ms))

    def carry_out(self, plan: ImportPlan) -> ImportSummary:
        files, size, of_files, of_bytes = 0, 0, plan.files, plan.bytes
        with ExitStack() as stack:
            stack.callback(self.finish)  # also where it is stopped: what was read is not read again
            self._begin_worker(plan, stack)
            for unit in plan.units:
                if unit.unread:
                    self._progress(self._step(files, of_files, size, of_bytes, unit.candidate.name))
                self.import_unit(unit)
                files, size = files + unit.unread, size + unit.candidate.size * unit.unread
            self._index_all()
        if of_files:
            self._progress(self._step(files, of_files, size, of_bytes, ""))
        return self.summary

    def _begin_worker(self, plan: ImportPlan, stack: ExitStack) -> None:
        """Where two processes are wanted, or are better than one."""
        sources = [source for unit in plan.units if (source := self._for_worker(unit)) is not None]
        is_large = sum(source.candidate.size for source in sources) >= TWO_PROCESSES_BYTES
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

    def _for_worker(self, unit: RecognisedFile) -> WantedSource | None:
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
        sessions, turns = (
            sum(origin_counts.sessions for origin_counts in counts),
            sum(origin_counts.turns for origin_counts in counts),
        )
        return ImportStep(files, of_files, done, of_bytes, sessions, name, turns, len(self.summary.problems))

    def _units(self, paths: Iterable[Path | Address]) -> Iterable[RecognisedFile]:
        """What is to be read. A source that was read to its end is opened only if it, or something it brings in, has
        changed."""
        units: list[RecognisedFile] = []
        beside: dict[Path, int] = {}
        size = 0
        for path in paths:
            for candidate in candidates(path, self.failed, self._pass_over):
                self.summary.looked_at += 1
                recognised = self.recognise(candidate)
                if isinstance(recognised, RecognisedFile):
                    units.append(recognised)
                    size += recognised.candidate.size if self._for_worker(recognised) else 0
                    self._start_early(size)
                elif recognised is not None and recognised.session_file is not None:
                    beside[recognised.session_file] = max(beside.get(recognised.session_file, 0), candidate.changed_ms)
        for unit in units:
            is_stale = not unit.unread and self._has_newer_part(unit, beside)
            yield replace(unit, unread=True, is_stale=True) if is_stale else unit

    def _pass_over(self, path: Path) -> None:
        """A file that is not called as session files are."""
        self.summary.looked_at += 1

    def _has_newer_part(self, unit: RecognisedFile, beside: Mapping[Path, int]) -> bool:
        """Was a part written since the file that brings it in was read? One that stands for its parts tells itself."""
        candidate, writer = unit.candidate, self._writer(unit.importer)
        if writer is None or isinstance(candidate, OnServer) or candidate.beside or candidate.path not in beside:
            return False
        before = writer.last_read(candidate.name)
        return before is not None and beside[candidate.path] >= before.read_at

    def recognise(self, candidate: SourceCandidate | OnServer) -> RecognisedFile | ImportPart | None:
        """With the importer that reads it; one that was read and has not changed is not opened for that."""
        if self._since is not None and candidate.changed_ms < self._since:
            self.summary.older += 1
            return None
        return self._unchanged(candidate) or self._recognised(candidate)

    def _unchanged(self, candidate: SourceCandidate | OnServer) -> RecognisedFile | None:
        """One that was read to its end and is as it was then: told without opening it."""
        writer = self._writer(self._importers[0]) if self._importers else None
        before = writer.last_read(candidate.name) if writer else None
        if writer is None or before is None:
            return None
        importer = next(
            (known_importer for known_importer in self._importers if known_importer.origin == before.origin), None
        )
        if importer is None:
            return None
        candidate = _gathered(candidate, importer)
        if not candidate.is_as(before):
            return None
        writer = self._writer(importer) or writer
        if _is_renamed(candidate, importer, before):
            return RecognisedFile(candidate, importer, is_stale=True)
        return RecognisedFile(
            candidate, importer, writer.is_due(before, candidate.is_quiet(self._clock.now_ms() / 1000))
        )

    def _recognised(self, candidate: SourceCandidate | OnServer) -> RecognisedFile | ImportPart | None:
        try:
            with candidate.open(self._clock.now_ms() / 1000, self._budget()) as source:
                import_part = next(
                    (_import_part(importer, source) for importer in self._importers if importer.is_part(source)), None
                )
                claimants = (
                    [] if import_part else list(self._importers) if self._force else claiming(self._importers, source)
                )
                looks_like = self._other_format(claimants[0], source) if self._force and claimants else None
                if not claimants and not import_part:
                    self._note_readable(candidate.name, source)
        except OSError as error:
            self.failed(_place_of(candidate), error)
            return None
        except LimitExceeded as error:
            self.failed(_place_of(candidate), OSError(f"{error}; {error.hint}"))
            return None
        except Exception as error:  # whatever an importer makes of it, the other files go on
            self.failed(
                _place_of(candidate), OSError(f"it cannot be recognised: {type(error).__name__}: {error}"[:500])
            )
            return None
        if not claimants and not import_part:
            self.summary.unrecognised.append(candidate.name)
        return (
            RecognisedFile(_gathered(candidate, claimants[0]), claimants[0], looks_like=looks_like)
            if claimants
            else import_part
        )

    def _note_readable(self, name: str, source: Source) -> None:
        if source.size > TRIED_BYTES or len(self.summary.unrecognised) >= TRIED_FILES:
            return
        origin = next((importer.origin for importer in self._importers if self._reads_turns(importer, source)), None)
        if origin is not None:
            self.summary.readable[name] = origin

    def _reads_turns(self, importer: Importer, source: Source) -> bool:
        try:
            return self._gives_turns(importer, source)
        except Exception:  # it is not its format: that is what is asked here
            return False

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

    def import_unit(self, unit: RecognisedFile) -> None:
        """Everything of one source that is new; nothing where there is nothing."""
        self._import_unit(unit)
        self._index()

    def _import_unit(self, unit: RecognisedFile) -> None:
        importer, candidate = unit.importer, unit.candidate
        totals, writer = self.summary.of(importer.origin), self._writer(importer)
        totals.files += 1
        ahead = None if self._ahead is None else self._ahead.take_source(candidate)
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
            self.failed(_place_of(candidate), error)
        except LimitExceeded as error:  # what it gave before that is written
            self.failed(_place_of(candidate), OSError(f"{error}; {error.hint}"))
        except StoreError:
            raise
        except Exception as error:  # whatever an importer makes of a source, the others go on
            reason = str(error) if isinstance(error, ImporterFailed) else f"{type(error).__name__}: {error}"
            problem = f"the {importer.origin} importer failed: {reason}"
            self.summary.problems.append(Problem(source=candidate.name, line=None, what=problem[:500]))
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
        unit: RecognisedFile,
        source: Source,
        report: Report,
        totals: OriginTotals,
        ahead: SourceAhead | None,
    ) -> None:
        importer, candidate = unit.importer, unit.candidate
        before = writer.last_read(source.name)
        opened = None if ahead is None else ahead.opened()
        file_digest, beginning = _digests(source, candidate, before, opened)
        read = ImportSource(
            name=source.name,
            size=read_size(source, candidate),
            stamp=candidate.stamp,
            digest=fingerprint(source, candidate, file_digest),
            read_at=self._clock.now_ms() if ahead is None else ahead.ordered_ms,
        )
        same = before is not None and (before.size, before.digest) == (read.size, read.digest) and not unit.is_stale
        if before and same and not writer.is_due(before, source.quiet):
            writer.remember(replace(read, open=before.open, kept=before.kept), alike=True)
            totals.unchanged += 1
            return
        file = still_to_keep(source, before, beginning)
        follower = self._follower(writer, importer, before, file.grows)
        known_turns = {} if follower is None else follower.recorded_turns
        intake = SourceIntake(
            writer,
            source,
            candidate.stamp,
            file,
            totals.counts,
            before is not None,
            known_turns,
            on_ended=self._on_ended,
        )
        read_bytes = (source.size, bytes_digest(source, candidate, file_digest))
        if ahead is not None and opened is not None and (opened.size, opened.digest) == read_bytes:
            transcripts = ahead.transcripts(importer, source, report)
        else:
            transcripts = (importer if follower is None else follower).read(source, report)
        for transcript in transcripts:
            intake.take_transcript(transcript)
        # Noted after every turn is written: an import that is cut short before reads the source again, and turns that
        # are here already are known by their ids.
        writer.remember(replace(read, open=intake.is_open, kept=file.at if intake.is_open else None))
        if follower is not None and self._followers is not None and intake.is_plain:
            follower.note(read, intake.recorded_turns)
            self._followers.add(source.name, follower)

    def _follower(
        self, writer: ImportWriter, importer: Importer, before: ImportSource | None, grown: bool
    ) -> Follower | None:
        """Who reads a file that will be read again; the one who read it last, if all that it knows still holds."""
        if self._followers is None or not isinstance(importer, FollowingImporter):
            return None
        last = self._followers.remove(before.name) if before is not None else None
        erasures = writer.erasures()
        if last is not None and grown and last.is_true(writer.mapping, before, erasures):
            return last
        return Follower(importer.reader(), writer.mapping, erasures)


def _after_head_start(sources: Sequence[WantedSource]) -> Sequence[WantedSource]:
    """What is left for the worker. The source that the head start ends in is read here, too, unless it is long."""
    done = own_count = 0
    for source in sources:
        if done >= HEAD_START_BYTES or source.candidate.size > LONG_HEAD_STARTS * HEAD_START_BYTES:
            break
        done, own_count = done + source.candidate.size, own_count + 1
    return sources[own_count:]


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


def _import_part(importer: Importer, source: Source) -> ImportPart:
    return ImportPart(importer.session_file(source) if isinstance(importer, GatheringImporter) else None)


def _gathered(candidate: SourceCandidate | OnServer, importer: Importer) -> SourceCandidate | OnServer:
    """With the files that it stands for."""
    if isinstance(candidate, OnServer) or candidate.is_packed or not isinstance(importer, GatheringImporter):
        return candidate
    part_files = importer.part_files(candidate.path)
    return candidate.with_parts(part_files) if part_files else candidate


def _is_renamed(candidate: SourceCandidate | OnServer, importer: Importer, read: ImportSource) -> bool:
    if isinstance(candidate, OnServer) or candidate.is_packed or not isinstance(importer, NamedImporter):
        return False
    return importer.is_renamed(candidate.path, read.read_at)


def _is_there(name: str) -> bool:
    return Address.is_one(name) or Path(name).exists()


def _place_of(candidate: SourceCandidate | OnServer) -> Path | Address:
    return candidate.address if isinstance(candidate, OnServer) else candidate.path


USUAL_RATE = 6_000_000.0
"""Bytes a second, before anything was measured: what a small machine does with sessions of coding agents."""
TRUSTED_SECONDS = 10.0
"""After so long the measured rate counts as much as the assumed one; later it counts for more."""


class ReadingPace:
    """Begins with a rate that is assumed, or was measured the last time, and learns."""

    def __init__(self, clock: Clock, rate: float | None = None) -> None:
        self._clock, self._assumed = clock, rate or USUAL_RATE
        self._begun = clock.monotonic()

    def rate(self, done: int) -> float:
        """Bytes a second, now that so many are done."""
        seconds = self._clock.monotonic() - self._begun
        return (self._assumed * TRUSTED_SECONDS + done) / (TRUSTED_SECONDS + seconds)

    def seconds_left(self, done: int, total: int) -> float:
        return max(0, total - done) / max(1.0, self.rate(done))
