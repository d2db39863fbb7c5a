"""`weft copy`: a ledger at another address."""

from __future__ import annotations

import click

from weft.kernel.typed_names import Site
from weft.store.replicas import COPIED
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.figures import counted
from weft.surfaces.cli.files_beside import FilesBeside, files_option, folder_of
from weft.surfaces.cli.progress import progress
from weft.surfaces.cli.resource_access import folder_beside
from weft.surfaces.cli.screen import Span
from weft.surfaces.cli.trust import carry_trust, is_there
from weft.surfaces.cli.user_files import named_ledger
from weft.surfaces.wire.upkeep import CopiedLedger


@weft_command("copy")
@click.argument("source", metavar="FROM", type=click.Path())
@click.argument("target", metavar="TO", type=click.Path())
@files_option
def command(call: Call, source: str, target: str, no_files: bool) -> int:
    """Copy a ledger to a new address, on any backend.

    FROM and TO are files or addresses; TO must not hold anything yet. The copy has the same facts in the same order
    with the same digests, and a replica id of its own; the kept files of turns go with it. One that was cut short is
    run again and goes on where it was. Exits with 1 if some of the files are damaged and were left out.
    """
    from weft.surfaces.opening import copy

    source, target = named_ledger(source) or source, named_ledger(target) or target
    was_there = is_there(call.looking, target)
    place = folder_beside(target) if Site.of(target) is Site.FILE else None
    files = FilesBeside(source, folder_of(call, source), place, is_left_out=no_files)
    with progress(call, "copy") as bar, files.held():
        copied = copy(source, target, progress=bar.counted, beside=files.carry)
        if place is None:  # of a ledger on a server it is known once that can be opened
            files.carry(folder_of(call, target))
    if not was_there:
        carry_trust(call.looking, call.joining, source, target, COPIED)
    facts = f"{counted(copied.events, 'event')}, {counted(copied.contents, 'content')}"
    answer = CopiedLedger(copied=copied, kept=files.carried)
    call.answer(answer, [f"copied {facts} to ", Span(copied.target, "heading")])
    call.note(f"it is replica {copied.replica}")
    return files.note_carried(call)
