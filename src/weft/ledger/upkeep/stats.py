"""How big a ledger is, and of what."""

from __future__ import annotations

from typing import Any

from weft.store.port import ReadTxn

_COUNTS = {
    "turns": "SELECT count(*) FROM turn WHERE current = 1",
    "superseded_turns": "SELECT count(*) FROM turn WHERE current = 0",
    "messages": "SELECT count(*) FROM message",
    "tool_calls": "SELECT count(*) FROM tool_call",
    "sessions": "SELECT count(*) FROM session WHERE status <> 'deleted'",
    "compactions": "SELECT count(*) FROM compaction",
    "trees": "SELECT count(*) FROM segment WHERE parent IS NULL",
    "forks": "SELECT count(*) FROM segment WHERE parent IS NOT NULL",
    "deepest": "SELECT coalesce(max(depth), 0) FROM turn",
    "contents": "SELECT count(*) FROM content",
    "erased_contents": "SELECT count(*) FROM content WHERE length(salt) = 0",
    "packed_contents": "SELECT count(DISTINCT content) FROM packed",
    "packed_bytes": "SELECT coalesce(sum(size), 0) FROM packed",
    "bytes_of_packs": "SELECT coalesce(sum(length(bytes)), 0) FROM pack",
    "content_bytes": "SELECT coalesce(sum(size), 0) FROM content",
    "total_tokens": "SELECT coalesce(sum(total_tokens), 0) FROM turn WHERE current = 1",
}
_BY_STATUS = "SELECT status, count(*) FROM turn WHERE current = 1 GROUP BY status ORDER BY status"


def collect(txn: ReadTxn, replica: str) -> dict[str, Any]:
    found: dict[str, Any] = {"replica": replica, "events": txn.facts.tip().n}
    for name, sql in _COUNTS.items():
        row = txn.sql.one(sql)
        found[name] = row[0] if row else 0
    found["turns_by_status"] = dict(txn.sql.all(_BY_STATUS))
    found["log"] = txn.facts.tip().chain.hex()
    return found
