"""A bound on the cells of all tables of a Markdown text, for every parser that reads a message.

A parser fills each row of a table with empty cells up to the number of its columns, so a short text can have millions
of cells. Here a text may have as many cells as it has letters, and never more than a limit; a cell that is written
takes two letters. Beyond that the parser stops with `TooManyCells`, and the text is to be shown as it is written.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_block import StateBlock

MOST_CELLS = 20_000
_COUNT = "table cells"
"""Where a parser's environment, one for each text, has the number of cells so far."""


class TooManyCells(ValueError):
    """The tables of a text have more cells than are rendered."""


def with_bounded_tables(parser: MarkdownIt, limit: int = MOST_CELLS) -> MarkdownIt:
    """The same parser; the tables of a text have no more cells than `limit` together."""
    parser.block.ruler.at("table", partial(bounded_table, limit=limit), {"alt": ["paragraph", "reference"]})
    return parser


def bounded_table(state: StateBlock, start: int, end: int, silent: bool, limit: int = MOST_CELLS) -> bool:
    """The rule for a table; no more than one row beyond the bound is parsed."""
    from markdown_it.rules_block.table import getLine, table

    is_table = table(state, start, end, True)
    if silent or not is_table:
        return is_table
    columns = sum("-" in cell for cell in getLine(state, start + 1).split("|"))
    most_cells = min(limit, len(state.src))
    most_rows = (most_cells - state.env.get(_COUNT, 0)) // columns
    if most_rows > 0:
        table(state, start, min(end, start + 2 + most_rows), False)
    rows = state.line - start - 1
    if most_rows <= 0 or rows > most_rows:
        raise TooManyCells(f"more than {most_cells:,} cells in the tables of a text")
    state.env[_COUNT] = state.env.get(_COUNT, 0) + rows * columns
    return True
