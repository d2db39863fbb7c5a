"""`weft undo`: the last turn of a session taken back, with its files."""

from __future__ import annotations

import click

from weft.kernel.enums import RestoreOutcome
from weft.surfaces.cli import arguments
from weft.surfaces.cli.call import Call, undo
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.default_session import require_named_or_latest
from weft.surfaces.cli.exits import OK, UNFINISHED
from weft.surfaces.cli.history import short
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.cli.turn_files_call import turn_files
from weft.surfaces.plain_text import safe
from weft.surfaces.wire.turn_files import UndoneTurn


@weft_command("undo")
@arguments.session(required=False)
@click.option("--redo", is_flag=True, help="Take the last undo back.")
@click.option("--force", is_flag=True, help="Also where another session works in the directory by now.")
def command(call: Call, session: str | None, redo: bool, force: bool) -> int:
    """Take back the last turn of a session, and its files.

    The head goes back by one turn, and the working directory to what it was before that turn changed it, also by
    commands of a shell. What is there now is kept first: `weft undo --redo` brings both back. Without SESSION it is the
    latest one.
    """
    with call.writing() as ledger:
        label = ledger.session(require_named_or_latest(call, ledger, session)).label
        files = turn_files(ledger)
        done = files.redo(label, force=force) if redo else files.undo(label, force=force)
        restored = [one for one in done.restores if one.outcome is RestoreOutcome.OK]
        places = [ledger.resources.get(ledger.resources.snapshot(one.snapshot).resource).place for one in restored]
        standing = ledger.session(label)
    answer = UndoneTurn(session=standing, before_id=done.before, restored=places)
    call.answer(answer, _line(standing.label, done.before, done.head), *([["  ", safe(place)] for place in places]))
    failed = [one for one in done.restores if one.outcome is not RestoreOutcome.OK]
    for one in failed:
        call.note(f"files were not restored: {safe(one.error or 'somebody works on them')}")
    call.note(undo("undo", label) if redo else undo("undo", label, "--redo"))
    return UNFINISHED if failed else OK


def _line(label: str, before: str | None, head: str | None) -> Line:
    return [Span(label, "label"), ": ", *_place(before), " -> ", *_place(head)]


def _place(turn: str | None) -> Line:
    return [Span("no turn" if turn is None else short(turn), "id")]
