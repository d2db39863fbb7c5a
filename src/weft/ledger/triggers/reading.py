"""What triggers did, read back: firings, missed times, how far they have looked; and how far what they caused goes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
from msgspec import Struct

from weft.kernel.events import event_id
from weft.ledger.rooms.rows import load_conversation
from weft.ledger.triggers.model import Firing, MissedTimes, TriggerCursor, TriggerStanding
from weft.ledger.views.program_rows import ProgramRow
from weft.ledger.views.values import text_of
from weft.store.authorship import authored_event
from weft.store.port import ReadTxn
from weft.store.replica_names import OwnEvents
from weft.store.sql import Sql

_FIRING = (
    "SELECT f.occasion, f.source, f.fired_at, f.due, f.message, f.posted, f.cause, f.hops, f.error, f.error_code,"
    " i.state, i.turn, f.n, f.replica FROM trigger_firing f LEFT JOIN inbox i ON i.message = f.message"
)
DEEPEST_CAUSE = 16
"""So far back a cause is followed through rooms and workers."""


def _firing(txn: ReadTxn, trigger: str, row: tuple[Any, ...]) -> Firing:
    occasion, source, fired_at, due, message, posted, cause, hops, error, code, state, turn, _, _ = row
    return Firing(
        trigger=trigger,
        occasion=occasion,
        source=source,
        fired_at=fired_at,
        due=due,
        message=message,
        posted=posted,
        cause=cause,
        hops=hops,
        error=None if error is None else text_of(txn, error),
        error_code=code,
        state=state,
        turn=turn,
    )


def find_firing(txn: ReadTxn, trigger: str, occasion: str) -> Firing | None:
    row = txn.sql.one(f"{_FIRING} WHERE f.trigger_id = ? AND f.occasion = ?", (trigger, occasion))
    return None if row is None else _firing(txn, trigger, row)


def listed_firings(txn: ReadTxn, trigger: str, limit: int) -> list[Firing]:
    """What a trigger did here, the newest first."""
    own = OwnEvents(txn.sql)
    rows = txn.sql.all(f"{_FIRING} WHERE f.trigger_id = ? ORDER BY f.n DESC LIMIT ?", (trigger, limit))
    return [_firing(txn, trigger, row) for row in rows if own.has(row[-2], row[-1])]


def listed_gaps(txn: ReadTxn, trigger: str, limit: int) -> list[MissedTimes]:
    """Times that it missed here, the newest first."""
    own = OwnEvents(txn.sql)
    rows = txn.sql.all(
        "SELECT n, replica, count, first, last, reason, noted_at FROM trigger_gap WHERE trigger_id = ?"
        " ORDER BY n DESC LIMIT ?",
        (trigger, limit),
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
        for n, replica, count, first, last, reason, noted_at in rows
        if own.has(n, replica)
    ]


def errors_in_a_row(sql: Sql, trigger: str, most: int) -> int:
    """How many of the last firings failed since the trigger was last resumed or configured: by themselves, or since
    nobody could answer their message."""
    own = OwnEvents(sql)
    since = sql.one(
        "SELECT max(n) FROM program_history WHERE program = ? AND kind IN"
        " ('trigger_resumed', 'trigger_configured', 'trigger_created')",
        (trigger,),
    )
    rows = sql.all(
        "SELECT f.n, f.replica, f.error_code, i.state FROM trigger_firing f LEFT JOIN inbox i ON i.message = f.message"
        " WHERE f.trigger_id = ? AND f.n > ? ORDER BY f.n DESC LIMIT ?",
        (trigger, (since[0] if since else 0) or 0, most),
    )
    count = 0
    for n, replica, error_code, state in rows:
        if not own.has(n, replica):
            continue
        if error_code is None and state != "dead":
            break
        count += 1
    return count


def trigger_standing(txn: ReadTxn, row: ProgramRow) -> TriggerStanding | None:
    """A trigger by what was written or taken over here; None where nothing of it was. Each who had a hand in it narrows
    what it may: whoever created it, and whoever configured it last."""
    query = "SELECT n, version, at, kind, config FROM program_history WHERE program = ? ORDER BY n DESC"
    configured: tuple[int, int, int] | None = None
    since_n = since_ms = 0
    principals: dict[str, None] = {}
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
            principals.update(dict.fromkeys((fields["actor"], *(fields.get("on_behalf_of") or ()))))
    if configured is None:
        return None
    return TriggerStanding(
        id=row.id,
        version=configured[1],
        since_n=since_n,
        since_ms=since_ms,
        principals=tuple(principals),
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


def hops_of_turn(sql: Sql, turn: str, depth: int = 0) -> int:
    """How many firings lie between what a turn does and what no trigger caused; 0 where no trigger had a part in it."""
    if depth > DEEPEST_CAUSE:
        return DEEPEST_CAUSE
    messages = [message for (message,) in sql.all("SELECT message FROM inbox WHERE turn = ?", (turn,))]
    hops = [hops_of_message(sql, message, depth + 1) for message in messages]
    spawner = sql.one(
        "SELECT t.id FROM turn r JOIN session s ON s.n = r.session JOIN worker w ON w.session = s.id"
        " JOIN turn t ON t.id = w.parent_turn WHERE r.id = ?",
        (turn,),
    )
    if spawner is not None:
        hops.append(hops_of_turn(sql, spawner[0], depth + 1))
    return max(hops, default=0)


def hops_of_message(sql: Sql, message: str, depth: int = 0) -> int:
    """The same of a message of an inbox: the firing that sent it, or that began the talk in a room that led to it."""
    row = sql.one("SELECT hops FROM trigger_firing WHERE message = ?", (message,))
    if row is not None:
        return int(row[0]) + 1
    delivery = sql.one("SELECT root FROM room_delivery WHERE message = ?", (message,))
    return 0 if delivery is None else hops_of_post(sql, delivery[0])


def hops_of_post(sql: Sql, root: str) -> int:
    """The same of what was said in a room, by the id of the message that it goes back to."""
    row = sql.one("SELECT hops FROM trigger_firing WHERE posted = ?", (root,))
    return 0 if row is None else int(row[0]) + 1


class EventPlace(Struct, frozen=True, kw_only=True):
    """What an event is about, and how many firings of triggers lie between it and what no trigger caused."""

    cause: str | None = None
    turn: str | None = None
    session: str | None = None
    """The session's label."""
    room: str | None = None
    program: str | None = None
    hops: int = 0


def place_of(txn: ReadTxn, fields: dict[str, Any]) -> EventPlace:
    kind, _, id = str(fields.get("stream", "")).partition(":")
    sql = txn.sql
    if kind == "run":
        row = sql.one("SELECT s.label FROM turn t LEFT JOIN session s ON s.n = t.session WHERE t.id = ?", (id,))
        return EventPlace(cause=id, turn=id, session=None if row is None else row[0], hops=hops_of_turn(sql, id))
    if kind == "session":
        row = sql.one("SELECT label FROM session WHERE id = ?", (id,))
        message, turn = fields.get("message"), fields.get("turn")
        hops = hops_of_message(sql, message) if isinstance(message, str) else 0
        hops = max(hops, hops_of_turn(sql, turn) if isinstance(turn, str) else 0)
        return EventPlace(cause=id, session=None if row is None else row[0], hops=hops)
    if kind == "conversation":
        room = load_conversation(sql, id)
        root = fields.get("root") or fields.get("message")
        turn = fields.get("turn")
        hops = hops_of_post(sql, root) if isinstance(root, str) else 0
        hops = max(hops, hops_of_turn(sql, turn) if isinstance(turn, str) else 0)
        return EventPlace(cause=fields.get("message") or id, room=None if room is None else room.id, hops=hops)
    return EventPlace(cause=id if kind == "program" else None, program=id if kind == "program" else None)
