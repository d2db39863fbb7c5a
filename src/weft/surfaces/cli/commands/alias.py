"""`weft alias`: a second name for a session."""

from __future__ import annotations

import click

from weft.kernel.enums import AliasReason
from weft.surfaces.cli import arguments
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.screen import Span


@weft_command("alias")
@click.argument("alias")
@arguments.session()
@click.option(
    "--reason",
    type=click.Choice([reason.value for reason in AliasReason]),
    default="manual",
    help="Why. Default: manual.",
)
def command(call: Call, alias: str, session: str, reason: str) -> None:
    """Give a session a second name.

    Names are looked up as labels first, then as aliases; an alias never leads to another alias.
    """
    with call.writing() as ledger:
        renamed = ledger.labels.add_alias(alias, session, reason=reason)
    call.answer(renamed, [Span(alias, "label"), " is another name for ", Span(renamed.label, "label")])
