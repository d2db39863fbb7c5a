"""A context in its layers: system prompt, summary, turns, query; and where it may be divided.

A request is always these four in this order. Between two turns it may be divided unless a tool call on one side has its
result on the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from weft.ledger.api import Context
from weft.ledger.model import Message, ToolResultPart, ToolUsePart


class TurnMessages(Struct, frozen=True):
    """The messages of one turn, as a model is told them."""

    turn: str
    messages: tuple[Message, ...]


class ContextLayers(Struct, frozen=True, kw_only=True):
    """The messages of a request. `query` are those of the turn that is under way: what was asked, and its steps."""

    system: tuple[Message, ...] = ()
    summary: tuple[Message, ...] = ()
    turns: tuple[TurnMessages, ...] = ()
    query: tuple[Message, ...] = ()

    @property
    def messages(self) -> tuple[Message, ...]:
        turns = (message for turn in self.turns for message in turn.messages)
        return (*self.system, *self.summary, *turns, *self.query)


def layers_of(context: Context, open_turn: str | None = None) -> ContextLayers:
    """The layers of a context. `open_turn` is the turn under way, whose messages are the query."""
    messages = context.messages
    end = next((i for i, message in enumerate(messages) if message.role != "system"), len(messages))
    system, rest = messages[:end], messages[end:]
    is_summarised = bool(rest) and context.compaction is not None and rest[0].id == context.compaction
    summary, rest = (rest[:1], rest[1:]) if is_summarised else ((), rest)
    by_turn: dict[str, list[Message]] = {turn: [] for turn in context.turns}
    for message in rest:
        by_turn.setdefault(turn_of(message), []).append(message)
    query = tuple(by_turn.pop(open_turn, ())) if open_turn is not None else ()
    turns = tuple(TurnMessages(turn, tuple(turn_messages)) for turn, turn_messages in by_turn.items())
    return ContextLayers(system=system, summary=summary, turns=turns, query=query)


def turn_of(message: Message) -> str:
    """The turn that a message of a context belongs to; one that stands for tool calls names its first call."""
    place, _, of_calls = message.id.partition("#")
    return place.partition(":")[0] if of_calls else message.turn_id


def divisions(turns: Sequence[TurnMessages]) -> list[int]:
    """The places where the turns may be divided: i stands before turn i, the last one behind them all.

    A place between a call and its result is none of them. A call without a result may still get one, so the turns
    behind which it waits are not divided from what follows.
    """
    crossed = [False] * (len(turns) + 1)
    waiting: dict[str, list[int]] = {}
    for i, turn in enumerate(turns):
        for part in _call_parts(turn.messages):
            if isinstance(part, ToolUsePart):
                waiting.setdefault(part.id, []).append(i)
            elif waiting.get(part.tool_call_id):
                _cross(crossed, waiting[part.tool_call_id].pop(), i)
    if turns:
        last = len(turns) - 1
        for places in waiting.values():
            if last in places:  # only the last turn can still be answered: what came later went on without
                _cross(crossed, last, len(turns))
    return [i for i, is_crossed in enumerate(crossed) if not is_crossed]


def _call_parts(messages: Iterable[Message]) -> Iterable[ToolUsePart | ToolResultPart]:
    return (part for message in messages for part in message.content if isinstance(part, ToolUsePart | ToolResultPart))


def _cross(crossed: list[bool], call: int, result: int) -> None:
    for place in range(call + 1, result + 1):
        crossed[place] = True
