"""What a session's events mean for its label, its head and its reflog; branches of several
replicas; the links between a subagent's session and the call that started it; and which version of
an imported turn is current.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import orjson
from msgspec import UNSET, UnsetType

from weft.kernel import events as dag
from weft.kernel import ledger_events as own
from weft.kernel.enums import (
    AliasReason,
    CallState,
    MoveReason,
    ProgramKind,
    SessionLifecycle,
    SessionStatus,
    ToolCallStatus,
    TurnType,
)
from weft.kernel.errors import InvalidFact
from weft.kernel.events import AgentForked, Event, EventRef, UnknownEvent, run_stream
from weft.kernel.ledger_events import SessionMoved
from weft.kernel.program_events import next_state
from weft.ledger.arguments import cleaned_label
from weft.ledger.model import UNDATED, repeated_id
from weft.ledger.views.inboxes import add_worker
from weft.ledger.views.projector import (
    BRANCHES,
    IMPORTS,
    OTHERS,
    RUN,
    SESSIONS,
    EventMoment,
    Projector,
    begins,
    handles,
    plain,
)
from weft.ledger.views.rows import (
    CALL,
    SESSION,
    THREAD_KEYS,
    CallRow,
    HistoryRow,
    SessionRow,
    TurnRow,
    decoded,
    position_in_run,
)
from weft.store.sql import Sql, rows_in

# --- Links between a subagent's session and the tool call that started it, kept on both sides.

_OF_TURN = "SELECT turn, call_id FROM tool_call WHERE turn = ? ORDER BY seq DESC LIMIT ? OFFSET ?"
_OF_SESSION = (
    "SELECT t.id, c.call_id FROM turn t JOIN tool_call c ON c.turn = t.n WHERE {}"
    " ORDER BY t.n DESC, c.seq DESC LIMIT ? OFFSET ?"
)
_WHERE_IT_STOOD = "t.session = ? AND t.segment IN (SELECT segment FROM history WHERE session = ?)"
_UNDER_WAY = "t.status <> 'completed' AND t.session = ?"
_STOOD = "SELECT segment, max(depth) FROM history WHERE session = ? AND segment IS NOT NULL GROUP BY segment"
_NEWEST_CALLS, _ALL_CALLS = 64, 1 << 31
"""A subagent is made soon after its call: the newest calls are read first, the others where it is not among them."""
_WAITING = "SELECT id FROM session WHERE {} AND (parent_turn IS NULL OR parent_turn = ?) AND {} = ? ORDER BY n"
_NAMES_TEXT = "spawn_call_name = ?"
_NAMES_CONTENT = "spawn_call_name IS NULL AND spawn_call = ?"


def link_new_session(view: Projector, session: SessionRow) -> None:
    """A session that was just made: its parents, as far as it names one of them, and the call that it names."""
    turn = None if session.parent_turn is None else view.find_turn(session.parent_turn)
    if turn is not None and session.parent_session is None:
        maker = _session_of(view, turn)
        session.parent_session = maker.id if maker else None
    if session.spawn_call is not None:
        link_named_call(view, session)


def link_named_call(view: Projector, session: SessionRow) -> None:
    """The call that a session names, in the turn that it names or else in one of its parent's."""
    if session.spawn_call is None:
        session.spawn_call_name = None
        return
    session.spawn_call_name = view.contents.readable_text(session.spawn_call)
    parent = None if session.parent_session is None else view.find_session_id(session.parent_session)
    turn = None if session.parent_turn is None else view.find_turn(session.parent_turn)
    call_id = None
    if turn is not None:
        view.flush_calls()
        _, call_id = _place_of_call(view, _OF_TURN, (turn.n,), session.spawn_call) or (None, None)
    elif parent is not None:
        turn, call_id = _place_in_session(view, parent, session.spawn_call)
    if turn is not None and call_id is not None:
        rows = view.sql.fetch_rows(f"{CALL.select} WHERE turn = ? AND call_id = ? ORDER BY seq", (turn.n, call_id))
        _join_call(view, session, turn, _first_free([CallRow(*row) for row in rows]))
    if parent is not None:
        mark_parent(view, parent)


def mark_parent(view: Projector, parent: SessionRow) -> None:
    """Subagents name calls of this session, so whoever records one looks for them."""
    if not parent.has_subagents:
        parent.has_subagents = 1
        view.changed_sessions[parent.id] = parent
        view.childless.discard(parent.n)


def link_waiting(view: Projector, turn: TurnRow, calls: Sequence[CallRow]) -> None:
    """Join the sessions that name one of these calls of the turn and are joined to none yet. Of a turn without a
    session, those that name the turn itself. One lookup by an index for each id of a call."""
    session = _session_of(view, turn)
    column, key = ("parent_turn", turn.id) if session is None else ("parent_session", session.id)
    view.flush_sessions()
    for call_id in dict.fromkeys(call.call_id for call in calls):
        named = [call for call in calls if call.call_id == call_id]
        for child in _waiting_for(view, call_id, turn.id, column, key):
            _join_call(view, child, turn, _first_free(named))


def _waiting_for(view: Projector, call_id: int, turn: str, column: str, key: str) -> list[SessionRow]:
    """A session that is not joined yet has its call's bare text as the name; one whose text is erased has none, and is
    found by the content's number among those of the parent."""
    text = view.contents.content_text(call_id)
    if text is None:
        rows = view.sql.fetch_rows(_WAITING.format(_NAMES_CONTENT, column), (call_id, turn, key))
        return [view.session(id) for (id,) in rows]
    by_name = _WAITING.format(_NAMES_TEXT, f"COALESCE({column}, '')")  # the name's index is the narrow one
    children = [
        view.session(id) for (id,) in view.sql.fetch_rows(by_name, (view.contents.readable_text(call_id), turn, key))
    ]
    return [child for child in children if _is_named(view, call_id, text, child.spawn_call)]


def link_result(view: Projector, turn: TurnRow, call: CallRow, child: str, replica: str | UnsetType) -> None:
    """The result of a turn's call names the session that it started. Of a session that is not here yet this is noted. A
    session takes its parent from those who may write to it, never from another replica."""
    note_spawn(view, child, turn, call.seq)
    session = view.find_session_id(child)
    call.spawned = session.n if session else None
    if session is None or session.replica != (None if replica is UNSET else replica):
        return
    if session.parent_turn is None and not _is_above(view, session, turn):
        _take_parents(view, session, turn, call)


def join_started(view: Projector, turn: TurnRow) -> None:
    """A turn belongs to another session now, or lies in one more: the sessions that its calls name look at it again."""
    if turn.calls:
        for (child,) in view.sql.fetch_rows(
            "SELECT DISTINCT child FROM spawn WHERE turn = ? ORDER BY child", (turn.id,)
        ):
            join_spawn(view, child)


def note_spawn(view: Projector, child: str, turn: TurnRow, seq: int) -> None:
    view.sql.run(
        "INSERT INTO spawn(child, turn, seq) VALUES (?, ?, ?) ON CONFLICT (child, turn, seq) DO NOTHING",
        (child, turn.id, seq),
    )


def join_spawn(view: Projector, child: str) -> None:
    """A session and the calls that name it find each other, as far as its own record agrees; the first call is its
    parent."""
    session = view.find_session_id(child)
    places = view.sql.fetch_rows("SELECT turn, seq FROM spawn WHERE child = ? ORDER BY turn, seq", (child,))
    if session is None or not places:
        return
    turns = [(view.turn(id), seq) for id, seq in places]
    agreed = [
        (turn, seq) for turn, seq in turns if _record_agrees(view, session, turn) and not _is_above(view, session, turn)
    ]
    started_by = [(turn, view.calls_of(turn)[seq]) for turn, seq in agreed]
    if not started_by:
        return
    for _, call in started_by:
        call.spawned = session.n
        view.calls[call.event] = call
    _take_parents(view, session, *started_by[0])


def _record_agrees(view: Projector, session: SessionRow, turn: TurnRow) -> bool:
    """Does an imported session's own record say that a call of this turn may have started it?"""
    maker = _session_of(view, turn)
    if maker is None or session.replica is not None or (session.origin, maker.origin) != (turn.origin, turn.origin):
        return False
    if session.parent_session is None:
        native, above = (view.contents.content_text(row.origin_session or 0) for row in (session, maker))
        return native is not None and above is not None and native.startswith(f"{above}/")
    parent = view.find_session_id(session.parent_session)
    return parent is not None and (parent.n == maker.n or holds(view, parent, turn))


def holds(view: Projector, session: SessionRow, turn: TurnRow) -> bool:
    """Does a turn lie on one of the threads where a session stood?"""
    return turn.depth <= threads_of(view, session).get(turn.segment, -1)


def threads_of(view: Projector, session: SessionRow) -> dict[int, int]:
    """The segments of the threads where a session stood, each with the depth that it reached there."""
    view.flush(keep=True)
    return stored_threads(view.sql, session.n)


def stored_threads(sql: Sql, session: int) -> dict[int, int]:
    """The same of the rows as they are stored."""
    reached: dict[int, int] = {}
    places = [(int(segment), int(depth)) for segment, depth in sql.fetch_rows(_STOOD, (session,))]
    for segment, depth in places:  # grows on the way
        if depth <= reached.get(segment, -1):
            continue
        reached[segment] = depth
        above = sql.fetch_row("SELECT parent, parent_depth FROM segment WHERE n = ?", (segment,))
        if above is not None and above[0] is not None:
            places.append((above[0], above[1]))
    return reached


def _join_call(view: Projector, session: SessionRow, turn: TurnRow, call: CallRow) -> None:
    """A session claims the call that it names. One of another replica or, if it was imported, of another origin than
    the turn's session claims nothing: whoever knows the id of a call could say that it started theirs."""
    maker = _session_of(view, turn)
    if maker is not None and (
        maker.replica != session.replica or (session.origin is not None and session.origin != maker.origin)
    ):
        return
    if call.spawned is None:
        call.spawned = session.n
        view.calls[call.event] = call
    if call.spawned == session.n and session.parent_turn == turn.id:
        _name_call(view, session, turn, call)
    elif session.parent_turn is None and not _is_above(view, session, turn):
        _take_parents(view, session, turn, call)


def _take_parents(view: Projector, session: SessionRow, turn: TurnRow, call: CallRow) -> None:
    session.parent_turn, session.spawn_call = turn.id, call.call_id
    maker = _session_of(view, turn)
    if maker is not None and not (_is_imported(session) and session.parent_session is not None):
        session.parent_session = maker.id
    if maker is not None:
        mark_parent(view, maker)
    _name_call(view, session, turn, call)


def _is_imported(session: SessionRow) -> bool:
    """Such a session keeps the parent that its own record names, whichever session the turn belongs to."""
    return session.origin is not None and session.replica is None


def _name_call(view: Projector, session: SessionRow, turn: TurnRow, call: CallRow) -> None:
    """The call by the id that `tool_calls` shows it with."""
    call_id = view.contents.readable_text(call.call_id) or ""
    session.spawn_call_name = f"{turn.id}:{repeated_id(call_id, call.repeated)}"
    view.changed_sessions[session.id] = session


def _session_of(view: Projector, turn: TurnRow) -> SessionRow | None:
    return None if turn.session is None else view.session_of_number(turn.session)


def _is_above(view: Projector, session: SessionRow, turn: TurnRow) -> bool:
    """Is it the turn's own session, or one that this descends from? Nobody is started by their own subagent."""
    above, passed = _session_of(view, turn), set[str]()
    while above is not None and above.id not in passed:
        if above.id == session.id:
            return True
        passed.add(above.id)
        above = None if above.parent_session is None else view.find_session_id(above.parent_session)
    return False


def _first_free(calls: Sequence[CallRow]) -> CallRow:
    """Of several calls with one id the first that started nothing yet."""
    return next((call for call in calls if call.spawned is None), calls[0])


def _is_named(view: Projector, call_id: int, text: str | None, name: int | None) -> bool:
    """Whether a name is this content or has its text."""
    return call_id == name or (name is not None and text is not None and view.contents.content_text(name) == text)


def _place_in_session(view: Projector, session: SessionRow, name: int) -> tuple[TurnRow, int] | tuple[None, None]:
    """The session's newest turn with a call of this id, among those where it stood and those under way; and the number
    of that id."""
    if view.contents.content_text(name) is None:
        return None, None
    view.flush(keep=True)
    for turns, values in ((_WHERE_IT_STOOD, (session.n, session.n)), (_UNDER_WAY, (session.n,))):
        place = _place_of_call(view, _OF_SESSION.format(turns), values, name)
        if place is not None:
            return view.turn(place[0]), place[1]
    return None, None


def _place_of_call(view: Projector, query: str, values: tuple[int, ...], name: int) -> tuple[Any, int] | None:
    """The first row of a query for turns and their calls' ids, newest first, whose id has this name."""
    text = view.contents.content_text(name)
    for limit, offset in ((_NEWEST_CALLS, 0), (_ALL_CALLS, _NEWEST_CALLS)):
        rows = view.sql.fetch_rows(query, (*values, limit, offset))
        place = next((row for row in rows if _is_named(view, name, text, row[1])), None)
        if place is not None or len(rows) < limit:
            return None if place is None else (place[0], place[1])
    return None


# --- Sessions that several replicas moved: where the branches end that this ledger does not follow.

Place = tuple[str | None, int | None, int | None, int | None]
"""A head: its turn, segment and depth, and how many of the turn's events count."""
NO_PLACE: Place = (None, None, None, None)


@handles(Event, BRANCHES)
def set_aside(view: Projector, moment: EventMoment, event: Event | UnknownEvent) -> None:
    """Any event of a branch that is not followed moves that branch on, or begins one."""
    session: SessionRow = moment.row
    before = bytes.fromhex(event.prev or "")
    known = view.sql.fetch_row(
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
        return NO_PLACE
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
            return _head_before(view, event) or place
        place = _head_before(view, event) or place
    return NO_PLACE


def _head_before(view: Projector, event: Event | UnknownEvent) -> Place | None:
    if not isinstance(event, SessionMoved):
        return None
    row = None if event.before is None else view.find_turn(event.before)
    return NO_PLACE if row is None else (row.id, row.segment, row.depth, None)


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


# --- What a session's events mean for its label, its head and its reflog.

NO_REACH = -1
"""How far a session reaches into its source before its first turn was seen."""
_BEGUN = {
    state.value: next_state(ProgramKind.SESSION, state.value, "begin") or state.value for state in SessionLifecycle
}
"""By the state that a session is in, the one that its first turn leads to."""


def _typed_label(view: Projector, ref: str) -> str | None:
    """A label or an alias as people can type it, whoever wrote it; None when there is none."""
    text = view.contents.content_text(view.contents.number(ref))
    return cleaned_label(text) or None if text else None


@begins(own.SessionCreated, "session:")
def _session_created(view: Projector, moment: EventMoment, event: own.SessionCreated) -> None:
    session, is_imported = event.stream[8:], event.origin is not UNSET and event.replica is UNSET
    (highest,) = view.sql.fetch_row("SELECT max(n) FROM session") or (0,)
    when = UNDATED if is_imported else moment.when  # of an imported one only its source knows
    view.add_session(
        SessionRow(
            n=max([highest or 0, *(row.n for row in view.new_sessions)]) + 1,
            id=session,
            label=_free_label(view, event, session, _typed_label(view, event.label)),
            persona=event.persona,
            head=None,
            head_segment=None,
            head_depth=None,
            head_events=None,
            moves=0,
            since=moment.when,
            last_event=moment.event_id,
            status="active",
            lifecycle="created",
            compaction=None,
            parent_session=plain(event.parent_session),
            parent_turn=plain(event.parent_turn),
            spawn_call=view.number(event.spawn_tool_call),
            task=view.number(event.task_description),
            routing=None if event.routing_key is UNSET else view.lookup_number(event.routing_key),
            origin=plain(event.origin),
            origin_session=view.number(event.origin_session_id),
            created_at=when,
            updated_at=when,
            replica=plain(event.replica),
        )
    )
    row = view.new_sessions[-1]
    view.note_persona(row.persona)
    if row.parent_turn is not None or row.spawn_call is not None:
        link_new_session(view, row)
    if event.spawned_by is not UNSET:
        add_worker(view, moment, row, event)
    if is_imported:
        row.reach = NO_REACH
    if is_imported or event.replica is not UNSET:
        _link_earlier(view, row, is_imported=is_imported)


def _link_earlier(view: Projector, session: SessionRow, *, is_imported: bool) -> None:
    """What came before this session may name it: subagents as their parent, calls as what they started."""
    children = "SELECT 1 FROM session WHERE parent_session = ? AND spawn_call IS NOT NULL"
    if view.sql.fetch_row(children, (session.id,)) is not None or any(
        row.parent_session == session.id and row.spawn_call is not None for row in view.new_sessions
    ):
        mark_parent(view, session)
    if is_imported and view.sql.fetch_row("SELECT 1 FROM spawn WHERE child = ?", (session.id,)) is not None:
        join_spawn(view, session.id)


def _free_label(view: Projector, event: Event, session: str, label: str | None) -> str:
    """The label, or `replica/label` where another replica's session brings one that is taken here."""
    free = label or session
    prefix = "imported" if event.replica is UNSET else event.replica[-6:].lower()
    while _label_taken(view, free, session):
        free = f"{prefix}/{free}"
    return free


def _label_taken(view: Projector, label: str, session: str) -> bool:
    """Does it lead to another session, by label or by alias?"""
    fresh = any(row.label == label and row.id != session for row in view.new_sessions)
    labels = "SELECT 1 FROM session WHERE label = ? AND status <> 'deleted' AND id <> ?"
    return fresh or view.sql.fetch_row(labels, (label, session)) is not None or _alias_taken(view, label, session)


def _alias_taken(view: Projector, alias: str, session: str) -> bool:
    return _other_holder(view, alias, session) is not None


def _other_holder(view: Projector, alias: str, session: str) -> tuple[int, str] | None:
    """The number of another session that an alias leads to, and the reason of the alias."""
    row = view.sql.fetch_row(
        "SELECT a.session, a.reason FROM alias a JOIN session s ON s.n = a.session"
        " WHERE a.alias = ? AND s.status <> 'deleted' AND s.id <> ?",
        (alias, session),
    )
    return None if row is None else (row[0], row[1])


@handles(own.SessionMoved, SESSIONS)
def _session_moved(view: Projector, moment: EventMoment, event: own.SessionMoved) -> None:
    turn = None if event.to is None else view.turn(event.to)
    events = None if event.at is UNSET or turn is None else position_in_run(view.facts, turn, event.at) + 1
    moment.row.reach = None
    move_head(view, moment, turn, events, moment.when, event.why, view.number(event.reason))
    if event.tips is not UNSET and event.tips:
        join_branches(view, moment.row, event)
        moment.row.compaction = None  # one branch's choice; whoever settles makes it again


@handles(dag.AgentForked, SESSIONS)
def _agent_forked(view: Projector, moment: EventMoment, event: dag.AgentForked) -> None:
    turn = view.turn(event.at_turn)
    whole = turn.closed and bytes.fromhex(event.at_event.event_id) == turn.last_event
    events = None if whole else position_in_run(view.facts, turn, event.at_event.event_id) + 1
    move_head(view, moment, turn, events, moment.when, "fork", None)


def move_head(
    view: Projector,
    moment: EventMoment,
    turn: TurnRow | None,
    events: int | None,
    when: int,
    why: str,
    reason: int | None,
) -> None:
    session: SessionRow = moment.row
    elsewhere = turn is None or turn.id != session.head
    if session.head is not None and elsewhere and (turn is None or turn.parent != session.head):
        depart(view, session, session.head_segment, session.head_depth)
    if session.compaction and not _goes_on(view, session, turn, events):
        session.compaction = None
    session.head = turn.id if turn else None
    session.head_segment, session.head_depth = (turn.segment, turn.depth) if turn else (None, None)
    session.head_events = events
    if session.lifecycle != SessionLifecycle.ACTIVE:
        session.lifecycle = _BEGUN.get(session.lifecycle, session.lifecycle)
    if turn is not None and elsewhere and turn.type == TurnType.COMPACTION:
        session.compaction = None
    _note_move(view, session, moment.n, when, why, reason)


def _note_move(view: Projector, session: SessionRow, n: int, when: int, why: str, reason: int | None = None) -> None:
    session.since = max(session.since, when)
    view.history.append(
        HistoryRow(
            n=n,
            session=session.n,
            k=session.moves,
            turn=session.head,
            segment=session.head_segment,
            depth=session.head_depth,
            events=session.head_events,
            changed_at=when,
            since=session.since,
            why=why,
            reason=reason,
        )
    )
    session.moves += 1
    if session.head is not None and why == MoveReason.TURN and session.status != SessionStatus.DELETED:
        view.sql.add(THREAD_KEYS, [(f"{session.label}#{session.head_depth}", session.n, session.head)])


_LAST_TURNS = (
    "SELECT depth, turn FROM history WHERE session = ? AND k IN (SELECT max(k) FROM history"
    " WHERE session = ? AND why = 'turn' AND turn IS NOT NULL GROUP BY depth)"
)


def _rewrite_thread_keys(view: Projector, session: SessionRow, label: str) -> None:
    """The keys of a session that was called `label`, after it was renamed, deleted or restored."""
    view.flush(keep=True)
    of_label = "DELETE FROM thread_key WHERE key >= ? AND key < ? AND session = ?"
    view.sql.run(of_label, (f"{label}#", f"{label}$", session.n))  # `$` is the letter after `#`
    if session.status != SessionStatus.DELETED:
        turns = view.sql.fetch_rows(_LAST_TURNS, (session.n, session.n))
        view.sql.add(THREAD_KEYS, [(f"{session.label}#{depth}", session.n, turn) for depth, turn in turns])


def move_to_version(view: Projector, moment: EventMoment, session: SessionRow, turn: TurnRow) -> None:
    """A session whose turn was replaced stands on the version that took its place. The replacement is one event, which
    may move several sessions."""
    depart(view, session, session.head_segment, session.head_depth)
    session.head, session.head_segment, session.head_depth = turn.id, turn.segment, turn.depth
    _note_move(view, session, moment.n, session.updated_at or session.since, "turn")


def _goes_on(view: Projector, session: SessionRow, turn: TurnRow | None, events: int | None) -> bool:
    """Does the thread hold, at its new place, what it held so far and more? Then a choice made for it still fits."""
    if turn is None or turn.id == session.head:
        return turn is not None and events == session.head_events
    row = view.sql.fetch_row("SELECT parent_events FROM segment WHERE n = ? AND base = ?", (turn.segment, turn.depth))
    return turn.parent == session.head and (row[0] if row else None) == session.head_events


def depart(view: Projector, session: SessionRow, segment: int | None, depth: int | None) -> None:
    """The session holds turns that its head does not lead back to."""
    view.sql.run(
        "INSERT INTO departure(segment, session, depth) VALUES (?, ?, ?) ON CONFLICT (segment, session)"
        " DO UPDATE SET depth = excluded.depth WHERE excluded.depth > departure.depth",
        (segment, session.n, depth),
    )


@handles(own.SessionMoved, BRANCHES)
def _moved_elsewhere(view: Projector, moment: EventMoment, event: own.SessionMoved) -> None:
    """Another replica's branch of this session stood at a turn; here its label does not follow."""
    turn = None if event.to is None else view.turn(event.to)
    if turn is not None:
        depart(view, moment.row, turn.segment, turn.depth)


@handles(dag.AgentForked, BRANCHES)
def _forked_elsewhere(view: Projector, moment: EventMoment, event: dag.AgentForked) -> None:
    turn = view.turn(event.at_turn)
    depart(view, moment.row, turn.segment, turn.depth)


@handles(own.SessionArchived, SESSIONS)
def _session_archived(view: Projector, moment: EventMoment, event: own.SessionArchived) -> None:
    row: SessionRow = moment.row
    label, was_deleted = row.label, row.status == SessionStatus.DELETED
    if was_deleted and event.status != SessionStatus.DELETED:
        row.label = _free_label(view, event, row.id, row.label)
    row.status = event.status
    if was_deleted != (row.status == SessionStatus.DELETED):
        _rewrite_thread_keys(view, row, label)
    view.memory.labels.clear()


@handles(own.SessionRenamed, SESSIONS)
def _session_renamed(view: Projector, moment: EventMoment, event: own.SessionRenamed) -> None:
    label = moment.row.label
    moment.row.label = _free_label(view, event, moment.row.id, _typed_label(view, event.label))
    _rewrite_thread_keys(view, moment.row, label)
    view.memory.labels.clear()


@handles(own.AliasAdded, SESSIONS, BRANCHES)
def _alias_added(view: Projector, moment: EventMoment, event: own.AliasAdded) -> None:
    """One that leads to another session here stays with it, unless a merge of the two hands it over."""
    alias = _typed_label(view, event.alias)
    if alias is None:
        return
    holder = _other_holder(view, alias, moment.row.id)
    if holder is not None:
        if not _is_handed_over(view, *holder, event):
            return
        view.sql.run("DELETE FROM alias WHERE alias = ?", (alias,))
        view.memory.labels.clear()
    view.sql.run(
        "INSERT INTO alias(alias, session, created_at, reason) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (alias) DO UPDATE SET session = excluded.session, reason = excluded.reason",
        (alias, moment.row.n, moment.when, event.reason),
    )


def _is_handed_over(view: Projector, holder: int, reason: str, event: own.AliasAdded) -> bool:
    """A merge hands an alias over, and its undoing hands it back. Both are believed of the ledger that wrote the
    newest event of the session that has the alias now; from anybody else it would be a way to take names away."""
    session = view.session_of_number(holder)
    is_merge = AliasReason.IDENTITY_MERGE in (event.reason, reason)
    return is_merge and session is not None and wrote_last(view, session, event.replica)


def wrote_last(view: Projector, session: SessionRow, replica: str | UnsetType) -> bool:
    """Whether this ledger wrote the newest event of a session. One that is not stored yet is of this very append."""
    n = view.facts.find_event(session.last_event)
    line = None if n is None else view.facts.line(n)
    return n is None or line is None or replica_of(decoded(n, line)) == plain(replica)


@handles(own.ContentErased, OTHERS)
def _content_erased(view: Projector, moment: EventMoment, event: own.ContentErased) -> None:
    """A tombstone. Whether the bytes are gone here too is another question: a stranger's waits for somebody's word."""
    view.sql.run(
        "INSERT INTO erasure(n, ref, erased_at, actor, replica, reason, turn, session) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            moment.n,
            bytes.fromhex(event.content),
            moment.when,
            event.actor,
            plain(event.replica),
            view.number(event.reason),
            plain(event.turn),
            plain(event.session),
        ),
    )


@handles(own.CompactionChosen, SESSIONS)
def _compaction_chosen(view: Projector, moment: EventMoment, event: own.CompactionChosen) -> None:
    moment.row.compaction = event.compaction or ""


# --- Versions of an imported turn: a longer or rewritten copy is another turn, and one of them is current.

_REPLACED = "SELECT turn, by, round FROM superseded WHERE turn = ? ORDER BY by"


def begin_import(view: Projector, row: TurnRow, event: dag.RunStarted, parent: TurnRow | None) -> None:
    """What identifies a turn elsewhere. Its time is that of its arrival until a sighting tells another, but it is not
    listed by that: it stands with the turn before it. The compaction in effect is the last one before it."""
    row.listed_at = parent.listed_at if parent else UNDATED
    if parent is not None:
        row.compaction = parent.id if parent.type == TurnType.COMPACTION else parent.compaction
    row.native, row.mapping = view.number(event.native), None if event.mapping is UNSET else event.mapping
    row.source = None if event.source is UNSET else bytes.fromhex(event.source)
    row.synthesised = 1


def end_import(view: Projector, moment: EventMoment, row: TurnRow) -> None:
    """A call whose outcome its origin does not tell was cut off; then the turn finds its place among its versions."""
    for call in view.calls_of(row) if row.calls else []:
        if call.outcome is None:
            call.outcome, call.status = ToolCallStatus.INTERRUPTED.value, CallState.FAILED.value
    settle_versions(view, moment, row, ending=row)


def versions_of(view: Projector, turn: TurnRow) -> list[TurnRow]:
    """Every version of a turn, this one among them; of a native id that is not here nobody knows whose it is."""
    if not turn.native:
        return [turn]
    if any(row.native == turn.native for row in view.new_turns if row is not turn):
        view.flush(keep=True)
    stored = view.sql.fetch_rows("SELECT id FROM turn WHERE native = ? AND id <> ?", (turn.native, turn.id))
    namesakes = [row for row in (view.turn(id) for (id,) in stored) if row.closed]
    if not namesakes:
        return [turn]
    view.flush(keep=True)
    replaced = rows_in(view.sql, "SELECT turn, by FROM superseded WHERE turn IN", [turn.id, *(r.id for r in namesakes)])
    return versions_among(view.sql, turn, namesakes, replaced)


def versions_among(
    sql: Sql, turn: TurnRow, namesakes: Iterable[TurnRow], replaced: Iterable[Sequence[Any]]
) -> list[TurnRow]:
    """The turn, and those with its native id that are versions of it, of one of these, and so on. `replaced` are pairs
    of a turn and the one that a source put in its place."""
    pairs = {frozenset((one, other)) for one, other in replaced}
    words: dict[int, TurnWords] = {}
    versions, others = [turn], list(namesakes)
    for version in versions:  # grows on the way
        for other in list(others):
            if frozenset((version.id, other.id)) in pairs or is_version(sql, version, other, words):
                versions.append(other)
                others.remove(other)
    return versions


def is_version(sql: Sql, one: TurnRow, other: TurnRow, words: dict[int, TurnWords]) -> bool:
    """Do two turns with one native id share what was said? They begin with the same words; and they follow the same
    turn, or all that one of them says is said by the other, too."""
    first, second = (words.setdefault(row.n, TurnWords(sql, row)) for row in (one, other))
    if first.opening != second.opening or 0 in first.opening:
        return False
    if one.parent is not None and one.parent == other.parent:
        return True
    return first.certain <= second.everything or second.certain <= first.everything


class TurnWords:
    """What a turn says, by the numbers of its contents, each read when it is asked for."""

    def __init__(self, sql: Sql, row: TurnRow) -> None:
        self._sql, self._row = sql, row

    @cached_property
    def opening(self) -> frozenset[int]:
        """The texts of its prompt; of a turn without one those of its first message that says something, else the
        arguments of its first call. 0 stands for what is not here."""
        for condition in ("role = 'user' AND ", ""):
            message = self._sql.fetch_row(
                f"SELECT text, parts FROM message WHERE turn = ? AND {condition}(text IS NOT NULL OR parts <> '[]')"
                " ORDER BY seq LIMIT 1",
                (self._row.n,),
            )
            if message is not None:
                return _content_numbers(*message, texts=True) or _content_numbers(*message)
        call = self._sql.fetch_row("SELECT params FROM tool_call WHERE turn = ? ORDER BY seq LIMIT 1", (self._row.n,))
        return frozenset(call or ())

    @cached_property
    def everything(self) -> frozenset[int]:
        """Of all its messages, and the arguments of its calls."""
        return self._of_messages(self._message_rows) | self._argument_contents

    @cached_property
    def certain(self) -> frozenset[int]:
        """The same, without the last answer of a turn that was cut off: more of it may stand elsewhere."""
        messages = self._message_rows
        if self._row.interrupted is not None and messages and messages[-1][0] == "assistant":
            messages = messages[:-1]
        return self._of_messages(messages) | self._argument_contents

    @cached_property
    def _message_rows(self) -> list[tuple[str, int | None, str | None]]:
        rows = self._sql.fetch_rows("SELECT role, text, parts FROM message WHERE turn = ? ORDER BY seq", (self._row.n,))
        return [(role, text, parts) for role, text, parts in rows]

    @cached_property
    def _argument_contents(self) -> frozenset[int]:
        return frozenset(
            n for (n,) in self._sql.fetch_rows("SELECT params FROM tool_call WHERE turn = ?", (self._row.n,))
        )

    def _of_messages(self, messages: Iterable[tuple[str, int | None, str | None]]) -> frozenset[int]:
        return frozenset(n for _, text, parts in messages for n in _content_numbers(text, parts))


def _content_numbers(text: int | None, parts: str | None, *, texts: bool = False) -> frozenset[int]:
    """The contents of a message, by the columns of its row; only its `texts`, if that is wanted."""
    if text is not None:
        return frozenset((text,))
    shaped = [part for part in orjson.loads(parts or "[]") if not texts or part["type"] == "text"]
    return frozenset(value for part in shaped for value in part.values() if type(value) is int)


def settle_versions(view: Projector, moment: EventMoment, turn: TurnRow, ending: TurnRow | None = None) -> None:
    """Choose the current one among the versions of a turn, and let sessions stand on it. The last event of the one
    that is `ending` is not counted yet."""
    versions = versions_of(view, turn)
    if len(versions) == 1:
        return
    _choose_current(view, moment, versions, ending)


def _choose_current(
    view: Projector, moment: EventMoment, versions: Sequence[TurnRow], ending: TurnRow | None = None
) -> None:
    """One version is current and the successor of the others. Where other turns took all of them in, none is current,
    and the successor of each is the turn with the smallest id among those that took it in."""
    ids = {row.id for row in versions}
    pairs = [tuple(row) for id in sorted(ids) for row in view.sql.fetch_rows(_REPLACED, (id,))]
    taken_in: dict[str, str] = {}
    for turn, by, round in pairs:
        if by not in ids and _is_taken_in(view, turn, by, round):
            taken_in.setdefault(turn, by)
    current = choose_version(versions, pairs, taken_in, ending)
    for row in versions:
        if row.current and current is not None and row is not current:
            view.replaced.append((row.id, current.id))
        row.current = int(row is current)
        row.successor = None if row is current else taken_in[row.id] if current is None else current.id
        view.changed_turns[row.id] = row
        if current is not None and row is not current:
            _move_sessions(view, moment, row, current)


def current_version(view: Projector, turn: TurnRow) -> TurnRow:
    """The turn that the successors of a turn lead to."""
    passed: set[str] = set()
    while turn.successor is not None and turn.id not in passed:
        passed.add(turn.id)
        turn = view.turn(turn.successor)
    return turn


def choose_version(
    versions: Sequence[TurnRow],
    pairs: Iterable[tuple[str, str, int]],
    taken_in: Collection[str],
    ending: TurnRow | None = None,
) -> TurnRow | None:
    """One that a source itself put in place of the others; else the longest ancestry, the most said, the newest
    mapping, the smallest id: whatever order they came in. None where other turns took all of them in. `pairs` are a
    turn, another one that a source put in its place, and the round of that."""
    ids = {row.id for row in versions}
    remaining = [row for row in versions if row.id not in taken_in]
    standing = _remaining_versions(
        [row.id for row in remaining], {(turn, by): round for turn, by, round in pairs if by in ids}
    )
    eligible = [row for row in remaining if row.id in standing]
    if not eligible:
        return None

    def rank(row: TurnRow) -> tuple[int, int, bool, int, str]:
        cut_off = row.interrupted is not None  # that it was, is an event and says nothing
        event_count = row.events + (row is ending) - cut_off
        return -row.depth, -event_count, cut_off, -mapping_number(row.mapping), row.id

    return min(eligible, key=rank)


def _remaining_versions(ids: Sequence[str], pairs: Mapping[tuple[str, str], int]) -> Collection[str]:
    """Those that none of the others has replaced. In the last round that there was, only who was put in place stands;
    where two ledgers read in another order, and each replaced the other, neither did."""
    last = max(pairs.values(), default=0)
    latest = {pair for pair, round in pairs.items() if round == last}
    replaced = {turn for turn, by in latest if (by, turn) not in latest}
    standing = {by for _, by in latest} if last else set(ids)
    return (standing - replaced).intersection(ids) or set(ids) - replaced or ids


def _is_taken_in(view: Projector, turn: str, by: str, round: int) -> bool:
    return view.find_turn(by) is not None and stands_for(view.sql, turn, by, round)


def stands_for(sql: Sql, turn: str, by: str, round: int) -> bool:
    """Of two turns that took in each other the last one to do so stands; where two ledgers read a source in another
    order, the one with the smaller id."""
    back = sql.fetch_row("SELECT round FROM superseded WHERE turn = ? AND by = ?", (by, turn))
    return is_last(turn, by, round, None if back is None else back[0])


def is_last(turn: str, by: str, round: int, back: int | None) -> bool:
    """Whether `by` stands in place of `turn`; `back` is the round in which it was the other way round, if ever."""
    return back is None or round > back or (round == back and by < turn)


def mapping_number(mapping: str | None) -> int:
    number = (mapping or "").rpartition("/")[2]
    return int(number) if number.isdecimal() else 0


def _move_sessions(view: Projector, moment: EventMoment, old: TurnRow, new: TurnRow) -> None:
    """Sessions that stood on the old version stand on the new one; nothing was said in between."""
    standing = [row for row in (*view.new_sessions, *view.changed_sessions.values()) if row.head == old.id]
    pending = {row.id for row in view.changed_sessions.values()} | {row.id for row in view.new_sessions}
    rows = view.sql.fetch_rows(f"{SESSION.select} WHERE head_segment = ? AND head = ?", (old.segment, old.id))
    stored = (SessionRow(*row) for row in rows)
    standing += [view.memory.sessions.setdefault(row.id, row) for row in stored if row.id not in pending]
    for session in sorted({row.id: row for row in standing}.values(), key=lambda row: row.n):
        if session.reach is not None and session.head == old.id:
            move_to_version(view, moment, session, new)
            view.changed_sessions[session.id] = session


@handles(own.TurnSuperseded, IMPORTS)
def _turn_superseded(view: Projector, moment: EventMoment, event: own.TurnSuperseded) -> None:
    round = 0 if event.round is UNSET else event.round
    view.sql.run(
        "INSERT INTO superseded(turn, by, round) VALUES (?, ?, ?) ON CONFLICT (turn, by) DO UPDATE"
        " SET round = excluded.round WHERE excluded.round > superseded.round",
        (event.turn, event.by, round),
    )
    row, by = view.find_turn(event.turn), view.find_turn(event.by)
    if row is None or row.native is None:
        return
    if by is None or (row.native and by.native == row.native):
        settle_versions(view, moment, row)
        return
    for one in (row, by):
        _choose_current(view, moment, versions_of(view, one))
    for old in (row, by):
        if not old.current:
            _move_sessions(view, moment, old, current_version(view, old))


@handles(own.TurnLinked, IMPORTS, RUN)
def _turn_linked(view: Projector, moment: EventMoment, event: own.TurnLinked) -> None:
    """A run tells only where it came from itself."""
    if event.stream.startswith("run:") and event.stream != run_stream(event.child):
        return
    view.sql.run(
        "INSERT INTO link(child, parent, why, call) VALUES (?, ?, ?, ?) ON CONFLICT (child, parent, why) DO NOTHING",
        (event.child, event.parent, event.why, None if event.call is UNSET else bytes.fromhex(event.call.event_id)),
    )
