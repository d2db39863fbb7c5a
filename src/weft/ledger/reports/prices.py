"""What tokens cost: a table as data, which the user's own goes before.

A price is whole micro-dollars for a million tokens, of each kind for itself. A model is found by its exact name, then
by the longest name that ends in `*` and fits. A name may carry its provider in front (`anthropic/…`), which is not
looked at unless a table names it so. What a table does not say is not known: it never counts as zero.
"""

from __future__ import annotations

from datetime import date, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from weft.kernel.canonical import MAX_INTEGER
from weft.kernel.errors import InvalidInput

PRICED = ("input", "output", "cached", "cache_write")
"""The disjoint kinds of tokens; reasoning lies inside output."""
_DAY = timedelta(days=1) // timedelta(milliseconds=1)
_BEDROCK = "anthropic."


class Price(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Micro-dollars for a million tokens; None: not known. It holds from `since` until the day before `until`, UTC."""

    input: int | None = None
    output: int | None = None
    cached: int | None = None
    cache_write: int | None = None
    since: date | None = field(default=None, name="from")
    until: date | None = None

    def holds(self, at: int | None) -> bool:
        """At a time in Unix milliseconds; what has no time is priced as of now."""
        if at is None:
            return self.until is None
        after = self.since is None or at >= _ms(self.since)
        return after and (self.until is None or at < _ms(self.until))


class _PriceFile(Struct, forbid_unknown_fields=True):
    models: dict[str, Price | list[Price]]
    as_of: date | None = None
    note: str | None = None


class _Layer(Struct, frozen=True):
    """One file of prices."""

    exact: dict[str, tuple[Price, ...]]
    beginnings: tuple[tuple[str, tuple[Price, ...]], ...]
    """The longest first."""

    def find(self, names: list[str]) -> tuple[Price, ...]:
        for name in names:
            if name in self.exact:
                return self.exact[name]
        for name in names:
            for beginning, prices in self.beginnings:
                if name.startswith(beginning):
                    return prices
        return ()


class PriceTable:
    """Prices of models. Several files may lie over each other; the first one that knows a model's price tells it."""

    def __init__(self, layers: tuple[_Layer, ...], as_of: date | None) -> None:
        self._layers, self.as_of = layers, as_of
        self._known: dict[str, tuple[Price, ...]] = {}

    def over(self, other: PriceTable) -> PriceTable:
        """This table, and the other where this one knows nothing."""
        return PriceTable((*self._layers, *other._layers), self.as_of or other.as_of)

    def price(self, model: str, at: int | None) -> Price | None:
        """What the model's tokens cost at a time."""
        found = self._known.get(model)
        if found is None:
            names = _names(model)
            found = self._known[model] = tuple(price for layer in self._layers for price in layer.find(names))
        return next((price for price in found if price.holds(at)), None)


def _names(model: str) -> list[str]:
    """`openrouter/anthropic/claude-x` is also `anthropic/claude-x` and `claude-x`; so is `us.anthropic.claude-x`."""
    parts = model.split("/")
    names = ["/".join(parts[i:]) for i in range(len(parts))]
    _, mark, last = names[-1].rpartition(_BEDROCK)
    return [*names, last] if mark else names


def prices_from(data: Any, where: str) -> PriceTable:
    """A table from what a JSON or TOML file holds; `where` names it in errors."""
    try:
        read = msgspec.convert(data, _PriceFile)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"{where}: {error}", "docs/usage.md shows how prices are written") from None
    exact: dict[str, tuple[Price, ...]] = {}
    beginnings: dict[str, tuple[Price, ...]] = {}
    for name, given in read.models.items():
        prices = tuple(given) if isinstance(given, list) else (given,)
        for price in prices:
            _check(price, f"{where}: {name}")
        if name.endswith("*"):
            beginnings[name[:-1]] = prices
        else:
            exact[name] = prices
    longest_first = sorted(beginnings.items(), key=lambda item: -len(item[0]))
    return PriceTable((_Layer(exact, tuple(longest_first)),), read.as_of)


def _check(price: Price, where: str) -> None:
    for kind in PRICED:
        value = getattr(price, kind)
        if value is not None and not 0 <= value <= MAX_INTEGER:
            raise InvalidInput(f"{where}: {kind} is {value}", "it is micro-dollars for a million tokens, from 0")
    if price.since is not None and price.until is not None and price.since >= price.until:
        raise InvalidInput(f"{where}: it ends on {price.until}, before it begins", "mend the price file")


def _ms(day: date) -> int:
    return (datetime(day.year, day.month, day.day) - datetime(1970, 1, 1)).days * _DAY


@cache
def shipped_prices() -> PriceTable:
    """Public list prices of well-known models, as of the day that the file names."""
    data = Path(__file__).with_name("prices.json").read_bytes()
    return prices_from(msgspec.json.decode(data), "prices.json")
