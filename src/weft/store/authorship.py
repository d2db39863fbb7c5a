"""Which events count here: those that this ledger wrote, and those of others that somebody here took over.

Facts travel between ledgers, and what they decide does not: a configuration, an approval or an erasure of another
replica is kept and shown, and does nothing until a person here takes it over. What was taken over or refused is local
state, a row per event id; it is no event and goes to no other ledger. Nobody can write in this ledger's name elsewhere:
an event that says so and is not known here is refused when it arrives.
"""

from __future__ import annotations

from typing import Any

import orjson
from msgspec import Struct

from weft.kernel.events import event_id
from weft.store.facts import local_value
from weft.store.port import ReadTxn
from weft.store.records import DECLINED, TAKEN
from weft.store.replica_names import NOTE, last_event_as
from weft.store.sql import Sql


class AuthoredEvent(Struct, frozen=True):
    """An event, who wrote it, and what was decided about it here."""

    n: int
    id: str
    fields: dict[str, Any]
    is_own: bool
    is_taken: bool = False
    is_refused: bool = False

    @property
    def counts(self) -> bool:
        return self.is_own or self.is_taken

    @property
    def replica(self) -> str | None:
        """The replica that wrote it, as it says; None where it says nothing."""
        replica = self.fields.get("replica")
        return replica if isinstance(replica, str) else None


def authored_event(txn: ReadTxn, n: int) -> AuthoredEvent | None:
    """The event of this number; None where it is being written right now."""
    line = txn.facts.line(n)
    if line is None:
        return None
    fields = orjson.loads(line)
    id, own = event_id(line), is_written_here(txn.sql, n, fields.get("replica"))
    if own:
        return AuthoredEvent(n, id, fields, True)
    return AuthoredEvent(n, id, fields, False, _is_noted(txn.sql, TAKEN + id), _is_noted(txn.sql, DECLINED + id))


def counts(txn: ReadTxn, n: int) -> bool:
    """Whether the event of this number decides anything here. One that is being written right now does."""
    event = authored_event(txn, n)
    return event is None or event.counts


def is_written_here(sql: Sql, n: int, replica: object) -> bool:
    """Whether this ledger wrote event `n`, under its name or a former one."""
    if not isinstance(replica, str):
        return False
    return replica == local_value(sql, "replica") or last_event_as(sql, replica) >= n


def _is_noted(sql: Sql, key: str) -> bool:
    return sql.one("SELECT 1 FROM local WHERE key = ?", (key,)) is not None


def note_taken(sql: Sql, id: str, at_ms: int) -> None:
    """From now on this event counts here."""
    release(sql, id)
    sql.run(NOTE, (TAKEN + id, str(at_ms)))


def note_refused(sql: Sql, id: str, at_ms: int) -> None:
    """This event does not count, and is not asked about again."""
    release(sql, id)
    sql.run(NOTE, (DECLINED + id, str(at_ms)))


def release(sql: Sql, id: str) -> None:
    """What was decided about this event is forgotten: it waits again."""
    sql.run("DELETE FROM local WHERE key IN (?, ?)", (TAKEN + id, DECLINED + id))


def decided_events(sql: Sql) -> list[tuple[str, bool]]:
    """The ids of events that somebody here took over (True) or refused (False)."""
    rows = sql.all("SELECT key FROM local WHERE key LIKE ? OR key LIKE ? ORDER BY key", (f"{TAKEN}%", f"{DECLINED}%"))
    return [(key.partition(":")[2], key.startswith(TAKEN)) for (key,) in rows]
