"""`weft backup`: a copy of one moment, while everybody goes on."""

from __future__ import annotations

from pathlib import Path

import click

from weft.store.trust_store import COPIED, identity_of
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.progress import progress
from weft.surfaces.cli.screen import Span
from weft.surfaces.wire.upkeep import BackupFile


@weft_command("backup")
@click.argument("file", type=click.Path())
def command(call: Call, file: str) -> None:
    """Copy the ledger while it is in use.

    FILE must not exist yet; it is a ledger itself.
    """
    with call.copying() as ledger, progress(call, "backup") as bar:
        ledger.upkeep.backup(file, progress=bar.counted)
        is_trusted = ledger.trust.is_trusted
    if is_trusted:
        call.trust_store.allow(identity_of(file, None), COPIED)
    size = Path(file).stat().st_size
    call.answer(BackupFile(file=file, bytes=size), ["copied to ", Span(file, "heading"), f" ({size:,} bytes)"])
