"""Messages that take memory or time without end where they are rendered."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
from markdown_it.rules_block import StateBlock

from tests.exchange.exporters.stories import told, written
from weft.exchange.exporters.html import Html, rendered
from weft.exchange.exporters.markdown import Markdown
from weft.exchange.exporters.turn_contents import MOST_CELLS
from weft.surfaces.cli.reading import read as terminal_markdown
from weft.surfaces.cli.reading.read import markdown_lines
from weft.surfaces.cli.screen import Line


def table(columns: int, rows: int, row: str = "b\n") -> str:
    return "|" + "a|" * columns + "\n|" + "-|" * columns + "\n" + row * rows + "\n"


BOMBS = (
    table(128, 510) * 32,
    table(24_000, 0),
    table(60, 30) * 11,
    table(100, 300, "|" + "b|" * 100 + "\n"),
    "".join(f"> {line}\n" for line in table(128, 400).splitlines()),
    "- " + table(128, 400).replace("\n", "\n  "),
    table(64, 100),
)


def words(line: Line) -> str:
    return "".join(span if isinstance(span, str) else span.text for span in line)


@pytest.fixture
def cells(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The cells that parsers make."""
    made: list[str] = []
    push = StateBlock.push

    def counting(self: StateBlock, ttype: str, *arguments: Any) -> Any:
        if ttype in ("td_open", "th_open"):
            made.append(ttype)
        return push(self, ttype, *arguments)

    monkeypatch.setattr(StateBlock, "push", counting)
    return made


@pytest.mark.parametrize("text", BOMBS, ids=range(len(BOMBS)))
def test_tables_of_too_many_cells_are_shown_as_they_are(text: str, cells: list[str]) -> None:
    html = rendered(text)
    assert "<td" not in html
    assert html.startswith(("<pre>|a|", "<pre>&gt; |a|", "<pre>- |a|"))
    lines = [
        "".join(span if isinstance(span, str) else span.text for span in line) for line in markdown_lines(text, 98)
    ]
    assert "".join("".join(lines).split()) == "".join(text.split())
    assert len(cells) <= 2 * (MOST_CELLS + 24_000)
    bound = min(len(text), MOST_CELLS) + min(len(text), terminal_markdown.MOST_CELLS)
    assert len(cells) <= bound + 2 * 128


@pytest.mark.slow("makes as many cells as are allowed, three times")
def test_no_export_makes_cells_without_end(cells: list[str]) -> None:
    """The Markdown form reads a message that could hold HTML or an image."""
    turn = told(1, ("assistant", f"<b>\n\n{table(128, 510) * 2}{'word ' * 3_000}"))
    for exporter in (Html(), Markdown()):
        assert "|a|a|a|" in written(exporter, turn)
    assert len(cells) <= 3 * MOST_CELLS


def test_tables_of_the_usual_size_stay_tables() -> None:
    text = table(6, 200, "| some | cells | are | missing |\n")
    assert rendered(text).count("<td>") == 6 * 200
    first = next(line for line in markdown_lines(text, 60) if line)
    assert words(first).split() == ["a"] * 6
    assert rendered(table(2, 3)).count("<td>") == 2 * 3


def test_a_long_answer_without_letters_is_shown() -> None:
    text = "! " * terminal_markdown.LONGEST_CHARS
    assert list(islice(markdown_lines(text, 40), 1)) == [["! " * 19 + "!"]]
