"""The session that is meant where none is named: to read, the latest; to go on with, not one whose last turn a stranger
wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.kernel.errors import NotApplicable, NotFound

if TYPE_CHECKING:
    from weft.ledger.api import Ledger

LOOKED_AT = 16
"""Sessions without a turn are passed over, so many at a time."""
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


def latest_session(ledger: Ledger) -> str | None:
    """The label that `weft sessions` lists first: the session that changed last and is no subagent's. None: there is
    no session with a turn."""
    from weft.ledger.api import SessionFilter

    listing = ledger.listing()
    page = listing.sessions(SessionFilter(), limit=LOOKED_AT)
    while True:
        for listed in page.sessions:
            if listed.session.head is not None:
                return listed.session.label
        if page.next is None:
            return None
        page = listing.sessions(SessionFilter(), limit=LOOKED_AT, after=page.next)
