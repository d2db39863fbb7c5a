"""`weft embed-stats`: how many nodes have vectors, and of which models."""

from __future__ import annotations

from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.embedding import counted
from weft.surfaces.cli.screen import Span
from weft.surfaces.cli.shapes import to_json
from weft.surfaces.cli.sizes import size_text
from weft.surfaces.cli.zones import local_time

HEADER = ("model", "dimensions", "nodes", "of which", "size", "newest")


@weft_command("embed-stats")
def command(call: Call) -> None:
    """Show how many nodes were embedded, by model."""
    with call.reading() as ledger:
        found = counted(ledger)
    if call.json:
        call.documents(map(to_json, found))
        return
    if not found:
        call.note("nothing was embedded yet; `weft embed --all turn` embeds every turn")
        return
    rows = [
        (
            Span(one.model, "label"),
            str(one.dimensions),
            f"{one.nodes:,}",
            ", ".join(f"{count:,} {kind}{'s' * (count != 1)}" for kind, count in one.kinds.items()),
            size_text(one.bytes),
            local_time(one.newest),
        )
        for one in found
    ]
    call.screen.table(rows, HEADER)
