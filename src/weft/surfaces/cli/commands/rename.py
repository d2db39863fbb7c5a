"""`weft rename`: another label for a session."""

from __future__ import annotations

import click

from weft.surfaces.cli import arguments
from weft.surfaces.cli.call import Call, undo
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.screen import Span


@weft_command("rename")
@arguments.session()
@click.argument("label")
def command(call: Call, session: str, label: str) -> None:
    """Rename a session.

    Its turns, its reflog and its aliases stay.
    """
    with call.writing() as ledger:
        before = ledger.session(session).label
        renamed = ledger.labels.rename(session, label)
    call.answer(renamed, [Span(before, "label"), " is now ", Span(renamed.label, "label")])
    call.note(undo("rename", renamed.label, before))
