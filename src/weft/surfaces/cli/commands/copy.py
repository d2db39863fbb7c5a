"""`weft copy`: a ledger at another address."""

from __future__ import annotations

import click

from weft.store.trust_store import COPIED
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.figures import counted
from weft.surfaces.cli.progress import progress
from weft.surfaces.cli.screen import Span
from weft.surfaces.cli.trust import carry_trust, is_there
from weft.surfaces.cli.user_files import named_ledger


@weft_command("copy")
@click.argument("source", metavar="FROM", type=click.Path())
@click.argument("target", metavar="TO", type=click.Path())
def command(call: Call, source: str, target: str) -> None:
    """Copy a ledger to a new address, on any backend.

    FROM and TO are files or addresses; TO must not hold anything yet. The copy has the same facts in the same order
    with the same digests, and a replica id of its own. One that was cut short is run again and goes on where it was.
    """
    from weft.opening import copy

    source, target = named_ledger(source) or source, named_ledger(target) or target
    was_there = is_there(call.looking, target)
    with progress(call, "copy") as bar:
        copied = copy(source, target, progress=bar.counted)
    if not was_there:
        carry_trust(call.looking, call.joining, source, target, COPIED)
    facts = f"{counted(copied.events, 'event')}, {counted(copied.contents, 'content')}"
    call.answer(copied, [f"copied {facts} to ", Span(copied.target, "heading")])
    call.note(f"it is replica {copied.replica}")
