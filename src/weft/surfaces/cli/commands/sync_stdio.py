"""`weft sync-stdio`: the other end of a sync."""

from __future__ import annotations

import click

from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.sync_call import silence_option


@weft_command("sync-stdio")
@click.option("--read-only", is_flag=True, help="Let others pull, and refuse what they push.")
@click.option("--no-imports-secret", is_flag=True, help="Do not share the import secret.")
@silence_option
def command(call: Call, read_only: bool, no_imports_secret: bool, silence: float) -> None:
    """Serve a ledger over standard input and output.

    This is what ssh://host/path runs on the other machine: `ssh host weft sync-stdio --ledger PATH`. It speaks bytes
    and ends when whoever asked has left.
    """
    from weft.exchange.sync import Manners, Pipes, serve
    from weft.surfaces.cli.arguments import stdin_bytes, stdout_bytes

    with call.reading() if read_only else call.writing() as ledger:
        serve(
            ledger,
            Pipes(stdin_bytes(), stdout_bytes(), silence),
            Manners(takes=not read_only, shares_secret=not no_imports_secret),
        )
