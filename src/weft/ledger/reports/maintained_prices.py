"""Public list prices from genai-prices, a table that others maintain; only its data is used, never the network.

A model is looked up at whoever its name says in front, then at its maker, then at OpenRouter, which lists the models of
makers that the table has no page of. Prices may depend on the day, on the hour, and on the length of the prompt. A kind
of input that has no price of its own is billed as input.

The package is imported with the first question whose answer was not kept: it takes a quarter of a second. So is what
tells its version.
"""

from __future__ import annotations

from datetime import time, timedelta
from decimal import Decimal
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from weft.ledger.reports import price_schedules, prices
from weft.ledger.reports.price_schedules import KINDS, KeptSchedules, KindPrice, PricePeriod, PriceSchedule
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
    from genai_prices.types import (
        ModelInfo,
        ModelPrice,
        Provider,
        StartDateConstraint,
        TieredPrices,
        TimeOfDateConstraint,
    )

PACKAGE = "genai-prices"
_MODULE = "genai_prices"
FILE = "prices.json"
MAKERS = (
    "anthropic", "openai", "google", "x-ai", "mistral", "deepseek", "zai", "moonshotai", "minimax", "cohere", "meta",
    "perplexity", "arcee",
)  # fmt: skip
"""Whose own prices count for a name that says no provider."""
AGGREGATOR = "openrouter"
MILLION = 1_000_000


class MaintainedPrices:
    """The table that is installed. Reads its data when it is asked for a model that `kept` does not have."""

    def __init__(self, kept: KeptSchedules | None = None) -> None:
        self._kept = kept
        self._schedules = {} if kept is None else kept.schedules
        self._looked_up = False
        self._providers: dict[str, Provider] = {}
        self._by_short_name: dict[str, ModelInfo] = {}
        self._models: dict[str, ModelInfo | None] = {}

    @cached_property
    def source(self) -> str:
        kept = None if self._kept is None else self._kept.source
        if kept is not None:
            return kept
        from importlib.metadata import version

        return f"{PACKAGE} {version(PACKAGE)}"

    def find(self, names: list[str], at: int | None, prompt: int) -> Price | None:
        schedule = self._schedule(names)
        return None if schedule is None else schedule.price(at, prompt)

    def steps(self, names: list[str]) -> PriceSteps:
        schedule = self._schedule(names)
        return NO_STEPS if schedule is None else schedule.steps

    def context_window(self, names: list[str]) -> int | None:
        """How many tokens a request to a model may be, where the table says so."""
        model = self._model(names)
        return None if model is None else model.context_window

    def keep(self) -> None:
        """Let the next process find what was looked up."""
        if self._kept is not None and self._looked_up:
            self._kept.store(self.source, self._schedules)

    def _schedule(self, names: list[str]) -> PriceSchedule | None:
        longest = names[0]
        if longest not in self._schedules:
            model, self._looked_up = self._model(names), True
            self._schedules[longest] = None if model is None else _schedule_of(model)
        return self._schedules[longest]

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


_COLUMNS = dict(
    zip(KINDS, ("input_mtok", "output_mtok", "cache_read_mtok", "cache_write_mtok", "cache_write_1h_mtok"), strict=True)
)


def _schedule_of(model: ModelInfo) -> PriceSchedule:
    if not isinstance(model.prices, list):
        return PriceSchedule((PricePeriod(_kinds_of(model.prices)),))
    periods = (_period_of(entry.prices, entry.constraint) for entry in model.prices)
    return PriceSchedule(tuple(periods))


def _period_of(prices: ModelPrice, constraint: StartDateConstraint | TimeOfDateConstraint | None) -> PricePeriod:
    kinds = _kinds_of(prices)
    if constraint is None:
        return PricePeriod(kinds)
    from genai_prices.types import StartDateConstraint

    if isinstance(constraint, StartDateConstraint):
        return PricePeriod(kinds, constraint.start_date)
    return PricePeriod(kinds, None, (_hour_of(constraint.start_time), _hour_of(constraint.end_time)))


def _hour_of(at: time) -> timedelta:
    """Since midnight, in UTC."""
    ahead = timedelta(0) if at.tzinfo is None else at.utcoffset() or timedelta(0)
    own = timedelta(hours=at.hour, minutes=at.minute, seconds=at.second, microseconds=at.microsecond)
    return (own - ahead) % timedelta(days=1)


def _kinds_of(prices: ModelPrice) -> dict[str, KindPrice]:
    return {kind: _kind_of(getattr(prices, column)) for kind, column in _COLUMNS.items()}


def _kind_of(value: Decimal | TieredPrices | None) -> KindPrice:
    from genai_prices.types import TieredPrices

    if not isinstance(value, TieredPrices):
        return KindPrice(None if value is None else _micro(value))
    tiers = sorted(value.tiers, key=lambda tier: -tier.start)
    return KindPrice(_micro(value.base), tuple((tier.start, _micro(tier.price)) for tier in tiers))


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
    return _table(_maintained())


def kept_prices(folder: Path) -> PriceTable:
    """The same table with what was looked up before, from a file in this folder, where its `keep` puts it."""
    spec = find_spec(_MODULE)
    data = Path((spec and spec.origin) or "").with_name("data.py")
    files = data, *(Path(str(file)) for file in (__file__, price_schedules.__file__, prices.__file__))
    if not all(file.is_file() for file in files):  # they lie in an archive
        return shipped_prices()
    return _table(MaintainedPrices(KeptSchedules(folder / FILE, files)))


def _table(maintained: MaintainedPrices) -> PriceTable:
    return PriceTable((EmbeddedPrices(), FreeOffers(), maintained), None, maintained.source)
