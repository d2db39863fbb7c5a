"""The session that is meant where none is named: to read, the latest; to go on with, not one whose last turn a stranger
wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.kernel.errors import NotApplicable, NotFound
from weft.surfaces.cli.screen import Span
from weft.surfaces.plain_text import cut_at_word, safe

if TYPE_CHECKING:
    from weft.ledger.api import Ledger, ListedSession
    from weft.surfaces.cli.call import Call

SESSIONS_AT_A_TIME = 16
"""Sessions without a turn are passed over, so many at a time."""
TITLE_COLUMNS = 60
NOTHING_YET = "no turns yet: `weft import` brings in the sessions of other tools, `weft record` makes one"


def ensure_own_session(ledger: Ledger, label: str, how: str) -> None:
    """Refuse to continue the default session unasked where its last turn was imported or came from another ledger.
    `how` says how whoever means it names it."""
    try:
        session = ledger.session(label)
    except NotFound:
        return
    for stranger in ledger.strangers(session.head) if session.head else ():
        verb = "imported from" if stranger.kind == "import" else "written by replica"
        raise NotApplicable(f"the last turn of {label!r} was {verb} {stranger.id}, not here", how)


def latest_session(ledger: Ledger, *, with_turn: bool = True) -> ListedSession | None:
    """The session that `weft sessions` lists first: the one that changed last and is no subagent's. One without a turn
    is passed over, unless `with_turn` is false. None: there is no such session."""
    from weft.ledger.api import SessionFilter

    listing = ledger.listing()
    page = listing.sessions(SessionFilter(), limit=SESSIONS_AT_A_TIME)
    while True:
        for listed in page.sessions:
            if listed.session.head is not None or not with_turn:
                return listed
        if page.next is None:
            return None
        page = listing.sessions(SessionFilter(), limit=SESSIONS_AT_A_TIME, after=page.next)


def named_or_latest(call: Call, ledger: Ledger, name: str | None, *, with_turn: bool = True) -> str | None:
    """The name that was given; without one, the label of the latest session, with a note that says which it is. None:
    there is no session, and the note says so."""
    if name is not None:
        return place_in_latest(call, ledger, name)
    listed = latest_session(ledger, with_turn=with_turn)
    if listed is None:
        call.note(NOTHING_YET)
        return None
    return _noted(call, listed)


def require_named_or_latest(call: Call, ledger: Ledger, name: str | None, *, with_turn: bool = True) -> str:
    """The same for what has no answer without a session: raises NotFound where there is none."""
    if name is not None:
        return place_in_latest(call, ledger, name)
    listed = latest_session(ledger, with_turn=with_turn)
    if listed is None:
        is_empty = latest_session(ledger, with_turn=False) is None
        raise nothing_found(ledger, "session" if is_empty else "session with a turn")
    return _noted(call, listed)


def nothing_found(ledger: Ledger, what: str) -> NotFound:
    """No active session is to be had: because there is no turn, or because those with turns are set aside."""
    if any(session.head is not None for session in ledger.sessions(every=True)):
        hint = "`weft sessions --all` lists the others; `weft archive --undo` brings one back"
        return NotFound(f"active {what}", None, hint)
    return NotFound(what, None, NOTHING_YET)


def place_in_latest(call: Call, ledger: Ledger, name: str) -> str:
    """A name as it is; without a session before `@{…}` it is a place where the latest session stood."""
    return require_named_or_latest(call, ledger, None) + name if name.startswith("@{") else name


def _noted(call: Call, listed: ListedSession) -> str:
    title = cut_at_word(safe(" ".join(listed.title.split())), TITLE_COLUMNS)
    label = Span(listed.short_label, "label")
    call.note("the latest session: ", *((title, " (", label, ")") if title else (label,)))
    return listed.session.label
