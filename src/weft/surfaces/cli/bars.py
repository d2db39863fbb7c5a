"""Bars: how much something is of the most there is."""

from __future__ import annotations

BLOCKS = " ▏▎▍▌▋▊▉█"


def bar(value: int, most: int, columns: int, unicode: bool) -> str:
    """At most so many columns; in eighths of one where the terminal has the signs for it. What is not nothing shows."""
    if value <= 0 or most <= 0 or columns <= 0:
        return ""
    if not unicode:
        return "#" * max(1, columns * value // most)
    whole, eighths = divmod(max(1, 8 * columns * value // most), 8)
    return BLOCKS[8] * whole + BLOCKS[eighths].strip()
