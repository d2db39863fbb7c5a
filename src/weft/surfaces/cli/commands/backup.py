"""`weft backup`: a copy of one moment, while everybody goes on."""

from __future__ import annotations

from pathlib import Path

import click

from weft.store.replicas import COPIED, identity_of
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.files_beside import FilesBeside, files_option
from weft.surfaces.cli.progress import progress
from weft.surfaces.cli.resource_access import files_folder, folder_beside
from weft.surfaces.cli.screen import Span
from weft.surfaces.wire.upkeep import BackupFile


@weft_command("backup")
@click.argument("file", type=click.Path())
@files_option
def command(call: Call, file: str, no_files: bool) -> int:
    """Copy the ledger while it is in use, with the files of turns.

    FILE must not exist yet; it is a ledger itself. The kept files of turns go to FILE-files. Exits with 1 if some of
    them are damaged and were left out.
    """
    with call.copying() as ledger, progress(call, "backup") as bar:
        files = FilesBeside(ledger.path, files_folder(ledger), folder_beside(file), is_left_out=no_files)
        with files.held():
            ledger.upkeep.backup(file, progress=bar.counted, beside=files.carry)
        is_trusted = ledger.trust.is_trusted
    if is_trusted:
        call.trust_store.allow(identity_of(file, None), COPIED)
    size = Path(file).stat().st_size
    answer = BackupFile(file=file, bytes=size, kept=files.carried)
    call.answer(answer, ["copied to ", Span(file, "heading"), f" ({size:,} bytes)"])
    return files.note_carried(call)
