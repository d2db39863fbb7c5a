"""Public list prices from genai-prices, a table that others maintain; only its data is used, never the network.

A model is looked up at whoever its name says in front, then at its maker, then at OpenRouter, which lists the models of
makers that the table has no page of. Prices may depend on the day, on the hour, and on the length of the prompt. A kind
of input that has no price of its own is billed as input.

The package is imported with the first question: it takes a quarter of a second. So is what tells its version.
"""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING

from weft.ledger.reports.prices import (
    NO_STEPS,
    EmbeddedPrices,
    FreeOffers,
    Price,
    PriceSteps,
    PriceTable,
    names_of,
)

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, ModelPrice, Provider

PACKAGE = "genai-prices"
MAKERS = (
    "anthropic", "openai", "google", "x-ai", "mistral", "deepseek", "zai", "moonshotai", "minimax", "cohere", "meta",
    "perplexity", "arcee",
)  # fmt: skip
"""Whose own prices count for a name that says no provider."""
AGGREGATOR = "openrouter"
MILLION = 1_000_000
_LAST_SECOND = datetime(9999, 12, 31, tzinfo=UTC)


class MaintainedPrices:
    """The table that is installed. Reads its data when it is asked for the first time."""

    def __init__(self) -> None:
        from importlib.metadata import version

        self.source = f"{PACKAGE} {version(PACKAGE)}"
        self._providers: dict[str, Provider] = {}
        self._by_short_name: dict[str, ModelInfo] = {}
        self._models: dict[str, ModelInfo | None] = {}

    def find(self, names: list[str], at: int | None, prompt: int) -> Price | None:
        model = self._model(names)
        if model is None:
            return None
        try:
            moment = _LAST_SECOND if at is None else datetime.fromtimestamp(at / 1000, UTC)
        except (OverflowError, ValueError):
            moment = _LAST_SECOND
        return _flat(model.get_prices(moment), prompt)

    def steps(self, names: list[str]) -> PriceSteps:
        model = self._model(names)
        if model is None:
            return NO_STEPS
        conditional = model.prices if isinstance(model.prices, list) else []
        prices = [entry.prices for entry in conditional] if conditional else [model.prices]
        values = (getattr(price, key) for price in prices for key in _KINDS)
        prompts = frozenset(tier.start for value in values for tier in getattr(value, "tiers", ()))
        constraints = (entry.constraint for entry in conditional if entry.constraint is not None)
        return PriceSteps(prompts, all(_is_by_quarters(constraint) for constraint in constraints))

    def context_window(self, names: list[str]) -> int | None:
        """How many tokens a request to a model may be, where the table says so."""
        model = self._model(names)
        return None if model is None else model.context_window

    def _load(self) -> None:
        if not self._providers:
            from genai_prices.data import providers

            self._providers = {provider.id: provider for provider in providers}
            for model in self._providers[AGGREGATOR].models:
                self._by_short_name.setdefault(model.id.rpartition("/")[2].lower(), model)

    def _model(self, names: list[str]) -> ModelInfo | None:
        longest = names[0]
        if longest not in self._models:
            self._load()
            spellings = [spelling for name in names for spelling in _spellings(name.lower())]
            self._models[longest] = self._seller_model(longest.lower()) or self._listed_model(spellings)
        return self._models[longest]

    def _seller_model(self, name: str) -> ModelInfo | None:
        """By a name such as `groq/llama-3.3-70b`: what that provider takes for it."""
        seller, slash, rest = name.partition("/")
        provider = self._providers.get(seller) if slash else None
        return None if provider is None else provider.find_model(rest, all_providers=list(self._providers.values()))

    def _listed_model(self, spellings: list[str]) -> ModelInfo | None:
        makers = [self._providers[maker] for maker in MAKERS if maker in self._providers]
        for spelling in spellings:
            for provider in (*makers, self._providers[AGGREGATOR]):
                if (model := provider.find_model(spelling)) is not None:
                    return model
        return next((self._by_short_name[name] for name in spellings if name in self._by_short_name), None)


def _spellings(name: str) -> list[str]:
    """Tools write `claude-fable-5.1` for `claude-fable-5-1`, and a preview without saying that it is one."""
    dashed = [name.replace(".", "-")] if name.startswith("claude") and "." in name else []
    return [name, *dashed, f"{name}-preview"]


_KINDS = ("input_mtok", "output_mtok", "cache_read_mtok", "cache_write_mtok", "cache_write_1h_mtok")
_QUARTER_S = 15 * 60


def _is_by_quarters(constraint: object) -> bool:
    """A day begins with a quarter of an hour, in UTC; an hour of the day may not."""
    times = [getattr(constraint, name, None) for name in ("start_time", "end_time")]
    if times == [None, None]:
        return hasattr(constraint, "start_date")
    return all(isinstance(at, time) and _seconds_of(at) % _QUARTER_S == 0 for at in times)


def _seconds_of(at: time) -> float:
    ahead = timedelta(0) if at.tzinfo is None else at.utcoffset() or timedelta(0)
    own = timedelta(hours=at.hour, minutes=at.minute, seconds=at.second, microseconds=at.microsecond)
    return (own - ahead).total_seconds()


def _flat(prices: ModelPrice, prompt: int) -> Price:
    def micro(key: str) -> int | None:
        value = getattr(prices, key)
        for tier in sorted(getattr(value, "tiers", ()), key=lambda tier: -tier.start):
            if prompt > tier.start:
                return _micro(tier.price)
        return None if value is None else _micro(getattr(value, "base", value))

    input_price = micro("input_mtok")
    cached, written = micro("cache_read_mtok"), micro("cache_write_mtok")
    return Price(
        input=input_price,
        output=micro("output_mtok"),
        cached=input_price if cached is None else cached,
        cache_write=input_price if written is None else written,
        cache_write_1h=micro("cache_write_1h_mtok"),
    )


def _micro(dollars: Decimal) -> int:
    return int((dollars * MILLION).to_integral_value())


def shipped_context_window(model: str) -> int | None:
    """A model's context window in tokens, from the maintained table."""
    return _maintained().context_window(names_of(model))


@cache
def _maintained() -> MaintainedPrices:
    return MaintainedPrices()


@cache
def shipped_prices() -> PriceTable:
    """Public list prices from the maintained table, and nothing for the embedded model."""
    maintained = _maintained()
    return PriceTable((EmbeddedPrices(), FreeOffers(), maintained), None, maintained.source)
