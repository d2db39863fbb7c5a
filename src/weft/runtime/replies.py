"""What comes back from a model, as plain values, and the replies that other processes write.

A message that a broker of another process answers is followed in the ledger until it is settled;
its reply is read back from there. Whoever sends a message beside a running broker loads no more of
the runtime than this.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any

from msgspec import UNSET, Struct

from weft.kernel import errors
from weft.kernel.clock import SystemClock
from weft.kernel.enums import InboxState
from weft.kernel.errors import NotApplicable, WeftError
from weft.kernel.events import ModelResponse, Usage
from weft.ledger.api import (
    AttemptReset,
    InboxMessage,
    Ledger,
    MessageAdded,
    Runs,
    SessionStream,
    StreamItem,
    TextAdded,
    store_of,
)
from weft.ledger.model import Message, Part, ReasoningPart, RecordedTurn, TextPart, ToolUsePart, Turn

# --- What comes back from a model, as plain values.


class TokenKind(StrEnum):
    """Whether a piece of a reply is text or thinking."""

    TEXT = "text"
    THINKING = "thinking"


class ReplyToken(Struct, frozen=True, gc=False):
    """A piece of a reply as it comes. With a new `attempt` the reply begins anew, and what came before is void."""

    text: str
    kind: TokenKind = TokenKind.TEXT
    attempt: int = 1


OnToken = Callable[[ReplyToken], None]
"""Told each piece of an answer, as it comes."""


class FinishReason(StrEnum):
    """Why a model stopped: done, cut by length, a tool call, a filter, or its provider paused it."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALL = "tool_call"
    CONTENT_FILTER = "content_filter"
    PAUSE = "pause"


class Attempt(Struct, frozen=True, kw_only=True):
    """One try: which model, how it ended (well, where `error` is empty), how long it took and was waited for."""

    model: str
    provider: str
    error: str = ""
    latency_ms: int = 0
    waited_ms: int = 0
    request_id: str | None = None


class Reply(Struct, frozen=True, kw_only=True):
    """A model's whole answer. `usage` is None where the provider reported none that adds up, as `usage_fault` says."""

    parts: tuple[Part, ...]
    finish: FinishReason
    model_id: str
    model: str
    provider: str
    """The program that was asked."""
    vendor: str | None = None
    """Whose model it is, where that is known."""
    usage: Usage | None = None
    usage_fault: str = ""
    request_id: str | None = None
    latency_ms: int = 0
    first_token_ms: int | None = None
    situation: str | None = None
    cost: int | None = None
    """Micro-dollars; None where the model has no price or the usage is not known."""
    attempts: tuple[Attempt, ...] = ()
    metadata: dict[str, Any] = {}
    """What is recorded with the message beside these."""

    @property
    def text(self) -> str:
        return "".join(str(part.text) for part in self.parts if isinstance(part, TextPart))

    @property
    def thinking(self) -> str:
        return "".join(str(part.text) for part in self.parts if isinstance(part, ReasoningPart))

    @property
    def calls(self) -> tuple[ToolUsePart, ...]:
        return tuple(part for part in self.parts if isinstance(part, ToolUsePart))


# --- The reply to a message that another process answered, read back from the ledger.


class TurnReply(Struct, frozen=True, kw_only=True):
    """A turn, and the reply that it ended with."""

    turn: RecordedTurn
    reply: Reply


_AGAIN = "send the dead message again, or retry its turn"


def ensure_answered(message: InboxMessage) -> str:
    """The turn that answered a message. Raises NotApplicable where it is cancelled or dead."""
    if message.state == InboxState.CANCELLED:
        raise NotApplicable(f"message {message.id} was cancelled", "send it again")
    if message.state != InboxState.ANSWERED or message.turn is None:
        raise NotApplicable(f"message {message.id} is {message.state}: {message.error or 'no error was told'}", _AGAIN)
    return message.turn


def load_reply(ledger: Ledger, message: InboxMessage) -> TurnReply:
    """The turn that answered a message and what it ended with. Raises what the turn failed with, and NotApplicable
    where there is no answer."""
    if message.state == InboxState.DEAD and message.turn is not None:
        raise _recorded_error(ledger.turn(message.turn), message)
    runs, turn = Runs(ledger), ledger.turn(ensure_answered(message))
    recorded = runs.recorded(turn.id)
    answer = next((one for one in ledger.messages(turn.id) if one.id == turn.response_message_id), None)
    if turn.interruption_reason is not None or answer is None:
        raise NotApplicable("the turn was interrupted", "what had come of the answer is recorded")
    return TurnReply(turn=recorded, reply=_reply_of(turn, answer, _last_response(runs, turn.id)))


_KINDS = {kind.code: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, WeftError)}
"""The classes of errors by their codes."""


def _recorded_error(turn: Turn, message: InboxMessage) -> WeftError:
    """An error of the class that the turn names, as whoever ran it raised it; what else that one knew is not recorded.
    A class that needs more than words gives way to the one above it."""
    named = _KINDS.get(turn.error_code or "")
    if turn.error is None or named is None:
        return NotApplicable(f"message {message.id} is {message.state}: {message.error or 'no error was told'}", _AGAIN)
    kind = next(kind for kind in named.__mro__ if kind.__init__ is WeftError.__init__)  # type: ignore[misc]
    error: WeftError = kind(turn.error)
    return error


def _reply_of(turn: Turn, answer: Message, response: ModelResponse | None) -> Reply:
    facts: dict[str, Any] = answer.metadata if isinstance(answer.metadata, dict) else {}
    latency = facts.get("latency_ms")
    return Reply(
        parts=answer.content,
        finish=_finish_of(response),
        model_id=str(facts.get("model_id") or turn.model or ""),
        model=answer.model or turn.model or "",
        provider=str(facts.get("provider") or turn.provider_program or turn.provider or ""),
        vendor=turn.provider,
        usage=None if response is None or response.usage is UNSET else response.usage,
        usage_fault=str(facts.get("usage_fault") or ""),
        request_id=facts.get("request_id"),
        latency_ms=latency if isinstance(latency, int) else 0,
        situation=facts.get("situation"),
    )


def _last_response(runs: Runs, turn: str) -> ModelResponse | None:
    """What is recorded of the model's last answer."""
    responses = [one.event for one in runs.events(turn) if isinstance(one.event, ModelResponse)]
    return responses[-1] if responses else None


def _finish_of(response: ModelResponse | None) -> FinishReason:
    """Why the model ended its last answer."""
    reason = "" if response is None else str(response.finish_reason)
    return FinishReason(reason) if reason in set(FinishReason) else FinishReason.STOP


# --- A message that a broker of another process answers: its sender follows the ledger until it is settled.

TAKING_SECONDS = 2.0
"""So long a sender waits for a broker to begin with its message."""
LOOK_SECONDS = 0.5
"""How often a sender looks whether there is a broker still, and what it kept of the answer that it hears."""


def await_served(ledger: Ledger, message: str, session: str, answer: FollowedAnswer | None = None) -> TurnReply | None:
    """The answer to a message that was admitted to a session, both by their ids; None where its sender must see to it.
    `answer` tells it as it comes. Whoever is interrupted meanwhile calls `leave_message`."""
    runs, clock = Runs(ledger), SystemClock()
    until = clock.monotonic() + TAKING_SECONDS
    next_check = clock.monotonic()
    while True:
        newest = ledger.newest()  # before anything is read: what comes after it is waited for
        state, is_elsewhere = runs.message_state(message)
        if answer is not None:
            answer.deliver_news()
        if state not in (InboxState.QUEUED, InboxState.TAKEN):
            return load_reply(ledger, ledger.inbox.get(message))
        if state == InboxState.QUEUED and (is_elsewhere or clock.monotonic() >= until):
            return None
        if not runs.has_broker() or runs.open_requests(session):
            return None
        if state == InboxState.TAKEN and clock.monotonic() >= next_check:  # not at each of others' events
            next_check = clock.monotonic() + LOOK_SECONDS
            if _is_left(runs, session):
                return None
        runs.wait_for_news(newest, LOOK_SECONDS)


def _is_left(runs: Runs, session: str) -> bool:
    """Whether nobody who is alive works on the open turn of the session, though it could go on: the broker that began
    it stands still, or is gone while others are there. That its lease is silent is seen by looking again and again."""
    turn = runs.standing(session, 1).open_turn
    return turn is not None and runs.is_left(turn)


def leave_message(ledger: Ledger, message: str) -> str:
    """Its sender waits no more: the message is taken back, or the turn that has it is cut short. Nothing happens where
    it is settled, whatever runs in its session by now. Says which of them it was."""
    try:
        ledger.inbox.cancel(message, reason="its sender left")
    except NotApplicable:  # a turn has it, or it is over
        if Runs(ledger).interrupt_answer(message):
            return "the turn that answers the message is cut short"
        turn = ledger.inbox.get(message).turn
        is_cut = turn is not None and ledger.turn(turn).interruption_reason is not None
        return "the turn that answered the message was cut short" if is_cut else "the message was answered already"
    return "the message was taken back: no model was asked"


class FollowedAnswer:
    """The answer to one message, told piece by piece as its broker keeps it for readers elsewhere, or as somebody who
    goes on with it hears it. A piece counts to a new attempt where the one before it was taken back."""

    def __init__(self, ledger: Ledger, message: str, session: str, on_token: OnToken) -> None:
        self._ledger, self.session = ledger, session
        self._stream = SessionStream(store_of(ledger), session, None)
        self.position = self._stream.cursor.position
        """How far it was told."""
        self._message, self._on_token = message, on_token
        self._turn: str | None = None
        self._attempt = 1

    def deliver_news(self) -> None:
        """What there is by now, where nobody else tells it."""
        while (items := self._stream.read()) is not None:
            for item in items:
                self.deliver(item)
        for item in self._stream.read_partial():
            self.deliver(item)

    def deliver_rest(self) -> None:
        """What there is beyond what others told."""
        self._stream = SessionStream(store_of(self._ledger), self.session, self.position)
        self.deliver_news()

    def deliver(self, item: StreamItem) -> None:
        self.position = item.position
        match item:
            case MessageAdded(message=self._message):
                self._turn = item.turn
            case TextAdded() if item.turn == self._turn:
                self._on_token(ReplyToken(item.text, TokenKind(item.kind), self._attempt))
            case AttemptReset() if item.turn == self._turn:
                self._attempt += 1
            case _:
                return
