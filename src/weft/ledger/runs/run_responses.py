"""What a turn that ends in this transaction answered, as its events have it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import UNSET

from weft.kernel.dag_events import HistoryAppend, ModelResponse
from weft.kernel.events import Event, UnknownEvent, run_stream
from weft.kernel.fields import MessageFact
from weft.ledger.runs.model import RecordedEvent
from weft.ledger.views.recorded_events import decoded
from weft.ledger.views.rows import TurnRow
from weft.ledger.write.append import Append


def response_of(append: Append, turn: str, fresh: Sequence[RecordedEvent] = ()) -> MessageFact | None:
    """The last message of a turn in which the agent said something. `fresh` are events that this transaction wrote."""
    row = append.view.turn(turn)
    newest = (recorded.event for recorded in reversed(fresh))
    return _message_of(newest, row.response) or _message_of(_stored(append, row), row.response)


def _stored(append: Append, turn: TurnRow) -> Iterator[Event | UnknownEvent]:
    """The events of the turn that earlier transactions wrote."""
    stream = run_stream(turn.id)
    mark = f'"stream":"{stream}"'.encode()
    for n, line in append.txn.facts.lines(turn.n - 1):
        if mark in line and (event := decoded(n, line)).stream == stream:
            yield event


def _message_of(events: Iterable[Event | UnknownEvent], message: str | None) -> MessageFact | None:
    for event in events:
        fact = None
        if isinstance(event, ModelResponse) and event.output is not UNSET:
            fact = event.output
        elif isinstance(event, HistoryAppend):
            fact = event.message
        if fact is not None and fact.id == message:
            return fact
    return None
