"""What some turns spent, counted as reports count it, without a scan of the ledger."""

from __future__ import annotations

from collections.abc import Iterable

from weft.ledger.read.listing import HERE
from weft.ledger.reports.maintained_prices import shipped_prices
from weft.ledger.reports.prices import EMBEDDED_PROVIDER, FREE, Price, PriceTable, prompt_of
from weft.ledger.reports.responses import Reported, reported_in
from weft.ledger.reports.spending import Spending, Tally
from weft.ledger.views.values import name_of
from weft.store.port import ReadTxn


def turn_spending(txn: ReadTxn, turns: Iterable[str], prices: PriceTable | None = None) -> Spending:
    """The tokens and the cost of turns, by their ids, each counted once."""
    tally, table = Tally(), prices or shipped_prices()
    for row in reported_in(txn.sql, turns):
        tally.add(row.tokens, _price(txn, row, table), not row.is_rest, recorded=row.recorded)
    return tally.spending()


def _price(txn: ReadTxn, row: Reported, prices: PriceTable) -> Price | None:
    if row.provider == EMBEDDED_PROVIDER and row.turn.origin == HERE:
        return FREE
    model = name_of(txn, row.model) or ""
    return prices.price(model, row.at, 0 if row.is_rest else prompt_of(row.tokens))
