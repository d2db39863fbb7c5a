"""`weft archive`: out of sight, not out of the ledger."""

from __future__ import annotations

import click

from weft.surfaces.cli import arguments
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.screen import Span
from weft.surfaces.cli.undo import undo


@weft_command("archive")
@arguments.session()
@click.option("--undo", "back", is_flag=True, help="Make it active again.")
@click.option("--reason", metavar="TEXT", help="Why.")
def command(call: Call, session: str, back: bool, reason: str | None) -> None:
    """Put a session away; its turns stay.

    An archived session is listed by `weft sessions --all` only and takes no more turns.
    """
    with call.writing() as ledger:
        change = ledger.unarchive_session if back else ledger.archive_session
        changed = change(session, reason=reason)
    call.answer(changed, [Span(changed.label, "label"), f" is {changed.status}"])
    if not back:
        call.note(undo("archive", "--undo", changed.label))
