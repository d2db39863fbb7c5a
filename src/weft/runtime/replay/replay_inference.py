"""Asks the model of a replayed turn, and sees to it that only recorded calls are answered.

Every answer is kept for the comparison. Before its calls run, their recorded results are set aside for them. Where one
has none, whoever replays says what becomes of it; unless a result is given or it may run, the turn is cut short after
the answer is recorded, and none of its calls runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from weft.ledger.model import ToolUsePart
from weft.runtime.context import ExecutionContext
from weft.runtime.inference.budgets import Budget
from weft.runtime.inference.inference import Before, Inference
from weft.runtime.inference.replies import Reply
from weft.runtime.inference.settings import InferenceRequest, ModelSettings, Parameters
from weft.runtime.replay.divergences import NamedCall, ReplayedAnswer
from weft.runtime.replay.recorded_exchanges import RecordedExchange
from weft.runtime.replay.recorded_tools import ExchangeResults

if TYPE_CHECKING:
    from weft.runtime.inference.attempt import OnToken


class UseResult(Struct, frozen=True):
    """The model is told this result of the call."""

    result: Any


class RunTool(Struct, frozen=True):
    """The tool runs, if its gate allows it."""


class StopReplay(Struct, frozen=True):
    """The replay of the thread ends here."""


class SkipTurn(Struct, frozen=True):
    """The replay goes on with the next turn, on the recorded history."""


MissingAnswer = UseResult | RunTool | StopReplay | SkipTurn
OnMissing = Callable[[RecordedExchange, ToolUsePart], Awaitable[MissingAnswer]]
"""Called with a call that no result is recorded of."""


class ReplayInference(Inference):
    """Answers one exchange by the model that `inference` asks. `interrupt` cuts the turn short."""

    def __init__(
        self,
        inference: Inference,
        exchange: RecordedExchange,
        results: ExchangeResults,
        on_missing: OnMissing,
        interrupt: Callable[[], object],
    ) -> None:
        super().__init__()
        self._inference, self._exchange, self._results = inference, exchange, results
        self._on_missing, self._interrupt = on_missing, interrupt
        self.answers: list[ReplayedAnswer] = []
        self.missing: NamedCall | None = None
        """The call that ended the turn."""
        self.ending: StopReplay | SkipTurn | None = None

    def sendable(self, model: ModelSettings, parameters: Parameters) -> Parameters:
        return self._inference.sendable(model, parameters)

    async def infer(
        self,
        request: InferenceRequest,
        *,
        on_token: OnToken | None = None,
        budget: Budget | None = None,
        context: ExecutionContext | None = None,
        before: Before | None = None,
    ) -> Reply:
        """Where the recorded exchange ends with the results of its tools, so does the replayed one: no model is
        asked."""
        exchange = self._exchange
        if exchange.ends_open and len(self.answers) == len(exchange.answers):
            self._interrupt()
            await asyncio.Event().wait()  # cancelled when the turn is cut short
        reply = await self._inference.infer(request, on_token=on_token, budget=budget, context=context, before=before)
        calls = tuple(NamedCall(name=call.name, arguments=call.input) for call in reply.calls)
        self.answers.append(
            ReplayedAnswer(text=reply.text, calls=calls, model=reply.model, usage=reply.usage, cost=reply.cost)
        )
        for call in self._results.assign(reply.calls) if request.tools else ():
            if not await self._settle(call):
                self._interrupt()
                break
        return reply

    async def _settle(self, call: ToolUsePart) -> bool:
        """Whether the turn can go on with a call that is not recorded."""
        match await self._on_missing(self._exchange, call):
            case UseResult(result):
                self._results.give(call, result)
                return True
            case RunTool():
                return True
            case StopReplay() | SkipTurn() as ending:
                self.missing, self.ending = NamedCall(name=call.name, arguments=call.input), ending
                return False
