"""When a commit becomes durable: after the writers' lock is let go, and before anybody is told of it.

A commit with events does not wait for the disk: its rows are visible and the lock is free at once, so that the next
writer, of whichever process, works while they are flushed. Then the writer flushes, together with all who wait for the
same: the server's log has one order, so what was committed before is durable with it. Only then is anybody answered.

So there are moments in which rows are visible that a crash would take back. Writers may build on them: what they write
comes later in the server's log and is lost with them or not at all. Nobody else is shown them: a reader whose snapshot
holds events that are not known to be durable flushes before it looks. A commit without events waits for the disk while
it holds the lock, so that the number of the newest event says all.
"""

from __future__ import annotations

FLUSH = "SELECT pg_logical_emit_message(true, 'weft', '')"
"""Nothing but a record in the server's log, committed as promised: whatever was committed before is durable then, here
and on every standby that the server waits for. It needs no right, and no transaction that may write."""


def flush_and_ask(listening: int) -> str:
    """The same, which also says whether anybody listens: whoever does shares the lock `listening`. One who begins to
    listen after this was asked sees the commit by looking."""
    asked = f"CASE WHEN pg_try_advisory_lock({listening}) THEN NOT pg_advisory_unlock({listening}) ELSE true END"
    return f"{FLUSH}, {asked}"


COMMIT = ("COMMIT",)
COMMIT_THEN_FLUSH = ("SET LOCAL synchronous_commit TO off", "COMMIT", FLUSH)

SNAPSHOT = (
    "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SELECT coalesce((SELECT max(n) FROM log), 0),"
    " CASE WHEN pg_is_in_recovery() THEN true ELSE current_setting('synchronous_standby_names') = ''"
    " AND pg_current_wal_flush_lsn() >= pg_current_wal_insert_lsn() END"
)
"""The newest event of a reader's snapshot, and whether all that it can see is durable. The snapshot is older than the
answer. A standby is sent only what is durable; where a server waits for standbys, what it has flushed itself says
nothing."""
