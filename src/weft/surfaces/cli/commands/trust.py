"""`weft trust`: which ledgers may act for this person."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from weft.kernel.errors import NotApplicable
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.screen import Span
from weft.surfaces.cli.trust import allowed_lines, describe_trust

if TYPE_CHECKING:
    from weft.ledger.api import Ledger
    from weft.store.trust_store import StoredTrust


@weft_command("trust")
@click.option("--show", is_flag=True, help="List what trusting the ledger allows, and change nothing.")
@click.option("--list", "listing", is_flag=True, help="List the ledgers that you trust.")
@click.option("--revoke", is_flag=True, help="Trust the ledger no longer.")
def command(call: Call, show: bool, listing: bool, revoke: bool) -> None:
    """Let a ledger act for you: one that you did not make here.

    In a ledger that is not trusted everything can be read and recorded, and nothing acts: no command is started, no
    connection opened, no key sent, no program run, no approval taken, no history imported. Ledgers that you make,
    clone or copy with weft are trusted. What you trust is kept in your state folder, by path, owner and inode of the
    file, or by server, database, schema and replica: a file that takes the place of a trusted one is not trusted.
    """
    if show + listing + revoke > 1:
        raise click.UsageError("--show, --list and --revoke exclude each other")
    if listing:
        _list(call)
        return
    with call.reading() as ledger:
        trust = _stored(ledger)
        if revoke:
            trust.revoke()
        elif not show:
            trust.allow()
        answer = describe_trust(ledger, trust)
    if call.json:
        call.document(answer)
        return
    state = f"is trusted: {answer.how}" if answer.trusted else f"is not trusted: {answer.doubt}"
    call.screen.show(Span(answer.ledger, "heading"), f" {state}")
    for line in allowed_lines(answer) if not revoke else ():
        call.screen.show(*line)
    if not show and not revoke:
        call.note("undo: weft trust --revoke")


def _stored(ledger: Ledger) -> StoredTrust:
    from weft.store.trust_store import StoredTrust

    if not isinstance(ledger.trust, StoredTrust):
        raise NotApplicable("a ledger in memory is its maker's own", "name a file or a server")
    return ledger.trust


def _list(call: Call) -> None:
    ledgers = call.trust_store.ledgers()
    if call.json:
        call.documents(ledgers)
        return
    for known in ledgers:
        call.screen.show(Span(known.identity.place, "heading"), f"  {known.how}")
    if not ledgers:
        call.note("you trust no ledger yet: `weft init` makes one")
