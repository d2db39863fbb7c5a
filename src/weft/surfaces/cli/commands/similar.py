"""`weft similar`: nodes that mean nearly the same."""

from __future__ import annotations

import click

from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.embedding import EMBEDDED_KINDS, about, by_model, similarity
from weft.surfaces.cli.screen import Span


@weft_command("similar")
@click.argument("node", required=False)
@click.option("--text", metavar="TEXT", help="Nodes near to this text.")
@click.option("--words", is_flag=True, help="With --text: those that also hold its words come further forward.")
@click.option("--kind", type=click.Choice(EMBEDDED_KINDS), help="Only nodes of this kind.")
@click.option("-n", "--limit", type=click.IntRange(min=1), default=10, metavar="N", help="At most N (10).")
@by_model
def command(
    call: Call,
    node: str | None,
    text: str | None,
    words: bool,
    kind: str | None,
    limit: int,
    model: str | None,
) -> None:
    """Find nodes that mean nearly the same, the nearest first.

    Only nodes that were embedded are found: `weft embed --all turn` embeds every turn.
    """
    if (node is None) == (text is None):
        raise click.UsageError("Give a NODE, or --text.")
    if words and text is None:
        raise click.UsageError("--words goes with --text.")
    with call.reading() as ledger, similarity(ledger, model) as index:
        if text is not None:
            neighbours = index.similar_to_text(text, limit=limit, kind=kind, words=words)
        else:
            neighbours = index.similar(node or "", limit=limit, kind=kind)
        if call.json:
            call.documents(neighbours)
            return
        rows = [
            (f"{one.score:.3f}", one.node.kind, Span(one.node.name, "label"), about(ledger, one.node))
            for one in neighbours
        ]
    if rows:
        call.screen.table(rows, ("score", "kind", "node", "about"), spare=("about",))
    else:
        call.note("nothing near was embedded; `weft embed --all turn` embeds every turn")
