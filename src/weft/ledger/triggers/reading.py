"""What triggers did, read back: firings, missed times, and how far they have looked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from weft.kernel.events import event_id
from weft.ledger.triggers.causes import may_read_cause
from weft.ledger.triggers.model import Firing, MissedTimes, TriggerCursor, TriggerStanding
from weft.ledger.views.program_rows import ProgramRow
from weft.ledger.views.values import error_code_of, text_of
from weft.store.authorship import authored_event
from weft.store.port import ReadTxn
from weft.store.replica_names import OwnEvents
from weft.store.sql import Sql

_FIRING = (
    "SELECT f.occasion, f.source, f.fired_at, f.due, f.message, f.posted, f.cause, f.hops, f.error, f.error_code,"
    " i.state, i.turn FROM trigger_firing f LEFT JOIN inbox i ON i.message = f.message"
)


def _firing(txn: ReadTxn, trigger: str, row: tuple[Any, ...]) -> Firing:
    occasion, source, fired_at, due, message, posted, cause, hops, error, code, state, turn = row
    return Firing(
        trigger=trigger,
        occasion=occasion,
        source=source,
        fired_at=fired_at,
        due=due,
        message=message,
        posted=posted,
        cause=cause if cause is not None and may_read_cause(txn, cause) else None,
        hops=hops,
        error=None if error is None else text_of(txn, error),
        error_code=error_code_of(txn, code),
        state=state,
        turn=turn,
    )


def find_firing(txn: ReadTxn, trigger: str, occasion: str) -> Firing | None:
    row = txn.sql.one(f"{_FIRING} WHERE f.trigger_id = ? AND f.occasion = ?", (trigger, occasion))
    return None if row is None else _firing(txn, trigger, row)


def listed_firings(txn: ReadTxn, trigger: str, limit: int) -> list[Firing]:
    """What a trigger did here, the newest first."""
    is_own, values = OwnEvents(txn.sql).condition("f")
    query = f"{_FIRING} WHERE f.trigger_id = ? AND {is_own} ORDER BY f.n DESC LIMIT ?"
    return [_firing(txn, trigger, row) for row in txn.sql.all(query, (trigger, *values, limit))]


def listed_gaps(txn: ReadTxn, trigger: str, limit: int) -> list[MissedTimes]:
    """Times that it missed here, the newest first."""
    is_own, values = OwnEvents(txn.sql).condition("g")
    rows = txn.sql.all(
        f"SELECT g.count, g.first, g.last, g.reason, g.noted_at FROM trigger_gap g WHERE g.trigger_id = ? AND {is_own}"
        " ORDER BY g.n DESC LIMIT ?",
        (trigger, *values, limit),
    )
    return [
        MissedTimes(
            trigger=trigger,
            count=count,
            first=first,
            last=last,
            reason=None if reason is None else text_of(txn, reason),
            noted_at=noted_at,
        )
        for count, first, last, reason, noted_at in rows
    ]


def unrecorded_times(sql: Sql, trigger: str, since_n: int, times: Sequence[int]) -> list[int]:
    """Those of some times of a schedule, in order, at which the trigger has neither fired nor is known to have missed
    them since an event."""
    own, span = OwnEvents(sql), (trigger, since_n, times[0], times[-1])
    is_own, values = own.condition("g")
    gaps = sql.all(
        "SELECT g.first, g.last FROM trigger_gap g WHERE g.trigger_id = ? AND g.n > ? AND g.last >= ? AND g.first <= ?"
        f" AND {is_own}",
        (*span, *values),
    )
    is_own, values = own.condition("f")
    fired = sql.all(
        "SELECT f.due FROM trigger_firing f WHERE f.trigger_id = ? AND f.n > ? AND f.due >= ? AND f.due <= ?"
        f" AND f.source = 'cron' AND {is_own}",
        (*span, *values),
    )
    recorded = {due for (due,) in fired}
    return [time for time in times if time not in recorded and not any(first <= time <= last for first, last in gaps)]


def errors_in_a_row(sql: Sql, trigger: str, since_n: int, most: int) -> int:
    """How many of the last firings failed since an event, at most so many: by themselves, or since nobody could answer
    their message."""
    is_own, values = OwnEvents(sql).condition("f")
    rows = sql.all(
        "SELECT f.error_code, i.state FROM trigger_firing f LEFT JOIN inbox i ON i.message = f.message"
        f" WHERE f.trigger_id = ? AND f.n > ? AND {is_own} ORDER BY f.n DESC LIMIT ?",
        (trigger, since_n, *values, most),
    )
    count = 0
    for error_code, state in rows:
        if error_code is None and state != "dead":
            break
        count += 1
    return count


def caused_firings(sql: Sql, trigger: str, since_ms: int) -> int:
    """How often a trigger fired since a time for what triggers caused."""
    is_own, values = OwnEvents(sql).condition("f")
    row = sql.one(
        f"SELECT count(*) FROM trigger_firing f WHERE f.trigger_id = ? AND f.hops > 0 AND f.fired_at > ? AND {is_own}",
        (trigger, since_ms, *values),
    )
    return int(row[0]) if row else 0


def trigger_standing(txn: ReadTxn, row: ProgramRow) -> TriggerStanding | None:
    """A trigger by what was written or taken over here; None where nothing of it was. Each who had a hand in it narrows
    what it may: whoever created it, and whoever configured it last."""
    query = "SELECT n, version, at, kind, config FROM program_history WHERE program = ? ORDER BY n DESC"
    configured: tuple[int, int, int] | None = None
    since_n = since_ms = 0
    principals: dict[str, None] = {}
    owner = ""
    for n, version, at, kind, config in txn.sql.all(query, (row.id,)):
        is_configuration = config is not None
        if not is_configuration and kind != "trigger_resumed":
            continue
        event = authored_event(txn, n)
        if event is not None and not event.counts:
            continue
        since_n, since_ms = (n, at) if not since_n else (since_n, since_ms)
        if is_configuration and (configured is None or kind == "trigger_created"):
            configured = configured or (n, version, at)
            fields = {"actor": row.created_by} if event is None else event.fields
            owner = fields["actor"]
            principals.update(dict.fromkeys((fields["actor"], *(fields.get("on_behalf_of") or ()))))
    if configured is None:
        return None
    return TriggerStanding(
        id=row.id,
        version=configured[1],
        since_n=since_n,
        since_ms=since_ms,
        principals=tuple(principals),
        owner=owner,
        cursor=load_cursor(txn.sql, row.id),
    )


def load_cursor(sql: Sql, trigger: str) -> TriggerCursor | None:
    row = sql.one("SELECT version, position, state FROM trigger_cursor WHERE trigger_id = ?", (trigger,))
    return None if row is None else TriggerCursor(*row)


def load_cursors(sql: Sql) -> dict[str, TriggerCursor]:
    rows = sql.all("SELECT trigger_id, version, position, state FROM trigger_cursor")
    return {trigger: TriggerCursor(version, position, state) for trigger, version, position, state in rows}


def last_changes(sql: Sql) -> tuple[tuple[str, int], ...]:
    """Active triggers, each with the number of the last event about it."""
    rows = sql.all(
        "SELECT p.id, (SELECT max(h.n) FROM program_history h WHERE h.program = p.id) FROM program p"
        " WHERE p.kind = 'trigger' AND p.deleted = 0 AND p.state = 'active' ORDER BY p.id"
    )
    return tuple((trigger, n or 0) for trigger, n in rows)


def events_after(txn: ReadTxn, n: int, limit: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """The events behind an arrival number that this ledger wrote, as their fields; at most so many are looked at."""
    own = OwnEvents(txn.sql)
    for number, line in txn.facts.lines(n, n + limit):
        fields = orjson.loads(line)
        if own.has(number, fields.get("replica")):
            yield number, {**fields, "event_id": event_id(line)}
