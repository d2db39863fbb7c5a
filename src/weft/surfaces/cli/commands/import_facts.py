"""`weft import-facts`: facts that another ledger wrote."""

from __future__ import annotations

import click

from weft.surfaces.cli.arguments import STANDARD, piped_input
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.figures import counted
from weft.surfaces.cli.progress import progress
from weft.surfaces.cli.sync_call import note_pending

NO_FACTS = "no facts were given: pipe them in, or name a FILE"


@weft_command("import-facts")
@click.argument("file", type=click.Path(), default=STANDARD)
def command(call: Call, file: str) -> None:
    """Import facts from JSON lines.

    FILE is what `weft export-facts` wrote; without it, or with -, standard input is read. Facts that are known already
    are passed over, so an import that was cut short is simply run again.
    """
    with call.writing() as ledger, progress(call, "import") as bar:
        source = piped_input(NO_FACTS) if file == STANDARD else file
        brought = ledger.upkeep.import_facts(source, progress=bar.counted)
    new = f"{counted(brought.events, 'new event')}, {counted(brought.contents, 'new content')}"
    call.answer(brought, [f"{new}, {brought.known:,} known already"])
    if brought.erased:
        call.note(f"{counted(brought.erased, 'content')} passed over: erased here, so not brought back")
    with call.reading() as ledger:
        note_pending(call, ledger)
