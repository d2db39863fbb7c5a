"""An import in the background: one for each ledger, with a lock, a log and a note of how far it is beside it, and the
process itself, which is told its order by standard input. How imports are shown: the places they read, their progress,
what came in, and how far one in the background is.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, BinaryIO

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from weft.kernel.clock import Clock, SystemClock
from weft.kernel.errors import NotApplicable, WeftError
from weft.kernel.typed_names import Site, shell_word
from weft.store.private_files import aside_of, make_folder, open_aside, open_to_append
from weft.surfaces.cli.command_line import Call
from weft.surfaces.cli.progress import counted, size_text
from weft.surfaces.cli.screen import Span, local_time
from weft.surfaces.cli.user_files import beside_ledger
from weft.verbs.exchange_answers import ImportAnswer, ImportStatus, NoImport

if TYPE_CHECKING:
    from weft.exchange.importers.port import Importer, Problem
    from weft.exchange.importing.run import ImportRun, ImportStep, ImportSummary, OriginTotals, ReadingPace
    from weft.exchange.importing.sources import Address, FoundPlace
    from weft.exchange.importing.watch import WatchEvent
    from weft.runtime.resources.workspace_snapshots import KeptFolder


# --- An import in the background: one for each ledger, with a lock, a log and a note of how far it is beside it.

STOP_SECONDS, TRY_SECONDS = 60.0, 0.05
TRIES = 20
READY = b"ready\n"


class Order(Struct, frozen=True, kw_only=True):
    """What a job is to do."""

    ledger: str
    paths: list[str]
    """None at all: the usual places."""
    only: str | None = None
    since: int | None = None
    remap: bool = False
    watch: bool = False
    folders: list[str] = []
    """With `watch`: those that are kept when turns end."""
    processes: int | None = None


class ImportJob:
    """The files of one ledger's job."""

    def __init__(self, ledger: str) -> None:
        self.ledger = ledger
        stem = beside_ledger(ledger)
        self._lock, self._note, self.log = (Path(f"{stem}-import.{kind}") for kind in ("lock", "json", "log"))

    @contextmanager
    def held(self) -> Iterator[None]:
        """Only one at a time: the lock goes with the process."""
        make_folder(self._lock.parent)
        with open_to_append(self._lock) as file:
            if not self._take(file.fileno()):
                raise NotApplicable("an import of this ledger is going on already", "`weft import --status` tells more")
            yield

    def _take(self, file: int) -> bool:
        """Somebody who only looks may have it for a moment."""
        clock = SystemClock()
        for _ in range(TRIES):
            with suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            clock.sleep(TRY_SECONDS)
        return False

    def is_held(self) -> bool:
        try:
            with self._lock.open("rb") as file:
                fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def status(self) -> ImportStatus | None:
        """None: there has never been one."""
        alive = self.is_held()  # asked first: a job that ends in between has written its end by then
        try:
            status = msgspec.json.decode(self._note.read_bytes(), type=ImportStatus)
        except (FileNotFoundError, msgspec.DecodeError):
            return None
        return replace(status, state="killed") if status.is_alive and not alive else status

    def write_status(self, status: ImportStatus) -> None:
        aside = aside_of(self._note)
        with open_aside(aside) as file:
            file.write(msgspec.json.encode(status))
        os.replace(aside, self._note)

    def forget(self) -> None:
        """What was erased may stand in the log, as the name of a source or in what was wrong with it, and in how an
        import failed. Both can be done without; whoever writes to the log goes on at its end."""
        with suppress(FileNotFoundError):
            os.truncate(self.log, 0)
        status = self.status()
        if status is not None and status.error is not None:
            self.write_status(replace(status, error="not kept: something was erased since"))

    def stop(self, clock: Clock) -> ImportStatus | None:
        """Ask it to end, and wait until it has."""
        status = self.status()
        if status is None or not status.is_alive:
            return None
        with suppress(ProcessLookupError):
            os.kill(status.pid, signal.SIGTERM)
        until = clock.monotonic() + STOP_SECONDS
        while self.is_held():
            if clock.monotonic() > until:
                raise NotApplicable(f"process {status.pid} does not end", "look at its log, or end it yourself")
            clock.sleep(TRY_SECONDS)
        return self.status()


def start(order: Order) -> ImportStatus:
    """A process of its own, which goes on when this one and its terminal end. Returns once it holds the lock."""
    job = ImportJob(order.ledger)
    make_folder(job.log.parent)
    (ordered, orders), (answer_end, answer_writer) = os.pipe(), os.pipe()
    with open_to_append(job.log) as log, open(answer_end, "rb") as answer, open(orders, "wb") as asking:
        try:
            os.set_inheritable(answer_writer, True)
            _spawn(ordered, answer_writer, log.fileno())
        finally:
            os.close(ordered)
            os.close(answer_writer)
        asking.write(msgspec.json.encode(order))  # not as an argument, which others can see: it may hold a password
        asking.close()
        first_word = answer.read()
    if first_word != READY:
        raise NotApplicable(first_word.decode(errors="replace").strip() or "it did not start", f"its log is {job.log}")
    status = job.status()
    assert status is not None  # it told so before it said that it is ready
    return status


def _spawn(ordered: int, answer_writer: int, log: int) -> None:
    """Nobody waits for it: it leaves this session by itself, and its note says how it ended. By `-P` nothing is loaded
    from the folder that the person is in."""
    command = [sys.executable, "-P", "-m", "weft.surfaces.cli.ledgers.import_job", str(answer_writer)]
    streams = [
        (os.POSIX_SPAWN_DUP2, ordered, 0),
        (os.POSIX_SPAWN_DUP2, log, 1),
        (os.POSIX_SPAWN_DUP2, log, 2),
    ]
    os.posix_spawn(sys.executable, command, os.environ, file_actions=streams)


# --- How imports are shown: the places they read, their progress, what came in, and how far one in the background is.

PLACES_HEADER = ("origin", "files", "size", "newest", "where")
MINUTE, HOUR = 60, 3600


def all_places(importers: Iterable[Importer]) -> list[Path]:
    """Where the tools keep their sessions by themselves, whether or not there is something."""
    home = Path.home()
    places = [place.path for importer in importers for place in importer.places(home, os.environ)]
    return list(dict.fromkeys(places))


def found_places(importers: Iterable[Importer]) -> list[FoundPlace]:
    from weft.exchange.importing.sources import discover

    return discover(importers, Path.home(), dict(os.environ))


def show_places(call: Call, places: Sequence[FoundPlace]) -> None:
    """`weft import --discover`."""
    if call.json:
        call.documents(places)
        return
    full_places = [place for place in places if place.files]
    if full_places:
        call.screen.table(
            [_place_row(place, call.screen.terminal) for place in full_places], PLACES_HEADER, numbers=("files", "size")
        )
        call.note(total_of(full_places, "how long an import would take at most"))
    else:
        note_nothing_found(call, places)


def _place_row(place: FoundPlace, terminal: bool) -> list[Span | str]:
    from weft.surfaces.cli.screen import local_time

    newest = "" if place.newest_ms is None else local_time(place.newest_ms)
    if not terminal:
        return [place.origin, str(place.files), str(place.bytes), newest, place.path]
    return [Span(place.origin, "label"), f"{place.files:,}", size_text(place.bytes), newest[:10], shortened(place.path)]


def note_places(call: Call, places: Sequence[FoundPlace], files: int, size: int, seconds: float) -> None:
    """Before an import of the usual places: what is where, what of it is new, and how long that takes."""
    full_places = [place for place in places if place.files]
    width = max((len(place.origin) for place in full_places), default=0)
    for place in full_places:
        about = f"{counted(place.files, 'file'):>14} {size_text(place.bytes):>10}"
        call.note(Span(f"{place.origin:{width}}", "label"), f" {about}  {shortened(place.path)}")
    call.note(f"{counted(files, 'file')}, {size_text(size)} to read: {time_text(seconds)}, the latest first")
    if seconds > MINUTE:
        call.note("it can be stopped and run again at any time; `weft import --background` goes on by itself")


def total_of(places: Sequence[FoundPlace], what: str) -> str:
    from weft.exchange.importing.run import USUAL_RATE

    size = sum(place.bytes for place in places)
    files = counted(sum(place.files for place in places), "file")
    return f"{files}, {size_text(size)}; {what}: {time_text(size / USUAL_RATE)}"


def note_nothing_found(call: Call, places: Sequence[FoundPlace]) -> None:
    call.note("nothing found in the usual places; name a file or a folder: `weft import PATH`")
    call.note("looked in:")
    for place in places:
        call.note(f"  {shortened(place.path)}  ({place.origin})")


def shortened(path: str) -> str:
    home = str(Path.home())
    return f"~{path.removeprefix(home)}" if path == home or path.startswith(f"{home}{os.sep}") else path


def time_text(seconds: float) -> str:
    """As people guess: no more exact than it is."""
    if seconds < 10:
        return "a few seconds"
    if seconds < 100:
        return f"about {round(seconds, -1):.0f} seconds"
    if seconds < 100 * MINUTE:
        return f"about {counted(round(seconds / MINUTE), 'minute')}"
    return f"about {counted(round(seconds / HOUR), 'hour')}"


SHORTEST_BAR, LONGEST_BAR, BESIDE_THE_BAR = 4, 40, 62


def _ignore_step(step: ImportStep) -> None:
    """Nobody watches."""


@contextmanager
def import_progress(call: Call) -> Iterator[Callable[[ImportStep], None]]:
    if not sys.stderr.isatty() or call.quiet or call.json:
        yield _ignore_step
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    console = Console(stderr=True)
    columns = (
        TextColumn("import {task.fields[sessions]}"),
        BarColumn(bar_width=max(SHORTEST_BAR, min(LONGEST_BAR, console.width - BESIDE_THE_BAR))),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, console=console, transient=True)
    task = bar.add_task("import", total=None, sessions="")

    def show(step: ImportStep) -> None:
        bar.start()  # with the first step: notes before it have the screen for themselves
        bar.update(task, completed=step.bytes, total=step.of_bytes, sessions=counted(step.sessions, "session"))

    try:
        yield show
    finally:
        bar.stop()


ORIGINS_HEADER = ("origin", "files", "unchanged", "sessions", "turns", "known", "replaced", "records", "size")
SPARE = ("records", "size", "replaced", "unchanged")
PROBLEMS_SHOWN = 10
FEW = 3


def show_summary(call: Call, summary: ImportSummary, dry_run: bool, *, stopped: bool = False) -> None:
    if call.json:
        call.document(
            ImportAnswer(
                origins=dict(sorted(summary.origins.items())),
                unrecognised_files=summary.unrecognised,
                problems=summary.problems,
                lost_worker=summary.lost_worker,
                older_files=summary.older,
                stopped=stopped,
                dry_run=dry_run,
            )
        )
        return
    if summary.origins:
        terminal = call.screen.terminal
        rows = [_origin_row(origin, totals, terminal) for origin, totals in sorted(summary.origins.items())]
        call.screen.table(rows, ORIGINS_HEADER, numbers=ORIGINS_HEADER[1:], spare=SPARE)
    for note in _summary_notes(summary):
        call.note(note)
    _note_problems(call, summary.problems)
    if summary.mistaken:
        call.note(_format_advice(summary.mistaken))
    if not stopped and (end := _summary_end(summary, dry_run)) is not None:
        call.note(end)
    if dry_run:
        call.note("dry run: nothing was written")
    if summary.problems and not stopped:
        call.note(_problems_end(summary))


def _problems_end(summary: ImportSummary) -> str:
    """Why the exit code is 1, and what became of the rest."""
    is_read = any(totals.records or totals.unchanged for totals in summary.origins.values())
    rest = "everything else was read" if is_read else "nothing was read"
    return f"{counted(len(summary.problems), 'problem')}, so the exit code is 1; {rest}"


def _summary_end(summary: ImportSummary, dry_run: bool) -> str | None:
    """What came of it, where the numbers do not say it by themselves."""
    counts = [totals.counts for totals in summary.origins.values()]
    if any(of_origin.turns for of_origin in counts):
        return None if dry_run else "look at them with `weft sessions`, `weft log --graph` and `weft usage`"
    if summary.problems:
        return None
    if any(of_origin.known for of_origin in counts):
        return "no new turns: they were in the ledger already"
    if any(of_origin.sessions for of_origin in counts):
        is_explained = any(of_origin.open_turns or of_origin.erased or of_origin.superseded for of_origin in counts)
        return "no new turns" if is_explained else "no turns: the sessions that were read hold none"
    if summary.origins:
        return None if dry_run else "nothing new"
    return None if summary.older else _nothing_found(summary.looked_at)


def _nothing_found(files: int) -> str:
    if not files:
        return (
            "no sessions were found: there are no files there; without PATH the usual places of every tool are searched"
        )
    return f"no sessions were found among {counted(files, 'file')}; `weft import --help` lists the known formats"


def _format_advice(origins: Collection[str]) -> str:
    """After a format was forced that was not that of the files."""
    if len(origins) > 1:
        return "leave --format out: each file is then read as what it looks like"
    return f"leave --format out, or give --format {shell_word(*origins)}"


def _origin_row(origin: str, totals: OriginTotals, terminal: bool) -> tuple[Span | str, ...]:
    """For people; in a pipe, where rows are read by programs, whole numbers and bytes."""
    counts = totals.counts
    numbers = (totals.files, totals.unchanged, counts.sessions, counts.turns, counts.known, counts.superseded)
    if not terminal:
        return (origin, *map(str, (*numbers, totals.records, totals.bytes)))
    return (Span(origin, "label"), *(f"{n:,}" for n in (*numbers, totals.records)), size_text(totals.bytes))


def _summary_notes(summary: ImportSummary) -> Iterator[str]:
    unknown: dict[str, int] = {}
    for totals in summary.origins.values():
        for kind, count in totals.unknown.items():
            unknown[kind] = unknown.get(kind, 0) + count
    if unknown:
        most = sorted(unknown.items(), key=lambda pair: -pair[1])[:5]
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in most)
        rest = sum(unknown.values()) - sum(count for _, count in most)
        more = f" and {rest:,} of other kinds; --json lists them" if rest else ""
        yield f"{counted(sum(unknown.values()), 'record')} of kinds not known here, kept verbatim: {kinds}{more}"
    yield from _replaced_notes(summary)
    if waiting := sum(totals.counts.open_turns for totals in summary.origins.values()):
        yield f"{counted(waiting, 'turn')} still being written: provisional until an import finds them closed"
    if erased := sum(totals.counts.erased for totals in summary.origins.values()):
        yield f"{counted(erased, 'turn')} passed over: erased here, so not brought back"
    if summary.older:
        yield f"{counted(summary.older, 'file')} passed over: last changed before --since"
    if summary.unrecognised:
        few = len(summary.unrecognised) <= FEW
        named = f": {', '.join(summary.unrecognised)}" if few else "; --json lists them"
        yield f"{counted(len(summary.unrecognised), 'file')} of no known format passed over{named}"
    for name, origin in summary.readable.items():
        yield f"--format {origin} reads {name}"
    if summary.lost_worker is not None:
        yield f"the second process was lost, and the rest was read without it: {summary.lost_worker}"


def _replaced_notes(summary: ImportSummary) -> Iterator[str]:
    """In which sessions an answer is no longer shown, or not shown, because another version says something else."""
    turns: dict[str, int] = {}
    for totals in summary.origins.values():
        for label, count in totals.counts.replaced_in.items():
            turns[label] = turns.get(label, 0) + count
    if turns:
        labels = sorted(turns, key=lambda label: (-turns[label], label))
        named = ", ".join(f"{label} ({turns[label]:,})" for label in labels[:FEW])
        more = f" and {len(labels) - FEW:,} more; --json lists them" if len(labels) > FEW else ""
        yield f"{counted(sum(turns.values()), 'turn')} replaced by a version with other words, in session {named}{more}"


def _note_problems(call: Call, problems: Sequence[Problem]) -> None:
    for problem in problems[:PROBLEMS_SHOWN]:
        where = problem.source if problem.line is None else f"{problem.source}:{problem.line}"
        call.note(Span(where, "warn"), f": {problem.what}", breaks_styles=True)
    if len(problems) > PROBLEMS_SHOWN:
        call.note(f"… {counted(len(problems) - PROBLEMS_SHOWN, 'more problem')}; --json lists all")


STATE_STYLES = {"running": "good", "watching": "good", "finished": "good", "failed": "bad", "killed": "bad"}
NOTHING = "no import was started in the background; `weft import --background` starts one"


def show_begun(call: Call, status: ImportStatus) -> None:
    call.answer(status, ["import begun in the background, process ", Span(str(status.pid), "heading")])
    call.note(f"`weft import --status` tells how far it is, `weft import --stop` ends it; its log is {status.log}")


def show_status(call: Call, status: ImportStatus | None) -> int:
    """Exit code 1 says that it ended badly."""
    if status is None:
        if call.json:
            call.document(NoImport())
        call.note(NOTHING)
        return 0
    if call.json:
        call.document(status)
    else:
        call.screen.show(Span(status.state, STATE_STYLES.get(status.state, "")), f": {_state_text(status)}")
        if status.error:
            call.screen.show(Span(status.error, "bad"))
    if status.state in ("failed", "killed"):
        call.note(f"start it again with `weft import --background`: it goes on from where it was; log: {status.log}")
    return 1 if status.state in ("failed", "killed") else 0


def show_stopped(call: Call, status: ImportStatus | None) -> int:
    if status is None:
        if call.json:
            call.document(NoImport())
        call.note("no import is going on in the background")
        return 0
    if call.json:
        call.document(status)
    else:
        call.screen.show(Span(status.state), f": {_state_text(status)}")
    return 0


def _state_text(status: ImportStatus) -> str:
    parts = [how_far(status)]
    if status.sessions or status.turns:
        parts.append(f"{counted(status.sessions, 'session')}, {counted(status.turns, 'turn')}")
    if status.problems:
        parts.append(f"{counted(status.problems, 'problem')}, see {status.log}")
    parts.append(f"begun {local_time(status.started_at)}")
    if not status.is_alive:
        parts.append(f"ended {local_time(status.updated_at)}")
    return "; ".join(parts)


def how_far(status: ImportStatus) -> str:
    if status.state == "watching":
        return f"{counted(status.files, 'file')} followed"
    if not status.of_files:
        return "looking for files" if status.is_alive else "nothing new"
    done = f"{status.files:,} of {counted(status.of_files, 'file')}"
    size = f"{size_text(status.bytes)} of {size_text(status.of_bytes)}"
    left = "" if status.seconds_left is None else f", {time_text(status.seconds_left)} left"
    return f"{done}, {size}{left}"


def note_import(call: Call, ledger: str) -> None:
    """One line, where an import of this ledger is going on: what is listed is not all there will be."""
    if call.quiet or call.json:
        return
    status = ImportJob(ledger).status()
    if status is not None and status.state == "running":
        call.note(f"an import is going on: {how_far(status)}; `weft import --status` tells more")


STATUS_SECONDS = 0.5


class ImportWork:
    """One job on its way; whatever happens to it, its note says so."""

    def __init__(self, job: ImportJob, order: Order) -> None:
        from weft.exchange.importing.run import ReadingPace
        from weft.exchange.importing.sources import Address

        shown = Address(order.ledger).shown if Site.of(order.ledger).is_address else order.ledger
        self._job, self._order, self._clock = job, order, SystemClock()
        now, before = self._clock.now_ms(), job.status()
        self._pace: ReadingPace = ReadingPace(self._clock, before.rate if before else None)
        self._written_at = 0.0
        self._lock = Lock()
        """Of the note, while folders are kept by another thread."""
        self.status = ImportStatus(
            state="running", pid=os.getpid(), started_at=now, updated_at=now, ledger=shown, log=str(job.log)
        )

    def write_status(self, *, now: bool = True) -> None:
        at = self._clock.monotonic()
        if now or at - self._written_at >= STATUS_SECONDS:
            self._written_at = at
            self.status = replace(self.status, updated_at=self._clock.now_ms())
            self._job.write_status(self.status)

    def end(self, state: str, error: str | None = None) -> None:
        self.status = replace(self.status, state=state, error=error, seconds_left=None)
        self.write_status()

    def run(self) -> None:
        from weft.exchange.importers.port import load_importers
        from weft.exchange.importing.run import ImportRun
        from weft.surfaces.cli.turn_files import kept_folders
        from weft.surfaces.cli.user_files import trust_store
        from weft.surfaces.opening import open as open_ledger

        order = self._order
        importers = load_importers(order.only)
        with (
            open_ledger(order.ledger, create=False, trust=trust_store()) as ledger,
            kept_folders(ledger, order.folders, self._on_kept_folder) as on_ended,
        ):
            importing = ImportRun(
                ledger,
                importers,
                self._clock,
                since=order.since,
                remap=order.remap,
                force=order.only is not None and bool(order.paths),
                follow=order.watch,
                progress=self._progress,
                on_ended=on_ended,
                processes=order.processes,
            )
            try:
                if order.watch:
                    self._watch(importing)
                else:
                    importing.run(self._places())
            finally:
                self._count(importing)

    def _places(self) -> list[Path | Address]:
        from weft.exchange.importers.port import load_importers
        from weft.exchange.importing.sources import Address

        paths = self._order.paths
        if paths:
            return [Address(path) if Address.is_one(path) else Path(path) for path in paths]
        places = all_places(load_importers(self._order.only))
        return [*places] if self._order.watch else [place for place in places if place.exists()]

    def _progress(self, step: ImportStep) -> None:
        left, rate = self._pace.seconds_left(step.bytes, step.of_bytes), self._pace.rate(step.bytes)
        self.status = replace(
            self.status,
            files=step.files,
            of_files=step.of_files,
            bytes=step.bytes,
            of_bytes=step.of_bytes,
            sessions=step.sessions,
            turns=step.turns,
            problems=step.problems,
            seconds_left=left,
            rate=rate,
        )
        self.write_status(now=False)

    def _count(self, importing: ImportRun) -> None:
        if not self._order.watch:
            totals = importing.summary.origins.values()
            turns, problems = sum(origin.counts.turns for origin in totals), importing.summary.problems
            self.status = replace(self.status, turns=turns, problems=len(problems))
            for problem in problems:
                say(f"{problem.source}: {problem.what}")
            if importing.summary.lost_worker is not None:
                say(f"the second process was lost: {importing.summary.lost_worker}")

    def _watch(self, importing: ImportRun) -> None:
        from weft.exchange.importing.watch import SourceWatch, listening

        watching = SourceWatch(importing, partial(listening, clock=self._clock), self._clock)
        with closing(watching.run(self._places())) as happening:
            for event in happening:
                self._on_event(event)

    def _on_event(self, event: WatchEvent) -> None:
        from weft.exchange.importing.watch import SourceImported, SourceTroubled, WatchBegan, WatchCaughtUp

        with self._lock:
            status = self.status
            if isinstance(event, WatchBegan):
                status = replace(status, of_files=event.files, of_bytes=event.bytes)
            elif isinstance(event, WatchCaughtUp):
                status = replace(status, state="watching", files=event.files, of_files=event.files)
            elif isinstance(event, SourceImported):
                status = replace(status, sessions=status.sessions + event.sessions, turns=status.turns + event.turns)
            elif isinstance(event, SourceTroubled):
                status = replace(status, problems=status.problems + 1)
                say(f"{event.source}: {event.what}")
            self.status = status
            self.write_status(now=isinstance(event, WatchCaughtUp))

    def _on_kept_folder(self, kept_folder: KeptFolder) -> None:
        """Told by another thread."""
        if kept_folder.error is not None:
            say(f"{kept_folder.folder}: its files were not kept: {kept_folder.error}")
            with self._lock:
                self.status = replace(self.status, problems=self.status.problems + 1)
                self.write_status()


def say(line: str) -> None:
    sys.stderr.write(line.encode("utf-8", "backslashreplace").decode() + "\n")
    sys.stderr.flush()


def main() -> int:
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    ready = open(int(sys.argv[1]), "wb")  # noqa: SIM115  # closed as soon as it has said its one word
    job = ImportJob(order.ledger)
    os.setsid()
    os.chdir("/")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with job.held():
            work = ImportWork(job, order)
            work.write_status()
            return _run_guarded(work, ready)
    except WeftError as error:
        with ready:
            ready.write(str(error).encode())
        return 1


def _run_guarded(work: ImportWork, ready: BinaryIO) -> int:
    """Whoever hears that it is ready may ask it to stop at once."""
    try:
        with ready:
            ready.write(READY)
        say(f"import of {work.status.ledger} begun by process {work.status.pid}")
        work.run()
    except KeyboardInterrupt:
        work.end("stopped")
        return 0
    except Exception as error:  # whatever it was: the note is how people hear of it
        import traceback

        traceback.print_exc()
        work.end("failed", f"{type(error).__name__}: {error}"[:500])
        return 1
    work.end("finished")
    return 0


if __name__ == "__main__":
    sys.exit(main())
