"""`weft pack`: what is cold takes less room."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from weft.surfaces.cli.arguments import complete_labels
from weft.surfaces.cli.call import Call, undo
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.figures import counted
from weft.surfaces.cli.progress import progress
from weft.surfaces.cli.screen import Span
from weft.surfaces.wire.upkeep import PackAnswer

if TYPE_CHECKING:
    from weft.ledger.api import Ledger, PackResult

DEFAULT = "90d"


@weft_command("pack")
@click.argument("what", nargs=-1, metavar="[SESSION|TURN]...", shell_complete=complete_labels)
@click.option("--older-than", metavar="WHEN", help="Only trees in which nothing happened since, such as 90d.")
@click.option("--undo", "back", is_flag=True, help="Unpack instead.")
@click.option("--dry-run", is_flag=True, help="Show how much it would save, and stop.")
def command(call: Call, what: tuple[str, ...], older_than: str | None, back: bool, dry_run: bool) -> None:
    """Compress what is cold, or decompress it again.

    Whole trees are packed: those that the names lead to, or, without any, those in which nothing happened for 90 days.
    Everything stays addressable, readable, verified and exported as before; only a plain SQL shell cannot read the long
    texts of a packed tree. Kept files of turns take less room, too.
    """
    if back and (older_than or dry_run):
        raise click.UsageError("--undo takes names only")
    when = older_than or (None if what else DEFAULT)
    with call.writing() as ledger, progress(call, "pack") as bar:
        before = ledger.upkeep.disk_bytes()
        if back:
            done = ledger.upkeep.unpack(list(what), progress=bar.staged)
        else:
            done = ledger.upkeep.pack(list(what), older_than=when, dry_run=dry_run, progress=bar.staged)
        after = ledger.upkeep.disk_bytes()
        if not (back or dry_run):
            _pack_files(ledger)
    answer = PackAnswer(packed=done, dry_run=dry_run, file_bytes_before=before, file_bytes_after=after)
    call.answer(answer, [Span(_verb(back, dry_run), "good"), _words(done)])
    if done.contents and not dry_run:
        call.note(f"the ledger took {before:,} bytes and takes {after:,}")
        if not back:
            call.note(undo("pack", "--undo", *what))
    if not done.complete:
        call.note("somebody still reads what was there before: the room is given back once that has ended")
    if not (done.contents or back):
        call.note(_why_nothing(done, bool(what), when))


def _pack_files(ledger: Ledger) -> None:
    """Let the kept files of turns take less room, too, where there are any."""
    if ledger.resources.list(kind="directory", include_discarded=True):
        from weft.surfaces.cli.turn_files_call import turn_files

        turn_files(ledger).pack()


def _verb(back: bool, dry_run: bool) -> str:
    return "unpacked " if back else "would pack " if dry_run else "packed "


def _words(done: PackResult) -> str:
    contents = f"{counted(done.contents, 'content')} of {counted(done.trees, 'tree')}"
    return f"{contents}: {done.bytes:,} bytes, in packs {done.packed_bytes:,}"


def _why_nothing(done: PackResult, named: bool, when: str | None) -> str:
    if not done.trees and when is not None:
        return f"nothing is colder than {when}; name sessions to pack them anyway"
    return "nothing there is long enough to be worth it, or it is packed already"
