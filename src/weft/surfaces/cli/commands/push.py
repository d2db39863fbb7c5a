"""`weft push`: what this ledger has and another one lacks."""

from __future__ import annotations

import click

from weft.surfaces.cli.arguments import complete_labels
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


@weft_command("push")
@click.argument("remote", required=False, shell_complete=complete_remotes)
@click.argument("sessions", nargs=-1, metavar="[SESSION]...", shell_complete=complete_labels)
@click.option("--dry-run", is_flag=True, help="Say how much would go, and stop.")
@silence_option
def command(call: Call, remote: str | None, sessions: tuple[str, ...], dry_run: bool, silence: float) -> None:
    """Send what this ledger has and another one lacks.

    REMOTE is named as for `weft pull`. With SESSIONs, or a remote that was added with --sessions, only these sessions
    go, with every turn that they grow from; nothing that was said elsewhere leaves this ledger.
    """
    from weft.exchange.sync import push

    with call.writing() as ledger:
        chosen = chosen_remote(ledger, remote)
        with progress(call, "push") as bar:
            done = push(
                ledger,
                chosen.address,
                call.joining,
                sessions=sessions or chosen.sessions,
                report=bar.counted,
                dry=dry_run,
                silence_seconds=silence,
            )
        call.answer(done, *sync_lines(done, "push", "to"))
        if not dry_run:
            note_rest(call, ledger, done)
