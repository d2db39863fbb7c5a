"""Sessions that several replicas moved: where the branches end that this ledger does not follow.

A session's stream grows a branch where two replicas wrote after the same event. The branch this ledger follows is the
session's row; of every other one the end is kept here, with the head that it stands at. An event that settles names
the ends that it joins.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import UNSET

from weft.kernel.dag_events import AgentForked
from weft.kernel.errors import InvalidFact
from weft.kernel.events import Event, UnknownEvent
from weft.kernel.fields import EventRef
from weft.kernel.ledger_events import SessionMoved
from weft.ledger.views.projector import BRANCHES, Moment, Projector, handles
from weft.ledger.views.recorded_events import decoded, position_in_run
from weft.ledger.views.rows import SessionRow

Place = tuple[str | None, int | None, int | None, int | None]
"""A head: its turn, segment and depth, and how many of the turn's events count."""
NOWHERE: Place = (None, None, None, None)


@handles(Event, BRANCHES)
def set_aside(view: Projector, moment: Moment, event: Event | UnknownEvent) -> None:
    """Any event of a branch that is not followed moves that branch on, or begins one."""
    session: SessionRow = moment.row
    before = bytes.fromhex(event.prev or "")
    known = view.sql.one(
        "SELECT head, head_segment, head_depth, head_events FROM branch WHERE session = ? AND tip = ?",
        (session.n, before),
    )
    place = _place_of(view, event)
    if place is None:
        place = (known[0], known[1], known[2], known[3]) if known else _stood_at(view, session, event.prev)
    join_branches(view, session, event)
    view.sql.run(
        "INSERT INTO branch(session, tip, n, replica, head, head_segment, head_depth, head_events, changed_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (session.n, moment.event_id, moment.n, replica_of(event), *place, moment.when),
    )


def join_branches(view: Projector, session: SessionRow, event: Event | UnknownEvent) -> None:
    """The branches that end where this event begins, or in what it settles, go on in it."""
    ends = {event.prev, *(tip.event_id for tip in tips_of(event))} - {None}
    for end in sorted(str(end) for end in ends):
        view.sql.run("DELETE FROM branch WHERE session = ? AND tip = ?", (session.n, bytes.fromhex(end)))


def tips_of(event: Event | UnknownEvent) -> tuple[EventRef, ...]:
    return event.tips if isinstance(event, SessionMoved) and event.tips is not UNSET else ()


def replica_of(event: Event | UnknownEvent) -> str | None:
    """The ledger that wrote an event; None for one that came with an import."""
    if isinstance(event, UnknownEvent):
        found = event.fields.get("replica")
        return found if isinstance(found, str) else None
    return None if event.replica is UNSET else event.replica


def _place_of(view: Projector, event: Event | UnknownEvent) -> Place | None:
    """Where an event says that the head stands; None if it is about something else."""
    if isinstance(event, SessionMoved):
        turn, pin = event.to, event.at
    elif isinstance(event, AgentForked):
        turn, pin = event.at_turn, event.at_event.event_id
    else:
        return None
    if turn is None:
        return NOWHERE
    row = view.turn(turn)
    whole = pin is UNSET or (row.closed and pin == row.digest and isinstance(event, AgentForked))
    events = None if whole else position_in_run(view.facts, row, str(pin)) + 1
    return row.id, row.segment, row.depth, events


def _stood_at(view: Projector, session: SessionRow, event_id: str | None) -> Place:
    """Where the head stood at an earlier event of the stream: the last one before it that says so."""
    for event in _back_from(view, event_id):
        place = _place_of(view, event)
        if place is not None:
            return place
    return _where_sources_left_it(view, session, event_id)


def _where_sources_left_it(view: Projector, session: SessionRow, event_id: str | None) -> Place:
    """No event says where an imported session stands until it is moved; the first that moved it here since then says
    where it stood before."""
    place: Place = (session.head, session.head_segment, session.head_depth, session.head_events)
    for event in _back_from(view, session.last_event.hex()):
        if event.prev is not None and event.prev == event_id:
            return _before(view, event) or place
        place = _before(view, event) or place
    return NOWHERE


def _before(view: Projector, event: Event | UnknownEvent) -> Place | None:
    if not isinstance(event, SessionMoved):
        return None
    row = None if event.before is None else view.find_turn(event.before)
    return NOWHERE if row is None else (row.id, row.segment, row.depth, None)


def _back_from(view: Projector, event_id: str | None) -> Iterator[Event | UnknownEvent]:
    """The events of a session's stream, from this one to its first."""
    while event_id is not None:
        n = view.facts.find_event(bytes.fromhex(event_id))
        line = None if n is None else view.facts.line(n)
        if n is None or line is None:
            raise InvalidFact(f"event {event_id}", "a session's branch begins there and it is not here")
        event = decoded(n, line)
        yield event
        event_id = event.prev
