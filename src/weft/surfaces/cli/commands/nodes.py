"""`weft nodes`: what has a tag."""

from __future__ import annotations

import click

from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.program_call import looking
from weft.surfaces.cli.screen import Span


@weft_command("nodes")
@click.option("--tag", "tags", metavar="TAG", multiple=True, required=True, help="Only what has this tag; repeatable.")
def command(call: Call, tags: tuple[str, ...]) -> None:
    """List everything that has a tag.

    With several, what has all of them.
    """
    with looking(call) as programs:
        nodes = programs.tagged(*tags)
    if call.json:
        call.documents(nodes)
    elif nodes:
        rows = [(one.kind, Span(one.name, "label"), " ".join(one.tags)) for one in nodes]
        call.screen.table(rows, ("kind", "node", "tags"))
    else:
        call.note("nothing has these tags; add one with `weft tag add NODE TAG`")
