"""What a thread says, turn by turn, as a writer needs it; and what of it a format has no place for."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any, Protocol

import orjson
from msgspec import UNSET, Struct, field

from weft.ledger.api import Ledger
from weft.ledger.model import Compaction, ImagePart, Message, ReasoningPart, ToolCall, Turn

Records = list[dict[str, Any]]


class ThreadTurn(Struct, kw_only=True):
    """One turn of the thread that is written."""

    turn: Turn
    messages: list[Message] = field(default_factory=list)
    """With every tool call as an assistant's use and a tool's result."""
    calls: list[ToolCall] = field(default_factory=list)
    compaction: Compaction | None = None
    verbatim: Records | None = None
    """Its own records, where the tool itself wrote them and they were kept, and nothing was substituted since."""


class Writer(Protocol):
    """Puts turns into one tool's records, one after another."""

    lost: Counter[str]
    verbatim: int
    """How many turns are written as the tool itself wrote them."""

    def begin(self, title: str | None) -> Records:
        """What stands before the first turn."""

    def write(self, thread_turn: ThreadTurn) -> Records:
        """One turn. What it cannot carry is counted in `lost`."""


def load_thread_turn(ledger: Ledger, turn: Turn, cut: str | None, verbatim: Records | None) -> ThreadTurn:
    """A turn with all that was said in it, up to the event that a fork left it at."""
    name = cut or turn.id
    compaction = ledger.compactions.get(turn.id) if turn.turn_type == "compaction" else None
    return ThreadTurn(
        turn=turn,
        messages=ledger.thread(name).transcript,
        calls=ledger.tool_calls(name),
        compaction=compaction,
        verbatim=verbatim if cut is None and turn.substitutions is UNSET else None,
    )


def losses(thread_turn: ThreadTurn) -> Iterator[str]:
    """What no record of another tool's own making says: by the short names of the formats."""
    turn = thread_turn.turn
    if turn.error is not None:
        yield "errors"
    if any(count is not UNSET and count for count in (turn.usage.total_tokens, turn.usage.output_tokens)):
        yield "usage"
    for message in thread_turn.messages:
        if message.context:
            yield "injected"
        if message.role == "system":
            yield "system"
        for part in message.content:
            if isinstance(part, ReasoningPart):
                yield "thinking"
            elif isinstance(part, ImagePart) and message.role == "assistant":
                yield "made images"
    for call in thread_turn.calls:
        if call.metadata:
            yield "call details"
        if call.spawned_session is not None:
            yield "subagents"


def note_on(thread_turn: ThreadTurn) -> str:
    """What stands in a turn's place that says nothing a format can carry: without a record of its own, a turn could
    not be gone on from."""
    if thread_turn.compaction is not None:
        return "[The conversation was compacted here; no summary of it was kept]"
    failed = thread_turn.turn.error
    return "[Nothing that was said in this turn is here]" if failed is None else f"[This turn failed: {failed}]"


def as_text(value: Any) -> str:
    """A result as text, where a format takes nothing else."""
    if isinstance(value, str):
        return value
    return "" if value is None else encoded(value).decode()


def encoded(value: Any) -> bytes:
    """JSON, also of what strict encoders refuse: lone surrogates and large numbers."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value).encode()
