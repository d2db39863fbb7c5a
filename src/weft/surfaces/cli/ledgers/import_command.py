"""`weft import`: bring in the sessions that other tools left behind, now or in the
background; with `--watch`, what happens, line by line,
until it is interrupted.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from threading import Lock
from types import FrameType
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct

from weft.exchange.importing.watch import (
    SourceGone,
    SourceImported,
    SourceTroubled,
    SourceWatch,
    WatchBegan,
    WatchCaughtUp,
    WatchEvent,
    listening,
)
from weft.kernel.authority import IMPORTING
from weft.kernel.clock import SystemClock
from weft.kernel.errors import InvalidInput, LedgerMissing
from weft.kernel.typed_names import Site, shell_word
from weft.runtime.resources.workspace_snapshots import KeptFolder
from weft.store.private_files import make_folder
from weft.surfaces.cli.command_line import INTERRUPTED, Call, ask, is_person_there
from weft.surfaces.cli.command_line import command as weft_command
from weft.surfaces.cli.ledgers.import_job import shortened
from weft.surfaces.cli.progress import counted, size_text
from weft.surfaces.cli.screen import LocalZone, Span, local_time
from weft.surfaces.cli.trust import is_there
from weft.surfaces.cli.turn_files import kept_folders
from weft.surfaces.cli.user_files import find_ledger, named_ledger, user_ledger
from weft.surfaces.wire.forms import document, form
from weft.verbs.exchange_answers import EndedWatch

if TYPE_CHECKING:
    from weft.exchange.importers.port import Importer
    from weft.exchange.importing.run import ImportPlan, ImportRun, OnEnded
    from weft.exchange.importing.sources import Address
    from weft.ledger.api import Ledger


TOGETHER = ({"watch", "background"},)
"""Ways to import that go together; any other two do not."""


def _formats(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    from weft.exchange.importers.port import importer_names

    return [name for name in importer_names() if name.startswith(begun)]


@weft_command("import")
@click.argument("path", nargs=-1, type=click.Path())
@click.option(
    "--format",
    "only",
    metavar="NAME",
    shell_complete=_formats,
    help="Take every file as this tool's, instead of recognising it.",
)
@click.option("--since", metavar="TIME", help="Only files changed since: yesterday, '2 weeks ago', 2026-11-01.")
@click.option("--dry-run", is_flag=True, help="Read everything and report; write nothing.")
@click.option("--remap", is_flag=True, help="Read again what an older version of an importer has read.")
@click.option("--discover", is_flag=True, help="List the files in the usual places; nothing is read.")
@click.option("--watch", is_flag=True, help="Go on: follow sessions while they are written, until interrupted.")
@click.option(
    "--files",
    "folders",
    metavar="DIR",
    multiple=True,
    type=click.Path(exists=True, file_okay=False),
    help="With --watch: keep this folder whenever a turn of a session that works in it has ended; several are allowed.",
)
@click.option(
    "--processes",
    type=click.Choice(["1", "2"]),
    help="With 2 another process reads while this one writes; without this, whichever is quicker.",
)
@click.option("--background", is_flag=True, help="Import in a process of its own, which goes on by itself.")
@click.option("--status", is_flag=True, help="Show the status of the background import.")
@click.option("--stop", is_flag=True, help="End the import in the background; what it has read stays.")
def import_command(
    call: Call,
    path: tuple[str, ...],
    only: str | None,
    since: str | None,
    remap: bool,
    folders: tuple[str, ...],
    processes: str | None,
    **modes: bool,
) -> int:
    """Import the sessions that other tools left behind.

    PATH is a file, a folder, an archive (.zip, .zst), or the address of a PostgreSQL database that holds checkpoints of
    LangGraph (postgresql://...); without one, the usual places of every tool are searched.
    Formats are recognised by what is in a file. What was imported before is passed over, copies of a session are kept
    once, and a file that has grown brings only what is new; so an import that was cut short is simply run again. A dry
    run does not look into the ledger: what was imported before counts like the rest.

    \b
    The columns of the answer:
      files      of the tool
      unchanged  of these files: as they were when they were read last, so not read
      sessions   that are new in the ledger
      turns      that are new in the ledger
      known      turns that were read and are in the ledger already
      replaced   turns in whose place another version stands from now on
      records    lines, messages or rows that were read
      size       of the files that were read; in a pipe: bytes

    \b
    Known formats (a plugin may add more):
      aider, atif, chatgpt, claude-ai, claude-code, codex, copilot-cli, cursor,
      factory-droid, gemini-cli, kiro, langgraph, llm, messages, opencode,
      openhands, pi, swe-agent

    With --watch a turn is in the ledger moments after it has ended, and what is still open is shown as provisional by
    `weft sessions`, `weft log` and `weft show`. With --json each thing that happens is a line of JSON. With --files a
    folder is kept as the files of each turn that ends in it from now on.

    Where there is no ledger, your own is made. Exits with 1 if something could not be read; everything else was taken.
    A file that --format makes no turn of, and that looks like another tool's, is a problem, and nothing of it is
    written. docs/importing.md has the details.

    An import of the usual places first says what lies where and how long reading it takes. The latest sessions come
    first, and Ctrl-C stops it with what it has (exit code 130); the next one goes on. --watch ends with 0. --watch and
    --background go together; any other two of these ways do not. --status exits with 1 where the import failed or was
    killed.
    """
    from weft.exchange.importers.port import load_importers
    from weft.ledger.api import read_moment

    chosen = {name for name, is_given in modes.items() if is_given}
    _check_modes(chosen, folders, processes)
    after = read_moment(since, "since", SystemClock().now_ms(), LocalZone())
    asked = _Asked(
        call,
        _named_sources(path),
        load_importers(only),
        only,
        after,
        remap,
        [os.path.abspath(dir) for dir in folders],
        None if processes is None else int(processes),
    )
    return asked.carry_out(chosen)


def _check_modes(chosen: set[str], folders: Sequence[str], processes: str | None) -> None:
    if len(chosen) > 1 and chosen not in TOGETHER:
        words = " and ".join("--" + name.replace("_", "-") for name in sorted(chosen))
        raise click.UsageError(f"{words} exclude each other")
    if folders and "watch" not in chosen:
        raise click.UsageError("--files goes with --watch")
    if processes is not None and "watch" in chosen:
        raise click.UsageError("a watch is one process: --processes does not go with --watch")


class _Asked(Struct, frozen=True):
    """What was asked for, and the ways to do it."""

    call: Call
    paths: list[Path | Address]
    importers: Sequence[Importer]
    only: str | None
    since: int | None
    remap: bool
    folders: list[str]
    processes: int | None

    def carry_out(self, modes: set[str]) -> int:
        """In the way that its modes say."""
        if "background" in modes:
            return self.begin(watch="watch" in modes)
        ways: dict[str, Callable[[], int]] = {
            "discover": self.discover,
            "watch": self.watch,
            "status": self.status,
            "stop": self.stop,
            "dry_run": partial(self.run, dry=True),
        }
        return ways.get(next(iter(modes), ""), self.run)()

    def importing(self, ledger: Ledger | None, **more: Any) -> ImportRun:
        from weft.exchange.importing.run import ImportRun

        force = self.only is not None and bool(self.paths)
        return ImportRun(
            ledger,
            self.importers,
            SystemClock(),
            since=self.since,
            remap=self.remap,
            force=force,
            processes=self.processes,
            **more,
        )

    def discover(self) -> int:
        from weft.surfaces.cli.ledgers.import_job import found_places, show_places

        show_places(self.call, found_places(self.importers))
        return 0

    def run(self, dry: bool = False) -> int:
        from weft.exchange.importing.run import ImportSummary
        from weft.surfaces.cli.ledgers.import_job import (
            all_places,
            found_places,
            import_progress,
            note_nothing_found,
            show_summary,
        )

        paths = self.paths or [place for place in all_places(self.importers) if place.exists()]
        if not paths:
            note_nothing_found(self.call, found_places(self.importers))
            if self.call.json:
                show_summary(self.call, ImportSummary(), dry)
            return 0
        is_stopped = False
        with _ledger(self.call, dry) as ledger, import_progress(self.call) as progress:
            importing = self.importing(ledger, progress=progress)
            try:
                importing.run(paths, None if self.paths else self._announce)
            except KeyboardInterrupt:
                is_stopped = True
        show_summary(self.call, importing.summary, dry, stopped=is_stopped)
        if is_stopped:
            return self._note_stopped(dry)
        return 1 if importing.summary.problems else 0

    def _announce(self, plan: ImportPlan) -> None:
        from weft.exchange.importing.run import USUAL_RATE
        from weft.surfaces.cli.ledgers.import_job import found_places, note_places

        if plan.files and not (self.call.quiet or self.call.json):
            places = found_places(self.importers)
            note_places(self.call, places, plan.files, plan.bytes, plan.bytes / USUAL_RATE)

    def _note_stopped(self, dry: bool) -> int:
        if not dry:
            self.call.note("stopped: what was read is in the ledger; the same command goes on from here")
        return INTERRUPTED

    def watch(self) -> int:
        from weft.surfaces.cli.ledgers.import_job import all_places

        with _ledger(self.call, False) as ledger:
            assert ledger is not None
            importing = partial(self._follow_sources, ledger)
            places = self.paths or [*all_places(self.importers)]
            return follow(self.call, importing, places, ledger, self.folders)

    def _follow_sources(self, ledger: Ledger, on_ended: OnEnded | None) -> ImportRun:
        return self.importing(ledger, follow=True, on_ended=on_ended)

    def begin(self, watch: bool) -> int:
        from weft.surfaces.cli.ledgers.import_job import Order, show_begun, start

        self.call.ensure_owner("import --background")
        with _ledger(self.call, False) as ledger:
            assert ledger is not None  # made, if there was none
        where = _place_of_ledger(self.call)
        paths = [path.url if not isinstance(path, Path) else str(path) for path in self.paths]
        order = Order(
            ledger=where,
            paths=paths,
            only=self.only,
            since=self.since,
            remap=self.remap,
            watch=watch,
            folders=self.folders,
            processes=self.processes,
        )
        show_begun(self.call, start(order))
        return 0

    def status(self) -> int:
        from weft.surfaces.cli.ledgers.import_job import ImportJob, show_status

        return show_status(self.call, ImportJob(_place_of_ledger(self.call)).status())

    def stop(self) -> int:
        from weft.surfaces.cli.ledgers.import_job import ImportJob, show_stopped

        return show_stopped(self.call, ImportJob(_place_of_ledger(self.call)).stop(SystemClock()))


def _named_sources(paths: Sequence[str]) -> list[Path | Address]:
    """The files, folders and databases to import. An empty path, such as a variable of a script that is not set, would
    be the current folder."""
    from weft.exchange.importing.sources import Address
    from weft.surfaces.cli.work.sandbox_access import ensure_not_led_away

    if "" in paths:
        raise InvalidInput("a path is empty", "give . for the current folder")
    places = [Address(path) if Address.is_one(path) else Path(os.path.expanduser(path)).absolute() for path in paths]
    for path in places:
        if isinstance(path, Path) and not path.exists():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        if isinstance(path, Path):
            ensure_not_led_away(str(path))
    return places


def _place_of_ledger(call: Call) -> str:
    path = find_ledger(call.ledger)
    return path if Site.of(path).is_address else str(Path(path).absolute())


@contextmanager
def _ledger(call: Call, dry_run: bool) -> Iterator[Ledger | None]:
    """The ledger there is; where there is none, the user's own is made, or one that was named and is wanted."""
    if dry_run:
        yield None
        return
    try:
        path = find_ledger(call.ledger)
    except LedgerMissing:
        path = str(user_ledger())
    if named_ledger(call.ledger) is None and not Path(path).exists():
        make_folder(Path(path).parent)
        call.note("made your ledger at ", Span(path, "heading"))
        with call.making(path) as ledger:
            yield ledger
        return
    if named_ledger(call.ledger) is not None and not _is_there(call, path):
        with call.making(path) as ledger:
            call.note("made a ledger at ", Span(path, "heading"))
            yield ledger
        return
    with call.writing() as ledger:
        ledger.trust.ensure(IMPORTING)  # asked before a progress bar is drawn
        yield ledger


def _is_there(call: Call, path: str) -> bool:
    """Whether a ledger is at the place that was named; somebody at a terminal is asked whether to make it there."""
    if is_there(call.looking, path):
        return True
    if not is_person_there(call):
        raise LedgerMissing(path, f"`weft init {shell_word(path)}` makes it")
    ask(f"there is no ledger at {path}; make it?", default=True)
    return False


# --- `weft import --watch`: what happens, line by line, until it is interrupted.


CLOCK = slice(len("2026-11-15 "), len("2026-11-15 09:30:00"))


class WatchLines:
    """Counts and shows what happens, whichever thread tells it."""

    def __init__(self, call: Call) -> None:
        self._call, self._lock = call, Lock()
        self.end = EndedWatch()

    def show(self, event: WatchEvent | KeptFolder) -> None:
        with self._lock:
            _count_event(self.end, event)
            _show(self._call, event)


def follow(
    call: Call,
    importing: Callable[[OnEnded | None], ImportRun],
    places: Sequence[Path | Address],
    ledger: Ledger,
    folders: Sequence[str],
) -> int:
    """Ends with 0, whatever interrupts it: that is how it is meant to end. `importing` makes the import, which tells of
    turns that ended where folders are kept."""
    clock, lines = SystemClock(), WatchLines(call)
    end, files = lines.end, 0
    try:
        with _ended_by_signals(), kept_folders(ledger, folders, lines.show) as on_ended:
            watching = SourceWatch(importing(on_ended), partial(listening, clock=clock), clock)
            try:
                with closing(watching.run(places)) as happening:
                    for event in happening:
                        lines.show(event)
            finally:
                files = watching.files
    except KeyboardInterrupt:
        pass
    end.files = files
    if call.json:
        _print_line(end)
    else:
        counts = f"{counted(end.sessions, 'new session')}, {counted(end.turns, 'new turn')}"
        snapshots = f", {counted(end.snapshots, 'snapshot')}" if folders else ""
        call.note(
            f"watch ended: {counted(end.files, 'file')} followed, {counts}{snapshots}, "
            f"{counted(end.problems, 'problem')}"
        )
    return 0


def _count_event(end: EndedWatch, happening: WatchEvent | KeptFolder) -> None:
    if isinstance(happening, SourceImported):
        end.sessions += happening.sessions
        end.turns += happening.turns
        end.superseded += happening.superseded
    elif isinstance(happening, SourceTroubled):
        end.problems += 1
    elif isinstance(happening, KeptFolder):
        end.snapshots += happening.snapshot is not None
        end.problems += happening.error is not None


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """A plain kill ends it as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _print_line(value: Struct) -> None:
    click.echo(document(form(value)), color=True)


def _show(call: Call, event: WatchEvent | KeptFolder) -> None:
    if call.json:
        _print_line(event)
    elif isinstance(event, SourceImported):
        if event.turns or event.sessions or event.superseded:
            call.screen.show(*_imported_row(event))
    elif isinstance(event, WatchBegan):
        call.note(f"{counted(event.files, 'file')}, {size_text(event.bytes)}; reading what is new, the latest first")
        if event.is_blind:
            call.note("the system tells of no changes here: they are found by looking again and again")
    elif isinstance(event, WatchCaughtUp):
        call.note(f"watching {counted(event.files, 'file')}; Ctrl-C ends it")
    elif isinstance(event, SourceTroubled):
        where = event.source if event.line is None else f"{event.source}:{event.line}"
        call.note(Span(where, "warn"), f": {event.what}")
    elif isinstance(event, SourceGone):
        call.note(Span(shortened(event.source), "dim"), " is gone; what was imported of it stays")
    elif event.error is not None:
        call.note(Span(event.folder, "warn"), f": its files were not kept: {event.error}")
    elif event.turn is not None:
        call.note("kept the files of turn ", Span(event.turn[-8:], "id"), f" in {shortened(event.folder)}")


def _imported_row(imported: SourceImported) -> list[Span | str]:
    new = [counted(imported.turns, "turn")] if imported.turns else []
    new += [f"{imported.superseded:,} replaced"] if imported.superseded else []
    new += [f"{imported.open_turns:,} open"] if imported.open_turns else []
    now = local_time(SystemClock().now_ms())[CLOCK]
    what = ", ".join(new) or "a new session"
    return [
        Span(now, "dim"),
        " ",
        Span(imported.origin, "label"),
        f" {what}  ",
        Span(shortened(imported.source), "dim"),
    ]
