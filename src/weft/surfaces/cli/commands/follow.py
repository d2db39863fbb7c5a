"""`weft follow`: what happens in a session, as it happens."""

from __future__ import annotations

import click

from weft.kernel.typed_names import shell_word
from weft.surfaces.cli import arguments
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command


@weft_command("follow")
@arguments.session()
@click.option("--after", metavar="POSITION", help="Go on behind this position; 0 is the beginning.")
@click.option(
    "--wait", type=float, metavar="SECONDS", help="End when nothing has come for so long; 0 waits for nothing."
)
def command(call: Call, session: str, after: str | None, wait: float | None) -> None:
    """Follow a session: its messages, turns and tools, and answers while they are written.

    It begins with the turn that is under way, else with what comes next, and goes on until it is interrupted. With
    --after it goes on where somebody stopped, without gap or repetition. With --json every line is a record with its
    position.
    """
    from weft.surfaces.cli.stream_lines import StreamPrinter
    from weft.surfaces.wire.forms import form
    from weft.surfaces.wire.json_text import document

    position = after
    printer = StreamPrinter(call.screen)
    try:
        with call.reading() as ledger:
            for item in ledger.follow(session, after=after, wait=wait):
                if call.json:
                    click.echo(document(form(item), indent=False), color=True)
                else:
                    printer.show(item)
                position = str(item.position)
    except KeyboardInterrupt:  # how it ends
        pass
    printer.end_line()
    if position is not None and not call.json:
        call.note(f"`weft follow {shell_word(session)} --after {shell_word(str(position))}` goes on from here")
