"""What a subscriber of a session is told, item by item, each with the position behind it.

Every event of the session and of its turns is exactly one item. The text of an answer comes in pieces before the item
of the event that records the answer; a piece is a stretch of one text, so that its end is a position by itself.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from weft.kernel.errors import InvalidInput
from weft.kernel.weft_error import quoted


class StreamPosition(Struct, frozen=True, order=True):
    """How far a subscriber is, in JSON a text: `12`, `12.1.40` or `12.1.40.7`. `n` is the arrival number of the last
    event it was told. `delta` and `thinking` count the characters that it was told of the answer being written, and
    `attempt` says which answer: the how-manieth request of its turn."""

    n: int
    attempt: int = 0
    delta: int = 0
    thinking: int = 0

    def __str__(self) -> str:
        if not (self.delta or self.thinking):
            return str(self.n)
        return f"{self.n}.{self.attempt}.{self.delta}" + (f".{self.thinking}" if self.thinking else "")


def parse_position(text: str) -> StreamPosition:
    """The position that `str` writes."""
    numbers = text.split(".")
    if len(numbers) not in (1, 3, 4) or not all(one.isascii() and one.isdigit() and len(one) < 19 for one in numbers):
        raise InvalidInput(
            f"{quoted(text)} is no position in a stream", "give one that an item had, such as 12 or 12.1.40; 0 begins"
        )
    return StreamPosition(*map(int, numbers))


class StreamItem(Struct, frozen=True, kw_only=True, tag_field="item"):
    """One thing that happened in a session. Whoever goes on behind `position` is told everything that follows it."""

    position: StreamPosition


class MessageQueued(StreamItem, frozen=True, kw_only=True, tag="message_admitted"):
    """A message entered the session's inbox."""

    message: str
    sender: str
    text: str


class MessageSettled(StreamItem, frozen=True, kw_only=True, tag="message_settled"):
    """A message left the inbox without an answer: `cancelled`, or `dead`, with the reason or the error."""

    message: str
    state: str
    reason: str | None = None


class TurnStarted(StreamItem, frozen=True, kw_only=True, tag="turn_started"):
    """A turn began."""

    turn: str
    actor: str


class MessageAdded(StreamItem, frozen=True, kw_only=True, tag="message_added"):
    """A message entered a turn; `admitted` where it waited in the inbox."""

    turn: str
    message: str
    role: str
    text: str
    admitted: bool = False


class AnswerStarted(StreamItem, frozen=True, kw_only=True, tag="answer_started"):
    """A model was asked: the text that follows is its answer. `number` counts the requests of the turn."""

    turn: str
    number: int
    model: str


class TextAdded(StreamItem, frozen=True, kw_only=True, tag="text_added"):
    """The answer goes on with this: `kind` is text or thinking."""

    turn: str
    text: str
    kind: str = "text"


class AttemptReset(StreamItem, frozen=True, kw_only=True, tag="attempt_reset"):
    """The text of the answer so far is void. With a `model` the same question is being asked again: the text that
    follows is the new answer's."""

    turn: str
    number: int
    reason: str
    model: str | None = None


class AnswerEnded(StreamItem, frozen=True, kw_only=True, tag="answer_ended"):
    """The answer is whole and recorded as this message."""

    turn: str
    message: str | None
    finish: str | None = None


class ToolStarted(StreamItem, frozen=True, kw_only=True, tag="tool_called"):
    """A tool is to be run; `call` names the event of the call."""

    turn: str
    call: str
    tool: str
    arguments: Any


class ToolFinished(StreamItem, frozen=True, kw_only=True, tag="tool_ended"):
    """A tool call ended."""

    turn: str
    call: str
    tool: str
    status: str
    result: Any = None
    error: str | None = None


class TurnParked(StreamItem, frozen=True, kw_only=True, tag="turn_parked"):
    """A turn waits for the outcome of calls, or until a time."""

    turn: str
    calls: tuple[str, ...]
    until: str | None = None
    why: str | None = None


class TurnInterrupted(StreamItem, frozen=True, kw_only=True, tag="turn_interrupted"):
    """Something of a turn was cut short; `calls` names the events of open tool calls."""

    turn: str
    reason: str
    calls: tuple[str, ...] = ()


class TurnEnded(StreamItem, frozen=True, kw_only=True, tag="turn_ended"):
    """A turn is over: `success`, or how else it ended, with its error. `messages` are those of the inbox that it took:
    they are answered, or dead."""

    turn: str
    exit: str
    messages: tuple[str, ...] = ()
    error: str | None = None


class OtherEvent(StreamItem, frozen=True, kw_only=True, tag="event"):
    """An event of another kind, of the session or of one of its turns."""

    id: str
    kind: str
    turn: str | None = None


ITEMS: tuple[type[StreamItem], ...] = (
    MessageQueued, MessageSettled, TurnStarted, MessageAdded, AnswerStarted, TextAdded, AttemptReset, AnswerEnded,
    ToolStarted, ToolFinished, TurnParked, TurnInterrupted, TurnEnded, OtherEvent,
)  # fmt: skip
