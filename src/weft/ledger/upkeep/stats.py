"""How big a ledger is, and of what."""

from __future__ import annotations

from typing import Any

from weft.store.port import ReadTxn

_FORKS = (
    "SELECT count(*) - count(DISTINCT CASE WHEN s.parent_events IS NULL THEN t.parent END) FROM turn t"
    " LEFT JOIN segment s ON s.n = t.segment AND s.base = t.depth WHERE t.current = 1 AND t.parent IS NOT NULL"
)
"""Turns that leave inside another one, and all but one of those that go on from the end of the same turn."""
_COUNTS = {
    "turns": "SELECT count(*) FROM turn WHERE current = 1",
    "superseded_turns": "SELECT count(*) FROM turn WHERE current = 0",
    "messages": "SELECT count(*) FROM message WHERE turn NOT IN (SELECT n FROM turn WHERE current = 0)",
    "tool_calls": "SELECT count(*) FROM tool_call WHERE turn NOT IN (SELECT n FROM turn WHERE current = 0)",
    "sessions": "SELECT count(*) FROM session WHERE status <> 'deleted'",
    "compactions": "SELECT count(*) FROM compaction WHERE turn NOT IN (SELECT id FROM turn WHERE current = 0)",
    "trees": "SELECT count(DISTINCT root) FROM turn WHERE current = 1",
    "forks": _FORKS,
    "deepest": "SELECT coalesce(max(depth), 0) FROM turn WHERE current = 1",
    "contents": "SELECT count(*) FROM content",
    "erased_contents": "SELECT count(*) FROM content WHERE length(salt) = 0",
    "packed_contents": "SELECT count(DISTINCT content) FROM packed",
    "packed_bytes": "SELECT coalesce(sum(size), 0) FROM packed",
    "bytes_of_packs": "SELECT coalesce(sum(length(bytes)), 0) FROM pack",
    "content_bytes": "SELECT coalesce(sum(size), 0) FROM content",
    "total_tokens": "SELECT coalesce(sum(total_tokens), 0) FROM turn WHERE current = 1",
}
"""Of what turns are made of, what stands: versions of a turn that another one superseded are counted by themselves."""
_BY_STATUS = "SELECT status, count(*) FROM turn WHERE current = 1 GROUP BY status ORDER BY status"


def collect(txn: ReadTxn, replica: str) -> dict[str, Any]:
    found: dict[str, Any] = {"replica": replica, "events": txn.facts.tip().n}
    for name, sql in _COUNTS.items():
        row = txn.sql.one(sql)
        found[name] = row[0] if row else 0
    found["turns_by_status"] = dict(txn.sql.all(_BY_STATUS))
    found["log"] = txn.facts.tip().chain.hex()
    return found
