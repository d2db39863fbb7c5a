"""`weft restore`: back to where a session stood."""

from __future__ import annotations

import re

import click

from weft.surfaces.cli import arguments
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.history import find_session, short
from weft.surfaces.cli.screen import Span

_PLACE = re.compile(r"(.+)@\{(\d{1,15})\}")


@weft_command("restore")
@arguments.session()
@click.argument("number", type=click.IntRange(min=0), metavar="[N]", required=False)
@click.option("--reason", metavar="TEXT", help="Why, for the reflog.")
def command(call: Call, session: str, number: int | None, reason: str | None) -> None:
    """Move a session back, or bring a deleted one back.

    N counts the lines of `weft reflog`: 1 is where the session stood before its last move. Without N an active session
    goes back by 1, a deleted or archived one becomes active again where it stood. SESSION may name the line itself, as
    `weft reflog` does: main@{2}.
    """
    if number is None and (place := _PLACE.fullmatch(session)):
        session, number = place[1], int(place[2])
    with call.writing() as ledger:
        restored = ledger.heads.restore(find_session(ledger, session).id, number, reason=reason)
    head = "no turn" if restored.head is None else short(restored.head)
    call.answer(restored, [Span(restored.label, "label"), " stands at ", Span(head, "id")])
