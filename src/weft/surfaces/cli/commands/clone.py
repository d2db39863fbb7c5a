"""`weft clone`: a new ledger with everything of another one."""

from __future__ import annotations

import click

from weft.kernel.sites import Site
from weft.store.atomic_files import make_folder
from weft.store.trust_store import CLONED, StoredTrust
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.figures import counted
from weft.surfaces.cli.progress import progress
from weft.surfaces.cli.screen import Span
from weft.surfaces.cli.sync_call import checked_source, silence_option
from weft.surfaces.cli.user_files import place_for
from weft.surfaces.wire.exchange import ClonedLedger


@weft_command("clone")
@click.argument("source", type=click.Path())
@click.argument("dest", required=False, type=click.Path())
@click.option("--no-imports-secret", is_flag=True, help="Imports there and here stay two trees.")
@silence_option
def command(call: Call, source: str, dest: str | None, no_imports_secret: bool, silence: float) -> None:
    """Make a new ledger with everything of another one.

    SOURCE is a path, postgresql://…, ssh://host/path or cmd:COMMAND. DEST is a folder, a file that ends in .db or a
    PostgreSQL address; without it, this folder. The import secret comes along, so that what both import later is one
    tree: clone to a ledger of the same owner, or say --no-imports-secret. SOURCE becomes the remote origin. A clone
    that was cut short is run again and goes on where it was.
    """
    from weft.exchange.sync import clone

    address = checked_source(call, source, shares_secret=not no_imports_secret)
    with call.making(_place(dest or ".")) as ledger:
        if isinstance(ledger.trust, StoredTrust) and ledger.trust.is_trusted:
            ledger.trust.allow(CLONED)
        with progress(call, "clone") as bar:
            done = clone(
                ledger,
                address,
                call.looking,
                secret=not no_imports_secret,
                report=bar.counted,
                silence_seconds=silence,
            )
        answer = ClonedLedger(path=ledger.path, created_as=ledger.replica, synced=done)
        facts = f"{counted(done.events, 'event')}, {counted(done.contents, 'content')}"
        call.answer(answer, [f"cloned {facts} to ", Span(ledger.path, "heading")])


def _place(dest: str) -> str:
    """Where the clone will lie; its folder is made."""
    if Site.of(dest).is_address:
        return dest
    place = place_for(dest).absolute()
    make_folder(place.parent)
    return str(place)
