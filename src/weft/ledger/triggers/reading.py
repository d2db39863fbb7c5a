"""What triggers did, read back: firings, missed times, how far they have looked; and how far what they caused goes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import orjson
from msgspec import UNSET, Struct

from weft.kernel.events import event_id
from weft.ledger.rooms.rows import load_conversation
from weft.ledger.runs.inbox import admission_event
from weft.ledger.triggers.model import Firing, MissedTimes, TriggerCursor, TriggerStanding
from weft.ledger.views.program_rows import ProgramRow
from weft.ledger.views.values import text_of
from weft.store.authorship import authored_event
from weft.store.port import ReadTxn
from weft.store.replica_names import OwnEvents
from weft.store.sql import Sql

_FIRING = (
    "SELECT f.occasion, f.source, f.fired_at, f.due, f.message, f.posted, f.cause, f.hops, f.error, f.error_code,"
    " i.state, i.turn FROM trigger_firing f LEFT JOIN inbox i ON i.message = f.message"
)
MOST_CAUSES = 256
"""So many turns and messages are looked at for what caused an event."""


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


class Causes:
    """Follows what caused turns and messages back to firings of triggers: through inboxes, rooms, and the calls that
    spawned workers."""

    def __init__(self, txn: ReadTxn) -> None:
        self._facts, self._sql = txn.facts, txn.sql
        self._is_own, self._own_values = OwnEvents(txn.sql).condition("f")
        self._turns: list[str] = []
        self._messages: list[str] = []
        self._hops = 0

    def hops(self, *, turns: Iterable[Any] = (), messages: Iterable[Any] = (), roots: Iterable[Any] = ()) -> int:
        """How many firings lie between these and what no trigger caused; 0 where no trigger had a part in it. `roots`
        are messages of rooms. What is no id has no cause."""
        self._turns += [turn for turn in turns if isinstance(turn, str)]
        self._messages += [message for message in messages if isinstance(message, str)]
        for root in roots:
            self._note_firing("posted", root)
        turns_seen, messages_seen = set[str](), set[str]()
        while (self._turns or self._messages) and len(turns_seen) + len(messages_seen) < MOST_CAUSES:
            if self._messages:
                message = self._messages.pop()
                if message not in messages_seen:
                    messages_seen.add(message)
                    self._follow_message(message)
            else:
                turn = self._turns.pop()
                if turn not in turns_seen:
                    turns_seen.add(turn)
                    self._follow_turn(turn)
        return self._hops

    def _note_firing(self, column: str, id: object) -> bool:
        """Whether a firing of this ledger sent or posted this."""
        row = self._sql.one(
            f"SELECT max(f.hops) FROM trigger_firing f WHERE f.{column} = ? AND {self._is_own}",
            (id, *self._own_values),
        )
        if row is None or row[0] is None:
            return False
        self._hops = max(self._hops, int(row[0]) + 1)
        return True

    def _follow_turn(self, turn: str) -> None:
        self._messages += [message for (message,) in self._sql.all("SELECT message FROM inbox WHERE turn = ?", (turn,))]
        row = self._sql.one("SELECT s.id FROM turn t JOIN session s ON s.n = t.session WHERE t.id = ?", (turn,))
        if row is not None:
            self._follow_spawner(row[0])

    def _follow_message(self, message: str) -> None:
        """To the firing that sent it or began the talk in a room that led to it; to the turn whose worker it goes to,
        or to the turn of a worker whose answer it brings."""
        if self._note_firing("message", message):
            return
        delivery = self._sql.one("SELECT root FROM room_delivery WHERE message = ?", (message,))
        if delivery is not None:
            self._note_firing("posted", delivery[0])
        row = self._sql.one(
            "SELECT i.n, s.id FROM inbox i JOIN session s ON s.n = i.session WHERE i.message = ?", (message,)
        )
        if row is None:
            return
        self._follow_spawner(row[1])
        worker = admission_event(self._facts, row[0]).worker
        if worker is not UNSET:
            self._turns.append(worker)

    def _follow_spawner(self, session: str) -> None:
        spawner = self._sql.one("SELECT parent_turn FROM worker WHERE session = ?", (session,))
        if spawner is not None:
            self._turns.append(spawner[0])


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
    sql, causes = txn.sql, Causes(txn)
    if kind == "run":
        row = sql.one("SELECT s.label FROM turn t LEFT JOIN session s ON s.n = t.session WHERE t.id = ?", (id,))
        hops = causes.hops(turns=[id])
        return EventPlace(cause=id, turn=id, session=None if row is None else row[0], hops=hops)
    if kind == "session":
        row = sql.one("SELECT label FROM session WHERE id = ?", (id,))
        return EventPlace(cause=id, session=None if row is None else row[0], hops=_hops_in_session(txn, id, fields))
    if kind == "conversation":
        room = load_conversation(sql, id)
        hops = causes.hops(turns=[fields.get("turn")], roots=[fields.get("root") or fields.get("message")])
        return EventPlace(cause=fields.get("message") or id, room=None if room is None else room.id, hops=hops)
    return EventPlace(cause=id if kind == "program" else None, program=id if kind == "program" else None)


def _hops_in_session(txn: ReadTxn, session: str, fields: dict[str, Any]) -> int:
    """By the message or turn that an event of a session names. One that names none, such as that it was made, by the
    first message and the last turn of the session, and by the turn that spawned it."""
    message, turn = fields.get("message"), fields.get("turn")
    messages, turns = [message], [turn]
    if message is None and turn is None:
        rows = txn.sql.all(
            "SELECT i.message FROM inbox i JOIN session s ON s.n = i.session WHERE s.id = ? ORDER BY i.n LIMIT 1",
            (session,),
        )
        messages = [row[0] for row in rows]
        turns = [row[0] for row in txn.sql.all("SELECT head FROM session WHERE id = ?", (session,))]
        turns += [row[0] for row in txn.sql.all("SELECT parent_turn FROM worker WHERE session = ?", (session,))]
    return Causes(txn).hops(turns=turns, messages=messages)
