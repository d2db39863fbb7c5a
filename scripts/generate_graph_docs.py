"""Writes the tables of docs/concepts.md from the rules of the graph. `make docs` runs it; a test compares the two."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from weft.graph.nodes import NODE_EVENTS, NODE_KINDS_OF
from weft.ledger.views.edges import EDGE_FACTS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "concepts.md"
BEGIN, END = "<!-- generated: {} -->", "<!-- end -->"


def _codes(words: tuple[str, ...]) -> str:
    return ", ".join(word if " " in word else f"`{word}`" for word in words) or "–"


def node_table() -> Iterator[str]:
    yield "| type | named | its event |"
    yield "|---|---|---|"
    for type, events in NODE_EVENTS.items():
        yield f"| {type} | {', '.join(f'`{kind}:`' for kind in NODE_KINDS_OF[type])} | {_codes(events)} |"


def edge_table() -> Iterator[str]:
    yield "| type | from | to | attributes | opened by | closed by |"
    yield "|---|---|---|---|---|---|"
    for type, facts in EDGE_FACTS.items():
        opened, closed = facts.opened_by, facts.closed_by
        if len(opened) > 15:  # every kind of program has two
            opened = closed = ("events that create or configure a program",)
        ends = " | ".join(_codes(words) for words in (facts.sources, facts.targets, facts.attributes, opened, closed))
        yield f"| `{type.value}`{' (ours)' if facts.is_own else ''} | {ends} |"


TABLES = {"nodes": node_table, "edges": edge_table}


def graph_page(page: str) -> str:
    """The page with its tables as the code has them."""
    for name, table in TABLES.items():
        before, _, rest = page.partition(BEGIN.format(name))
        _, _, after = rest.partition(END)
        page = f"{before}{BEGIN.format(name)}\n\n" + "\n".join(table()) + f"\n\n{END}{after}"
    return page


def main() -> None:
    PAGE.write_text(graph_page(PAGE.read_text()))


if __name__ == "__main__":
    main()
