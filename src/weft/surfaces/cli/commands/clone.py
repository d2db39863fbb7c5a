"""`weft clone`: a new ledger with everything of another one."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from weft.kernel.typed_names import Site
from weft.ledger.api import Ledger, ResourceLog, Runs
from weft.store.private_files import make_folder
from weft.store.replicas import CLONED, StoredTrust
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.exits import OK
from weft.surfaces.cli.figures import counted
from weft.surfaces.cli.files_beside import FilesBeside, files_option, folder_of
from weft.surfaces.cli.progress import progress
from weft.surfaces.cli.resource_access import files_folder
from weft.surfaces.cli.screen import Span
from weft.surfaces.cli.sync_call import checked_source, silence_option
from weft.surfaces.cli.user_files import place_for
from weft.surfaces.wire.exchange import ClonedLedger

if TYPE_CHECKING:
    from weft.exchange.sync import CopiedFacts


@weft_command("clone")
@click.argument("source", type=click.Path())
@click.argument("dest", required=False, type=click.Path())
@click.option("--no-imports-secret", is_flag=True, help="Imports there and here stay two trees.")
@files_option
@silence_option
def command(call: Call, source: str, dest: str | None, no_imports_secret: bool, no_files: bool, silence: float) -> int:
    """Make a new ledger with everything of another one.

    SOURCE is a path, postgresql://…, ssh://host/path or cmd:COMMAND. DEST is a folder, a file that ends in .db or a
    PostgreSQL address; without it, this folder. The import secret comes along, so that what both import later is one
    tree: clone to a ledger of the same owner, or say --no-imports-secret. SOURCE becomes the remote origin. The kept
    files of turns come along where SOURCE is on this machine, and stay there where it is reached by a command. A
    trusted file is copied where its views say the same in a clone; anything else is told and checked fact by fact. A
    clone that was cut short is run again and goes on where it was.
    """
    from weft.exchange.sync import clone
    from weft.exchange.sync.commands import program_of

    address = checked_source(call, source, shares_secret=not no_imports_secret)
    place, is_near = _place(dest or "."), program_of(address) is None
    copied = _copied_file(call, address, place, shares_secret=not no_imports_secret) if is_near else None
    with call.making(place) as ledger:
        if isinstance(ledger.trust, StoredTrust) and ledger.trust.is_trusted:
            ledger.trust.allow(CLONED)
        files = _files(call, address, ledger, is_left_out=no_files) if is_near else None
        with progress(call, "clone") as bar, nullcontext() if files is None else files.held():
            done = clone(
                ledger,
                address,
                call.looking,
                secret=not no_imports_secret,
                report=bar.counted,
                silence_seconds=silence,
            )
            if files is not None:
                files.carry()
        done = done if copied is None else done.beside(copied)
        kept = None if files is None else files.carried
        unfinished = Runs(ledger).unfinished_turns()
        answer = ClonedLedger(
            path=ledger.path, created_as=ledger.replica, synced=done, kept=kept, unfinished=unfinished
        )
        facts = f"{counted(done.events, 'event')}, {counted(done.contents, 'content')}"
        call.answer(answer, [f"cloned {facts} to ", Span(ledger.path, "heading")])
        if unfinished:
            turns = (
                "1 turn has not ended: it is" if unfinished == 1 else f"{unfinished:,} turns have not ended: they are"
            )
            call.note(f"{turns} here as far as recorded, and only the other ledger goes on; `weft pull` brings the end")
        if files is None and ResourceLog(ledger).kept_references():
            call.note("the kept files of turns stay where the other ledger is")
        return OK if files is None else files.note_carried(call)


def _copied_file(call: Call, address: str, place: str, *, shares_secret: bool) -> CopiedFacts | None:
    """What came with the file of a ledger that can be cloned so; the rest is told fact by fact."""
    from weft.exchange.sync import ORIGIN, FileClone, Remote

    if Site.of(address) is not Site.FILE or Site.of(place) is not Site.FILE:
        return None
    origin = Remote(name=ORIGIN, address=address, shares_imports=shares_secret)
    with call.looking(address) as source, progress(call, "clone") as bar:
        return FileClone(source, origin, bar.staged).make(Path(place), call.trust_store)


def _files(call: Call, address: str, ledger: Ledger, *, is_left_out: bool) -> FilesBeside:
    return FilesBeside(address, folder_of(call, address), files_folder(ledger), is_left_out=is_left_out)


def _place(dest: str) -> str:
    """Where the clone will lie; its folder is made."""
    if Site.of(dest).is_address:
        return dest
    place = place_for(dest).absolute()
    make_folder(place.parent)
    return str(place)
