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
from weft.kernel.ambient import SystemClock
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.import_places import shortened
from weft.surfaces.cli.screen import Span
from weft.surfaces.cli.shapes import document, to_json
from weft.surfaces.cli.sizes import size_text
from weft.surfaces.cli.turn_lines import counted
from weft.surfaces.cli.zones import local_time

if TYPE_CHECKING:
    from weft.exchange.importers.servers import Address
    from weft.exchange.importing.run import ImportRun

CLOCK = slice(len("2026-11-15 "), len("2026-11-15 09:30:00"))


class Stopped(Struct, tag="stopped"):
    """The end of a watch: what it brought."""

    files: int = 0
    sessions: int = 0
    turns: int = 0
    superseded: int = 0
    problems: int = 0

    def count(self, each: Happening) -> None:
        if isinstance(each, Imported):
            self.sessions += each.sessions
            self.turns += each.turns
            self.superseded += each.superseded
        elif isinstance(each, Troubled):
            self.problems += 1


def follow(call: Call, importing: ImportRun, places: Sequence[Path | Address]) -> int:
    """Ends with 0, whatever interrupts it: that is how it is meant to end."""
    clock, end = SystemClock(), Stopped()
    watching = Watching(importing, partial(listening, clock=clock), clock)
    try:
        with _ended_by_signals(), closing(watching.run(places)) as happening:
            for each in happening:
                end.count(each)
                _show(call, each)
    except KeyboardInterrupt:
        pass
    end.files = watching.files
    if call.json:
        _line(end)
    else:
        told = f"{counted(end.sessions, 'new session')}, {counted(end.turns, 'new turn')}"
        call.note(f"watch ended: {counted(end.files, 'file')} followed, {told}, {counted(end.problems, 'problem')}")
    return 0


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
    click.echo(document(to_json(value)), color=True)


def _show(call: Call, each: Happening) -> None:
    if call.json:
        _line(each)
    elif isinstance(each, Imported):
        if each.turns or each.sessions or each.superseded:
            call.screen.show(*_row(each))
    elif isinstance(each, Began):
        call.note(f"{counted(each.files, 'file')}, {size_text(each.bytes)}; reading what is new, the latest first")
        if each.is_blind:
            call.note("the system tells of no changes here: they are found by looking again and again")
    elif isinstance(each, Watched):
        call.note(f"watching {counted(each.files, 'file')}; Ctrl-C ends it")
    elif isinstance(each, Troubled):
        where = each.source if each.line is None else f"{each.source}:{each.line}"
        call.note(Span(where, "warn"), f": {each.what}")
    elif isinstance(each, Gone):
        call.note(Span(shortened(each.source), "dim"), " is gone; what was imported of it stays")


def _row(each: Imported) -> list[Span | str]:
    new = [counted(each.turns, "turn")] if each.turns else []
    new += [f"{each.superseded:,} replaced"] if each.superseded else []
    new += [f"{each.open_turns:,} open"] if each.open_turns else []
    now = local_time(SystemClock().now_ms())[CLOCK]
    what = ", ".join(new) or "a new session"
    return [Span(now, "dim"), " ", Span(each.origin, "label"), f" {what}  ", Span(shortened(each.source), "dim")]
