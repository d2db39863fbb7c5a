"""`weft rebuild`: every view from the facts."""

from __future__ import annotations

from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.figures import counted
from weft.surfaces.cli.progress import progress
from weft.surfaces.wire.upkeep import RebuiltViews


@weft_command("rebuild")
def command(call: Call) -> None:
    """Rebuild every view from the facts.

    Facts are never touched; readers go on meanwhile.
    """
    with call.writing() as ledger, progress(call, "rebuild") as bar:
        changed = ledger.upkeep.rebuild(progress=bar.staged)
    outcome = f"mended {counted(changed, 'row')}" if changed else "every view was right already"
    call.answer(RebuiltViews(changed=changed), [outcome])
