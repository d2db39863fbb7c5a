"""What responses cost, from their raw counts and the table that genai-prices maintains, without anything of Weft."""

from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from genai_prices import Usage, calc_price

from tests.exchange.independent_usage import Kinds

PRICES = {
    "input": "input_mtok",
    "output": "output_mtok",
    "cached": "cache_read_mtok",
    "cache_write": "cache_write_mtok",
    "cache_write_1h": "cache_write_1h_mtok",
}


def independent_costs(responses: Iterable[tuple[str, Any, Kinds]]) -> dict[str, dict[str, int]]:
    """Micro-dollars by model and kind of tokens; models that the table does not know are left out.
    A kind of input without a price of its own is billed as input."""
    exact: dict[str, dict[str, Decimal]] = {}
    for when, model, kinds in responses:
        prompt = kinds["input"] + kinds["cached"] + kinds["cache_write"]
        try:
            priced = calc_price(Usage(input_tokens=prompt), model, genai_request_timestamp=_moment(when))
        except LookupError:
            continue
        parts = {**kinds, "cache_write": kinds["cache_write"] - kinds["cache_write_1h"]}
        costs = exact.setdefault(model, dict.fromkeys(PRICES, Decimal(0)))
        for kind, name in PRICES.items():
            own = getattr(priced.model_price, name)
            costs[kind] += parts[kind] * _price(priced.model_price.input_mtok if own is None else own, prompt)
    return {model: {kind: _rounded(cost) for kind, cost in costs.items()} for model, costs in exact.items()}


def _moment(when: str) -> datetime:
    try:
        return datetime.fromisoformat(when.replace("Z", "+00:00"))
    except ValueError:
        return datetime(9999, 12, 31, tzinfo=UTC)


def _price(price: Any, prompt: int) -> Decimal:
    """Dollars for a million tokens are micro-dollars for one. Beyond the start of a tier its price is that of all."""
    tiers = [tier for tier in getattr(price, "tiers", ()) if prompt > tier.start]
    found = max(tiers, key=lambda tier: tier.start).price if tiers else getattr(price, "base", price)
    return Decimal(found)


def _rounded(cost: Decimal) -> int:
    return int(cost.to_integral_value(ROUND_HALF_UP))
