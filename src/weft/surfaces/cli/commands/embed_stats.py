"""`weft embed-stats`: how many nodes have vectors, and of which models."""

from __future__ import annotations

from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.embedding import counted
from weft.surfaces.cli.figures import size_text
from weft.surfaces.cli.screen import Span
from weft.surfaces.cli.times import local_time

HEADER = ("model", "dimensions", "nodes", "of which", "size", "newest")


@weft_command("embed-stats")
def command(call: Call) -> None:
    """Show how many nodes have vectors, by model."""
    with call.reading() as ledger:
        counts = counted(ledger)
    if call.json:
        call.documents(counts)
        return
    if not counts:
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
        for one in counts
    ]
    call.screen.table(rows, HEADER)
