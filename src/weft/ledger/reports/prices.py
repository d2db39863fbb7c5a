"""What tokens cost: tables of prices that lie over each other, the user's own before the public
list prices of genai-prices, kept as plain values in a file; and tokens and their cost, added up
exactly and rounded once.
"""

from __future__ import annotations

import errno
import operator
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import msgspec
from msgspec import UNSET, Struct, UnsetType, field

from weft.kernel.contents import MAX_INTEGER
from weft.kernel.errors import InvalidInput
from weft.ledger.read.session_list import HERE
from weft.ledger.reports.responses import (
    CACHE_WRITE,
    CACHE_WRITE_1H,
    CACHED,
    INPUT,
    OUTPUT,
    UNSPECIFIED,
    ReportedUsage,
    Tokens,
    reported_in,
)
from weft.ledger.views.rows import name_of
from weft.store.port import ReadTxn
from weft.store.private_files import make_folder, new_file

if TYPE_CHECKING:
    from genai_prices.types import (
        ModelInfo,
        ModelPrice,
        Provider,
        StartDateConstraint,
        TieredPrices,
        TimeOfDateConstraint,
    )


# --- What tokens cost: tables of prices that lie over each other, the user's own before the maintained one.

PRICED = ("input", "output", "cached", "cache_write", "cache_write_1h")
"""The disjoint kinds of tokens, as prices have them: `cache_write` is what is kept for five minutes. Reasoning lies
inside output."""
CACHE_KINDS = ("cached", "cache_write", "cache_write_1h")
EMBEDDED_PROVIDER = "local"
"""How turns name the provider of the embedded model."""
EMBEDDED_MODELS = frozenset({"SmolLM2-135M-Instruct"})
ONE_HOUR_FACTOR = 2
"""Anthropic's rule: what is kept for an hour costs twice the input price."""
_DAY = timedelta(days=1) // timedelta(milliseconds=1)
_BEDROCK = "anthropic."


class TokenPrice(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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
        after = self.since is None or at >= _midnight_ms(self.since)
        return after and (self.until is None or at < _midnight_ms(self.until))

    def of(self, kind: str) -> int | None:
        """Of one kind of tokens; one-hour cache writes without a price of their own cost twice the input."""
        if kind == "cache_write_1h" and self.cache_write_1h is None:
            return None if self.input is None else ONE_HOUR_FACTOR * self.input
        value: int | None = getattr(self, kind)
        return value


FREE = TokenPrice(input=0, output=0, cached=0, cache_write=0, cache_write_1h=0)


class PricedTokens(Struct, frozen=True):
    """Tokens of one kind, and what a million of them costs; None: nobody knows."""

    kind: str
    count: int
    price: int | None


def priced_parts(tokens: Tokens, price: TokenPrice | None) -> list[PricedTokens]:
    """The disjoint kinds that there are any tokens of."""
    counts = {
        "input": tokens[INPUT],
        "output": tokens[OUTPUT],
        "cached": tokens[CACHED],
        "cache_write": tokens[CACHE_WRITE] - tokens[CACHE_WRITE_1H],
        "cache_write_1h": tokens[CACHE_WRITE_1H],
    }
    return [PricedTokens(kind, count, price.of(kind) if price else None) for kind, count in counts.items() if count]


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

    def find(self, names: list[str], at: int | None, prompt: int) -> TokenPrice | None:
        """By a model's names, the longest first; `prompt` is how many tokens the request carried."""


class _FileLayer(Struct, frozen=True):
    """One file of prices."""

    exact: dict[str, tuple[TokenPrice, ...]]
    beginnings: tuple[tuple[str, tuple[TokenPrice, ...]], ...]
    """The longest first."""

    def find(self, names: list[str], at: int | None, _: int) -> TokenPrice | None:
        return next((price for price in self._prices_of(names) if price.holds(at)), None)

    def steps(self, _: list[str]) -> PriceSteps:
        return NO_STEPS

    def _prices_of(self, names: list[str]) -> tuple[TokenPrice, ...]:
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

    def find(self, names: list[str], _: int | None, __: int) -> TokenPrice | None:
        return FREE if EMBEDDED_MODELS.intersection(names) else None

    def steps(self, _: list[str]) -> PriceSteps:
        return NO_STEPS


class FreeOffers:
    """What a server calls free is priced so, and not as the model that it offers for money under the same name."""

    def find(self, names: list[str], _: int | None, __: int) -> TokenPrice | None:
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

    def price(self, model: str, at: int | None, prompt: int = 0) -> TokenPrice | None:
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
    models: dict[str, TokenPrice | list[TokenPrice]]
    as_of: date | None = None
    note: str | None = None


def prices_from(data: Any, where: str) -> PriceTable:
    """A table from what a JSON or TOML file holds; `where` names it in errors."""
    try:
        file = msgspec.convert(data, _PriceFile)
    except msgspec.ValidationError as error:
        raise InvalidInput(
            f"{where}: {error}{_unquoted_name_hint(data)}", "docs/reading.md shows how to write prices"
        ) from None
    exact: dict[str, tuple[TokenPrice, ...]] = {}
    beginnings: dict[str, tuple[TokenPrice, ...]] = {}
    for name, entry in file.models.items():
        prices = tuple(entry) if isinstance(entry, list) else (entry,)
        for price in prices:
            _check_price(price, f"{where}: {name}")
        if name.endswith("*"):
            beginnings[name[:-1]] = prices
        else:
            exact[name] = prices
    longest_first = sorted(beginnings.items(), key=lambda item: -len(item[0]))
    return PriceTable((_FileLayer(exact, tuple(longest_first)),), file.as_of, where)


def _unquoted_name_hint(data: Any) -> str:
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


def _check_price(price: TokenPrice, where: str) -> None:
    for kind in PRICED:
        value = getattr(price, kind)
        if value is not None and not 0 <= value <= MAX_INTEGER:
            raise InvalidInput(f"{where}: {kind} is {value}", "it is micro-dollars for a million tokens, from 0")
    if price.since is not None and price.until is not None and price.since >= price.until:
        raise InvalidInput(f"{where}: it ends on {price.until}, before it begins", "mend the price file")


def _midnight_ms(day: date) -> int:
    return (datetime(day.year, day.month, day.day) - datetime(1970, 1, 1)).days * _DAY


# --- A model's prices as plain values, and a file that keeps them: the package that has them takes a quarter of a
# second.

KINDS = ("input", "output", "cached", "cache_write", "cache_write_1h")
_QUARTER = timedelta(minutes=15)
_LAST_SECOND = datetime(9999, 12, 31, tzinfo=UTC)
MOST_BYTES = 16 * 1024 * 1024
"""A larger file is not what was kept here: all prices that there are take less."""
FileStamp = tuple[int, int]
"""How large a file is, and when it changed, in nanoseconds."""


class KindPrice(Struct, frozen=True):
    """Micro-dollars for a million tokens of one kind; `tiers` are prices of longer prompts, the longest first."""

    base: int | None
    tiers: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        if any(price < 0 for price in (self.base or 0, *(price for _, price in self.tiers))):
            raise msgspec.ValidationError("a price is less than nothing")

    def at(self, prompt: int) -> int | None:
        return next((price for start, price in self.tiers if prompt > start), self.base)


class PricePeriod(Struct, frozen=True):
    """Prices that hold from a day on, or within hours of each day, which may go over midnight; in UTC."""

    kinds: dict[str, KindPrice]
    start_date: date | None = None
    hours: tuple[timedelta, timedelta] | None = None

    def __post_init__(self) -> None:
        if self.kinds.keys() != {*KINDS}:
            raise msgspec.ValidationError("a period has a price of each kind")

    def holds(self, moment: datetime) -> bool:
        if self.start_date is not None and moment.date() < self.start_date:
            return False
        if self.hours is None:
            return True
        start, end = self.hours
        midnight = datetime(moment.year, moment.month, moment.day, tzinfo=UTC)
        hour = moment - midnight
        return start <= hour < end if start <= end else hour >= start or hour < end

    def price(self, prompt: int) -> TokenPrice:
        given = self.kinds["input"].at(prompt)
        cached, written = self.kinds["cached"].at(prompt), self.kinds["cache_write"].at(prompt)
        return TokenPrice(
            input=given,
            output=self.kinds["output"].at(prompt),
            cached=given if cached is None else cached,
            cache_write=given if written is None else written,
            cache_write_1h=self.kinds["cache_write_1h"].at(prompt),
        )


class PriceSchedule(Struct, frozen=True):
    """All prices of one model. Of the periods that hold the last one counts; where none does, the first."""

    periods: tuple[PricePeriod, ...]

    def __post_init__(self) -> None:
        if not self.periods:
            raise msgspec.ValidationError("a schedule has at least one period")

    def price(self, at: int | None, prompt: int) -> TokenPrice:
        """What has no time, or one that no calendar has, is priced as at the end of all times."""
        try:
            moment = _LAST_SECOND if at is None else datetime.fromtimestamp(at / 1000, UTC)
        except (OverflowError, ValueError):
            moment = _LAST_SECOND
        period = next((period for period in reversed(self.periods) if period.holds(moment)), self.periods[0])
        return period.price(prompt)

    @property
    def steps(self) -> PriceSteps:
        tiers = (tier for period in self.periods for kind in period.kinds.values() for tier in kind.tiers)
        hours = (hour for period in self.periods for hour in period.hours or ())
        return PriceSteps(frozenset(start for start, _ in tiers), all(not hour % _QUARTER for hour in hours))


class _Kept(Struct):
    source: str
    stamps: tuple[FileStamp, ...]
    schedules: dict[str, PriceSchedule | None]


class KeptSchedules:
    """Schedules by the names of models, in a file; None: the table has no such model."""

    def __init__(self, file: Path, of: tuple[Path, ...]) -> None:
        self._file, self._stamps = file, tuple(_file_stamp(path) for path in of)
        self._kept = self._load_stored()

    @property
    def source(self) -> str | None:
        """The name of the table, where the file has it."""
        return None if self._kept is None else self._kept.source

    @property
    def schedules(self) -> dict[str, PriceSchedule | None]:
        return {} if self._kept is None else self._kept.schedules

    def store(self, source: str, schedules: dict[str, PriceSchedule | None]) -> None:
        kept = _Kept(source, self._stamps, schedules)
        with suppress(OSError):  # the next process looks them up again
            make_folder(self._file.parent)
            with new_file(self._file) as file:
                file.write(msgspec.json.encode(kept))

    def _load_stored(self) -> _Kept | None:
        try:
            kept = msgspec.json.decode(_own_bytes(self._file), type=_Kept)
        except (OSError, msgspec.DecodeError):
            return None
        return kept if kept.stamps == self._stamps else None


def _own_bytes(file: Path) -> bytes:
    """What stands in a file that only the user or the system's owner can have written. Raises OSError for any other."""
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as opened:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise OSError(errno.EPERM, "it may be written by others", str(file))
        if status.st_uid not in (os.geteuid(), 0) or status.st_size > MOST_BYTES:
            raise OSError(errno.EPERM, "it is somebody else's, or too large", str(file))
        return opened.read(MOST_BYTES)


def _file_stamp(path: Path) -> FileStamp:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


# --- Public list prices from genai-prices, a table that others maintain; only its data is used, never the network.

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

    def find(self, names: list[str], at: int | None, prompt: int) -> TokenPrice | None:
        schedule = self._price_schedule(names)
        return None if schedule is None else schedule.price(at, prompt)

    def steps(self, names: list[str]) -> PriceSteps:
        schedule = self._price_schedule(names)
        return NO_STEPS if schedule is None else schedule.steps

    def context_window(self, names: list[str]) -> int | None:
        """How many tokens a request to a model may be, where the table says so."""
        model = self._model_info(names)
        return None if model is None else model.context_window

    def names(self, provider: str) -> tuple[str, ...]:
        """The models of a provider."""
        self._load_providers()
        return tuple(model.id for model in self._providers[provider].models) if provider in self._providers else ()

    def keep(self) -> None:
        """Let the next process find what was looked up."""
        if self._kept is not None and self._looked_up:
            self._kept.store(self.source, self._schedules)

    def _price_schedule(self, names: list[str]) -> PriceSchedule | None:
        longest = names[0]
        if longest not in self._schedules:
            model, self._looked_up = self._model_info(names), True
            self._schedules[longest] = None if model is None else _schedule_of(model)
        return self._schedules[longest]

    def _load_providers(self) -> None:
        if not self._providers:
            from genai_prices.data import providers

            self._providers = {provider.id: provider for provider in providers}
            for model in self._providers[AGGREGATOR].models:
                self._by_short_name.setdefault(model.id.rpartition("/")[2].lower(), model)

    def _model_info(self, names: list[str]) -> ModelInfo | None:
        longest = names[0]
        if longest not in self._models:
            self._load_providers()
            spellings = [spelling for name in names for spelling in _name_spellings(name.lower())]
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


def _name_spellings(name: str) -> list[str]:
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
        return KindPrice(None if value is None else _micro_dollars(value))
    tiers = sorted(value.tiers, key=lambda tier: -tier.start)
    return KindPrice(_micro_dollars(value.base), tuple((tier.start, _micro_dollars(tier.price)) for tier in tiers))


def _micro_dollars(dollars: Decimal) -> int:
    return int((dollars * MILLION).to_integral_value())


def shipped_context_window(model: str) -> int | None:
    """A model's context window in tokens, from the maintained table."""
    return _maintained_prices().context_window(names_of(model))


def shipped_model_names(provider: str) -> tuple[str, ...]:
    """The models of a provider that the maintained table has."""
    return _maintained_prices().names(provider)


@cache
def _maintained_prices() -> MaintainedPrices:
    return MaintainedPrices()


@cache
def shipped_prices() -> PriceTable:
    """Public list prices from the maintained table, and nothing for the embedded model."""
    return _price_table(_maintained_prices())


def kept_prices(folder: Path) -> PriceTable:
    """The same table with what was looked up before, from a file in this folder, where its `keep` puts it."""
    spec = find_spec(_MODULE)
    data = Path((spec and spec.origin) or "").with_name("data.py")
    files = data, Path(__file__)
    if not all(file.is_file() for file in files):  # they lie in an archive
        return shipped_prices()
    return _price_table(MaintainedPrices(KeptSchedules(folder / FILE, files)))


def _price_table(maintained: MaintainedPrices) -> PriceTable:
    return PriceTable((EmbeddedPrices(), FreeOffers(), maintained), None, maintained.source)


# --- Tokens and what they cost, added up exactly and rounded once.
_NONE = (UNSPECIFIED + 1) * (0,)


class KindCosts(Struct, frozen=True, kw_only=True):
    """Micro-dollars of each kind of tokens, at the prices of the table; without what tools noted themselves."""

    input: int
    output: int
    cached: int
    cache_write: int
    """Kept for five minutes."""
    cache_write_1h: int
    """Kept for an hour."""


class RecordedCosts(Struct, frozen=True, kw_only=True):
    """Micro-dollars that tools noted themselves."""

    used: int
    """Of responses without a price: they are in the cost."""
    noted: int
    """Of responses that have a price, too."""
    priced: int
    """What those cost at the prices of the table."""

    @property
    def differs(self) -> bool:
        """By more than a hundredth of a dollar, or by more than a hundredth of a small sum."""
        return abs(self.noted - self.priced) > min(10_000, max(self.noted, self.priced) // 100)


class Spending(Struct, frozen=True, kw_only=True):
    """Tokens in disjoint parts, and what they cost."""

    responses: int
    input: int
    """Without cache reads and writes."""
    output: int
    cached: int
    cache_write: int
    cache_write_1h: int
    """Inside `cache_write`: kept for an hour."""
    reasoning: int
    """Inside `output`."""
    unspecified: int
    """Reported as a total only."""
    total: int
    cost: int | None
    """Micro-dollars of all tokens that have a price, or whose tool noted one; None: there are tokens, and none has."""
    costs: KindCosts
    saved: int
    """Micro-dollars that caches saved: what their reads and writes would have cost as other input, less what they cost.
    Less than nothing where more was written than was read again."""
    recorded: RecordedCosts | None
    """None: no tool noted a cost."""
    unpriced: int
    """Tokens without a price; they are in no cost."""


class UsageRow(Spending, frozen=True, kw_only=True):
    """One line of a usage report."""

    key: str
    """The day, week, month, project, session label, model or origin."""
    session_id: str | UnsetType = UNSET
    """Only by session."""
    title: str | UnsetType | None = UNSET
    """The session's, only by session; null where it has none."""


class UnpricedModel(Struct, frozen=True):
    """A model that the price table says nothing of, or not of all kinds of tokens it used."""

    model: str
    responses: int
    tokens: int


class UsageTally:
    """A sum in the making. Costs are exact, in millionths of a micro-dollar, and rounded once, when they are told."""

    __slots__ = ("by_kind", "noted", "noted_priced", "priced", "responses", "saved", "tokens", "unpriced", "used")

    def __init__(self) -> None:
        self.responses = self.priced = self.unpriced = 0
        self.used = self.noted = self.noted_priced = self.saved = 0
        self.tokens = list(_NONE)
        self.by_kind = dict.fromkeys(PRICED, 0)

    def add(
        self, tokens: Tokens, price: TokenPrice | None, responses: int, times: int = 1, recorded: int | None = None
    ) -> None:
        """`recorded` is what the tool noted as its cost, in micro-dollars."""
        self.responses += responses * times
        for i, count in enumerate(tokens):
            self.tokens[i] += count * times
        parts, unspecified = priced_parts(tokens, price), tokens[UNSPECIFIED]
        if recorded is not None and (unspecified or any(part.price is None for part in parts)):
            self.used += recorded * times
            self.priced += (sum(part.count for part in parts) + unspecified) * times
            return
        exact = 0
        for part in parts:
            if part.price is None:
                self.unpriced += part.count * times
            else:
                exact += part.count * part.price
                self.by_kind[part.kind] += part.count * part.price * times
                self.priced += part.count * times
                if part.kind in CACHE_KINDS and price is not None and price.input is not None:
                    self.saved += part.count * (price.input - part.price) * times
        self.unpriced += unspecified * times
        if recorded is not None:
            self.noted += recorded * times
            self.noted_priced += exact * times

    def add_tally(self, other: UsageTally) -> None:
        self.tokens = [mine + theirs for mine, theirs in zip(self.tokens, other.tokens, strict=True)]
        self.by_kind = {kind: cost + other.by_kind[kind] for kind, cost in self.by_kind.items()}
        for name in ("responses", "priced", "unpriced", "used", "noted", "noted_priced", "saved"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def fields(self) -> dict[str, Any]:
        given, output, cached, written, one_hour, reasoning, unspecified = self.tokens
        exact = sum(self.by_kind.values()) + self.used * MILLION
        recorded = RecordedCosts(used=self.used, noted=self.noted, priced=_rounded_micro(self.noted_priced))
        return {
            "responses": self.responses,
            "input": given,
            "output": output,
            "cached": cached,
            "cache_write": written,
            "cache_write_1h": one_hour,
            "reasoning": reasoning,
            "unspecified": unspecified,
            "total": given + output + cached + written + unspecified,
            "cost": None if self.unpriced and not self.priced else _rounded_micro(exact),
            "costs": KindCosts(**{kind: _rounded_micro(cost) for kind, cost in self.by_kind.items()}),
            "saved": _rounded_micro(self.saved),
            "recorded": recorded if self.used or self.noted else None,
            "unpriced": self.unpriced,
        }

    def spending(self) -> Spending:
        return Spending(**self.fields())


def _rounded_micro(exact: int) -> int:
    return (exact + MILLION // 2) // MILLION


class CountableResponses(Protocol):
    """One response or several of one kind, with the numbers that they add up to."""

    @property
    def tokens(self) -> Tokens: ...
    @property
    def recorded(self) -> int | None: ...
    @property
    def responses(self) -> int: ...


class PriceGroups:
    """Numbers of one key at one price, added up before they are priced: far fewer than responses."""

    def __init__(self) -> None:
        self._groups: dict[tuple[Any, ...], tuple[int, ...]] = {}
        self._prices_of: dict[int, TokenPrice | None] = {}

    def add(self, key: Any, counted: CountableResponses, price: TokenPrice | None, times: int = 1) -> None:
        """Where its tool noted a cost, which kinds of tokens there are says whether that counts."""
        tokens, recorded = counted.tokens, counted.recorded
        kinds = None if recorded is None else (*map(bool, tokens), _kept_for_minutes(tokens))
        group = key, id(price), kinds
        counts: tuple[int, ...] = (counted.responses, recorded or 0, *tokens)
        if times != 1:
            counts = tuple(count * times for count in counts)
        before = self._groups.get(group)
        if before is None:
            self._prices_of[id(price)] = price
        self._groups[group] = counts if before is None else tuple(map(operator.add, before, counts))

    def tallies(self) -> dict[Any, UsageTally]:
        tallies: dict[Any, UsageTally] = {}
        for (key, price, kinds), (responses, recorded, *counts) in self._groups.items():
            tokens: Tokens = (counts[0], counts[1], counts[2], counts[3], counts[4], counts[5], counts[6])
            noted = None if kinds is None else recorded
            tallies.setdefault(key, UsageTally()).add(tokens, self._prices_of[price], responses, recorded=noted)
        return tallies


def _kept_for_minutes(tokens: Tokens) -> int:
    """1 where some cache writes are not kept for an hour; -1 where more are than there are."""
    rest = tokens[CACHE_WRITE] - tokens[CACHE_WRITE_1H]
    return (rest > 0) - (rest < 0)


def total_of(tallies: Iterable[UsageTally]) -> UsageTally:
    total = UsageTally()
    for tally in tallies:
        total.add_tally(tally)
    return total


class TallySums:
    """Tallies by key, and by model beside them."""

    def __init__(
        self, by_key: dict[Any, UsageTally] | None = None, by_model: dict[str, UsageTally] | None = None
    ) -> None:
        self.by_key = {} if by_key is None else by_key
        self.by_model = {} if by_model is None else by_model
        self.total = total_of(self.by_key.values())

    def add(self, key: Any, model: str, counted: CountableResponses, price: TokenPrice | None) -> None:
        for tally in (
            self.total,
            self.by_key.setdefault(key, UsageTally()),
            self.by_model.setdefault(model, UsageTally()),
        ):
            tally.add(counted.tokens, price, counted.responses, recorded=counted.recorded)

    def models(self) -> tuple[UsageRow, ...]:
        rows = [UsageRow(key=model, **tally.fields()) for model, tally in self.by_model.items()]
        return tuple(sorted(rows, key=dearest_first))

    def unpriced(self) -> tuple[UnpricedModel, ...]:
        tallies = [(model, tally) for model, tally in self.by_model.items() if tally.unpriced]
        rows = [UnpricedModel(model, tally.responses, tally.unpriced) for model, tally in tallies]
        return tuple(sorted(rows, key=lambda row: (-row.tokens, row.model)))


def dearest_first(row: UsageRow) -> tuple[int, int, str]:
    return -(row.cost or 0), -row.total, row.key


# --- What some turns spent, counted as reports count it, without a scan of the ledger.


def turn_spending(txn: ReadTxn, turns: Iterable[str], prices: PriceTable | None = None) -> Spending:
    """The tokens and the cost of turns, by their ids, each counted once."""
    tally, table = UsageTally(), prices or shipped_prices()
    for row in reported_in(txn.sql, turns):
        tally.add(row.tokens, _price_of(txn, row, table), not row.is_rest, recorded=row.recorded)
    return tally.spending()


def _price_of(txn: ReadTxn, row: ReportedUsage, prices: PriceTable) -> TokenPrice | None:
    if row.provider == EMBEDDED_PROVIDER and row.turn.origin == HERE:
        return FREE
    model = name_of(txn, row.model) or ""
    return prices.price(model, row.at, 0 if row.is_rest else prompt_of(row.tokens))
