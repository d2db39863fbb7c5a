"""Tombstones: who erased what, when and why; and those of others that nobody here has said yes to."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from weft.ledger.read.sessions import agent_names
from weft.ledger.views.values import text_of
from weft.store.authorship import authored_event
from weft.store.port import ReadTxn
from weft.store.sql import Row

_COLUMNS = "SELECT e.n, e.ref, e.erased_at, e.actor, e.replica, e.reason, e.turn, e.session FROM erasure e"


class Tombstone(Struct, frozen=True, kw_only=True):
    """One content that somebody erased."""

    ref: str
    erased_at: int
    actor: str
    reason: str | None
    replica: str | None
    """The ledger it was erased in."""
    turn_id: str | None
    session_id: str | None
    number: int
    """The arrival number of the tombstone."""


def tombstones(txn: ReadTxn) -> list[Tombstone]:
    """The newest first."""
    return _read(txn, txn.sql.all(f"{_COLUMNS} ORDER BY e.n DESC"))


def pending(txn: ReadTxn) -> list[Tombstone]:
    """Tombstones that came from elsewhere, of contents that are still here; not those that somebody here refused."""
    rows = txn.sql.all(
        f"{_COLUMNS} JOIN lookup_content l ON l.key = substr(e.ref, 1, 8) JOIN content c ON c.n = l.n"
        " WHERE c.ref = e.ref AND length(c.salt) > 0 ORDER BY e.n"
    )
    return [tombstone for tombstone in _read(txn, rows) if not _is_refused(txn, tombstone.number)]


def _is_refused(txn: ReadTxn, n: int) -> bool:
    event = authored_event(txn, n)
    return event is not None and event.is_refused


def _read(txn: ReadTxn, rows: Sequence[Row]) -> list[Tombstone]:
    names = agent_names(txn.sql, {row[3] for row in rows})
    return [
        Tombstone(
            ref=bytes(ref).hex(),
            erased_at=erased_at,
            actor=names[actor],
            reason=text_of(txn, reason) if reason else None,
            replica=replica,
            turn_id=turn,
            session_id=session,
            number=n,
        )
        for n, ref, erased_at, actor, replica, reason, turn, session in rows
    ]
