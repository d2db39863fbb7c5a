"""`weft delete`: the label goes, the turns stay."""

from __future__ import annotations

import click

from weft.surfaces.cli import arguments
from weft.surfaces.cli.call import Call, undo
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.screen import Span


@weft_command("delete")
@arguments.session()
@click.option("--reason", metavar="TEXT", help="Why.")
def command(call: Call, session: str, reason: str | None) -> None:
    """Delete a session's label; its turns stay.

    The turns keep their ids and can still be shown and forked; `weft restore` brings the session back.
    """
    with call.writing() as ledger:
        gone = ledger.labels.delete(session, reason=reason)
    call.answer(gone, [Span(gone.label, "label"), " is deleted; its turns stay"])
    call.note(undo("restore", gone.label))
