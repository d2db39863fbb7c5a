"""`weft reflog`: every place a session has stood."""

from __future__ import annotations

import click

from weft.ledger.model import HeadMove
from weft.surfaces.cli import arguments
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.default_session import named_or_latest
from weft.surfaces.cli.history import find_session, short
from weft.surfaces.cli.screen import Span
from weft.surfaces.cli.times import local_time

HEADER = ("name", "turn", "when", "why", "reason")


@weft_command("reflog")
@arguments.session(required=False)
@click.option("-n", "--limit", type=click.IntRange(min=0), metavar="N", help="At most N moves.")
def command(call: Call, session: str | None, limit: int | None) -> None:
    """Show where a session has stood.

    Without SESSION it is the latest. The newest first; each line names the place as `weft show`, `weft move` and the
    others take it.
    """
    with call.reading() as ledger:
        name = named_or_latest(call, ledger, session, with_turn=False)
        if name is None:
            if call.json:
                call.documents(())
            return
        opened = find_session(ledger, name)
        moves = ledger.reflog(opened.id, limit=limit)
    if call.json:
        call.documents(moves)
    elif moves:
        call.screen.table([_row(opened.label, move) for move in moves], HEADER)
    else:
        call.note(f"session {opened.label!r} has not moved yet: its first turn will be the first line here")


def _row(label: str, move: HeadMove) -> tuple[Span | str, ...]:
    turn = "-" if move.turn_id is None else short(move.turn_id)
    name = Span(f"{label}@{{{move.number}}}", "label")
    return name, Span(turn, "id"), local_time(move.changed_at), move.why, move.reason or ""
