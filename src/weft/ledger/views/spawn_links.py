"""Links between a subagent's session and the tool call that started it, kept on both sides.

A call's result may name the session, or the session the call, and either may come first. So each side looks for the
other when it comes: a session for the call in its parent's turns, a call for the sessions that name it. A session that
has such subagents is marked, so that appends to all others ask nothing.
"""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from weft.ledger.model import repeated_id
from weft.ledger.views.projector import Projector
from weft.ledger.views.rows import CallRow, SessionRow, TurnRow, load_turn_number

_CALLS_OF_SESSION = (
    "SELECT t.id, c.call_id FROM turn t JOIN tool_call c ON c.turn = t.n WHERE t.session = ? AND {} ORDER BY t.n DESC"
)
_WHERE_IT_STOOD = "t.segment IN (SELECT segment FROM history WHERE session = ?)"
_UNDER_WAY = "t.status <> 'completed' AND t.session = ?"
_WAITING = "SELECT id FROM session WHERE spawn_call IS NOT NULL AND (parent_turn IS NULL OR parent_turn = ?) AND {} = ?"


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
    if turn is None and parent is not None:
        turn = _turn_with_call(view, parent, session.spawn_call)
    call = None if turn is None else _call_named(view, turn, session.spawn_call)
    if turn is not None and call is not None:
        _join(view, session, turn, call)
    if parent is not None:
        mark_parent(view, parent)


def mark_parent(view: Projector, parent: SessionRow) -> None:
    """Subagents name calls of this session, so whoever records one looks for them."""
    if not parent.has_subagents:
        parent.has_subagents = 1
        view.changed_sessions[parent.id] = parent
        view.childless.discard(parent.n)


def link_waiting(view: Projector, turn: TurnRow) -> None:
    """The sessions that name a call of this turn, where there may be any. Of a turn without a session, those that name
    the turn itself."""
    session = _session_of(view, turn)
    column, key = ("parent_turn", turn.id) if session is None else ("parent_session", session.id)
    view.flush(keep=True)
    for (id,) in view.sql.all(_WAITING.format(column), (turn.id, key)):
        child = view.session(id)
        call = None if child.spawn_call is None else _call_named(view, turn, child.spawn_call)
        if call is not None:
            _join(view, child, turn, call)


def link_result(view: Projector, call: CallRow, child: str, replica: str | UnsetType) -> None:
    """A call's result names the session that it started. Of a session that is not here yet this is noted. A session
    takes its parent from those who may write to it, never from another replica."""
    turn = next((row for row in view.memory.turns.values() if row.n == call.turn), None)
    turn = turn or load_turn_number(view.sql, call.turn)
    assert turn is not None, "a call's row has a turn"
    note_spawn(view, child, turn, call.seq)
    session = view.find_session_id(child)
    call.spawned = session.n if session else None
    if session is None or session.replica != (None if replica is UNSET else replica):
        return
    if session.parent_turn is None and not _is_above(view, session, turn):
        _take_parents(view, session, turn, call)


def note_spawn(view: Projector, child: str, turn: TurnRow, seq: int) -> None:
    view.sql.run(
        "INSERT INTO spawn(child, turn, seq) VALUES (?, ?, ?) ON CONFLICT (child, turn, seq) DO NOTHING",
        (child, turn.id, seq),
    )


def join_spawn(view: Projector, child: str) -> None:
    """A session and the calls that are known to have started it find each other; the first call is its parent."""
    session = view.find_session_id(child)
    places = view.sql.all("SELECT turn, seq FROM spawn WHERE child = ? ORDER BY turn, seq", (child,))
    if session is None or not places:
        return
    started_by = [(turn, view.calls_of(turn)[seq]) for turn, seq in ((view.turn(id), seq) for id, seq in places)]
    for _, call in started_by:
        call.spawned = session.n
        view.calls[call.event] = call
    _take_parents(view, session, *started_by[0])


def _join(view: Projector, session: SessionRow, turn: TurnRow, call: CallRow) -> None:
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
    session.parent_session = maker.id if maker else session.parent_session
    if maker is not None:
        mark_parent(view, maker)
    _name_call(view, session, turn, call)


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


def _call_named(view: Projector, turn: TurnRow, name: int) -> CallRow | None:
    """The turn's call whose id is this content or has its text; of several the first that started nothing yet."""
    text = view.contents.content_text(name)
    named = [
        call
        for call in (view.calls_of(turn) if turn.calls else ())
        if call.call_id == name or (text is not None and view.contents.content_text(call.call_id) == text)
    ]
    return next((call for call in named if call.spawned is None), named[0] if named else None)


def _turn_with_call(view: Projector, session: SessionRow, name: int) -> TurnRow | None:
    """The session's newest turn with a call of this id, among those where it stood and those under way."""
    text = view.contents.content_text(name)
    if text is None:
        return None
    view.flush(keep=True)
    for turns in (_WHERE_IT_STOOD, _UNDER_WAY):
        for turn, call_id in view.sql.all(_CALLS_OF_SESSION.format(turns), (session.n, session.n)):
            if view.contents.content_text(call_id) == text:
                return view.turn(turn)
    return None
