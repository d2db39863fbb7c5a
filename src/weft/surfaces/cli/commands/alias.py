"""`weft alias`: a second name for a session."""

from __future__ import annotations

import click

from weft.kernel.enums import AliasReason
from weft.ledger.model import SessionAlias
from weft.surfaces.cli import arguments
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.screen import Span

HEADER = ("alias", "session", "why")
SPARE = ("session",)


@weft_command("alias")
@click.argument("alias", required=False)
@arguments.session(required=False)
@click.option(
    "--reason",
    type=click.Choice([reason.value for reason in AliasReason]),
    help="Why. Default: manual.",
)
def command(call: Call, alias: str | None, session: str | None, reason: str | None) -> None:
    """Give a session a second name, or list such names.

    Without ALIAS and SESSION it lists all. Names are looked up as labels first, then as aliases; an alias never leads
    to another alias.
    """
    if alias is None:
        if reason is not None:
            raise click.UsageError("--reason is for a new name: weft alias ALIAS SESSION --reason …")
        _list(call)
        return
    if session is None:
        raise click.UsageError("name the session too: weft alias ALIAS SESSION")
    with call.writing() as ledger:
        renamed = ledger.labels.add_alias(alias, session, reason=reason or AliasReason.MANUAL)
    call.answer(renamed, [Span(alias, "label"), " is another name for ", Span(renamed.label, "label")])


def _list(call: Call) -> None:
    with call.reading() as ledger:
        aliases = ledger.labels.aliases()
    if call.json:
        call.documents(aliases)
    elif aliases:
        call.screen.table([_row(one) for one in aliases], HEADER, spare=SPARE)
    else:
        call.note("no session has a second name: weft alias ALIAS SESSION gives one")


def _row(one: SessionAlias) -> tuple[Span | str, ...]:
    return Span(one.alias, "label"), Span(one.session, "label"), one.reason
