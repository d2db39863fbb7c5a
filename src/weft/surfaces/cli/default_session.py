"""The session that is meant where none is named: not one whose last turn a stranger wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.kernel.errors import NotApplicable, NotFound

if TYPE_CHECKING:
    from weft.ledger.api import Ledger


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
