"""`weft reflog`: every place a session has stood."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from weft.ledger.model import HeadMove, Session
from weft.surfaces.cli import arguments
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.default_session import named_or_latest
from weft.surfaces.cli.history import find_session, short
from weft.surfaces.cli.progress import progress
from weft.surfaces.cli.screen import Screen, Span
from weft.surfaces.cli.times import local_minute, local_time
from weft.surfaces.plain_text import cut, safe

if TYPE_CHECKING:
    from weft.ledger.api import Ledger

HEADER = ("name", "turn", "when", "why", "reason")
SPARE = ("turn",)
LABEL_COLUMNS, OTHER_COLUMNS = 12, 46
"""So many columns a label has at least, and so many the rest of its line."""


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
        with progress(call, "reflog", by_itself=True):
            moves = ledger.reflog(opened.id, limit=limit)
        label = _label(call.screen, ledger, opened) if moves and call.screen.terminal else opened.label
    if call.json:
        call.documents(moves)
    elif moves:
        call.screen.table([_row(label, move, call.screen.terminal) for move in moves], HEADER, spare=SPARE)
    else:
        call.note(f"session {opened.label!r} has not moved yet: its first turn will be the first line here")


def _label(screen: Screen, ledger: Ledger, session: Session) -> str:
    """What to type for a session, as far as a terminal has room for it."""
    shown = ledger.listing().short_labels().get(session.label, session.label)
    return cut(safe(shown), max(LABEL_COLUMNS, screen.columns - OTHER_COLUMNS))


def _row(label: str, move: HeadMove, terminal: bool) -> tuple[Span | str, ...]:
    turn = "-" if move.turn_id is None else short(move.turn_id)
    name = Span(f"{label}@{{{move.number}}}", "label")
    when = (local_minute if terminal else local_time)(move.changed_at)
    return name, Span(turn, "id"), when, move.why, move.reason or ""
