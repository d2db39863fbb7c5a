"""`weft recover`: a ledger that lost something."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from weft.kernel.errors import LogCut
from weft.store.replicas import RECOVERED, identity_of
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.exits import DIFFERENT, OK, exit_code
from weft.surfaces.cli.figures import counted
from weft.surfaces.cli.files_beside import FilesBeside
from weft.surfaces.cli.progress import progress
from weft.surfaces.cli.resource_access import folder_beside, kept_files
from weft.surfaces.cli.screen import Span
from weft.surfaces.cli.user_files import find_ledger, named_ledger, place_for
from weft.surfaces.plain_text import safe
from weft.surfaces.wire.upkeep import RecoveryAnswer, SalvageAnswer

if TYPE_CHECKING:
    from weft.ledger.api import SalvageResult


@weft_command("recover")
@click.option("--accept", is_flag=True, help="Go on from what is there; what is missing is given up.")
@click.option("--from", "backup", metavar="BACKUP", type=click.Path(), help="Put a backup in the ledger's place.")
@click.option(
    "--salvage",
    nargs=2,
    metavar="DAMAGED NEW",
    type=click.Path(),
    help="Make a new ledger of all that still verifies in a damaged file.",
)
@click.option(
    "--with", "others", multiple=True, metavar="FILE", type=click.Path(), help="An older copy that fills its holes."
)
def command(
    call: Call, accept: bool, backup: str | None, salvage: tuple[str, str] | None, others: tuple[str, ...]
) -> int:
    """Recover what was lost: a backup, or what still verifies.

    A ledger remembers beside its database how much it has acknowledged. When the database holds less, or something
    else, nothing is opened until the newer copy is put back, a backup is put in its place with --from, or the loss is
    accepted. A file that cannot be read any more is searched with --salvage, page by page. No file is ever deleted.
    """
    if salvage is not None:
        if accept or backup:
            raise click.UsageError("--salvage stands alone, or with --with")
        return _salvage(call, *salvage, others)
    if others:
        raise click.UsageError("--with belongs to --salvage")
    if backup is not None:
        _put_back(call, backup)
    return _accept(call, accept)


def _put_back(call: Call, backup: str) -> None:
    from weft.surfaces.opening import restore

    path = named_ledger(call.ledger) or str(_present(call))
    is_trusted = call.trust_store.is_file_trusted(backup)
    files = FilesBeside(backup, folder_beside(backup), folder_beside(path))
    with progress(call, "restore") as bar:
        restored = restore(backup, path, progress=bar.counted, beside=files.carry)
    if is_trusted:
        call.trust_store.allow(identity_of(path, None), RECOVERED)
    call.note(f"{backup} with {counted(restored.events, 'event')} lies at {path} now")
    if restored.replaced is not None:
        call.note(f"what lay there is {restored.replaced}")
    files.note_carried(call)
    if (origin := kept_files(folder_beside(backup)).origin) is not None:
        call.note(f"the backup was made without the files of turns: {safe(origin)} has them")


def _present(call: Call) -> str:
    from weft.kernel.errors import LedgerMissing

    try:
        return find_ledger(call.ledger)
    except LedgerMissing:  # its file is gone, which is why a backup is to take its place
        return str(place_for("."))


def _accept(call: Call, accept: bool) -> int:
    cut = _cut(call)
    if cut is None:
        call.answer(RecoveryAnswer(damaged=False), [Span("nothing to recover: the ledger is whole", "good")])
        return OK
    answer = RecoveryAnswer(damaged=True, acknowledged=cut.n, present=cut.found, message=str(cut))
    if not accept:
        call.answer(answer, [Span(str(cut), "bad")])
        call.note("put the newer copy back if there is one. `weft recover --accept` goes on without what is missing")
        return exit_code(cut)
    with call.recovering(find_ledger(call.ledger)) as ledger:
        replica = ledger.replica
    accepted = replace(answer, accepted=True, replica=replica)
    call.answer(accepted, [f"accepted at event {cut.found}; the ledger goes on as replica {replica}"])
    call.note("receipts for what is missing do not hold for it; run `weft verify` and make a backup")
    return OK


def _cut(call: Call) -> LogCut | None:
    try:
        call.reading().close()
    except LogCut as error:
        return error
    return None


def _salvage(call: Call, damaged: str, new: str, others: tuple[str, ...]) -> int:
    from weft.surfaces.opening import salvage

    with progress(call, "search") as bar:
        saved = salvage(damaged, new, others=others, progress=bar.staged)
    if call.trust_store.is_file_trusted(damaged):
        call.trust_store.allow(identity_of(new, None), RECOVERED)
    if call.json:
        call.document(SalvageAnswer(new=new, whole=saved.is_whole, salvaged=saved))
    else:
        _show_salvaged(call, saved, new)
    return OK if saved.is_whole else DIFFERENT


def _show_salvaged(call: Call, saved: SalvageResult, new: str) -> None:
    facts = f"{counted(saved.events, 'event')} and {counted(saved.contents, 'content')}"
    call.screen.show(f"saved {facts} to ", Span(new, "heading"))
    for first, last in saved.lost_events:
        call.screen.show(Span("lost", "bad"), f" events {first} to {last}")
    if saved.lost_events and saved.unproved_events:
        call.note(f"{counted(saved.unproved_events, 'line')} were found that nothing vouches for, and left out")
    if saved.missing_contents:
        call.screen.show(Span("lost", "bad"), f" {counted(saved.missing_contents, 'content')} that events name")
    if saved.unplaced_events:
        call.screen.show(
            Span("aside", "warn"),
            f" {counted(saved.unplaced_events, 'event')} that grow from something lost, in {saved.unplaced_file}",
        )
        call.note("older copies fill holes: `weft recover --salvage DAMAGED NEW --with OLDER`")
    if saved.is_whole:
        call.screen.show(Span("nothing is lost", "good"))
