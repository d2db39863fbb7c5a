"""Small words for tests of contexts: turns with tool calls, and the calls and results that a context holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import weft
from weft.ledger.api import Context
from weft.ledger.model import Message, NewToolCall, Part, TextPart, ToolResultPart, ToolUsePart
from weft.runtime.assembly.context_fitting import ContextLayers, TurnMessages


def record(ledger: weft.Ledger, session: str, query: str, *results: str, answer: str | None = None) -> str:
    """A turn that calls a tool for each of the results."""
    calls = [
        NewToolCall(name="look", id=f"{query}-{i}", arguments={"n": i}, result=text) for i, text in enumerate(results)
    ]
    turn = ledger.record_turn(session=session, query=query, response=answer or f"re: {query}", tool_calls=calls)
    return turn.id


def message(id: str, role: str, *parts: Part | str) -> Message:
    return Message(id, role, tuple(TextPart(part) if isinstance(part, str) else part for part in parts), 0, 0)


def turn(name: str, *results: str, query: str | None = None) -> TurnMessages:
    """A turn that asks, calls a tool for each result in a step of its own, and answers."""
    messages = [message(f"{name}-q", "user", query or f"ask {name}")]
    for i, text in enumerate(results):
        messages.append(message(f"{name}-c{i}", "assistant", ToolUsePart(f"{name}{i}", "look", {})))
        messages.append(message(f"{name}-r{i}", "tool", ToolResultPart(f"{name}{i}", text)))
    return TurnMessages(name, (*messages, message(f"{name}-a", "assistant", f"answer {name}")))


def layers(*turns: TurnMessages, query: Sequence[Message] = ()) -> ContextLayers:
    return ContextLayers(
        system=(message("s", "system", "rules"),),
        turns=turns,
        query=tuple(query) or (message("q", "user", "the question"),),
    )


def unpaired(messages: Iterable[Message]) -> list[str]:
    """Calls without a result that follows, and results without a call before; by their ids."""
    waiting: list[str] = []
    unmatched: list[str] = []
    for told in messages:
        for part in told.content:
            if isinstance(part, ToolUsePart):
                waiting.append(part.id)
            elif isinstance(part, ToolResultPart):
                if part.tool_call_id in waiting:
                    waiting.remove(part.tool_call_id)
                else:
                    unmatched.append(part.tool_call_id)
    return [*waiting, *unmatched]


def is_extended(earlier: Sequence[Message], later: Sequence[Message]) -> bool:
    return list(later[: len(earlier)]) == list(earlier)


def shown(context: Context) -> list[str]:
    """What people asked and summaries tell."""
    return [told.text for told in context.messages if told.role == "user"]
