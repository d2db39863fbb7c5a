"""Whether what a turn's next request is sent fits its model, and the cut that makes it fit.

The size of what was sent is kept: the provider counts every request that it answers, and only what is new since then is
estimated, so that a turn of a long thread measures no message twice. Only where a request no longer fits are the
messages read back from the ledger and cut; the cut is recorded with the request, and later requests are cut the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

from msgspec import UNSET, Struct
from msgspec.structs import replace

from weft.kernel.events import EventRef, Usage
from weft.ledger.api import CUT_PARAMETER, NO_CUT, Context, InputChain, Runs, as_sent
from weft.ledger.model import Message, NewMessage
from weft.runtime.assembly.cuts import FittedContext, apply_cut, cut_to_fit
from weft.runtime.assembly.layers import layers_of
from weft.runtime.assembly.sizes import ContextBudget, MeasuredRequest, budget_of
from weft.runtime.broker.plans import TurnPlan
from weft.runtime.inference.token_estimates import estimated_tokens
from weft.runtime.turns.ledger_port import Crossing


class FittedRequest(Struct, frozen=True):
    """What a request is sent that was made to fit, and how its record names that."""

    messages: tuple[Message, ...]
    chain: InputChain


class RequestFitting:
    """The size of a turn's next request, its budget, and what is cut of it."""

    def __init__(self, runs: Runs, crossing: Crossing, plan: TurnPlan) -> None:
        self._runs, self._crossing, self._plan = runs, crossing, plan
        self.cut = NO_CUT
        self.compaction: str | None = None
        """The compaction that is in effect for the request."""
        self.tokens: int | None = None
        """How large all is that the next request is sent so far; None: that was not measured yet."""

    @cached_property
    def budget(self) -> ContextBudget:
        plan = self._plan
        wanted = plan.model.in_situation(plan.situation, plan.parameters)
        return budget_of(plan.model, wanted, (tool.spec for tool in plan.tools.values()))

    def is_exceeded(self, more: Iterable[NewMessage] = ()) -> bool:
        """Whether the request does not fit, with these messages as well."""
        return self.tokens is not None and self.tokens + estimated_tokens(more) > self.budget.available

    @property
    def parameters(self) -> dict[str, Any]:
        """What the request records of its cut."""
        return {} if self.cut.is_empty else {CUT_PARAMETER: self.cut.record()}

    def add(self, messages: Iterable[Message | NewMessage]) -> None:
        """These are sent as well."""
        if self.tokens is not None:
            self.tokens += estimated_tokens(messages)

    def count(self, usage: Usage | None, answer: NewMessage) -> None:
        """The request was answered, with this."""
        if usage is not None and usage.total_tokens is not UNSET and usage.total_tokens > 0:
            self.tokens = usage.total_tokens
        else:
            self.add([answer])

    def replace(self, messages: Iterable[Message | NewMessage], compaction: str | None) -> None:
        """The request is sent these messages instead, which begin with this compaction."""
        self.compaction, self.cut, self.tokens = compaction, NO_CUT, estimated_tokens(messages)

    def cut_history(self, context: Context, tokens: int | None, own: Sequence[NewMessage]) -> FittedContext:
        """What is sent of all that was said before a turn, beside its own messages. `tokens` is how large that was with
        the last request and its answer, where that is known."""
        budget, own_tokens = self.budget, estimated_tokens(own)
        rest = ContextBudget(window=max(1, budget.available - own_tokens), output=0)
        layers, before = layers_of(context), context.cut
        measured = None if tokens is None else _measured(apply_cut(layers, before), tokens)
        fitted = cut_to_fit(layers, rest, measured, before, context.compaction)
        self.compaction, self.cut, self.tokens = context.compaction, fitted.cut, fitted.fit.tokens + own_tokens
        return fitted

    async def resume(self, turn: str, compaction: str | None) -> None:
        """Go on with a turn that another broker began, whose last request was cut by what it says."""
        self.cut, self.compaction = await self._crossing.run(lambda: self._runs.cut(turn)), compaction

    async def measure(
        self, turn: str, chain: InputChain, since: Sequence[str | EventRef], *, is_answered: bool
    ) -> None:
        """Of such a turn: how large all is that its next request is sent. Where its last request was answered, what the
        provider counted holds."""
        counted = None
        if is_answered:
            counted = await self._crossing.run(lambda: self._runs.counted_tokens(turn, self.compaction))
        refs = since if counted is not None else [*chain.refs, *since]
        messages = await self._crossing.run(lambda: self._runs.messages(refs))
        self.tokens = (counted or 0) + estimated_tokens(as_sent(messages, self.cut))

    async def cut_request(
        self,
        turn: str,
        chain: InputChain,
        since: Sequence[str | EventRef],
        window: int | None = None,
    ) -> FittedRequest | None:
        """What the next request of an open turn is sent: what its chain names and what was recorded since, cut. None
        where nothing more can be cut, or not all of it is recorded."""
        messages = await self._crossing.run(lambda: self._runs.messages([*chain.refs, *since]))
        budget = self.budget if window is None else ContextBudget(window=window, output=0)
        measured = None if self.tokens is None else _measured(messages, self.tokens)
        layers = layers_of(Context(messages, (), self.compaction), turn)
        before = replace(self.cut, compaction=self.compaction, left_out_through=None)  # left out, they are not named
        fitted = cut_to_fit(layers, budget, measured, before, self.compaction)
        if not fitted.is_new:
            return None
        named = await self._crossing.run(lambda: self._runs.input_chain(fitted.recorded, turn))
        if named is None:
            return None
        self.cut = replace(fitted.cut, left_out_through=fitted.cut.left_out_through or self.cut.left_out_through)
        self.tokens = fitted.fit.tokens
        return FittedRequest(fitted.sent, named.part(0, len(named.refs) - len(since)))


def _measured(messages: Sequence[Message], tokens: int) -> MeasuredRequest:
    return MeasuredRequest(tuple(message.id for message in messages), tokens)
