"""Events that other ledgers told and that are refused here: they contradict what is here, or say that this ledger wrote
them, or build on such events.

Each is remembered by its id, with the peer that told it, as local state. It is not asked for again, and what builds on
it is left out as well, so that one forged event keeps nobody from taking the rest. A ledger that goes by a new replica
id forgets all of them: under another name they may have a place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from msgspec import Struct

from weft.store.records import REFUSED_EVENT as EVENT
from weft.store.records import REFUSED_NAME as NAME
from weft.store.replica_names import NOTE
from weft.store.sql import Sql, rows_in

_hashes = re.compile(rb'"([0-9a-f]{64})"').findall
_names = re.compile(rb'"([0-9A-Za-z_-]{16,64})"').findall


class RefusedEvent(Struct, frozen=True):
    """An event that is refused, by its id, and the replica that told it."""

    event: str
    peer: str


class RefusedEvents:
    """What was refused so far, and what one transaction adds to it."""

    def __init__(self, sql: Sql, peer: str) -> None:
        self._sql, self._peer = sql, peer
        self._has_any = sql.one("SELECT 1 FROM local WHERE key LIKE ? LIMIT 1", (f"{EVENT}%",)) is not None
        self.reasons: list[str] = []
        """Why events were refused now that do not merely build on refused ones."""
        self.count = 0

    def add(self, event_id: bytes, begun: str | None, reason: str | None = None) -> None:
        """`begun` is the turn or session that the event would have begun."""
        keys = [EVENT + event_id.hex(), *([NAME + begun] if begun else [])]
        for key in keys:
            self._sql.run(NOTE, (key, self._peer))
        self._has_any = True
        self.count += 1
        if reason is not None:
            self.reasons.append(reason)

    def has_foundation_of(self, line: bytes, is_here: Callable[[str], bool]) -> bool:
        """Whether this event names a refused one, or a turn or session that only a refused one began."""
        if not self._has_any:
            return False
        keys = {EVENT + event.decode() for event in _hashes(line)} | {NAME + name.decode() for name in _names(line)}
        rows = rows_in(self._sql, "SELECT key FROM local WHERE key IN", sorted(keys))
        return any(key.startswith(EVENT) or not is_here(key.removeprefix(NAME)) for (key,) in rows)


def refused_among(sql: Sql, ids: Iterable[bytes]) -> set[bytes]:
    keys = [EVENT + event.hex() for event in ids]
    return {
        bytes.fromhex(key.removeprefix(EVENT)) for (key,) in rows_in(sql, "SELECT key FROM local WHERE key IN", keys)
    }


def count_refused(sql: Sql, replica: str) -> int:
    """How many events that this replica told were refused."""
    row = sql.one("SELECT count(*) FROM local WHERE key LIKE ? AND value = ?", (f"{EVENT}%", replica))
    return int(row[0]) if row else 0


def load_refused(sql: Sql) -> list[RefusedEvent]:
    rows = sql.all("SELECT key, value FROM local WHERE key LIKE ? ORDER BY key", (f"{EVENT}%",))
    return [RefusedEvent(key.removeprefix(EVENT), peer) for key, peer in rows]
