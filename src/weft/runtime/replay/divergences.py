"""Where answers differ from the recorded ones: a pure comparison of values.

Calls are compared in their order, by tool and canonical arguments. Texts are compared as they are, or in normal form:
NFC, with runs of white space as one space and none at the ends. Thinking is not compared.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from enum import StrEnum
from itertools import zip_longest
from typing import Any

from msgspec import Struct

from weft.kernel.events import Usage
from weft.runtime.replay.recorded_exchanges import (
    RecordedAnswer,
    RecordedExchange,
    argument_fields,
    call_key,
    total_tokens,
)


class TextComparison(StrEnum):
    """How texts of answers are compared: exactly, in normal form, or not at all."""

    EXACT = "exact"
    NORMAL = "normal"
    IGNORE = "ignore"


class DivergenceKind(StrEnum):
    CALLS = "calls"
    TEXT = "text"
    END = "end"
    """One of them has no such answer."""


class NamedCall(Struct, frozen=True, kw_only=True):
    """A tool call as it is told."""

    name: str
    arguments: Any


class ReplayedAnswer(Struct, frozen=True, kw_only=True):
    """What a model answered when it was asked again."""

    text: str
    calls: tuple[NamedCall, ...] = ()
    model: str | None = None
    usage: Usage | None = None
    cost: int | None = None


class Divergence(Struct, frozen=True, kw_only=True):
    """An answer that is not the recorded one. What is null was not said."""

    kind: DivergenceKind
    turn: str
    """The recorded turn."""
    answer: int
    """Which answer of the exchange, counted from one."""
    recorded_text: str | None
    recorded_calls: tuple[NamedCall, ...]
    replayed_text: str | None
    replayed_calls: tuple[NamedCall, ...]


class ReplaySpending(Struct, kw_only=True):
    """What answers took."""

    answers: int = 0
    calls: int = 0
    input_tokens: int | None = None
    """With those that were read from or written to a cache."""
    output_tokens: int | None = None
    cost: int | None = None
    """Micro-dollars of the answers whose cost is known."""
    unpriced: int = 0
    """Of so many answers the cost is not known."""

    def add(self, other: ReplaySpending) -> None:
        self.answers += other.answers
        self.calls += other.calls
        self.input_tokens = _sum(self.input_tokens, other.input_tokens)
        self.output_tokens = _sum(self.output_tokens, other.output_tokens)
        self.cost = _sum(self.cost, other.cost)
        self.unpriced += other.unpriced


def _sum(left: int | None, right: int | None) -> int | None:
    return right if left is None else left if right is None else left + right


def spent(answer: RecordedAnswer | ReplayedAnswer) -> ReplaySpending:
    usages = answer.usages if isinstance(answer, RecordedAnswer) else [answer.usage] if answer.usage else []
    tokens: int | None = None
    for name in ("input_tokens", "cached_input_tokens", "cache_write_tokens"):
        tokens = _sum(tokens, total_tokens(usages, name))
    return ReplaySpending(
        answers=1,
        calls=len(answer.calls),
        input_tokens=tokens,
        output_tokens=total_tokens(usages, "output_tokens"),
        cost=answer.cost,
        unpriced=int(answer.cost is None),
    )


def total_spending(answers: Sequence[RecordedAnswer | ReplayedAnswer]) -> ReplaySpending:
    total = ReplaySpending()
    for answer in answers:
        total.add(spent(answer))
    return total


def normal_text(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).split())


def divergences(
    exchange: RecordedExchange, replayed: Sequence[ReplayedAnswer], texts: TextComparison
) -> list[Divergence]:
    """Every answer that differs, in their order."""
    pairs = zip_longest(exchange.answers, replayed)
    kinds = [(number, pair, _kind(*pair, texts)) for number, pair in enumerate(pairs, 1)]
    return [_divergence(exchange, number, *pair, kind) for number, pair, kind in kinds if kind is not None]


def _kind(
    recorded: RecordedAnswer | None, replayed: ReplayedAnswer | None, texts: TextComparison
) -> DivergenceKind | None:
    if recorded is None or replayed is None:
        return DivergenceKind.END
    if [call.key for call in recorded.calls] != [call_key(call.name, call.arguments) for call in replayed.calls]:
        return DivergenceKind.CALLS
    return None if _are_same(recorded.text, replayed.text, texts) else DivergenceKind.TEXT


def _are_same(recorded: str, replayed: str, texts: TextComparison) -> bool:
    match texts:
        case TextComparison.EXACT:
            return recorded == replayed
        case TextComparison.NORMAL:
            return normal_text(recorded) == normal_text(replayed)
        case TextComparison.IGNORE:
            return True


def _divergence(
    exchange: RecordedExchange,
    number: int,
    recorded: RecordedAnswer | None,
    replayed: ReplayedAnswer | None,
    kind: DivergenceKind,
) -> Divergence:
    recorded_calls = [] if recorded is None else recorded.calls
    return Divergence(
        kind=kind,
        turn=exchange.answers[-1].turn if recorded is None else recorded.turn,
        answer=number,
        recorded_text=None if recorded is None else recorded.text,
        recorded_calls=tuple(
            NamedCall(name=call.name, arguments=argument_fields(call.arguments)) for call in recorded_calls
        ),
        replayed_text=None if replayed is None else replayed.text,
        replayed_calls=() if replayed is None else replayed.calls,
    )
