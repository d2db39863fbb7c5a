"""What tokens cost: tables of prices that lie over each other, the user's own before the maintained one.

A price is whole micro-dollars for a million tokens, of each kind for itself. In a file a model is found by its exact
name, then by the longest name that ends in `*` and fits. A name may carry its provider in front (`anthropic/…`), which
is not looked at unless a table names it so. What a table does not say is not known: it never counts as zero.
"""

from __future__ import annotations

from datetime import date, datetime, timedelta
from typing import Any, Protocol, runtime_checkable

import msgspec
from msgspec import Struct, field

from weft.kernel.canonical import MAX_INTEGER
from weft.kernel.errors import InvalidInput
from weft.ledger.reports.responses import CACHE_WRITE, CACHE_WRITE_1H, CACHED, INPUT, OUTPUT, Tokens

PRICED = ("input", "output", "cached", "cache_write", "cache_write_1h")
"""The disjoint kinds of tokens, as prices have them: `cache_write` is what is kept for five minutes. Reasoning lies
inside output."""
EMBEDDED_PROVIDER = "local"
"""How turns name the provider of the embedded model."""
EMBEDDED_MODELS = frozenset({"SmolLM2-135M-Instruct"})
ONE_HOUR_FACTOR = 2
"""Anthropic's rule: what is kept for an hour costs twice the input price."""
_DAY = timedelta(days=1) // timedelta(milliseconds=1)
_BEDROCK = "anthropic."


class Price(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Micro-dollars for a million tokens; None: not known. It holds from `since` until the day before `until`, UTC."""

    input: int | None = None
    output: int | None = None
    cached: int | None = None
    cache_write: int | None = None
    cache_write_1h: int | None = None
    since: date | None = field(default=None, name="from")
    until: date | None = None

    def holds(self, at: int | None) -> bool:
        """At a time in Unix milliseconds; what has no time is priced as of now."""
        if at is None:
            return self.until is None
        after = self.since is None or at >= _ms(self.since)
        return after and (self.until is None or at < _ms(self.until))

    def of(self, kind: str) -> int | None:
        """Of one kind of tokens; one-hour cache writes without a price of their own cost twice the input."""
        if kind == "cache_write_1h" and self.cache_write_1h is None:
            return None if self.input is None else ONE_HOUR_FACTOR * self.input
        value: int | None = getattr(self, kind)
        return value


FREE = Price(input=0, output=0, cached=0, cache_write=0, cache_write_1h=0)


class Priced(Struct, frozen=True):
    """Tokens of one kind, and what a million of them costs; None: nobody knows."""

    kind: str
    count: int
    price: int | None


def priced_parts(tokens: Tokens, price: Price | None) -> list[Priced]:
    """The disjoint kinds that there are any tokens of."""
    counts = {
        "input": tokens[INPUT],
        "output": tokens[OUTPUT],
        "cached": tokens[CACHED],
        "cache_write": tokens[CACHE_WRITE] - tokens[CACHE_WRITE_1H],
        "cache_write_1h": tokens[CACHE_WRITE_1H],
    }
    return [Priced(kind, count, price.of(kind) if price else None) for kind, count in counts.items() if count]


def prompt_of(tokens: Tokens) -> int:
    """How many tokens a request carried: beyond some length a model may cost more."""
    return tokens[INPUT] + tokens[CACHED] + tokens[CACHE_WRITE]


class PriceSteps(Struct, frozen=True):
    """By what the prices of a model change, beside the day."""

    prompts: frozenset[int] = frozenset()
    """Longer prompts than these may cost more."""
    is_by_quarters: bool = True
    """Whether none changes within a quarter of an hour since 1970."""


NO_STEPS = PriceSteps()


@runtime_checkable
class SteppedLayer(Protocol):
    """A table that says by what its prices change. Under one that does not every response is priced by itself."""

    def steps(self, names: list[str]) -> PriceSteps:
        """Of a model, by its names, the longest first."""


@runtime_checkable
class KeepingLayer(Protocol):
    """A table that takes long to ask, and remembers."""

    def keep(self) -> None:
        """Let the next process find what was looked up."""


class PriceLayer(Protocol):
    """One table of prices."""

    def find(self, names: list[str], at: int | None, prompt: int) -> Price | None:
        """By a model's names, the longest first; `prompt` is how many tokens the request carried."""


class _FileLayer(Struct, frozen=True):
    """One file of prices."""

    exact: dict[str, tuple[Price, ...]]
    beginnings: tuple[tuple[str, tuple[Price, ...]], ...]
    """The longest first."""

    def find(self, names: list[str], at: int | None, _: int) -> Price | None:
        return next((price for price in self._prices(names) if price.holds(at)), None)

    def steps(self, _: list[str]) -> PriceSteps:
        return NO_STEPS

    def _prices(self, names: list[str]) -> tuple[Price, ...]:
        for name in names:
            if name in self.exact:
                return self.exact[name]
        for name in names:
            for beginning, prices in self.beginnings:
                if name.startswith(beginning):
                    return prices
        return ()


class EmbeddedPrices:
    """The embedded model runs on this machine, and nobody is paid for it."""

    def find(self, names: list[str], _: int | None, __: int) -> Price | None:
        return FREE if EMBEDDED_MODELS.intersection(names) else None

    def steps(self, _: list[str]) -> PriceSteps:
        return NO_STEPS


class FreeOffers:
    """What a server calls free is priced so, and not as the model that it offers for money under the same name."""

    def find(self, names: list[str], _: int | None, __: int) -> Price | None:
        return FREE if names[-1].endswith((":free", "-free")) else None

    def steps(self, _: list[str]) -> PriceSteps:
        return NO_STEPS


class PriceTable:
    """Prices of models. Several tables may lie over each other; the first one that knows a model's price tells it."""

    def __init__(self, layers: tuple[PriceLayer, ...], as_of: date | None, source: str | None = None) -> None:
        self._layers, self.as_of, self.source = layers, as_of, source
        self._names: dict[str, list[str]] = {}

    def over(self, other: PriceTable) -> PriceTable:
        """This table, and the other where this one knows nothing."""
        source = ", then ".join(name for name in (self.source, other.source) if name is not None) or None
        return PriceTable((*self._layers, *other._layers), self.as_of or other.as_of, source)

    def price(self, model: str, at: int | None, prompt: int = 0) -> Price | None:
        """What the model's tokens cost at a time, in a request of so many tokens."""
        names = self._names_of(model)
        found = (layer.find(names, at, prompt) for layer in self._layers)
        return next((price for price in found if price is not None), None)

    def keep(self) -> None:
        """Let the next process find what was looked up, where a table can."""
        for layer in self._layers:
            if isinstance(layer, KeepingLayer):
                layer.keep()

    def steps(self, model: str) -> PriceSteps | None:
        """By what the model's prices change; None: a table does not say."""
        names, prompts, is_by_quarters = self._names_of(model), frozenset[int](), True
        for layer in self._layers:
            if not isinstance(layer, SteppedLayer):
                return None
            steps = layer.steps(names)
            prompts, is_by_quarters = prompts | steps.prompts, is_by_quarters and steps.is_by_quarters
        return PriceSteps(prompts, is_by_quarters)

    def _names_of(self, model: str) -> list[str]:
        names = self._names.get(model)
        if names is None:
            names = self._names[model] = names_of(model)
        return names


def names_of(model: str) -> list[str]:
    """`openrouter/anthropic/claude-x` is also `anthropic/claude-x` and `claude-x`; so is `us.anthropic.claude-x`."""
    parts = model.split("/")
    names = ["/".join(parts[i:]) for i in range(len(parts))]
    _, mark, last = names[-1].rpartition(_BEDROCK)
    return [*names, last] if mark else names


# --- a file of the user -------------------------------------------------------------------------------------------


class _PriceFile(Struct, forbid_unknown_fields=True):
    models: dict[str, Price | list[Price]]
    as_of: date | None = None
    note: str | None = None


def prices_from(data: Any, where: str) -> PriceTable:
    """A table from what a JSON or TOML file holds; `where` names it in errors."""
    try:
        file = msgspec.convert(data, _PriceFile)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"{where}: {error}{_unquoted(data)}", "docs/usage.md shows how prices are written") from None
    exact: dict[str, tuple[Price, ...]] = {}
    beginnings: dict[str, tuple[Price, ...]] = {}
    for name, entry in file.models.items():
        prices = tuple(entry) if isinstance(entry, list) else (entry,)
        for price in prices:
            _check(price, f"{where}: {name}")
        if name.endswith("*"):
            beginnings[name[:-1]] = prices
        else:
            exact[name] = prices
    longest_first = sorted(beginnings.items(), key=lambda item: -len(item[0]))
    return PriceTable((_FileLayer(exact, tuple(longest_first)),), file.as_of, where)


def _unquoted(data: Any) -> str:
    """What to do about a name with a dot that TOML took apart: `[models.gpt-4.1]` is `1` inside `gpt-4`."""
    models = data.get("models") if isinstance(data, dict) else None
    for name, entry in models.items() if isinstance(models, dict) else ():
        inner = (
            next((key for key, value in entry.items() if isinstance(value, dict)), None) if _is_table(entry) else None
        )
        if inner is not None:
            return f'; a name with a dot stands in quotes: [models."{name}.{inner}"]'
    return ""


def _is_table(value: Any) -> bool:
    return isinstance(value, dict)


def _check(price: Price, where: str) -> None:
    for kind in PRICED:
        value = getattr(price, kind)
        if value is not None and not 0 <= value <= MAX_INTEGER:
            raise InvalidInput(f"{where}: {kind} is {value}", "it is micro-dollars for a million tokens, from 0")
    if price.since is not None and price.until is not None and price.since >= price.until:
        raise InvalidInput(f"{where}: it ends on {price.until}, before it begins", "mend the price file")


def _ms(day: date) -> int:
    return (datetime(day.year, day.month, day.day) - datetime(1970, 1, 1)).days * _DAY
