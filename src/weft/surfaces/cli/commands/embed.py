"""`weft embed`: give nodes vectors, so that similar ones are found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.embedding import EMBEDDED_KINDS, by_model, similarity
from weft.surfaces.cli.progress import progress
from weft.surfaces.cli.screen import Span
from weft.surfaces.wire.programs import EmbeddedNodes, ForgottenVectors

if TYPE_CHECKING:
    from weft.programs.similarity import Similarity


@weft_command("embed")
@click.argument("node", required=False)
@click.option("--text", metavar="TEXT", help="What the node shall mean, in place of its own text.")
@click.option("--all", "kind", type=click.Choice(EMBEDDED_KINDS), help="Every node of a kind that has no vector yet.")
@click.option("-n", "--limit", type=click.IntRange(min=1), metavar="N", help="With --all: at most N, the newest first.")
@click.option("--forget", is_flag=True, help="Take the vector of NODE away, or all of this model.")
@by_model
def command(
    call: Call,
    node: str | None,
    text: str | None,
    kind: str | None,
    limit: int | None,
    forget: bool,
    model: str | None,
) -> None:
    """Compute vectors of nodes, so that similar ones are found.

    NODE is a turn, a message, a session, a program or an event. The model that comes with Weft needs no network.
    """
    if (node is None and kind is None and not forget) or (kind is not None and (node or text or forget)):
        raise click.UsageError("Give a NODE, --all KIND, or --forget.")
    if text is not None and forget:
        raise click.UsageError("--forget takes no --text.")
    with call.writing() as ledger, similarity(call, ledger, model) as index:
        if forget:
            count = index.forget(node)
            call.answer(ForgottenVectors(forgotten=count), [f"took {count:,} vector{'s' * (count != 1)} away"])
        elif kind is not None:
            _embed_all(call, index, kind, limit)
        elif node is not None:
            done = index.embed(node, text=text)
            shown = Span(done.node.name, "label")
            call.answer(done, ["embedded ", done.node.kind, " ", shown, f" with {done.model}"])


def _embed_all(call: Call, index: Similarity, kind: str, limit: int | None) -> None:
    with progress(call, "embed") as bar:
        count = index.embed_missing(kind, limit=limit, progress=bar.counted)
    call.answer(EmbeddedNodes(embedded=count, kind=kind), [f"embedded {count:,} {kind}{'s' * (count != 1)}"])
