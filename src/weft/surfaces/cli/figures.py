"""Sizes, money, counts and bars as people read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft.ledger.api import Spending


def size_text(count: int) -> str:
    """`12.3 MB`, as file managers say it."""
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if count >= unit:
            return f"{count / unit:,.1f} {name}"
    return f"{count} B"


def dollars(*rows: Spending) -> str:
    """`$12.34`, of all of them; with `+` where some tokens have no price, `?` where none has."""
    costs = [row.cost for row in rows if row.cost is not None]
    if not costs:
        return "?"
    return dollar_text(sum(costs)) + ("+" if any(row.unpriced for row in rows) else "")


def dollar_text(micro: int) -> str:
    """Small sums with more digits."""
    amount = micro / 1_000_000
    return f"${amount:,.2f}" if micro == 0 or amount >= 0.1 else f"${amount:,.4f}"


BLOCKS = " ▏▎▍▌▋▊▉█"


def bar(value: int, most: int, columns: int, unicode: bool) -> str:
    """At most so many columns; in eighths of one where the terminal has the signs for it. What is not nothing shows."""
    if value <= 0 or most <= 0 or columns <= 0:
        return ""
    if not unicode:
        return "#" * max(1, columns * value // most)
    whole, eighths = divmod(max(1, 8 * columns * value // most), 8)
    return BLOCKS[8] * whole + BLOCKS[eighths].strip()


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun if count == 1 else _plural(noun)}"


def _plural(noun: str) -> str:
    """`2 summaries`; of `part of a tool call`, several parts."""
    head, of, rest = noun.partition(" of ")
    ends_in_y = head.endswith("y") and head[-2:-1] not in "aeiou"
    return f"{head[:-1]}ies{of}{rest}" if ends_in_y else f"{head}s{of}{rest}"


def abbreviated(count: int) -> str:
    """12,345 as 12k: how much it is, not how many."""
    for unit, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= unit:
            shown = count / unit
            return f"{shown:.1f}{letter}" if shown < 10 else f"{shown:.0f}{letter}"
    return str(count) if count else ""
