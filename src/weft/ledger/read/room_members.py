"""Who takes part in the conversation that an agent's session belongs to."""

from __future__ import annotations

from weft.store.replica_names import OwnEvents
from weft.store.sql import Sql


def is_beside_agent(sql: Sql, session: int | None, node: str) -> bool:
    """Whether somebody takes part in the conversation whose agent answers in this session, by its number."""
    if session is None:
        return False
    rows = sql.all(
        "SELECT p.n, p.replica FROM session s JOIN participant a ON a.session = s.id"
        " JOIN participant p ON p.conversation = a.conversation AND p.node = ?"
        " WHERE s.n = ? AND a.removed_n IS NULL AND p.removed_n IS NULL",
        (node, session),
    )
    own = OwnEvents(sql) if rows else None
    return own is not None and any(own.has(n, replica) for n, replica in rows)
