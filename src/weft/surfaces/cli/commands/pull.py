"""`weft pull`: what another ledger has and this one lacks."""

from __future__ import annotations

import click

from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.progress import progress
from weft.surfaces.cli.sync_call import (
    chosen_remote,
    complete_remotes,
    note_rest,
    silence_option,
    sync_lines,
)

APPLIED = "the erasure of another ledger, applied with its pull"


@weft_command("pull")
@click.argument("remote", required=False, shell_complete=complete_remotes)
@click.option("--dry-run", is_flag=True, help="Say how much would come, and stop.")
@click.option("--apply-erasures", is_flag=True, help="What was erased there is erased here, too.")
@silence_option
def command(call: Call, remote: str | None, dry_run: bool, apply_erasures: bool, silence: float) -> None:
    """Bring in what another ledger has and this one lacks.

    REMOTE is a name from `weft remote`, a path, postgresql://…, ssh://host/path or cmd:COMMAND; without it the remote
    origin, or the only one there is. Everything is verified before any of it can be seen. A pull that was cut short is
    run again and goes on where it was.
    """
    from weft.exchange.sync import pull

    with call.writing() as ledger:
        chosen = chosen_remote(ledger, remote)
        with progress(call, "pull") as bar:
            done = pull(ledger, chosen.address, call.looking, report=bar.counted, dry=dry_run, silence_seconds=silence)
        waiting = [] if dry_run or not apply_erasures else [tomb.ref for tomb in ledger.erasure.pending()]
        if waiting:
            ledger.erasure.erase(waiting, reason=APPLIED)
        call.answer(done, *sync_lines(done, "pull", "from"))
        if not dry_run:
            note_rest(call, ledger, done)
