"""A recorded thread as exchanges: what people asked, and the answers that models gave to it, with their tool calls.

An exchange begins where a user speaks, in the middle of a turn too. Messages of the assistant that follow each other
without a tool call between them are one answer. Messages that nobody answered are asked together with the next ones.
Answers that nobody asked for, and compactions, are in no exchange.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from typing import Any

from msgspec import UNSET, Struct, field

from weft.kernel.contents import dumps
from weft.kernel.enums import TurnType
from weft.kernel.events import Usage
from weft.ledger.api import FullTurn, Price
from weft.ledger.model import FileNote, Message, Part, TextPart, ToolCall, ToolUsePart, Turn
from weft.runtime.inference.budgets import cost_of, prompt_tokens

FREEFORM_FIELD = "input"
"""Under this name the text stands that some tools are given in place of an object."""
PriceOf = Callable[[str, int, int], Price | None]
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

    def _open(self) -> RecordedExchange | None:
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
        exchange = self._open()
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
        exchange = self._open()
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
