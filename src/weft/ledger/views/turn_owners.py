"""Which session an imported turn belongs to, where the sources of several hold it.

A resumed or forked session's file begins with copies of turns of another one. Such a turn belongs to the session that
began first, by the times in its records; of those that began together to the one with the smallest native id. Neither
the order of arrival nor the import secret decides. A session begins earlier than was known when a source says so
later; then it takes over the turns of its threads that belong to sessions after it.

Its time also says where its turns are listed of which no source tells a time: never when they came in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.kernel.canonical import MAX_INTEGER
from weft.ledger.model import UNDATED
from weft.ledger.views.projector import Projector
from weft.ledger.views.rows import SessionRow, TurnRow
from weft.ledger.views.spawn_links import join_started

SessionAge = tuple[int, bool, str, str]
"""When a session began, whether its native id is gone, that id, and ours."""
NO_SESSION_AGE: SessionAge = (MAX_INTEGER, True, "", "")
_OF_OTHERS = (
    "SELECT id FROM turn WHERE segment = ? AND depth <= ? AND session <> ? AND source IS NOT NULL AND origin = ?"
    " AND NOT EXISTS (SELECT 1 FROM link WHERE parent = turn.id AND why = 'resumed') ORDER BY depth"
)
_UNDATED = "SELECT id FROM turn WHERE segment = ? AND depth <= ? AND session = ? AND synthesised = 1 ORDER BY depth"


def take_turn(view: Projector, session: SessionRow, turn: TurnRow) -> None:
    """A source of the session holds the turn: the turn belongs to it unless it does to an earlier session."""
    if turn.session == session.n:
        return
    owner = None if turn.session is None else view.session_of_number(turn.session)
    if owner is None or (owner.n != session.n and _is_before(view, session, owner)):
        turn.session = session.n
        view.changed_turns[turn.id] = turn
        list_undated(view, session, turn)
        if owner is not None:
            join_started(view, turn)


def _is_before(view: Projector, session: SessionRow, other: SessionRow) -> bool:
    text_of = view.contents.content_text
    return session_age(session, text_of) < session_age(other, text_of)


def take_threads(view: Projector, session: SessionRow, threads: Sequence[tuple[int, int]]) -> None:
    """The session turned out to begin earlier: so it does for every turn of its origin where it stood or that leads
    there, which are its `threads`. One that was moved here may stand on turns that its source does not hold, and takes
    none; nor does any take turns that Weft wrote into a file of another session, which only copies them."""
    if session.reach is None or session.head is None:
        return
    for segment, depth in threads:
        for (id,) in view.sql.all(_OF_OTHERS, (segment, depth, session.n, session.origin)):
            take_turn(view, session, view.turn(id))


def list_undated(view: Projector, session: SessionRow, turn: TurnRow) -> None:
    """A turn without a time is listed with the turn that it follows; a first one when its session began, as far as that
    is known, else before all that have a time."""
    if turn.synthesised and turn.session == session.n:
        parent = None if turn.parent is None else view.find_turn(turn.parent)
        list_at(view, turn, parent.listed_at if parent else session.created_at)


def list_at(view: Projector, turn: TurnRow, when: int) -> None:
    """List a turn by this time, and none that grew from it by an earlier one."""
    has_grown = when > turn.listed_at and not (view.new_turns and view.new_turns[-1] is turn)
    turn.listed_at = when
    view.changed_turns[turn.id] = turn
    above = [turn] if has_grown else []
    if has_grown:
        view.flush(keep=True)
    for parent in above:  # grows on the way
        for (id,) in view.sql.all("SELECT id FROM turn WHERE parent = ? AND listed_at < ?", (parent.id, when)):
            child = view.turn(id)
            child.listed_at = when
            view.changed_turns[child.id] = child
            above.append(child)


def list_undated_threads(view: Projector, session: SessionRow, threads: Sequence[tuple[int, int]]) -> None:
    """When the session began has become known: so its turns without a time are listed anew, from the first one on."""
    view.flush(keep=True)
    for segment, depth in threads:
        for (id,) in view.sql.all(_UNDATED, (segment, depth, session.n)):
            list_undated(view, session, view.turn(id))


def session_age(session: SessionRow, text_of: Callable[[int], str | None]) -> SessionAge:
    """Smaller for a session that goes first. One without any time comes after those that have one, and one whose native
    id was erased after those that began with it."""
    begun = MAX_INTEGER if session.created_at == UNDATED else session.created_at
    native = text_of(session.origin_session) if session.origin_session else None
    return begun, native is None, native or "", session.id
