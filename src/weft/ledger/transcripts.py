"""A turn as a model is told it: its messages, with each tool call as an assistant's use and a tool's result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import UNSET

from weft.ledger.model import Message, Part, ToolCall, ToolResultPart, ToolUsePart
from weft.ledger.reading import Leaf, read_leaves
from weft.ledger.rows import TurnRow
from weft.store.port import ReadTxn


def transcript_of(txn: ReadTxn, turn: TurnRow, events: int | None) -> list[Message]:
    """One turn as a model is told it: its messages, with each tool call as an assistant's use and a tool's result."""
    leaves = read_leaves(txn, [turn], events, None)
    return [message for leaf in leaves for message in transcript(leaf)]


def transcript(leaf: Leaf) -> Iterator[Message]:
    """A turn's messages with its tool calls in place, as an assistant's use and a tool's result."""
    messages, calls = leaf.messages, leaf.calls
    used, answered = _mentioned(placed.message for placed in messages)
    waiting: list[ToolCall] = []
    items: list[tuple[int, Message | ToolCall]] = [(placed.position, placed.message) for placed in messages]
    items += [(row.position, call) for row, call in calls]
    for _, item in sorted(items, key=lambda pair: pair[0]):
        if isinstance(item, ToolCall):
            waiting.append(item)
            continue
        yield from call_messages(waiting, used, answered)
        waiting = []
        yield item
    yield from call_messages(waiting, used, answered)


def _mentioned(messages: Iterable[Message]) -> tuple[set[str], set[str]]:
    parts = [part for message in messages for part in message.content]
    used = {part.id for part in parts if isinstance(part, ToolUsePart)}
    return used, {part.tool_call_id for part in parts if isinstance(part, ToolResultPart)}


def call_messages(calls: list[ToolCall], used: set[str], answered: set[str]) -> Iterator[Message]:
    """What stands for calls that the recorded messages do not spell out themselves; results in call order."""
    uses: tuple[Part, ...] = tuple(
        ToolUsePart(call.call_id, call.name, call.arguments) for call in calls if call.call_id not in used
    )
    results: tuple[Part, ...] = tuple(_result_part(call) for call in calls if call.call_id not in answered)
    if uses:
        yield Message(f"{calls[0].id}#use", "assistant", uses, -1, calls[0].started_at)
    if results:
        yield Message(f"{calls[0].id}#result", "tool", results, -1, calls[-1].completed_at or calls[-1].started_at)


def _result_part(call: ToolCall) -> ToolResultPart:
    if call.outcome in (None, "interrupted"):
        return ToolResultPart(call.call_id, "interrupted", True)
    if call.outcome == "ok":
        return ToolResultPart(call.call_id, call.result, UNSET)
    return ToolResultPart(call.call_id, call.error if call.result is None else call.result, True)
