"""`weft replica`: what a ledger goes by among its copies."""

from __future__ import annotations

import click

from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.screen import Span
from weft.surfaces.wire.upkeep import ReplicaName


@weft_command("replica")
@click.option("--new", is_flag=True, help="Go by a new replica id from now on.")
@click.option("--forget", metavar="REPLICA", help="Forget what another replica said of itself.")
def command(call: Call, new: bool, forget: str | None) -> None:
    """Show or change the id of this ledger among its copies.

    Copies made by `weft backup`, `weft copy` and `weft clone` have ids of their own. A file that was copied by other
    means has its origin's; once both go on, syncing refuses them, and --new, in both, tells them apart. Close other
    programs that have the ledger open first.
    """
    from weft.exchange.sync import forget_peer, mark_as_copy

    if forget is not None:
        with call.writing() as ledger:
            forget_peer(ledger, forget)
        call.note(f"forgot {forget}: the next sync with it begins anew")
    if new:
        with call.writing() as ledger:
            was = ledger.replica
            mark_as_copy(ledger)
        with call.writing() as ledger:
            call.answer(
                ReplicaName(replica=ledger.replica, was=was),
                ["this ledger goes by ", Span(ledger.replica, "id"), ", no longer by ", Span(was, "id")],
            )
        return
    with call.reading() as ledger:
        call.answer(ReplicaName(replica=ledger.replica), [Span(ledger.replica, "id")])
