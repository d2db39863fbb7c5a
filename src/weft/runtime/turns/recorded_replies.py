"""The reply to a message that another process answered, read back from the ledger."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct

from weft.kernel import errors
from weft.kernel.enums import InboxState
from weft.kernel.errors import NotApplicable, WeftError
from weft.kernel.events import ModelResponse
from weft.ledger.api import InboxMessage, Ledger, Runs
from weft.ledger.model import Message, RecordedTurn, Turn
from weft.runtime.inference.replies import Finish, Reply


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
    return TurnReply(turn=recorded, reply=_reply(turn, answer, _last_response(runs, turn.id)))


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


def _reply(turn: Turn, answer: Message, response: ModelResponse | None) -> Reply:
    facts: dict[str, Any] = answer.metadata if isinstance(answer.metadata, dict) else {}
    latency = facts.get("latency_ms")
    return Reply(
        parts=answer.content,
        finish=_finish(response),
        model_id=str(facts.get("model_id") or turn.model or ""),
        model=answer.model or turn.model or "",
        provider=str(facts.get("provider") or turn.provider or ""),
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


def _finish(response: ModelResponse | None) -> Finish:
    """Why the model ended its last answer."""
    reason = "" if response is None else str(response.finish_reason)
    return Finish(reason) if reason in set(Finish) else Finish.STOP
