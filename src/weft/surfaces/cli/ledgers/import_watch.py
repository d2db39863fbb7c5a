"""`weft import --watch`: what happens, line by line, until it is interrupted."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from threading import Lock
from types import FrameType
from typing import TYPE_CHECKING

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
from weft.kernel.clock import SystemClock
from weft.runtime.resources.workspace_snapshots import KeptFolder
from weft.surfaces.cli.command_line import Call
from weft.surfaces.cli.ledgers.import_job import shortened
from weft.surfaces.cli.progress import counted, size_text
from weft.surfaces.cli.screen import Span, local_time
from weft.surfaces.cli.turn_files import kept_folders
from weft.surfaces.wire.forms import document, form
from weft.verbs.exchange_answers import EndedWatch

if TYPE_CHECKING:
    from weft.exchange.importing.run import ImportRun, OnEnded
    from weft.exchange.importing.sources import Address
    from weft.ledger.api import Ledger


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
