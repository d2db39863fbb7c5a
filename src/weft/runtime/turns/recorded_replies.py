"""The reply to a message that another process answered, read back from the ledger."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from weft.kernel.dag_events import ModelResponse
from weft.kernel.enums import InboxState
from weft.kernel.errors import NotApplicable
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
    """The turn that answered a message and what it ended with. Raises NotApplicable where there is no answer."""
    runs, turn = Runs(ledger), ledger.turn(ensure_answered(message))
    recorded = runs.recorded(turn.id)
    answer = next((one for one in ledger.messages(turn.id) if one.id == turn.response_message_id), None)
    if turn.interruption_reason is not None or answer is None:
        raise NotApplicable("the turn was interrupted", "what had come of the answer is recorded")
    return TurnReply(turn=recorded, reply=_reply(turn, answer, _finish(runs, turn.id)))


def _reply(turn: Turn, answer: Message, finish: Finish) -> Reply:
    facts: dict[str, Any] = answer.metadata if isinstance(answer.metadata, dict) else {}
    latency = facts.get("latency_ms")
    return Reply(
        parts=answer.content,
        finish=finish,
        model_id=str(facts.get("model_id") or turn.model or ""),
        model=answer.model or turn.model or "",
        provider=str(facts.get("provider") or turn.provider or ""),
        usage=turn.usage,
        usage_fault=str(facts.get("usage_fault") or ""),
        request_id=facts.get("request_id"),
        latency_ms=latency if isinstance(latency, int) else 0,
        situation=facts.get("situation"),
    )


def _finish(runs: Runs, turn: str) -> Finish:
    """Why the model ended its last answer."""
    reasons = [one.event.finish_reason for one in runs.events(turn) if isinstance(one.event, ModelResponse)]
    known = [Finish(str(reason)) for reason in reasons[-1:] if str(reason) in set(Finish)]
    return known[0] if known else Finish.STOP
