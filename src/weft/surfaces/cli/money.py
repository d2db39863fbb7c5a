"""Money as people read it."""

from __future__ import annotations

from weft.ledger.reports.usage import Spending


def dollars(row: Spending) -> str:
    """`$12.34`; with `+` where some tokens have no price, `?` where none has."""
    if row.cost is None:
        return "?"
    cents = row.cost / 1_000_000
    shown = f"${cents:,.2f}" if row.cost == 0 or cents >= 0.1 else f"${cents:,.4f}"
    return shown + ("+" if row.unpriced else "")
