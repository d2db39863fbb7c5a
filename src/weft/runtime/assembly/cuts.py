"""What is left out of a request that does not fit, in a defined order, and stays left out.

1. The results of tool calls of earlier turns are shortened, the oldest first.
2. Earlier turns are left out whole, the oldest first.
3. The results of the turn under way are shortened, the oldest first, the newest last.

The system prompt, the summary and what was asked are never cut, and no tool call is parted from its result. A cut goes
further than it must (to `TARGET_SHARE` of the room), so that the requests after it extend each other; it is kept until
another compaction is in effect. A cut is two marks, so it can be recorded with a request and applied again anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

from msgspec import Struct

from weft.ledger.api import NO_CUT, ContextCut, shortened
from weft.ledger.model import Message
from weft.runtime.assembly.layers import ContextLayers, TurnMessages, divisions
from weft.runtime.assembly.sizes import ContextBudget, ContextFit, MeasuredRequest, context_tokens
from weft.runtime.inference.token_estimates import estimated_tokens

TARGET_SHARE = 0.6
"""A cut goes on until the context takes at most so much of the room that there is."""


class FittedContext(Struct, frozen=True, kw_only=True):
    """A request that was made to fit. `sent` is for the model; `recorded` are the same messages as the ledger has them,
    with no result shortened: together with `cut` they say what was sent."""

    sent: tuple[Message, ...]
    recorded: tuple[Message, ...]
    cut: ContextCut
    fit: ContextFit
    shortened_results: int
    left_out_turns: int
    is_new: bool
    """Whether something was cut that the request before still carried."""


def cut_to_fit(
    layers: ContextLayers,
    budget: ContextBudget,
    measured: MeasuredRequest | None = None,
    before: ContextCut = NO_CUT,
    compaction: str | None = None,
) -> FittedContext:
    """The request as it was cut before, and cut further only where it no longer fits."""
    cut = before if before.compaction == compaction else ContextCut(compaction=compaction)
    if cut.is_empty:  # the usual case, which looks into no message that was measured
        messages = layers.messages
        fit = ContextFit(context_tokens(messages, measured), budget)
        if fit.fits:
            return _uncut(messages, fit, cut)
    cutting = _Cutting(layers, cut)
    tokens = context_tokens(cutting.sent(), measured)
    if tokens <= budget.available:
        return cutting.context(ContextFit(tokens, budget), cut, is_new=False)
    scale = tokens / max(1, cutting.estimate)
    cutting.cut_further(TARGET_SHARE * budget.available / scale, budget.available / scale)
    further = cutting.cut(compaction)
    return cutting.context(ContextFit(round(scale * cutting.estimate), budget), further, is_new=further != cut)


def _uncut(messages: tuple[Message, ...], fit: ContextFit, cut: ContextCut) -> FittedContext:
    return FittedContext(
        sent=messages, recorded=messages, cut=cut, fit=fit, shortened_results=0, left_out_turns=0, is_new=False
    )


def apply_cut(layers: ContextLayers, cut: ContextCut) -> tuple[Message, ...]:
    """What was sent of these layers under a cut."""
    return _Cutting(layers, cut).sent()


class _Cutting:
    """Layers, how far their results are shortened and their turns left out, and how many tokens that leaves."""

    def __init__(self, layers: ContextLayers, cut: ContextCut) -> None:
        self._layers, self._messages = layers, layers.messages
        self._short = [shortened(message) for message in self._messages]
        self._lengths = [0, *accumulate(len(turn.messages) for turn in layers.turns)]
        ids = [message.id for message in self._messages]
        self._first_turn = _place_behind([turn.turn for turn in layers.turns], cut.left_out_through)
        self._shortened = _place_behind(ids, cut.shortened_through)
        self.estimate = estimated_tokens(self.sent())

    @property
    def _begin(self) -> int:
        """The place of the first message of a turn."""
        return len(self._layers.system) + len(self._layers.summary)

    @property
    def _left_out(self) -> int:
        """How many messages behind that place are left out."""
        return self._lengths[self._first_turn]

    def recorded(self) -> tuple[Message, ...]:
        begin = self._begin
        return (*self._messages[:begin], *self._messages[begin + self._left_out :])

    def sent(self) -> tuple[Message, ...]:
        short = self._short[: self._shortened]
        messages, begin = (*short, *self._messages[len(short) :]), self._begin
        return (*messages[:begin], *messages[begin + self._left_out :])

    def cut(self, compaction: str | None) -> ContextCut:
        turns = self._layers.turns
        return ContextCut(
            compaction=compaction,
            shortened_through=self._messages[self._shortened - 1].id if self._shortened else None,
            left_out_through=turns[self._first_turn - 1].turn if self._first_turn else None,
        )

    def context(self, fit: ContextFit, cut: ContextCut, *, is_new: bool) -> FittedContext:
        sent, recorded = self.sent(), self.recorded()
        return FittedContext(
            sent=sent,
            recorded=recorded,
            cut=cut,
            fit=fit,
            shortened_results=sum(left is not right for left, right in zip(sent, recorded, strict=True)),
            left_out_turns=self._first_turn,
            is_new=is_new,
        )

    def cut_further(self, target: float, room: float) -> None:
        """In the order that this module tells, until the target is reached; turns are left out only where shortened
        results are not enough for the room itself."""
        query = len(self._messages) - len(self._layers.query)
        self._shorten(range(self._begin + self._left_out, query), target)
        if self.estimate > room:
            self._leave_out_turns(target)
        if self.estimate > room:
            self._shorten(range(query, len(self._messages)), target)

    def _shorten(self, places: Iterable[int], target: float) -> None:
        for place in places:
            if self.estimate <= target:
                return
            if place >= self._shortened and self._short[place] is not self._messages[place]:
                self.estimate -= estimated_tokens([self._messages[place]]) - estimated_tokens([self._short[place]])
                self._shortened = place + 1

    def _leave_out_turns(self, target: float) -> None:
        """Never so that a call and its result are parted, be the result in the turn under way."""
        turns = self._layers.turns
        places = divisions((*turns, TurnMessages("", self._layers.query)))
        for place in places:
            if not self._first_turn < place <= len(turns):
                continue
            if self.estimate <= target:
                return
            begin = self._begin + self._left_out
            self._first_turn = place
            end = self._begin + self._left_out
            unshortened = max(begin, min(self._shortened, end))
            self.estimate -= estimated_tokens(self._short[begin:unshortened])
            self.estimate -= estimated_tokens(self._messages[unshortened:end])


def _place_behind(ids: Sequence[str], last: str | None) -> int:
    """The place behind this id. An id that is not there has been left behind, so nothing is cut by it."""
    return ids.index(last) + 1 if last is not None and last in ids else 0
