"""`weft export-facts`: the facts, as lines that another ledger can take in."""

from __future__ import annotations

import click

from weft.surfaces.cli.arguments import STANDARD, stdout_bytes
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.figures import counted
from weft.surfaces.cli.progress import progress
from weft.surfaces.cli.screen import Span
from weft.surfaces.wire.upkeep import FactsFile


@weft_command("export-facts")
@click.argument("file", type=click.Path(), default=STANDARD)
def command(call: Call, file: str) -> None:
    """Export every fact as a JSON line.

    FILE must not exist yet; without it, or with -, they go to standard output. Into an empty ledger the lines give the
    same digests.
    """
    with call.copying() as ledger:
        if file == STANDARD and call.screen.terminal:
            raise click.UsageError("facts are for files and pipes: stored text could control the terminal")
        with progress(call, "export") as bar:
            lines = ledger.upkeep.export_facts(stdout_bytes() if file == STANDARD else file, progress=bar.counted)
    if file != STANDARD:
        call.answer(FactsFile(file=file, lines=lines), [f"wrote {counted(lines, 'fact')} to ", Span(file, "heading")])
