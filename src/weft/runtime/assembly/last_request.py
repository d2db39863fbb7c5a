"""The last answered request of a thread, as its turns recorded it: how large it was, and what was cut of it.

A broker keeps both between two requests; this reads them again, wherever the thread goes on.
"""

from __future__ import annotations

from msgspec import UNSET, Struct

from weft.kernel.events import ModelRequest, ModelResponse
from weft.ledger.api import NO_CUT, Context, ContextCut
from weft.ledger.model import Message
from weft.runtime.assembly.cuts import apply_cut
from weft.runtime.assembly.layers import layers_of
from weft.runtime.assembly.sizes import MeasuredRequest
from weft.runtime.inference.budgets import prompt_tokens
from weft.runtime.turns.ledger_port import RuntimeLedger

LOOK_BACK_TURNS = 8
"""In so many turns the last answered request is looked for."""


class LastRequest(Struct, frozen=True):
    """What was cut of it, and its size where its messages are still those that the context begins with."""

    cut: ContextCut = NO_CUT
    measured: MeasuredRequest | None = None


async def last_request(ledger: RuntimeLedger, context: Context) -> LastRequest:
    """Of the turns that a session's context shows; the newest that was answered and says its usage."""
    cut = context.cut
    for turn in reversed(context.turns[-LOOK_BACK_TURNS:]):
        events = [recorded.event for recorded in await ledger.events(turn)]
        answers = [i for i, event in enumerate(events) if isinstance(event, ModelResponse) and event.usage is not UNSET]
        requests = [event for event in events[: answers[-1] if answers else 0] if isinstance(event, ModelRequest)]
        if not requests:
            continue
        if (await ledger.turn(turn)).compaction_id != context.compaction:
            break  # it carried other messages than the context begins with now
        answer = events[answers[-1]]
        assert isinstance(answer, ModelResponse)
        usage, output = answer.usage, answer.output
        if usage is UNSET or output is UNSET:
            break
        messages = apply_cut(layers_of(context), cut)
        return LastRequest(cut, _measured(messages, output.id, prompt_tokens(usage)))
    return LastRequest(cut)


def _measured(messages: tuple[Message, ...], answer: str, tokens: int) -> MeasuredRequest | None:
    """All messages before the answer were sent with the request."""
    end = next((i for i, message in enumerate(messages) if message.id == answer), None)
    if end is None or not tokens:
        return None
    return MeasuredRequest(tuple(message.id for message in messages[:end]), tokens)
