"""`weft alias`: a second name for a session."""

from __future__ import annotations

import click

from weft.kernel.enums import AliasReason
from weft.ledger.model import SessionAlias
from weft.surfaces.cli import arguments
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.screen import Span
from weft.surfaces.cli.times import local_minute, local_time

HEADER = ("alias", "session", "since", "why")
SPARE = ("session",)


@weft_command("alias")
@click.argument("alias", required=False)
@arguments.session(required=False)
@click.option(
    "--reason",
    type=click.Choice([reason.value for reason in AliasReason]),
    default="manual",
    help="Why. Default: manual.",
)
def command(call: Call, alias: str | None, session: str | None, reason: str) -> None:
    """Give a session a second name, or list such names.

    Without ALIAS and SESSION it lists all. Names are looked up as labels first, then as aliases; an alias never leads
    to another alias.
    """
    if alias is None:
        _list(call)
        return
    if session is None:
        raise click.UsageError("name the session too: weft alias ALIAS SESSION")
    with call.writing() as ledger:
        renamed = ledger.labels.add_alias(alias, session, reason=reason)
    call.answer(renamed, [Span(alias, "label"), " is another name for ", Span(renamed.label, "label")])


def _list(call: Call) -> None:
    with call.reading() as ledger:
        aliases = ledger.labels.aliases()
    if call.json:
        call.documents(aliases)
    elif aliases:
        call.screen.table([_row(one, call.screen.terminal) for one in aliases], HEADER, spare=SPARE)
    else:
        call.note("no session has a second name: weft alias ALIAS SESSION gives one")


def _row(one: SessionAlias, terminal: bool) -> tuple[Span | str, ...]:
    when = (local_minute if terminal else local_time)(one.created_at)
    return Span(one.alias, "label"), Span(one.session, "label"), Span(when, "dim"), one.reason
