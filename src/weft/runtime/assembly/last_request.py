"""The last answered request of a thread, as its turns recorded it: how large it was, and what was cut of it.

A broker keeps both between two requests; this reads them again, wherever the thread goes on.
"""

from __future__ import annotations

from typing import Any

import orjson
from msgspec import UNSET, Struct

from weft.kernel.dag_events import ModelRequest, ModelResponse
from weft.kernel.errors import NotAllowed
from weft.ledger.api import Context
from weft.ledger.model import Message
from weft.runtime.assembly.cuts import NO_CUT, ContextCut, apply_cut, cut_from
from weft.runtime.assembly.layers import layers_of
from weft.runtime.assembly.sizes import MeasuredRequest
from weft.runtime.inference.budgets import prompt_tokens
from weft.runtime.turns.ledger_port import RuntimeLedger

CUT_PARAMETER = "cut"
"""Under this name a request's parameters hold what was cut of it."""
LOOK_BACK_TURNS = 8
"""In so many turns the last answered request is looked for."""


class LastRequest(Struct, frozen=True):
    """What was cut of it, and its size where its messages are still those that the context begins with."""

    cut: ContextCut = NO_CUT
    measured: MeasuredRequest | None = None


async def last_request(ledger: RuntimeLedger, context: Context) -> LastRequest:
    """Of the turns that a session's context shows; the newest that was answered and says its usage."""
    for turn in reversed(context.turns[-LOOK_BACK_TURNS:]):
        events = [recorded.event for recorded in await ledger.events(turn)]
        answers = [i for i, event in enumerate(events) if isinstance(event, ModelResponse) and event.usage is not UNSET]
        requests = [event for event in events[: answers[-1] if answers else 0] if isinstance(event, ModelRequest)]
        if not requests:
            continue
        if (await ledger.turn(turn)).compaction_id != context.compaction:
            break  # it carried other messages than the context begins with now
        answer, params = events[answers[-1]], requests[-1].params
        assert isinstance(answer, ModelResponse)
        try:
            cut = cut_from(await _recorded_cut(ledger, None if params is UNSET else params))
        except NotAllowed:  # whoever acts may not read contents by their references: nothing is known of the request
            break
        usage, output = answer.usage, answer.output
        if usage is UNSET or output is UNSET:
            return LastRequest(cut)
        messages = apply_cut(layers_of(context), cut)
        return LastRequest(cut, _measured(messages, output.id, prompt_tokens(usage)))
    return LastRequest()


def _measured(messages: tuple[Message, ...], answer: str, tokens: int) -> MeasuredRequest | None:
    """All messages before the answer were sent with the request."""
    end = next((i for i, message in enumerate(messages) if message.id == answer), None)
    if end is None or not tokens:
        return None
    return MeasuredRequest(tuple(message.id for message in messages[:end]), tokens)


async def _recorded_cut(ledger: RuntimeLedger, params: str | None) -> Any:
    if params is None:
        return None
    data = b"".join([piece async for piece in ledger.read_content(params)])
    value = orjson.loads(data)
    return value.get(CUT_PARAMETER) if isinstance(value, dict) else None
