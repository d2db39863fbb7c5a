"""Links between a subagent's session and the tool call that started it, kept on both sides.

A call's result may name the session, or the session the call, and either may come first. So each side looks for the
other when it comes: a session for the call in its parent's turns, a call for the sessions that name it. A session that
has such subagents is marked, so that appends to all others ask nothing.

Anybody can write a file whose calls name other people's sessions. So the result of an imported call links a session of
the same origin only if the session's own record agrees: it names as its parent a session that holds the call's turn,
or its native id lies below that of the turn's session.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET, UnsetType

from weft.ledger.model import repeated_id
from weft.ledger.views.projector import Projector
from weft.ledger.views.rows import CALL, CallRow, SessionRow, TurnRow
from weft.store.sql import Sql

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
        rows = view.sql.all(f"{CALL.select} WHERE turn = ? AND call_id = ? ORDER BY seq", (turn.n, call_id))
        _join(view, session, turn, _first_free([CallRow(*row) for row in rows]))
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
            _join(view, child, turn, _first_free(named))


def _waiting_for(view: Projector, call_id: int, turn: str, column: str, key: str) -> list[SessionRow]:
    """A session that is not joined yet has its call's bare text as the name; one whose text is erased has none, and is
    found by the content's number among those of the parent."""
    text = view.contents.content_text(call_id)
    if text is None:
        rows = view.sql.all(_WAITING.format(_NAMES_CONTENT, column), (call_id, turn, key))
        return [view.session(id) for (id,) in rows]
    by_name = _WAITING.format(_NAMES_TEXT, f"COALESCE({column}, '')")  # the name's index is the narrow one
    children = [view.session(id) for (id,) in view.sql.all(by_name, (view.contents.readable_text(call_id), turn, key))]
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
        for (child,) in view.sql.all("SELECT DISTINCT child FROM spawn WHERE turn = ? ORDER BY child", (turn.id,)):
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
    places = view.sql.all("SELECT turn, seq FROM spawn WHERE child = ? ORDER BY turn, seq", (child,))
    if session is None or not places:
        return
    turns = [(view.turn(id), seq) for id, seq in places]
    agreed = [(turn, seq) for turn, seq in turns if _agrees(view, session, turn) and not _is_above(view, session, turn)]
    started_by = [(turn, view.calls_of(turn)[seq]) for turn, seq in agreed]
    if not started_by:
        return
    for _, call in started_by:
        call.spawned = session.n
        view.calls[call.event] = call
    _take_parents(view, session, *started_by[0])


def _agrees(view: Projector, session: SessionRow, turn: TurnRow) -> bool:
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
    places = [(int(segment), int(depth)) for segment, depth in sql.all(_STOOD, (session,))]
    for segment, depth in places:  # grows on the way
        if depth <= reached.get(segment, -1):
            continue
        reached[segment] = depth
        above = sql.one("SELECT parent, parent_depth FROM segment WHERE n = ?", (segment,))
        if above is not None and above[0] is not None:
            places.append((above[0], above[1]))
    return reached


def _join(view: Projector, session: SessionRow, turn: TurnRow, call: CallRow) -> None:
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
        rows = view.sql.all(query, (*values, limit, offset))
        place = next((row for row in rows if _is_named(view, name, text, row[1])), None)
        if place is not None or len(rows) < limit:
            return None if place is None else (place[0], place[1])
    return None
