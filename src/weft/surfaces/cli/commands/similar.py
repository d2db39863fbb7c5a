"""`weft similar`: nodes that mean nearly the same."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from weft.kernel.typed_names import shell_word
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.embedding import EMBEDDED_KINDS, about, by_model, similarity
from weft.surfaces.cli.figures import counted
from weft.surfaces.cli.history import quoted_title, short
from weft.surfaces.cli.progress import progress
from weft.surfaces.cli.screen import Span
from weft.surfaces.plain_text import safe

if TYPE_CHECKING:
    from weft.ledger.api import Ledger
    from weft.programs.similarity import Similar

HEADER = ("score", "kind", "node", "session", "about")
SPARE = ("about", "session")


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

    Only nodes that were embedded are found. On a terminal it offers to embed the turns, or the nodes of --kind, that
    were not; elsewhere it says how many there are.

    \b
    weft similar --text "dates with an offset"
    weft similar main~2 --kind turn
    """
    if (node is None) == (text is None):
        raise click.UsageError(
            "say what to look near to: a turn, `weft similar main~2`, or a text, `weft similar --text 'flaky tests'`"
        )
    if words and text is None:
        raise click.UsageError("--words goes with --text.")
    _embed_missing(call, kind or EMBEDDED_KINDS[0], model)
    with call.reading() as ledger, similarity(call, ledger, model) as index:
        if text is not None:
            neighbours = index.similar_to_text(text, limit=limit, kind=kind, words=words)
        else:
            neighbours = index.similar(node or "", limit=limit, kind=kind)
        if call.json:
            call.documents(neighbours)
            return
        short_labels, is_terminal = ledger.listing().short_labels(), call.screen.terminal
        rows = [_row(ledger, neighbour, short_labels, is_terminal) for neighbour in neighbours]
    if rows:
        call.screen.table(rows, HEADER, spare=SPARE)
    else:
        call.note("nothing near was embedded; `weft embed --all turn` embeds every turn")


def _row(ledger: Ledger, neighbour: Similar, short_labels: dict[str, str], is_terminal: bool) -> tuple[Span | str, ...]:
    """A terminal shows of ids and labels what is to be typed for them; programs get them whole."""
    node, label = neighbour.node, neighbour.session or ""
    shown, name = label, node.name
    if is_terminal:
        shown = short_labels.get(label, label)
        name = short(name) if node.kind == "turn" else short_labels.get(name, name) if node.kind == "session" else name
    session = f"{safe(shown)}{quoted_title(neighbour.session_title)}"
    return f"{neighbour.score:.3f}", node.kind, Span(name, "label"), session, about(ledger, node)


def is_asked() -> bool:
    """Is somebody there who can answer?"""
    return sys.stdin.isatty() and sys.stderr.isatty()


def _embed_missing(call: Call, kind: str, model: str | None) -> None:
    """Nodes without a vector are not found: whoever is at the terminal is asked whether to embed them now."""
    if call.json or call.quiet:
        return
    with call.reading() as ledger, similarity(call, ledger, model) as index:
        missing = index.count_missing(kind)
    if not missing:
        return
    nodes, verb = counted(missing, kind), "is" if missing == 1 else "are"
    if not is_asked():
        command = f"`weft embed --all {shell_word(kind)}`"
        call.note(f"{nodes} {verb} not embedded and cannot be found: {command} embeds what is missing")
        return
    where = "" if model is None else f" with {model}, which is sent what they say"
    if click.confirm(f"{nodes} {verb} not embedded and cannot be found. Embed{where} now?", default=True, err=True):
        with call.writing() as ledger, similarity(call, ledger, model) as index, progress(call, "embed") as bar:
            index.embed_missing(kind, progress=bar.counted)
