"""The last lines of a terminal, which are drawn again and again: answers that are being written, and the line that a
person types. Whatever is there for good is written above them. Every drawing is one write, so nothing comes between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple


class Drawing(NamedTuple):
    """Lines, and the row and column of them where the cursor stands."""

    lines: Sequence[str]
    row: int
    column: int


class BottomLines:
    """`write` sends text to the terminal. No line that is drawn is as wide as the screen, so the terminal breaks
    none."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._lines: list[str] = []
        self._row = self._column = 0
        """Where the cursor stands within the lines."""

    @property
    def is_drawn(self) -> bool:
        """Whether anything stands there."""
        return bool(self._lines)

    def draw(self, drawing: Drawing) -> None:
        """Another drawing takes the place of what is there."""
        if (list(drawing.lines), drawing.row, drawing.column) != (self._lines, self._row, self._column):
            self._write(self._erased() + self._drawn(*drawing))

    def above(self, texts: Sequence[str], drawing: Drawing | None = None) -> None:
        """Write lines for good; below them stands the other drawing from then on, or what is drawn."""
        below = drawing or Drawing(self._lines, self._row, self._column)
        kept = "".join(f"{text}\n" for text in texts)
        self._write(self._erased() + kept + self._drawn(*below))

    def redraw(self) -> None:
        """On a screen that something else wrote to."""
        lines, row, column = self._lines, self._row, self._column
        self._write("\x1b[H\x1b[2J" + self._drawn(lines, row, column))

    def erase(self) -> None:
        self._write(self._erased())

    def _erased(self) -> str:
        up = f"\x1b[{self._row}A" if self._row else ""
        self._lines, self._row, self._column = [], 0, 0
        return f"{up}\r\x1b[J"

    def _drawn(self, lines: Sequence[str], row: int, column: int) -> str:
        self._lines, self._row, self._column = list(lines), row, column
        up = f"\x1b[{len(lines) - 1 - row}A" if len(lines) - 1 > row else ""
        right = f"\x1b[{column}C" if column else ""
        return "\n".join(lines) + up + "\r" + right
