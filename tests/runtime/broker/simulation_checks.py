"""What must hold when a schedule is over, whatever happened in it: read off the events that it left in the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from msgspec import UNSET

from tests.runtime.broker.simulated_subscribers import check_subscriber
from tests.runtime.broker.simulated_world import START_MS, Schedule, SentMessage, Violation
from weft.kernel.clock import ms_from_iso
from weft.kernel.enums import QueueMode, ToolCallStatus
from weft.kernel.events import (
    HistoryAppend,
    Interruption,
    ModelRequest,
    ModelResponse,
    ReasoningFact,
    RunStarted,
    TextFact,
)
from weft.ledger.api import RecordedEvent, Runs
from weft.ledger.views.rows import StoredEvent, recorded
from weft.runtime.broker.turn_state import Run

MAX_PRIORITY = 5
RACE_SECONDS = 10.0
"""A message that came so long before a turn began was there when it was chosen what the turn takes."""


@dataclass
class SessionEvents:
    """What the log holds of one session."""

    label: str
    head: str | None
    turns: list[tuple[str, str | None, str]]
    """The id, the parent and the status of each."""
    numbers: list[int] = field(default_factory=list)
    """Arrival numbers of all events, of the session and of its turns."""
    events: dict[str, list[StoredEvent]] = field(default_factory=dict)
    """By turn."""


def session_events(schedule: Schedule) -> dict[str, SessionEvents]:
    """By id, the sessions that messages were sent to."""
    sessions: dict[str, SessionEvents] = {}
    with schedule.ledgers[-1]._store.read() as txn:
        for id in dict.fromkeys(message.session for message in schedule.admitted.values()):
            row = txn.sql.fetch_row("SELECT label, head FROM session WHERE id = ?", (id,))
            turns = txn.sql.fetch_rows(
                "SELECT t.id, t.parent, t.status FROM turn t JOIN session s ON s.n = t.session WHERE s.id = ?"
                " ORDER BY t.n",
                (id,),
            )
            if row is None:
                raise Violation(f"session {id} is gone")
            sessions[id] = SessionEvents(str(row[0]), row[1], [(str(t), parent, str(s)) for t, parent, s in turns])
        owners = {f"session:{id}": one for id, one in sessions.items()}
        owners |= {f"run:{turn}": one for one in sessions.values() for turn, _, _ in one.turns}
        for n, line in txn.facts.lines(schedule.newest_before):
            event = recorded(n, line)
            if (session := owners.get(event.event.stream)) is None:
                continue
            session.numbers.append(n)
            if event.event.stream.startswith("run:"):
                session.events.setdefault(event.event.stream.removeprefix("run:"), []).append(event)
    return sessions


def check(schedule: Schedule, states: Mapping[str, str]) -> None:
    """`states` are those of messages, by id."""
    sessions = session_events(schedule)
    for id, session in sessions.items():
        messages = {message: sent for message, sent in schedule.admitted.items() if sent.session == id}
        _check_line(session)
        _check_messages(session, messages, states)
        _check_priorities(session, messages, states)
        for turn, _, status in session.turns:
            _check_turn(schedule, turn, status, session.events.get(turn, []))
    _check_subscribers(schedule, {session.label: session for session in sessions.values()})


def _check_line(session: SessionEvents) -> None:
    last = None
    for id, parent, status in session.turns:
        if parent != last:
            raise Violation(f"turn {id} grows from {parent}, and the session stood at {last}")
        if status not in ("completed", "failed"):
            raise Violation(f"turn {id} is {status}")
        last = id if status == "completed" else last
    if session.head != last:
        raise Violation(f"the session stands at {session.head}, and its last turn is {last}")


def _taken(events: Sequence[StoredEvent]) -> list[str]:
    return [
        one.event.admitted
        for one in events
        if isinstance(one.event, HistoryAppend) and isinstance(one.event.admitted, str)
    ]


def _check_messages(session: SessionEvents, messages: Mapping[str, SentMessage], states: Mapping[str, str]) -> None:
    """Each entered a turn once or was cancelled; those of one sender in the order in which they were sent. Only one of
    higher priority, or one that steers a turn which is under way, overtakes another."""
    taken = [message for turn, _, _ in session.turns for message in _taken(session.events.get(turn, []))]
    if len(set(taken)) != len(taken):
        raise Violation(f"a message entered twice: {taken}")
    for id, message in messages.items():
        is_taken, state = id in taken, states[id]
        if (state == "answered" and not is_taken) or (state == "cancelled" and is_taken) or state == "missing":
            raise Violation(f"{message.text} is {state}, and {'entered' if is_taken else 'did not enter'} a turn")
    order: dict[tuple[str, int, bool], list[int]] = {}
    for sent in (messages[id] for id in taken):
        order.setdefault((sent.sender, sent.priority, sent.mode is QueueMode.STEER), []).append(sent.number)
    for (sender, priority, _), numbers in order.items():
        if numbers != sorted(numbers):
            raise Violation(f"messages of {sender} with priority {priority} entered in the order {numbers}")


def _check_priorities(session: SessionEvents, messages: Mapping[str, SentMessage], states: Mapping[str, str]) -> None:
    """A turn begins with nothing of lower priority than what waited then, or with a message that interrupts."""
    waiting = {id: sent for id, sent in messages.items() if states[id] != "cancelled"}
    for turn, _, _ in session.turns:
        events = session.events.get(turn, [])
        started = next(one.event for one in events if isinstance(one.event, RunStarted))
        is_begun = [isinstance(one.event, ModelRequest) for one in events]
        first = _taken(events[: is_begun.index(True) if True in is_begun else None])
        limit = ms_from_iso(str(started.ts)) - RACE_SECONDS * 1000
        takers = [messages[id] for id in first]
        highest = max((sent.priority for sent in takers), default=MAX_PRIORITY)
        others = (sent for id, sent in waiting.items() if id not in first and _sent_ms(sent) < limit)
        overtaken = [sent.text for sent in others if sent.priority > highest]
        if overtaken and not any(sent.mode is QueueMode.INTERRUPT for sent in takers):
            raise Violation(f"{[sent.text for sent in takers]} overtook {overtaken}")
        for id in _taken(events):
            waiting.pop(id, None)


def _sent_ms(sent: SentMessage) -> float:
    return START_MS + sent.at_seconds * 1000


def _check_turn(schedule: Schedule, turn: str, status: str, events: Sequence[StoredEvent]) -> None:
    answered = Counter(one.event.correlation_id for one in events if isinstance(one.event, ModelResponse))
    requests = {one.event.correlation_id: one.id for one in events if isinstance(one.event, ModelRequest)}
    interrupted = {ref.event_id for one in events if isinstance(one.event, Interruption) for ref in one.event.affects}
    if any(count > 1 for count in answered.values()):
        raise Violation(f"a request of {turn} was answered twice")
    if any(requests[correlation] in interrupted for correlation in answered):
        raise Violation(f"a request of {turn} was answered and interrupted")
    run = Run(turn).apply(RecordedEvent(one.id, one.event) for one in events)  # type: ignore[arg-type]
    asked_again = {one.event for one, after in pairwise(run.requests) if after.attempt == one.attempt + 1}
    unsettled = {one.event for one in run.requests if one.is_open} - asked_again
    if len(unsettled) > (status == "failed"):
        raise Violation(f"{len(unsettled)} requests of {turn} were never settled")
    if run.open_calls:
        raise Violation(f"{len(run.open_calls)} calls of {turn} have no outcome")
    for call in run.calls.values():
        has_result = call.outcome is ToolCallStatus.OK and call.tool in ("writes", "reads")
        if has_result and call.event not in schedule.ends_of_tools:
            raise Violation(f"{call.tool} has a result and never ran to its end")


def _check_subscribers(schedule: Schedule, sessions: Mapping[str, SessionEvents]) -> None:
    """By label, the sessions that they may follow."""
    runs = Runs(schedule.ledgers[-1])
    answers: dict[str, dict[int, tuple[str, str]]] = {}
    for subscriber in schedule.subscribers:
        session = sessions.get(subscriber.session)
        if session is None:
            continue  # nothing was ever sent there
        if session.label not in answers:
            answers[session.label] = {
                one.n: _answer(runs, one.event)
                for events in session.events.values()
                for one in events
                if isinstance(one.event, ModelResponse)
            }
        schedule.counts["items"] += len(subscriber.items)
        schedule.counts["discarded texts"] += check_subscriber(subscriber, session.numbers, answers[session.label])


def _answer(runs: Runs, event: ModelResponse) -> tuple[str, str]:
    """Its text and its thinking."""
    parts = () if event.output is UNSET else event.output.parts
    text = "".join(runs.text(part.text) or "" for part in parts if isinstance(part, TextFact))
    return text, "".join(runs.text(part.text) or "" for part in parts if isinstance(part, ReasoningFact))
