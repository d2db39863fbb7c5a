"""Tools that answer from a record: a call is given the result that was recorded of the same call, and nothing runs.

Calls are the same where the tool and the canonical arguments are. Of equal calls the first is given the first recorded
result, the second the second. Only results of the exchange that is replayed count: those of other turns may be out of
date.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from weft.kernel.contents import loads
from weft.kernel.enums import Decision, DecisionSource, ToolCallStatus
from weft.kernel.errors import WeftError
from weft.kernel.events import ModelRequest
from weft.ledger.api import KeptState, Ledger, Runs
from weft.ledger.model import ToolCall, ToolUsePart
from weft.runtime.broker.tools import CallAnswer, Gate, Tool, ToolCallContext, Verdict
from weft.runtime.inference.settings import ToolSpec
from weft.runtime.replay.recorded_exchanges import (
    CallKey,
    RecordedCall,
    RecordedExchange,
    RecordedThread,
    argument_fields,
    call_key,
)
from weft.runtime.tools.calls import CallPlan, ToolFailure, ToolOutput

RECORDED = "recorded"
"""What a decision about a call says that is answered from the record."""


class GivenResult(Struct, frozen=True):
    """A result that a person gave in place of a recorded one."""

    result: Any


class ExchangeResults:
    """The recorded results of one exchange, and which of them belong to calls that were asked for meanwhile."""

    def __init__(self, exchange: RecordedExchange) -> None:
        self._recorded: dict[CallKey, deque[RecordedCall]] = {}
        self._assigned: dict[CallKey, deque[RecordedCall | GivenResult]] = {}
        for call in (call for answer in exchange.answers for call in answer.calls):
            self._recorded.setdefault(call.key, deque()).append(call)

    def assign(self, calls: Iterable[ToolUsePart]) -> tuple[ToolUsePart, ...]:
        """Keep the recorded results of the calls of an answer for them; the calls that none is left for."""
        missing: list[ToolUsePart] = []
        for call in calls:
            key = call_key(call.name, call.input)
            if recorded := self._recorded.get(key):
                self._assigned.setdefault(key, deque()).append(recorded.popleft())
            else:
                missing.append(call)
        return tuple(missing)

    def give(self, call: ToolUsePart, result: Any) -> None:
        """Keep a result for a call that is not recorded."""
        self._assigned.setdefault(call_key(call.name, call.input), deque()).append(GivenResult(result))

    def has(self, tool: str, arguments: Any) -> bool:
        return bool(self._assigned.get(call_key(tool, arguments)))

    def take(self, tool: str, arguments: Any) -> ToolOutput:
        """The result that is kept for a call. Raises ToolFailure where it is recorded as failed."""
        waiting = self._assigned.get(call_key(tool, arguments))
        if not waiting:
            raise ToolFailure("not_recorded", "no result of this call is recorded, and it was not run")
        result = waiting.popleft()
        return ToolOutput(result=result.result) if isinstance(result, GivenResult) else _output(result.outcome)


def _output(call: ToolCall | None) -> ToolOutput:
    if call is None or call.outcome is None:
        raise ToolFailure("no_result", "the record has no result of this call")
    if call.outcome == ToolCallStatus.OK:
        return ToolOutput(result=call.result)
    message = call.error if call.error is not None else _as_text(call.result)
    raise ToolFailure(call.error_code or call.outcome, message or f"it is recorded as {call.outcome}")


def _as_text(result: Any) -> str:
    return "" if result is None else result if isinstance(result, str) else msgspec.json.encode(result).decode()


class RecordedTool:
    """A `PlannedTool` that answers from the record."""

    is_idempotent = True
    is_read_only = True
    is_repeatable = False

    def __init__(self, spec: ToolSpec, results: ExchangeResults) -> None:
        self._spec, self._results = spec, results

    @property
    def spec(self) -> ToolSpec:
        return self._spec

    async def plan(self, arguments: Any, context: ToolCallContext) -> CallPlan:
        exact = {"replayed": loads(call_key(self._spec.name, arguments)[1])}
        return CallPlan(tool=self._spec.name, exact=exact, is_read_only=True)

    async def perform(self, plan: CallPlan, context: ToolCallContext) -> ToolOutput:
        return self._results.take(plan.tool, plan.exact["replayed"])

    async def invoke(self, arguments: Any, context: ToolCallContext) -> ToolOutput:
        return await self.perform(await self.plan(arguments, context), context)


class RecordedFirstGate:
    """A `Gate` that has recorded calls answered from the record; about all others another gate decides, and runs
    them."""

    def __init__(self, gate: Gate, results: ExchangeResults, tools: Mapping[str, Tool]) -> None:
        self._gate, self._results, self._tools = gate, results, tools

    async def decide(self, tool: str, arguments: Any, context: ToolCallContext, answer: CallAnswer | None) -> Verdict:
        """See `Gate`."""
        if answer is None and tool in self._tools and self._results.has(tool, arguments):
            return Verdict(
                decision=Decision.ALLOW,
                by=DecisionSource.PERMISSION,
                bound=self._bound(tool, arguments),
                rationale="its recorded result is used; nothing runs",
            )
        return await self._gate.decide(tool, arguments, context, answer)

    async def exclusive_key(self, tool: str, arguments: Any) -> str | None:
        """See `Gate`."""
        return None if self._results.has(tool, arguments) else await self._gate.exclusive_key(tool, arguments)

    async def recorded(self, kept: Sequence[KeptState] | None) -> None:
        """See `Gate`."""
        await self._gate.recorded(kept)

    async def perform(self, tool: str, arguments: Any, context: ToolCallContext, bound: str, plan: Any = None) -> Any:
        """See `Gate`."""
        if bound == self._bound(tool, arguments):
            return self._results.take(tool, arguments)
        return await self._gate.perform(tool, arguments, context, bound, plan)

    def _bound(self, tool: str, arguments: Any) -> str:
        return CallPlan(tool=tool, exact={RECORDED: argument_fields(arguments)}).bound


def recorded_specs(ledger: Ledger, thread: RecordedThread) -> tuple[ToolSpec, ...]:
    """The tools of a thread as its requests defined them; of those that no request defines the schema takes whatever
    was recorded, and more."""
    specs: dict[str, ToolSpec] = {}
    for turn in thread.turns:
        if turn.tools_available is not None:
            specs |= {spec.name: spec for spec in _defined(ledger, turn.id)}
    arguments: dict[str, list[dict[str, Any]]] = {}
    for call in _calls(thread.exchanges):
        arguments.setdefault(call.name, []).append(argument_fields(call.arguments))
    derived = {name: permissive_spec(name, given) for name, given in arguments.items() if name not in specs}
    return tuple((specs | derived).values())


def permissive_spec(name: str, arguments: Sequence[dict[str, Any]]) -> ToolSpec:
    """A schema that takes these arguments: every name is known, none is required, any value will do."""
    names = dict.fromkeys(field for fields in arguments for field in fields)
    properties: dict[str, Any] = {field: {} for field in names}
    return ToolSpec(
        name=name,
        description=f"The tool {name}, as it was used before.",
        schema={"type": "object", "properties": properties, "additionalProperties": True},
    )


def _calls(exchanges: Iterable[RecordedExchange]) -> Iterable[RecordedCall]:
    return (call for exchange in exchanges for answer in exchange.answers for call in answer.calls)


def _defined(ledger: Ledger, turn: str) -> list[ToolSpec]:
    """What the requests of a turn recorded about their tools. A definition that was erased, or that has another form,
    is none."""
    runs, specs = Runs(ledger), list[ToolSpec]()
    for recorded in ledger.events(turn):
        if not isinstance(recorded.event, ModelRequest) or not isinstance(recorded.event.tools_spec, str):
            continue
        try:
            specs += msgspec.convert(runs.value(recorded.event.tools_spec), list[ToolSpec])
        except (msgspec.ValidationError, WeftError):
            continue
    return specs
