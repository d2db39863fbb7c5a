"""`weft checkout`: the files of any turn, beside the working directory or over it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from weft.surfaces.cli import arguments
from weft.surfaces.cli.call import Call, undo
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.default_session import place_in_latest
from weft.surfaces.cli.figures import counted
from weft.surfaces.cli.history import short
from weft.surfaces.cli.progress import progress
from weft.surfaces.cli.questions import confirm
from weft.surfaces.cli.resources.text import skipped_lines
from weft.surfaces.cli.screen import Span
from weft.surfaces.cli.turn_files_call import (
    MOST_LISTED,
    file_change,
    ledger_directories,
    short_change_lines,
    turn_files,
)
from weft.surfaces.plain_text import safe
from weft.surfaces.wire.turn_files import CheckedOutFiles, ReconstructedFiles, ReconstructionGap

if TYPE_CHECKING:
    from weft.ledger.api import Ledger, Snapshot
    from weft.runtime.resources.turn_files import TurnFiles


@weft_command("checkout")
@arguments.rev()
@click.option("--to", metavar="DIR", help="A new folder for the files; the working directory stays as it is.")
@click.option("--resource", metavar="NAME", help="Which directory, where the turn worked in several.")
@click.option("--yes", is_flag=True, help="Overwrite the working directory without asking.")
@click.option(
    "--reconstruct",
    is_flag=True,
    help="Put together what the session tells of its files, where nobody kept them; with --to.",
)
@click.option("--record", is_flag=True, help="With --reconstruct: record it as a snapshot that says it is inferred.")
def command(
    call: Call, rev: str, to: str | None, resource: str | None, yes: bool, reconstruct: bool, record: bool
) -> None:
    """Bring back the files of a turn.

    REV is a session or a turn. The files are what its working directory was like after that turn. Without --to they
    replace what is there now, which is kept first: only files that Weft keeps are touched, never ignored ones.

    With --reconstruct they are put together from the edits that the session tells, and what is not known is listed:
    such files are not the whole folder.
    """
    if reconstruct:
        if to is None or resource is not None or yes:
            raise click.UsageError("--reconstruct goes with --to alone, and --record")
        _check_out_reconstruction(call, rev, to, is_recorded=record)
        return
    if record:
        raise click.UsageError("--record goes with --reconstruct")
    with call.writing() as ledger:
        name = place_in_latest(call, ledger, rev)
        files, turn = turn_files(ledger), ledger.resolve(name)
        snapshot = files.snapshot_of(turn, resource)
        if to is None:
            _ask_first(call, ledger, files, snapshot, is_sure=yes)
        with progress(call, "checkout", by_itself=True):
            done = files.check_out(turn, to, resource=resource)
    answer = CheckedOutFiles(turn_id=turn, snapshot_id=done.snapshot.id, place=done.place, notes=list(done.notes))
    call.answer(answer, [safe(done.place), " has the files of ", Span(short(turn), "id")])
    for note in done.notes:
        call.note(safe(note))
    if done.snapshot.is_inferred:
        call.note("this is a reconstruction: what the session did not touch is not in it")
        for line in skipped_lines(done.snapshot):
            call.note(*line)
    if done.kept is not None:
        call.note(undo("resource", "restore", done.kept.id, "--yes"))


def _ask_first(call: Call, ledger: Ledger, files: TurnFiles, snapshot: Snapshot, *, is_sure: bool) -> None:
    """Show what would change in the directory, and ask."""
    place = ledger.resources.get(snapshot.resource)
    changes = [file_change(change) for change in files.changes_of_checkout(snapshot)]
    call.note(f"{counted(len(changes), 'path')} of {safe(place.place)} would change")
    for line in short_change_lines(changes):
        call.note(*line)
    if changes:
        confirm(call, "overwrite them?", "say --yes, or --to DIR for a folder beside it", is_sure=is_sure)


def _check_out_reconstruction(call: Call, rev: str, to: str, *, is_recorded: bool) -> None:
    from weft.runtime.resources.turn_files import check_out_reconstruction, record_reconstruction

    with call.writing() as ledger:
        name = place_in_latest(call, ledger, rev)
        with progress(call, "checkout", by_itself=True):
            found = check_out_reconstruction(ledger, name, to)
        kept = record_reconstruction(ledger, ledger_directories(ledger), found) if is_recorded else None
    answer = ReconstructedFiles(
        turn_id=found.turn,
        place=os.path.abspath(to),
        files=len(found.files),
        deleted=list(found.deleted),
        gaps=[ReconstructionGap(path=gap.path, why=gap.why.value, turn_id=gap.turn) for gap in found.gaps],
        snapshot_id=None if kept is None else kept.id,
    )
    call.answer(
        answer,
        [safe(answer.place), f" has {counted(answer.files, 'file')} that ", Span(short(found.turn), "id"), " tells of"],
    )
    _note_gaps(call, answer)


def _note_gaps(call: Call, answer: ReconstructedFiles) -> None:
    call.note("this is a reconstruction: what the session did not touch is not in it")
    for gap in answer.gaps[:MOST_LISTED]:
        where = "some files" if gap.path is None else safe(gap.path)
        call.note(Span(where, "warn"), f": {gap.why}")
    if len(answer.gaps) > MOST_LISTED:
        call.note(f"… {counted(len(answer.gaps) - MOST_LISTED, 'more gap')}; --json lists all")
