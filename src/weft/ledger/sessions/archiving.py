"""Which sessions are put away, or taken out again, together."""

from __future__ import annotations

from collections.abc import Sequence

from weft.kernel.enums import SessionStatus
from weft.kernel.errors import InvalidInput
from weft.ledger.read.access import access_of
from weft.ledger.read.revisions import require
from weft.ledger.read.targets import Resolve
from weft.ledger.views.rows import SESSION, SessionRow, StoredSessions, find_by_name
from weft.store.port import ReadTxn


def choose_sessions(
    txn: ReadTxn, names: Sequence[str], tree: bool, before: int | None, status: SessionStatus, resolve: Resolve
) -> list[SessionRow]:
    """Sessions that have this status: those named, with `tree` all that stand in the trees that the names lead to, or
    without names every one; with `before` only those that have not changed since. A session that was named itself is
    chosen whatever its status is."""
    if not names and before is None:
        raise InvalidInput("no session is named", "name sessions, or say how long they have been at rest")
    if tree:
        rows = [row for name in names for row in _of_tree(txn, name, resolve) if row.status == status]
    elif names:
        rows = [require(txn, name) for name in names]
    else:
        found = txn.sql.all(f"{SESSION.select} WHERE status = ? ORDER BY n", (status,))
        rows = [SessionRow(*row) for row in found]
    rows = list(filter(access_of(txn).may_read, rows))
    chosen = {row.id: row for row in rows if before is None or row.updated_at < before}
    return list(chosen.values())


def _of_tree(txn: ReadTxn, name: str, resolve: Resolve) -> list[SessionRow]:
    session = find_by_name(StoredSessions(txn.sql), name, access_of(txn).may_read, any_case=True)
    if session is not None and session.head is None:
        return [session]
    root = resolve(txn, name if session is None or session.head is None else session.head).turn.root
    rows = txn.sql.all(
        f"{SESSION.select} WHERE head_segment IN (SELECT n FROM segment WHERE root = ?) ORDER BY n", (root,)
    )
    return [SessionRow(*row) for row in rows]
