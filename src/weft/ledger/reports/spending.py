"""Tokens and what they cost, added up exactly and rounded once.

A response is priced kind by kind. Where a kind that it used has no price, what its tool noted as its cost counts for
all of it; where both are there, both are added up beside each other, so that they can be compared.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any, Protocol

from msgspec import UNSET, Struct, UnsetType

from weft.ledger.reports.prices import PRICED, Price, priced_parts
from weft.ledger.reports.responses import CACHE_WRITE, CACHE_WRITE_1H, UNSPECIFIED, Tokens

MILLION = 1_000_000
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


class Tally:
    """A sum in the making. Costs are exact, in millionths of a micro-dollar, and rounded once, when they are told."""

    __slots__ = ("by_kind", "noted", "noted_priced", "priced", "responses", "tokens", "unpriced", "used")

    def __init__(self) -> None:
        self.responses = self.priced = self.unpriced = 0
        self.used = self.noted = self.noted_priced = 0
        self.tokens = list(_NONE)
        self.by_kind = dict.fromkeys(PRICED, 0)

    def add(
        self, tokens: Tokens, price: Price | None, responses: int, times: int = 1, recorded: int | None = None
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
        self.unpriced += unspecified * times
        if recorded is not None:
            self.noted += recorded * times
            self.noted_priced += exact * times

    def add_tally(self, other: Tally) -> None:
        self.tokens = [mine + theirs for mine, theirs in zip(self.tokens, other.tokens, strict=True)]
        self.by_kind = {kind: cost + other.by_kind[kind] for kind, cost in self.by_kind.items()}
        for name in ("responses", "priced", "unpriced", "used", "noted", "noted_priced"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def fields(self) -> dict[str, Any]:
        given, output, cached, written, one_hour, reasoning, unspecified = self.tokens
        exact = sum(self.by_kind.values()) + self.used * MILLION
        recorded = RecordedCosts(used=self.used, noted=self.noted, priced=_rounded(self.noted_priced))
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
            "cost": None if self.unpriced and not self.priced else _rounded(exact),
            "costs": KindCosts(**{kind: _rounded(cost) for kind, cost in self.by_kind.items()}),
            "recorded": recorded if self.used or self.noted else None,
            "unpriced": self.unpriced,
        }

    def spending(self) -> Spending:
        return Spending(**self.fields())


def _rounded(exact: int) -> int:
    return (exact + MILLION // 2) // MILLION


class Countable(Protocol):
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
        self._prices: dict[int, Price | None] = {}

    def add(self, key: Any, counted: Countable, price: Price | None, times: int = 1) -> None:
        """Where its tool noted a cost, which kinds of tokens there are says whether that counts."""
        tokens, recorded = counted.tokens, counted.recorded
        kinds = None if recorded is None else (*map(bool, tokens), _kept_for_minutes(tokens))
        group = key, id(price), kinds
        counts: tuple[int, ...] = (counted.responses, recorded or 0, *tokens)
        if times != 1:
            counts = tuple(count * times for count in counts)
        before = self._groups.get(group)
        if before is None:
            self._prices[id(price)] = price
        self._groups[group] = counts if before is None else tuple(map(operator.add, before, counts))

    def tallies(self) -> dict[Any, Tally]:
        tallies: dict[Any, Tally] = {}
        for (key, price, kinds), (responses, recorded, *counts) in self._groups.items():
            tokens: Tokens = (counts[0], counts[1], counts[2], counts[3], counts[4], counts[5], counts[6])
            noted = None if kinds is None else recorded
            tallies.setdefault(key, Tally()).add(tokens, self._prices[price], responses, recorded=noted)
        return tallies


def _kept_for_minutes(tokens: Tokens) -> int:
    """1 where some cache writes are not kept for an hour; -1 where more are than there are."""
    rest = tokens[CACHE_WRITE] - tokens[CACHE_WRITE_1H]
    return (rest > 0) - (rest < 0)


def total_of(tallies: Iterable[Tally]) -> Tally:
    total = Tally()
    for tally in tallies:
        total.add_tally(tally)
    return total


class Sums:
    """Tallies by key, and by model beside them."""

    def __init__(self, by_key: dict[Any, Tally] | None = None, by_model: dict[str, Tally] | None = None) -> None:
        self.by_key = {} if by_key is None else by_key
        self.by_model = {} if by_model is None else by_model
        self.total = total_of(self.by_key.values())

    def add(self, key: Any, model: str, counted: Countable, price: Price | None) -> None:
        for tally in (
            self.total,
            self.by_key.setdefault(key, Tally()),
            self.by_model.setdefault(model, Tally()),
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
