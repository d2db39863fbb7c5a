"""`weft sessions`: every label and where it stands."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from weft.ledger.model import Session
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.history import short
from weft.surfaces.cli.plain_text import first_line
from weft.surfaces.cli.screen import Span
from weft.surfaces.cli.shapes import to_json
from weft.surfaces.cli.zones import local_time

if TYPE_CHECKING:
    from weft.ledger.ledger import Ledger

HEADER = ("session", "head", "depth", "status", "last change", "about")
STATUS_STYLES = {"active": "good", "archived": "dim", "deleted": "bad"}


@weft_command("sessions")
@click.option("--all", "every", is_flag=True, help="Archived and deleted sessions too.")
def command(call: Call, every: bool) -> None:
    """List sessions and where they stand.

    The latest first.
    """
    with call.reading() as ledger:
        found = ledger.sessions(every=every)
        if call.json:
            call.documents(map(to_json, found))
        elif found:
            about = ledger.subjects(session.head for session in found if session.head is not None)
            call.screen.table([_row(ledger, session, about) for session in found], HEADER)
        else:
            call.note("no sessions yet: `weft record --session main …` makes one with its first turn")


def _row(ledger: Ledger, session: Session, subjects: dict[str, str]) -> tuple[Span | str, ...]:
    head, depth, about = "-", "0", ""
    if session.head is not None:
        turn = ledger.turn(session.head)
        head, depth, about = short(turn.id), str(turn.depth), first_line(subjects.get(turn.id, ""))
    status = Span(session.status, STATUS_STYLES.get(session.status, ""))
    return Span(session.label, "label"), Span(head, "id"), depth, status, local_time(session.updated_at), about
