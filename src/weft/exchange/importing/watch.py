"""Following live sessions: what a tool writes is in the ledger a moment after its turn has closed.

The kernel's notices tell of changes, as far as they reach.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from weft.exchange.importers.port import ANSWERED_SECONDS, Importer, load_importers
from weft.exchange.importing.run import ImportPart, ImportRun, ImportSummary, RecognisedFile
from weft.exchange.importing.sources import (
    QUIET_SECONDS,
    Address,
    Look,
    OnServer,
    SourceCandidate,
    candidates,
    is_database,
    look,
    source_of,
    sweep,
)
from weft.kernel.clock import Clock, SystemClock
from weft.ledger.api import Ledger

# --- What tells a watch that something has changed: the kernel's notices, as far as they reach.

TICK_MS, STEP_MS, GATHER_MS = 250, 50, 200


class ChangeWaiter(Protocol):
    """How a watch waits."""

    is_blind: bool
    """Nothing is told: only sweeps find changes."""

    def wait(self, seconds: float) -> set[str]:
        """Until something has changed, or so long: the paths, of files and of folders."""

    def close(self) -> None: ...


class Sleeping:
    """Waits, and is told nothing."""

    is_blind = True

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def wait(self, seconds: float) -> set[str]:
        self._clock.sleep(seconds)
        return set()

    def close(self) -> None:
        """Nothing is held."""


class KernelNotices:
    """Changes below some folders, from inotify or its like."""

    is_blind = False

    def __init__(self, folders: Iterable[Path], clock: Clock) -> None:
        """Raises OSError or RuntimeError where the kernel has no watches left. From here on nothing is missed."""
        from watchfiles import watch

        self._clock = clock
        self._notices = watch(
            *folders,
            watch_filter=None,
            debounce=GATHER_MS,
            step=STEP_MS,
            rust_timeout=TICK_MS,
            yield_on_timeout=True,
            raise_interrupt=True,
            ignore_permission_denied=True,
        )
        self._first: set[str] = {path for _, path in next(self._notices)}

    def wait(self, seconds: float) -> set[str]:
        until = self._clock.monotonic() + seconds
        changed_paths, self._first = self._first, set()
        while not changed_paths and self._clock.monotonic() < until:
            try:
                changed_paths = {path for _, path in next(self._notices)}
            except (OSError, RuntimeError, StopIteration):  # sweeps go on, and the next new place is another try
                self.is_blind = True
                self._clock.sleep(max(0.0, until - self._clock.monotonic()))
        return changed_paths

    def close(self) -> None:
        self._notices.close()


def listening(folders: Iterable[Path], clock: Clock) -> ChangeWaiter:
    """The kernel's notices where there are any; else nothing but time."""
    folders = [folder for folder in folders if folder.is_dir()]
    if not folders:
        return Sleeping(clock)
    try:
        return KernelNotices(folders, clock)
    except (OSError, ImportError, RuntimeError, StopIteration):
        return Sleeping(clock)


# --- Following live sessions: what a tool writes is in the ledger a moment after its turn has closed.

SETTLE_SECONDS = 0.1
"""After a notice: lines come in company."""
GAP_SECONDS = 0.5
"""Between two readings of a file, at least."""
RESTS, DATABASE_RESTS = 2, 9
"""So many times as long as its reading took does a file rest after it. A database is copied to be read."""
WARM_SECONDS = 600
"""A file that changed so lately is looked at every second."""
LOOK_SECONDS = 1.0
SWEEP_SECONDS, BLIND_SWEEP_SECONDS = 60.0, 1.0
SWEEP_RESTS = 20
"""A sweep, too, rests: at most a twentieth of the time goes into it."""


class WatchBegan(Struct, frozen=True, tag="began"):
    """The watch has begun: it knows which files there are, and reads those that are new to the ledger."""

    files: int
    bytes: int
    is_blind: bool
    """The kernel tells nothing here: changes are found by sweeps alone."""


class WatchCaughtUp(Struct, frozen=True, tag="watching"):
    """All that was there is read; from here on it is what comes."""

    files: int


class SourceImported(Struct, frozen=True, tag="imported"):
    """A source was read."""

    source: str
    origin: str
    sessions: int
    turns: int
    superseded: int
    open_turns: int
    bytes: int
    seconds: float


class SourceTroubled(Struct, frozen=True, tag="problem"):
    """Something could not be read; the rest was, and the next change of the file is another try."""

    source: str
    line: int | None
    what: str


class SourceGone(Struct, frozen=True, tag="gone"):
    """A source is not there any more. What was imported of it stays, its open tail does not."""

    source: str


WatchEvent = WatchBegan | WatchCaughtUp | SourceImported | SourceTroubled | SourceGone


class _Followed(Struct):
    """A file that something happened to lately."""

    warm_until: float
    rests_until: float
    reported: frozenset[SourceTroubled]
    """What was wrong with it: said once, not with every line that is added."""


class SourceWatch:
    """One watch over some places. `importing` reads; `waiting` hears; `clock` is the machine's, or a test's."""

    def __init__(self, importing: ImportRun, listen: Callable[[list[Path]], ChangeWaiter], clock: Clock) -> None:
        self._importing, self._waiting, self._clock = importing, listen, clock
        self._places: list[Path] = []
        self._servers: list[Address] = []
        self._seen: dict[str, Look] = {}
        self._due: dict[str, float] = {}
        self._quiet_at: dict[str, float] = {}
        self._answered_at: dict[str, float] = {}
        """When the last turn of a file ends that ended with an answer, unless more comes."""
        self._followed: dict[str, _Followed] = {}
        self._stale: set[str] = set()
        """Files to be read because a part of what they stand for has changed."""
        self._backlog: deque[str] = deque()
        self._next_sweep = self._next_look = 0.0
        self._roots: list[Path] = []

    @property
    def files(self) -> int:
        """How many are followed by now."""
        return len(self._seen)

    def run(self, places: Iterable[Path | Address]) -> Generator[WatchEvent, None, None]:
        """What happens, until it is closed or interrupted."""
        watched_places = list(places)
        self._places = [place for place in watched_places if isinstance(place, Path)]
        self._servers = [place for place in watched_places if isinstance(place, Address)]
        waiter = self._listen()
        try:
            yield self._begin_watch(waiter)
            if not self._backlog:
                yield WatchCaughtUp(0)
            while True:
                yield from self._work()
                self._note_changes(waiter.wait(self._patience()))
                if self._clock.monotonic() >= self._next_sweep:
                    yield from self._sweep(waiter.is_blind)
                    waiter = self._listen_anew(waiter)
        finally:  # also where the process is interrupted: what was read is noted
            waiter.close()
            self._importing.finish()

    def _listen(self) -> ChangeWaiter:
        self._roots = self._folders()
        return self._waiting(self._roots)

    def _folders(self) -> list[Path]:
        return [place for place in self._places if place.is_dir()]

    def _listen_anew(self, waiter: ChangeWaiter) -> ChangeWaiter:
        """Where a place has come into being since."""
        if self._roots == self._folders():
            return waiter
        waiter.close()
        return self._listen()

    def _begin_watch(self, waiter: ChangeWaiter) -> WatchBegan:
        """The latest first. What was open in a file that is gone since the last watch is gone, too."""
        self._importing.forget_gone()
        self._seen = self._all_files()
        self._backlog.extend(sorted(self._seen, key=lambda path: -self._seen[path][1]))
        now = self._clock.monotonic()
        self._next_sweep, self._next_look = now + SWEEP_SECONDS, now + LOOK_SECONDS
        self._due.update((server.url, now) for server in self._servers)
        size = sum(size for size, _ in self._seen.values())
        return WatchBegan(len(self._seen), size, waiter.is_blind)

    def _all_files(self) -> dict[str, Look]:
        return {path: current_look for place in self._places for path, current_look in sweep(str(place))}

    def _work(self) -> Iterator[WatchEvent]:
        """Everything that is due, and one of those that wait since the beginning."""
        if self._clock.monotonic() >= self._next_look:
            self._look_at_warm()
        self._find_quiet()
        now = self._clock.monotonic()
        for path in sorted((path for path, due_at in self._due.items() if due_at <= now), key=self._due.__getitem__):
            del self._due[path]
            yield from self._visit(path, is_news=True)
        if self._backlog:
            path = self._backlog.popleft()
            if path not in self._due:
                yield from self._visit(path)
            if not self._backlog:
                yield WatchCaughtUp(len(self._seen))

    def _patience(self) -> float:
        """How long nothing is to be done."""
        if self._backlog:
            return 0.0
        now = self._clock.monotonic()
        awaited = (*self._quiet_at.values(), *self._answered_at.values())
        quiet = (quiet_at - self._clock.now_ms() / 1000 + now for quiet_at in awaited)
        warm = [self._next_look] if self._followed or self._files_named else []
        return max(0.0, min([self._next_sweep, *self._due.values(), *quiet, *warm]) - now)

    @property
    def _files_named(self) -> list[str]:
        """Places that are files: nothing below them can be listened to."""
        return [str(place) for place in self._places if not place.is_dir()]

    def _note_changes(self, paths: Iterable[str]) -> None:
        for path in paths:
            if self._is_folder(path):
                self._due.update(
                    (inner_path, self._due_time(inner_path))
                    for inner_path, current_look in sweep(path)
                    if self._is_new(inner_path, current_look)
                )
                self._next_sweep = min(self._next_sweep, self._clock.monotonic() + 2 * LOOK_SECONDS)
            elif (source := source_of(path)) is not None:
                self._due.setdefault(source, self._due_time(source))

    def _is_folder(self, path: str) -> bool:
        """One that is new may have been filled before anybody listened: it is swept now, and all once more soon."""
        return Path(path).is_dir() and not Path(path).is_symlink()

    def _is_new(self, path: str, current_look: Look) -> bool:
        return self._seen.get(path) != current_look

    def _due_time(self, path: str) -> float:
        """When a file that has changed is to be read: soon, and not before it has rested."""
        followed = self._followed.get(path)
        return max(self._clock.monotonic() + SETTLE_SECONDS, followed.rests_until if followed else 0.0)

    def _look_at_warm(self) -> None:
        now = self._clock.monotonic()
        self._next_look = now + LOOK_SECONDS
        if self._roots != self._folders():
            self._next_sweep = now
        for path in [*self._followed, *self._files_named]:
            if look(path) != self._seen.get(path):
                self._due.setdefault(path, self._due_time(path))
            elif path in self._followed and self._followed[path].warm_until < now:
                del self._followed[path]

    def _find_quiet(self) -> None:
        """Files that nobody has written to for a while: their last turn is all there will be. After an answer that
        is a short while, and the file is read again though it looks as it did."""
        now = self._clock.now_ms() / 1000
        for path in [path for path, due_at in self._answered_at.items() if due_at <= now]:
            del self._answered_at[path]
            self._stale.add(path)
            self._due.setdefault(path, self._clock.monotonic())
        for path in [path for path, due_at in self._quiet_at.items() if due_at <= now]:
            del self._quiet_at[path]
            self._due.setdefault(path, self._clock.monotonic())

    def _sweep(self, is_blind: bool) -> Iterator[WatchEvent]:
        started_at = self._clock.monotonic()
        files = self._all_files()
        for path, now in files.items():
            if self._is_new(path, now):
                self._due.setdefault(path, self._due_time(path))
        for path in [path for path in self._seen if path not in files]:
            yield from self._visit(path)
        self._importing.finish()  # what an import writer remembers of its writes would grow without end
        ended = self._clock.monotonic()
        self._due.update((server.url, ended) for server in self._servers)
        pause = min(SWEEP_SECONDS, BLIND_SWEEP_SECONDS) if is_blind else SWEEP_SECONDS
        self._next_sweep = ended + max(pause, SWEEP_RESTS * (ended - started_at))

    def _visit(self, path: str, *, is_news: bool = False) -> Iterator[WatchEvent]:
        """Look at one file, and read it if the ledger does not know it as it is. `is_news`: it changed while it was
        watched; if another file brings it in, that is to be read."""
        started_at = self._clock.monotonic()
        server = next((address for address in self._servers if address.url == path), None)
        current_look = None if server else look(path)
        if server is None and current_look is None:
            yield from self._forget_file(path)
            return
        if current_look is not None:
            self._seen[path] = current_look
        self._importing.summary = ImportSummary()
        units = self._units(server or Path(path), is_news)
        # All is read and noted before the first event is given: whoever stops listening then loses nothing.
        read = [happened for unit in units for happened in self._read(path, unit)]
        self._importing.note()
        yield from read
        yield from self._troubles(path, started_at)

    def _forget_file(self, path: str) -> Iterator[WatchEvent]:
        self._quiet_at.pop(path, None)
        self._answered_at.pop(path, None)
        self._followed.pop(path, None)
        if self._seen.pop(path, None) is not None:
            self._importing.forget_gone()
            yield SourceGone(SourceCandidate(Path(path), 0, 0).name)

    def _units(self, place: Path | Address, is_news: bool) -> list[RecognisedFile]:
        is_stale = str(place) in self._stale
        self._stale.discard(str(place))
        recognised = [self._importing.recognise(candidate) for candidate in candidates(place, self._importing.failed)]
        for session_file in {
            str(import_part.session_file)
            for import_part in recognised
            if isinstance(import_part, ImportPart) and import_part.session_file and is_news
        }:
            self._stale.add(session_file)
            self._due.setdefault(session_file, self._due_time(session_file))
        return [
            replace(unit, is_stale=unit.is_stale or is_stale) for unit in recognised if isinstance(unit, RecognisedFile)
        ]

    def _read(self, path: str, unit: RecognisedFile) -> Iterator[WatchEvent]:
        begun = self._clock.monotonic()
        totals = self._importing.summary.of(unit.importer.origin)
        counts = totals.counts
        before = (totals.unchanged, counts.sessions, counts.turns, counts.superseded, counts.open_turns)
        records, answered = totals.records, counts.answered_turns
        self._importing.import_unit(unit)
        after = (totals.unchanged, counts.sessions, counts.turns, counts.superseded, counts.open_turns)
        unchanged, sessions, turns, superseded, waiting = (new - old for new, old in zip(after, before, strict=True))
        if waiting or unchanged:
            self._await_quiet(path, unit.candidate)
        if counts.answered_turns > answered:
            self._await_end(path, unit.candidate)
        if totals.records > records or turns:
            seconds = self._clock.monotonic() - begun
            source, size = unit.candidate.name, unit.candidate.size
            yield SourceImported(source, unit.importer.origin, sessions, turns, superseded, waiting, size, seconds)

    def _await_end(self, path: str, candidate: SourceCandidate | OnServer) -> None:
        """Its last turn ended with an answer. Where that moment has passed, the records are dated later than the file
        or not at all: reading at once would find the same again and again, so such a turn waits until it is quiet."""
        due_at = candidate.changed_ms / 1000 + ANSWERED_SECONDS + GAP_SECONDS
        if due_at > self._clock.now_ms() / 1000:
            self._answered_at[path] = due_at

    def _await_quiet(self, path: str, candidate: SourceCandidate | OnServer) -> None:
        """Its open tail, if it has one, is a turn once nobody has written to it for a while."""
        due_at = candidate.changed_ms / 1000 + QUIET_SECONDS + 1
        if due_at > self._clock.now_ms() / 1000:
            self._quiet_at[path] = due_at

    def _troubles(self, path: str, started_at: float) -> list[SourceTroubled]:
        """What is wrong that was not wrong before. From here on the file rests; after its first reading, which wrote
        all of it, only for a moment."""
        summary, now = self._importing.summary, self._clock.monotonic()
        troubles = [SourceTroubled(problem.source, problem.line, problem.what) for problem in summary.problems]
        before = self._followed.get(path)
        if troubles or any(totals.files > totals.unchanged for totals in summary.origins.values()):
            rests = DATABASE_RESTS if is_database(path) else RESTS
            pause = max(GAP_SECONDS, rests * (now - started_at)) if before else GAP_SECONDS
            reported = frozenset(troubles) | (before.reported if before else frozenset())
            self._followed[path] = _Followed(now + max(WARM_SECONDS, pause), now + pause, reported)
        return [trouble for trouble in troubles if before is None or trouble not in before.reported]


def watch(
    ledger: Ledger,
    places: Iterable[Path | Address],
    *,
    importers: Sequence[Importer] | None = None,
    clock: Clock | None = None,
    waiting: Callable[[list[Path]], ChangeWaiter] | None = None,
) -> Generator[WatchEvent, None, None]:
    """Follow the sessions at these places: what happens, for as long as it is asked. Closing the iterator, or an
    interrupt, ends it cleanly."""
    clock = clock or SystemClock()
    importing = ImportRun(ledger, load_importers() if importers is None else importers, clock, follow=True)
    return SourceWatch(importing, waiting or partial(listening, clock=clock), clock).run(places)
