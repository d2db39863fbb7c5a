"""A recorded thread as exchanges, tools that answer from it, and where new answers differ."""

from __future__ import annotations

import unicodedata
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import takewhile, zip_longest
from typing import Any

import msgspec
from msgspec import UNSET, Struct, field

from weft.kernel.contents import dumps, loads
from weft.kernel.enums import Decision, DecisionSource, ToolCallStatus, TurnType
from weft.kernel.errors import WeftError
from weft.kernel.events import ModelRequest, Usage
from weft.ledger.api import FullTurn, KeptState, Ledger, Runs, TokenPrice
from weft.ledger.model import FileNote, Message, Part, TextPart, ToolCall, ToolUsePart, Turn
from weft.runtime.inference.model_requests import ToolSpec, cost_of, prompt_tokens
from weft.runtime.tool.tool_contract import (
    CallAnswer,
    CallPlan,
    Gate,
    Tool,
    ToolCallContext,
    ToolFailure,
    ToolOutput,
    Verdict,
)

# --- A recorded thread as exchanges: what people asked, and the answers that models gave to it, with their tool calls.

FREEFORM_FIELD = "input"
"""Under this name the text stands that some tools are given in place of an object."""
PriceOf = Callable[[str, int, int], TokenPrice | None]
"""The price of a model at a time, in Unix milliseconds, for a request of so many tokens."""
CallKey = tuple[str, bytes]


def argument_fields(arguments: Any) -> dict[str, Any]:
    """The arguments of a call as an object, which is all that a provider's tools are called with."""
    if arguments is None:
        return {}
    return arguments if isinstance(arguments, dict) else {FREEFORM_FIELD: arguments}


def call_key(name: str, arguments: Any) -> CallKey:
    """Equal for calls of the same tool whose arguments have the same canonical JSON."""
    return name, dumps(argument_fields(arguments))


class RecordedCall(Struct, kw_only=True):
    """A tool call of a recorded answer; `outcome` is None where only the answer names it."""

    name: str
    arguments: Any
    call_id: str
    outcome: ToolCall | None = None

    @property
    def key(self) -> CallKey:
        return call_key(self.name, self.arguments)


class RecordedAnswer(Struct, kw_only=True):
    """What a model answered once: its text and the calls that it asked for."""

    turn: str
    texts: list[str] = field(default_factory=list)
    calls: list[RecordedCall] = field(default_factory=list)
    model: str | None = None
    usages: list[Usage] = field(default_factory=list)
    costs: list[int | None] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "\n".join(text for text in self.texts if text)

    @property
    def cost(self) -> int | None:
        """Micro-dollars; None where its usage or a price is not known."""
        costs = [cost for cost in self.costs if cost is not None]
        return sum(costs) if costs and len(costs) == len(self.costs) else None

    @property
    def is_empty(self) -> bool:
        return not self.calls and not self.text.strip()


class RecordedExchange(Struct, kw_only=True):
    """What was asked, and the answers to it in their order."""

    turn: str
    """The turn that it begins in."""
    query: tuple[Part, ...]
    query_turns: tuple[str, ...]
    """The turns that the query comes from: more than one where questions that nobody answered are asked together."""
    files: tuple[FileNote, ...] = ()
    system: str | None = None
    """The system prompt that came before it, where one was recorded since the exchange before."""
    answers: list[RecordedAnswer] = field(default_factory=list)

    @property
    def ends_open(self) -> bool:
        """Whether it ends with tool calls, and no answer to their results."""
        return bool(self.answers) and bool(self.answers[-1].calls)


class RecordedThread(Struct, frozen=True, kw_only=True):
    """The exchanges of some turns of a thread, and what of them is in no exchange."""

    turns: tuple[Turn, ...]
    exchanges: tuple[RecordedExchange, ...]
    unasked: int
    """So many answers nobody asked for."""


class ExchangeReader:
    """Reads turns one after the other."""

    def __init__(self, price_of: PriceOf) -> None:
        self._price_of = price_of
        self._turns: list[Turn] = []
        self._exchanges: list[RecordedExchange] = []
        self._query: list[Part] = []
        self._files: list[FileNote] = []
        self._system: str | None = None
        self._query_turns: list[str] = []
        self._current: RecordedExchange | None = None
        self._unasked = 0

    def read(self, turns: Iterable[FullTurn]) -> RecordedThread:
        for turn in turns:
            self._turns.append(turn.turn)
            if turn.turn.turn_type != TurnType.COMPACTION:
                self._add_turn(turn)
        for exchange in self._exchanges:
            while exchange.answers and exchange.answers[-1].is_empty:
                exchange.answers.pop()
        return RecordedThread(
            turns=tuple(self._turns), exchanges=tuple(_with_answers(self._exchanges)), unasked=self._unasked
        )

    def _add_turn(self, turn: FullTurn) -> None:
        if self._current is not None and not self._current.ends_open:
            self._current = None
        self._system = _leading_prompt(turn.items) or self._system
        for item in turn.items:
            if isinstance(item, ToolCall):
                self._add_call(item)
            elif item.role == "user":
                self._add_query(turn, item)
            elif item.role == "assistant":
                self._add_answer(turn, item)

    def _add_query(self, turn: FullTurn, message: Message) -> None:
        self._query += message.content
        if turn.turn.id not in self._query_turns:
            self._query_turns.append(turn.turn.id)
        self._files += turn.files.get(message.id, ())
        self._current = None

    def _open_exchange(self) -> RecordedExchange | None:
        """The exchange that an answer belongs to; None where nobody asked."""
        if self._query:
            self._current = RecordedExchange(
                turn=self._query_turns[0],
                query=tuple(self._query),
                query_turns=tuple(self._query_turns),
                files=tuple(self._files),
                system=self._system,
            )
            self._exchanges.append(self._current)
            self._query, self._query_turns, self._files, self._system = [], [], [], None
        return self._current

    def _add_answer(self, turn: FullTurn, message: Message) -> None:
        exchange = self._open_exchange()
        if exchange is None:
            self._unasked += 1
            return
        if not exchange.answers or exchange.answers[-1].calls:
            exchange.answers.append(RecordedAnswer(turn=turn.turn.id, model=message.model or turn.turn.model))
        answer = exchange.answers[-1]
        answer.texts.append("".join(str(part.text) for part in message.content if isinstance(part, TextPart)))
        answer.calls += [
            RecordedCall(name=part.name, arguments=part.input, call_id=part.id)
            for part in message.content
            if isinstance(part, ToolUsePart)
        ]
        self._add_cost(turn, message, answer)

    def _add_cost(self, turn: FullTurn, message: Message, answer: RecordedAnswer) -> None:
        reply = turn.replies.get(message.id)
        usage = None if reply is None else reply.usage
        if usage is None:
            return
        answer.usages.append(usage)
        model = message.model or turn.turn.model
        price = None if model is None else self._price_of(model, message.created_at, prompt_tokens(usage))
        answer.costs.append(cost_of(usage, price))

    def _add_call(self, call: ToolCall) -> None:
        exchange = self._open_exchange()
        if exchange is None:
            self._unasked += 1
            return
        if not exchange.answers:
            exchange.answers.append(RecordedAnswer(turn=call.turn_id))
        calls = exchange.answers[-1].calls
        named = next((one for one in calls if one.call_id == call.call_id and one.outcome is None), None)
        if named is None:
            calls.append(RecordedCall(name=call.name, arguments=call.arguments, call_id=call.call_id, outcome=call))
        else:
            named.outcome = call


def _leading_prompt(items: Sequence[Message | ToolCall]) -> str | None:
    """The system messages that a turn begins with."""
    leading = takewhile(lambda item: isinstance(item, Message) and item.role == "system", items)
    return "\n\n".join(item.text for item in leading if isinstance(item, Message)) or None


def _with_answers(exchanges: Sequence[RecordedExchange]) -> list[RecordedExchange]:
    """Exchanges that have an answer; what was asked in the others goes before what is asked next."""
    answered: list[RecordedExchange] = []
    query: tuple[Part, ...] = ()
    query_turns: tuple[str, ...] = ()
    files: tuple[FileNote, ...] = ()
    system: str | None = None
    for exchange in exchanges:
        query, files = (*query, *exchange.query), (*files, *exchange.files)
        query_turns = (*query_turns, *exchange.query_turns)
        system = exchange.system or system
        if exchange.answers:
            exchange.query, exchange.files, exchange.system = query, files, system
            exchange.query_turns = query_turns
            answered.append(exchange)
            query, query_turns, files, system = (), (), (), None
    return answered


def total_tokens(usages: Iterable[Usage], name: str) -> int | None:
    """The sum of one kind of token; None where no usage tells it."""
    counts = [count for usage in usages if (count := getattr(usage, name)) is not UNSET]
    return sum(counts) if counts else None


# --- Tools that answer from a record: a call is given the result that was recorded of the same call, and nothing runs.

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
        return ToolOutput(result=result.result) if isinstance(result, GivenResult) else _recorded_output(result.outcome)


def _recorded_output(call: ToolCall | None) -> ToolOutput:
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
                plan_digest=self._digest_of_call(tool, arguments),
                rationale="its recorded result is used; nothing runs",
            )
        return await self._gate.decide(tool, arguments, context, answer)

    async def exclusive_key(self, tool: str, arguments: Any) -> str | None:
        """See `Gate`."""
        return None if self._results.has(tool, arguments) else await self._gate.exclusive_key(tool, arguments)

    async def recorded(self, kept: Sequence[KeptState] | None) -> None:
        """See `Gate`."""
        await self._gate.recorded(kept)

    async def perform(
        self, tool: str, arguments: Any, context: ToolCallContext, plan_digest: str, plan: Any = None
    ) -> Any:
        """See `Gate`."""
        if plan_digest == self._digest_of_call(tool, arguments):
            return self._results.take(tool, arguments)
        return await self._gate.perform(tool, arguments, context, plan_digest, plan)

    def _digest_of_call(self, tool: str, arguments: Any) -> str:
        return CallPlan(tool=tool, exact={RECORDED: argument_fields(arguments)}).plan_digest


def recorded_specs(ledger: Ledger, thread: RecordedThread) -> tuple[ToolSpec, ...]:
    """The tools of a thread as its requests defined them; of those that no request defines the schema takes whatever
    was recorded, and more."""
    specs: dict[str, ToolSpec] = {}
    for turn in thread.turns:
        if turn.tools_available is not None:
            specs |= {spec.name: spec for spec in _defined_tools(ledger, turn.id)}
    arguments: dict[str, list[dict[str, Any]]] = {}
    for call in _recorded_calls(thread.exchanges):
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


def _recorded_calls(exchanges: Iterable[RecordedExchange]) -> Iterable[RecordedCall]:
    return (call for exchange in exchanges for answer in exchange.answers for call in answer.calls)


def _defined_tools(ledger: Ledger, turn: str) -> list[ToolSpec]:
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


# --- Where answers differ from the recorded ones: a pure comparison of values.


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
        self.input_tokens = _sum_or_none(self.input_tokens, other.input_tokens)
        self.output_tokens = _sum_or_none(self.output_tokens, other.output_tokens)
        self.cost = _sum_or_none(self.cost, other.cost)
        self.unpriced += other.unpriced


def _sum_or_none(left: int | None, right: int | None) -> int | None:
    return right if left is None else left if right is None else left + right


def spent(answer: RecordedAnswer | ReplayedAnswer) -> ReplaySpending:
    usages = answer.usages if isinstance(answer, RecordedAnswer) else [answer.usage] if answer.usage else []
    tokens: int | None = None
    for name in ("input_tokens", "cached_input_tokens", "cache_write_tokens"):
        tokens = _sum_or_none(tokens, total_tokens(usages, name))
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
    kinds = [(number, pair, _divergence_kind(*pair, texts)) for number, pair in enumerate(pairs, 1)]
    return [_new_divergence(exchange, number, *pair, kind) for number, pair, kind in kinds if kind is not None]


def _divergence_kind(
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


def _new_divergence(
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
