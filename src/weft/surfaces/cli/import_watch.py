"""`weft import --watch`: what happens, line by line, until it is interrupted."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click
from msgspec import Struct

from weft.exchange.importing.change_notices import listening
from weft.exchange.importing.watch import Began, Gone, Happening, Imported, Troubled, Watched, Watching
from weft.kernel.clock import SystemClock
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.figures import counted, size_text
from weft.surfaces.cli.import_lines import shortened
from weft.surfaces.cli.screen import Span
from weft.surfaces.cli.times import local_time
from weft.surfaces.wire.exchange import EndedWatch
from weft.surfaces.wire.forms import form
from weft.surfaces.wire.json_text import document

if TYPE_CHECKING:
    from weft.exchange.importers.servers import Address
    from weft.exchange.importing.run import ImportRun

CLOCK = slice(len("2026-11-15 "), len("2026-11-15 09:30:00"))


def follow(call: Call, importing: ImportRun, places: Sequence[Path | Address]) -> int:
    """Ends with 0, whatever interrupts it: that is how it is meant to end."""
    clock, end = SystemClock(), EndedWatch()
    watching = Watching(importing, partial(listening, clock=clock), clock)
    try:
        with _ended_by_signals(), closing(watching.run(places)) as happening:
            for event in happening:
                _count(end, event)
                _show(call, event)
    except KeyboardInterrupt:
        pass
    end.files = watching.files
    if call.json:
        _line(end)
    else:
        counts = f"{counted(end.sessions, 'new session')}, {counted(end.turns, 'new turn')}"
        call.note(f"watch ended: {counted(end.files, 'file')} followed, {counts}, {counted(end.problems, 'problem')}")
    return 0


def _count(end: EndedWatch, happening: Happening) -> None:
    if isinstance(happening, Imported):
        end.sessions += happening.sessions
        end.turns += happening.turns
        end.superseded += happening.superseded
    elif isinstance(happening, Troubled):
        end.problems += 1


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


def _line(value: Struct) -> None:
    click.echo(document(form(value)), color=True)


def _show(call: Call, event: Happening) -> None:
    if call.json:
        _line(event)
    elif isinstance(event, Imported):
        if event.turns or event.sessions or event.superseded:
            call.screen.show(*_row(event))
    elif isinstance(event, Began):
        call.note(f"{counted(event.files, 'file')}, {size_text(event.bytes)}; reading what is new, the latest first")
        if event.is_blind:
            call.note("the system tells of no changes here: they are found by looking again and again")
    elif isinstance(event, Watched):
        call.note(f"watching {counted(event.files, 'file')}; Ctrl-C ends it")
    elif isinstance(event, Troubled):
        where = event.source if event.line is None else f"{event.source}:{event.line}"
        call.note(Span(where, "warn"), f": {event.what}")
    elif isinstance(event, Gone):
        call.note(Span(shortened(event.source), "dim"), " is gone; what was imported of it stays")


def _row(imported: Imported) -> list[Span | str]:
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
