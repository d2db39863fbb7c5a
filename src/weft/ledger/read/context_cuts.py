"""What a request was cut by, as its parameters record it, and the messages as they were sent under it.

A cut is two marks. Turns that are left out are not named in the request's input at all; results that are shortened are
named whole, and the mark says up to which message they were sent shortened. So what a model was sent is told again from
the request alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import msgspec
import orjson
from msgspec import UNSET, Struct
from msgspec.structs import replace

from weft.kernel.dag_events import ModelRequest, ModelResponse
from weft.kernel.events import Event, UnknownEvent
from weft.ledger.model import Message, Part, ToolResultPart
from weft.ledger.views.recorded_events import run_events
from weft.ledger.views.rows import TurnRow, load_turn
from weft.ledger.views.values import json_of
from weft.store.port import ReadTxn

CUT_PARAMETER = "cut"
"""Under this name a request's parameters hold what was cut of it."""
LOOK_BACK_TURNS = 8
"""In so many turns the last request of a thread is looked for."""
RESULT_HEAD_CHARACTERS, RESULT_TAIL_CHARACTERS = 600, 200
"""What is left of a result that is shortened."""


class ContextCut(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All results up to a message are shortened, all turns up to a turn left out, as long as this compaction is in
    effect."""

    compaction: str | None = None
    shortened_through: str | None = None
    left_out_through: str | None = None

    @property
    def is_empty(self) -> bool:
        return self.shortened_through is None and self.left_out_through is None

    def record(self) -> dict[str, Any]:
        """As JSON, for the parameters of a request."""
        record: dict[str, Any] = msgspec.to_builtins(self)
        return record


NO_CUT = ContextCut()


def cut_from(record: Any) -> ContextCut:
    """A cut as `ContextCut.record` wrote it; none where there is none."""
    return NO_CUT if record is None else msgspec.convert(record, ContextCut)


def cut_of_request(txn: ReadTxn, request: ModelRequest) -> ContextCut:
    """What a request was cut by. Parameters that somebody else wrote under this name, or that were erased, are none."""
    if request.params is UNSET:
        return NO_CUT
    params = json_of(txn, txn.facts.find_content(bytes.fromhex(request.params)))
    try:
        return cut_from(params.get(CUT_PARAMETER)) if isinstance(params, dict) else NO_CUT
    except msgspec.ValidationError:
        return NO_CUT


def cut_in_effect(txn: ReadTxn, turn: TurnRow | None, events: int | None, compaction: str | None) -> ContextCut:
    """What the last request of a thread was cut by, while the same compaction is in effect; `events` is how many of the
    last turn's events belong to the thread."""
    for _ in range(LOOK_BACK_TURNS):
        if turn is None:
            break
        recorded = islice(run_events(txn.facts, turn), events)
        requests = [one.event for one in recorded if isinstance(one.event, ModelRequest)]
        if requests:
            cut = cut_of_request(txn, requests[-1])
            return cut if cut.compaction == compaction else NO_CUT
        turn, events = None if turn.parent is None else load_turn(txn.sql, turn.parent), None
    return NO_CUT


def counted_tokens(events: Iterable[Event | UnknownEvent]) -> int | None:
    """What the last request of a turn and its answer took, as the provider counted; None where it did not."""
    answers = [event for event in events if isinstance(event, ModelResponse)]
    usage = answers[-1].usage if answers else UNSET
    if usage is UNSET or usage.total_tokens is UNSET:
        return None
    return usage.total_tokens or None


def as_sent(messages: Sequence[Message], cut: ContextCut) -> tuple[Message, ...]:
    """The messages that a request names, as they were sent under its cut."""
    end = next((i for i, message in enumerate(messages, 1) if message.id == cut.shortened_through), 0)
    return (*map(shortened, messages[:end]), *messages[end:])


def shortened(message: Message) -> Message:
    """A message with its long results shortened; the same one where it has none."""
    parts = tuple(_shortened_part(part) for part in message.content)
    is_same = all(left is right for left, right in zip(parts, message.content, strict=True))
    return message if is_same else replace(message, content=parts)


def _shortened_part(part: Part) -> Part:
    if not isinstance(part, ToolResultPart):
        return part
    text = sent_text(part.output)
    left_out = len(text) - RESULT_HEAD_CHARACTERS - RESULT_TAIL_CHARACTERS
    if left_out < RESULT_TAIL_CHARACTERS:
        return part
    head, tail = text[:RESULT_HEAD_CHARACTERS], text[-RESULT_TAIL_CHARACTERS:]
    return replace(part, output=f"{head}\n[{left_out} characters of this result are left out]\n{tail}")


def sent_text(value: Any) -> str:
    """A JSON value as a model is sent it: text as it is."""
    return value if isinstance(value, str) else orjson.dumps(value, default=str).decode()
