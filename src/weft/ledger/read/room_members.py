"""Who takes part in the conversation that an agent's session belongs to."""

from __future__ import annotations

from weft.kernel.enums import RoomHistory
from weft.store.replica_names import OwnEvents
from weft.store.sql import Sql

NO_END = 2**62
"""Behind every event."""


def is_beside_agent(sql: Sql, session: int | None, node: str, *, since: int | None = None) -> bool:
    """Whether somebody takes part in the conversation whose agent answers in this session, by its number; a worker's
    session stands for that of its spawner. With `since`, an arrival number: whether they may also read what was there
    then."""
    if session is None:
        return False
    session = _spawner(sql, session)
    rows = sql.all(
        "SELECT p.n, p.replica FROM session s JOIN participant a ON a.session = s.id"
        " JOIN participant p ON p.conversation = a.conversation AND p.node = ?"
        " JOIN conversation c ON c.id = a.conversation"
        " WHERE s.n = ? AND a.removed_n IS NULL AND p.removed_n IS NULL AND (p.n < ? OR c.history = ?)",
        (node, session, NO_END if since is None else since, RoomHistory.ALL.value),
    )
    own = OwnEvents(sql) if rows else None
    return own is not None and any(own.has(n, replica) for n, replica in rows)


def _spawner(sql: Sql, session: int) -> int:
    """The number of the session that spawned a worker's, or its spawner's, and so on; any other stands for itself."""
    query = (
        "SELECT p.n, w.n, w.replica FROM session s JOIN worker w ON w.session = s.id"
        " JOIN session p ON p.id = w.parent_session WHERE s.n = ?"
    )
    own = OwnEvents(sql)
    while (row := sql.one(query, (session,))) is not None and own.has(row[1], row[2]) and row[0] < session:
        session = int(row[0])
    return session
