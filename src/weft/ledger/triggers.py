"""Triggers at work: occasions for which they fired, once each, with the message that a firing
sends in one transaction; times of their schedules that they missed; what an event is about and how
many firings lie before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Any

import orjson
from msgspec import UNSET, Struct

from weft.kernel.clock import iso_from_ms
from weft.kernel.enums import MessageSource, ParticipantKind, ProgramKind, RoomMessageKind
from weft.kernel.errors import Action, NotApplicable, NotFound, error_code, error_text
from weft.kernel.events import ErrorFact, MentionFact, event_id, program_stream
from weft.kernel.program_events import TriggerFired, TriggerMissed, TriggerPaused
from weft.ledger.broker.admission import (
    MessageTarget,
    NewAdmission,
    RoomDelivery,
    add_message,
    admission_of,
    deliver,
    refuse_worker,
    resolve_target,
    scope_of,
)
from weft.ledger.broker.inbox import DEFAULT_LIMITS, Admission, admission_event
from weft.ledger.model import DEFAULT_AGENT, NewMessage
from weft.ledger.read.access import access_of
from weft.ledger.room_posting import OpenRoom, delivered_parts
from weft.ledger.room_records import ROOM_LIMITS, load_conversation, readable_ranges
from weft.ledger.views.rows import ProgramRow, error_code_of, load_program, load_session, load_turn, text_of
from weft.ledger.write.record_turn import weigh
from weft.ledger.write.transaction import MESSAGE_ROOM, Append, EventStream, LedgerWriter
from weft.ledger.write.turn_events import TurnEvents
from weft.store.port import ReadTxn
from weft.store.replicas import OwnEvents, authored_event
from weft.store.sql import Sql

# --- What triggers take and give when they fire.

MAX_HOPS = 8
"""So many firings may lie between a firing and what no trigger caused."""
MOST_CAUSED_FIRINGS = 64
CAUSED_PERIOD_MS = 3_600_000
"""So often in such a time a trigger fires for what triggers caused."""


class TriggerOccasion(Struct, frozen=True, kw_only=True):
    """What a trigger fires for. Equal digests of one trigger are one occasion."""

    digest: str
    source: MessageSource
    due_ms: int | None = None
    cause: str | None = None
    """The id of the turn, message or program whose event it is."""
    hops: int = 0
    payload: Any = None
    event_id: str | None = None
    """The event that set it off: of a ledger, or as its sender names it. Null where there is none, as of a schedule."""


class RoomTarget(Struct, frozen=True):
    """A conversation that the message is posted to, and the agent in it that is to answer."""

    room: str
    agent: str


class CursorMove(Struct, frozen=True):
    """How far a trigger has looked, and what it remembers. One that `is_compared` is made only if the trigger remembers
    `expected` at the same position until now."""

    version: int
    position: int
    state: str | None = None
    expected: str | None = None
    is_compared: bool = False
    is_set_back: bool = False
    """Whether the position may lie before the one that is remembered."""


class NewFiring(Struct, frozen=True, kw_only=True):
    """A trigger that is to fire, as one version of its configuration says."""

    trigger: str
    """Its id."""
    version: int
    occasion: TriggerOccasion
    message: NewMessage
    target: MessageTarget | RoomTarget
    principals: tuple[str, ...]
    """On whose behalf it fires."""
    is_untrusted: bool
    """Whether a stranger wrote some of the message."""
    route: Any = None
    breaker: int
    cursor: CursorMove | None = None


class Firing(Struct, frozen=True, kw_only=True):
    """What a trigger did for one occasion."""

    trigger: str
    occasion: str
    source: str
    fired_at: int
    due: int | None = None
    message: str | None = None
    """The message that it sent, in the inbox of a session."""
    posted: str | None = None
    """The message of a conversation that it posted."""
    cause: str | None = None
    hops: int = 0
    error: str | None = None
    error_code: str | None = None
    state: str | None = None
    """What became of the message: queued, taken, answered, dead or cancelled."""
    turn: str | None = None


class FiringOutcome(Struct, frozen=True, kw_only=True):
    """What came of an attempt to fire. `is_new` is false where it had fired for this occasion before."""

    firing: Firing | None
    is_new: bool
    admission: Admission | None = None
    paused: str | None = None
    """Why the trigger was paused instead."""


class MissedTimes(Struct, frozen=True, kw_only=True):
    """Times of a schedule at which a trigger did not fire."""

    trigger: str
    count: int
    first: int
    last: int
    reason: str | None = None
    noted_at: int = 0


class TriggerCursor(Struct, frozen=True):
    """How far a trigger has looked."""

    version: int
    position: int
    state: str | None


class TriggerStanding(Struct, frozen=True, kw_only=True):
    """A trigger as this ledger counts it: which version of its configuration, since when, and in whose name."""

    id: str
    version: int
    since_n: int
    since_ms: int
    """When it was configured or resumed last: what was before sets it off no more."""
    principals: tuple[str, ...]
    """Whoever wrote the configuration that counts, and whoever created it, with those on whose behalf."""
    owner: str
    """Whoever created it; where that does not count here, whoever configured it."""
    cursor: TriggerCursor | None = None


# --- What an event is about, and what caused it: how many firings of triggers lie before it, and who may know of it.

MOST_CAUSES = 256
"""So many turns and messages are looked at for what caused an event."""
_OPEN_TURNS = "SELECT t.id FROM open_run o JOIN turn t ON t.id = o.turn WHERE t.persona = ? AND t.n < ?"
_LAST_TURN = "SELECT id FROM turn WHERE persona = ? AND n < ? ORDER BY n DESC LIMIT 1"


class TriggerCauses:
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

    def note_last_firing(self, trigger: str, n: int) -> None:
        """Count the last firing of a trigger before an event as a cause."""
        row = self._sql.fetch_row(
            f"SELECT f.hops FROM trigger_firing f WHERE f.trigger_id = ? AND f.n < ? AND {self._is_own}"
            " ORDER BY f.n DESC LIMIT 1",
            (trigger, n, *self._own_values),
        )
        if row is not None:
            self._hops = max(self._hops, int(row[0]) + 1)

    def _note_firing(self, column: str, id: object) -> bool:
        """Whether a firing of this ledger sent or posted this."""
        row = self._sql.fetch_row(
            f"SELECT max(f.hops) FROM trigger_firing f WHERE f.{column} = ? AND {self._is_own}",
            (id, *self._own_values),
        )
        if row is None or row[0] is None:
            return False
        self._hops = max(self._hops, int(row[0]) + 1)
        return True

    def _follow_turn(self, turn: str) -> None:
        self._messages += [
            message for (message,) in self._sql.fetch_rows("SELECT message FROM inbox WHERE turn = ?", (turn,))
        ]
        row = self._sql.fetch_row("SELECT s.id FROM turn t JOIN session s ON s.n = t.session WHERE t.id = ?", (turn,))
        if row is not None:
            self._follow_spawner(row[0])

    def _follow_message(self, message: str) -> None:
        """To the firing that sent it or began the talk in a room that led to it; to the turn whose worker it goes to,
        or to the turn of a worker whose answer it brings."""
        if self._note_firing("message", message):
            return
        delivery = self._sql.fetch_row("SELECT root FROM room_delivery WHERE message = ?", (message,))
        if delivery is not None:
            self._note_firing("posted", delivery[0])
        row = self._sql.fetch_row(
            "SELECT i.n, s.id FROM inbox i JOIN session s ON s.n = i.session WHERE i.message = ?", (message,)
        )
        if row is None:
            return
        self._follow_spawner(row[1])
        worker = admission_event(self._facts, row[0]).worker
        if worker is not UNSET:
            self._turns.append(worker)

    def _follow_spawner(self, session: str) -> None:
        spawner = self._sql.fetch_row("SELECT parent_turn FROM worker WHERE session = ?", (session,))
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


def place_of(txn: ReadTxn, n: int, fields: dict[str, Any]) -> EventPlace:
    """Of an event by its arrival number and its fields."""
    kind, _, id = str(fields.get("stream", "")).partition(":")
    sql, causes = txn.sql, TriggerCauses(txn)
    if kind == "run":
        row = sql.fetch_row("SELECT s.label FROM turn t LEFT JOIN session s ON s.n = t.session WHERE t.id = ?", (id,))
        hops = causes.hops(turns=[id])
        return EventPlace(cause=id, turn=id, session=None if row is None else row[0], hops=hops)
    if kind == "session":
        row = sql.fetch_row("SELECT label FROM session WHERE id = ?", (id,))
        return EventPlace(cause=id, session=None if row is None else row[0], hops=_hops_in_session(txn, id, fields))
    if kind == "conversation":
        room = load_conversation(sql, id)
        hops = causes.hops(turns=[fields.get("turn")], roots=[fields.get("root") or fields.get("message")])
        return EventPlace(cause=fields.get("message") or id, room=None if room is None else room.id, hops=hops)
    if kind == "program":
        return EventPlace(cause=id, program=id, hops=_hops_of_program(txn, n, id, fields))
    return EventPlace()


def _hops_of_program(txn: ReadTxn, n: int, program: str, fields: dict[str, Any]) -> int:
    """By the turns of the agents that did it or on whose behalf it was done: those that are not over, and the last one
    before it. No event of a program names the turn in which it was done. That a trigger was paused for its errors comes
    of its last firing."""
    sql, causes = txn.sql, TriggerCauses(txn)
    turns: list[str] = []
    for agent in dict.fromkeys((fields.get("actor"), *(fields.get("on_behalf_of") or ()))):
        if isinstance(agent, str) and agent != DEFAULT_AGENT:
            turns += [turn for (turn,) in sql.fetch_rows(_OPEN_TURNS, (agent, n))]
            turns += [turn for (turn,) in sql.fetch_rows(_LAST_TURN, (agent, n))]
    if fields.get("kind") == "trigger_paused":
        causes.note_last_firing(program, n)
    return causes.hops(turns=turns)


def _hops_in_session(txn: ReadTxn, session: str, fields: dict[str, Any]) -> int:
    """By the message or turn that an event of a session names. One that names none, such as that it was made, by the
    first message and the last turn of the session, and by the turn that spawned it."""
    message, turn = fields.get("message"), fields.get("turn")
    messages, turns = [message], [turn]
    if message is None and turn is None:
        rows = txn.sql.fetch_rows(
            "SELECT i.message FROM inbox i JOIN session s ON s.n = i.session WHERE s.id = ? ORDER BY i.n LIMIT 1",
            (session,),
        )
        messages = [row[0] for row in rows]
        turns = [row[0] for row in txn.sql.fetch_rows("SELECT head FROM session WHERE id = ?", (session,))]
        turns += [row[0] for row in txn.sql.fetch_rows("SELECT parent_turn FROM worker WHERE session = ?", (session,))]
    return TriggerCauses(txn).hops(turns=turns, messages=messages)


def may_read_cause(txn: ReadTxn, cause: str) -> bool:
    """Whether whoever reads may know of the turn, session, room, message of a room or program of this id."""
    sql, access = txn.sql, access_of(txn)
    if access.is_unlimited:
        return True
    turn, session, program = load_turn(sql, cause), load_session(sql, cause), load_program(sql, cause)
    if turn is not None:
        return access.may_read_turn(turn)
    if session is not None:
        return access.may_read(session)
    if program is not None:
        return access.may_read_program(program)
    message = sql.fetch_row("SELECT conversation, position FROM room_message WHERE id = ?", (cause,))
    room = load_conversation(sql, cause if message is None else message[0])
    ranges = () if room is None else readable_ranges(sql, access, room, OwnEvents(sql))
    return bool(ranges) if message is None else any(low < message[1] <= high for low, high in ranges)


# --- What triggers did, read back: firings, missed times, and how far they have looked.

_FIRING = (
    "SELECT f.occasion, f.source, f.fired_at, f.due, f.message, f.posted, f.cause, f.hops, f.error, f.error_code,"
    " i.state, i.turn FROM trigger_firing f LEFT JOIN inbox i ON i.message = f.message"
)


def _firing_of_row(txn: ReadTxn, trigger: str, row: tuple[Any, ...]) -> Firing:
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
    row = txn.sql.fetch_row(f"{_FIRING} WHERE f.trigger_id = ? AND f.occasion = ?", (trigger, occasion))
    return None if row is None else _firing_of_row(txn, trigger, row)


def listed_firings(txn: ReadTxn, trigger: str, limit: int) -> list[Firing]:
    """What a trigger did here, the newest first."""
    is_own, values = OwnEvents(txn.sql).condition("f")
    query = f"{_FIRING} WHERE f.trigger_id = ? AND {is_own} ORDER BY f.n DESC LIMIT ?"
    return [_firing_of_row(txn, trigger, row) for row in txn.sql.fetch_rows(query, (trigger, *values, limit))]


def listed_gaps(txn: ReadTxn, trigger: str, limit: int) -> list[MissedTimes]:
    """Times that it missed here, the newest first."""
    is_own, values = OwnEvents(txn.sql).condition("g")
    rows = txn.sql.fetch_rows(
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
    gaps = sql.fetch_rows(
        "SELECT g.first, g.last FROM trigger_gap g WHERE g.trigger_id = ? AND g.n > ? AND g.last >= ? AND g.first <= ?"
        f" AND {is_own}",
        (*span, *values),
    )
    is_own, values = own.condition("f")
    fired = sql.fetch_rows(
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
    rows = sql.fetch_rows(
        "SELECT f.error_code, i.state FROM trigger_firing f LEFT JOIN inbox i ON i.message = f.message"
        f" WHERE f.trigger_id = ? AND f.n > ? AND {is_own} ORDER BY f.n DESC LIMIT ?",
        (trigger, since_n, *values, most),
    )
    count = 0
    for code, state in rows:
        if code is None and state != "dead":
            break
        count += 1
    return count


def caused_firings(sql: Sql, trigger: str, since_ms: int) -> int:
    """How often a trigger fired since a time for what triggers caused."""
    is_own, values = OwnEvents(sql).condition("f")
    row = sql.fetch_row(
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
    for n, version, at, kind, config in txn.sql.fetch_rows(query, (row.id,)):
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
    row = sql.fetch_row("SELECT version, position, state FROM trigger_cursor WHERE trigger_id = ?", (trigger,))
    return None if row is None else TriggerCursor(*row)


def load_cursors(sql: Sql) -> dict[str, TriggerCursor]:
    rows = sql.fetch_rows("SELECT trigger_id, version, position, state FROM trigger_cursor")
    return {trigger: TriggerCursor(version, position, state) for trigger, version, position, state in rows}


def last_changes(sql: Sql) -> tuple[tuple[str, int], ...]:
    """Active triggers, each with the number of the last event about it."""
    rows = sql.fetch_rows(
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


# --- A trigger fires: the fact that it did and the message that it sends, in one transaction.


def fire(writer: LedgerWriter, new: NewFiring) -> FiringOutcome:
    """Fire for an occasion, in the name of the trigger and on behalf of whoever `writer` writes for."""
    writer.ensure_allowed("room:post" if isinstance(new.target, RoomTarget) else "turn:record")
    message = writer.ulids.mint(MESSAGE_ROOM + 1)
    weight = weigh([new.message], ())
    if weight.large:
        writer.put_large(weight.large, scope_of(message))

    def work(append: Append) -> FiringOutcome:
        row, since_n = _active_trigger(append, new.trigger, new.version)
        outcome = _record_firing(append, row, since_n, new, message)
        append.seal()
        return outcome

    return writer.write(work, weight.size)


def _active_trigger(append: Append, trigger: str, version: int) -> tuple[ProgramRow, int]:
    """A trigger that may fire now, as this version of its configuration says, and the event since which it may."""
    row = load_program(append.sql, trigger)
    if row is None or row.deleted or row.kind != ProgramKind.TRIGGER:
        raise NotFound("trigger", trigger, Action.LIST_PROGRAMS)
    if row.state != "active":
        raise NotApplicable(f"trigger {row.name!r} is {row.state}", "resume it first")
    standing = trigger_standing(ReadTxn(append.sql, append.txn.facts), row)
    if standing is None or standing.version != version:
        raise NotApplicable(f"trigger {row.name!r} was configured meanwhile", "try again")
    return row, standing.since_n


def _record_firing(append: Append, row: ProgramRow, since_n: int, new: NewFiring, message: str) -> FiringOutcome:
    txn = ReadTxn(append.sql, append.txn.facts)
    if not _move_cursor(append, row.id, new.cursor):
        return FiringOutcome(firing=None, is_new=False)
    digest, earlier = _own_occasion(append, row.id, new.occasion.digest)
    if earlier:
        return FiringOutcome(firing=find_firing(txn, row.id, digest), is_new=False)
    reason = _breaking_reason(append, row, since_n, new)
    if reason is not None:
        _pause_trigger(append, row, reason)
        return FiringOutcome(firing=None, is_new=False, paused=reason)
    posted = append.ulids.mint() if isinstance(new.target, RoomTarget) else None
    fired = _add_trigger_event(
        append,
        row,
        new.principals,
        TriggerFired,
        **_occasion_fields(new.occasion, digest),
        message=message,
        posted=posted or UNSET,
    )
    sent = _SentMessage(message, posted, new.occasion.event_id or fired)
    admission: Admission | None = None
    if isinstance(new.target, RoomTarget):
        _post_message(append, row, new, new.target, sent)
    else:
        admission = _admit_message(append, row, new, sent)
    return FiringOutcome(firing=find_firing(txn, row.id, digest), is_new=True, admission=admission)


def _own_occasion(append: Append, trigger: str, digest: str) -> tuple[str, bool]:
    """The digest under which this ledger fires for an occasion, and whether it has. A digest that another ledger's
    firing took is passed over: the next one is computed from it."""
    own = OwnEvents(append.sql)
    while True:
        row = append.sql.fetch_row(
            "SELECT n, replica FROM trigger_firing WHERE trigger_id = ? AND occasion = ?", (trigger, digest)
        )
        if row is None:
            return digest, False
        if own.has(row[0], row[1]):
            return digest, True
        digest = sha256(f"weft.occasion.1 {digest}".encode()).hexdigest()


def _breaking_reason(append: Append, row: ProgramRow, since_n: int, new: NewFiring) -> str | None:
    """Why a trigger must not fire any more until a person has looked at it."""
    if errors_in_a_row(append.sql, row.id, since_n, new.breaker) >= new.breaker:
        return f"its last {new.breaker} firings failed"
    occasion = new.occasion
    if occasion.hops > MAX_HOPS:
        return f"it fired for what triggers caused, {MAX_HOPS} times over"
    if occasion.hops:
        count = caused_firings(append.sql, row.id, append.now_ms - CAUSED_PERIOD_MS)
        if count >= MOST_CAUSED_FIRINGS:
            return f"it fired {count} times in an hour for what triggers caused"
    return None


# --- what it sends ---------------------------------------------------------------------------------------------------


class _SentMessage(Struct, frozen=True):
    """The ids of what a firing sends, and the event that its turn names as its source."""

    message: str
    posted: str | None
    source_event_id: str


def _admit_message(append: Append, row: ProgramRow, new: NewFiring, sent: _SentMessage) -> Admission:
    assert not isinstance(new.target, RoomTarget)
    session, origin = resolve_target(append, new.target)
    refuse_worker(append, session)
    admitted = NewAdmission(
        message=new.message, target=new.target, route=new.route, source_event_id=sent.source_event_id
    )
    with append.in_name_of((row.id, *new.principals)):
        answer = add_message(
            append,
            session,
            sent.message,
            admitted,
            key=None,
            limits=DEFAULT_LIMITS,
            origin=origin,
            trigger=row.id,
            is_untrusted=new.is_untrusted,
        )
    return admission_of(append, answer)


def _post_message(append: Append, row: ProgramRow, new: NewFiring, target: RoomTarget, ids: _SentMessage) -> None:
    """Post to a conversation what its agent is to answer. The system says it, so it brings nobody in and is never a
    person's."""
    assert ids.posted is not None
    room = OpenRoom.named(append, target.room)
    room.ensure_open()
    room.ensure_member("room:post", "post to the room")
    agent = append.sql.fetch_row(
        "SELECT id FROM program WHERE (name = ? OR id = ?) AND kind = 'agent' AND deleted = 0",
        (target.agent, target.agent),
    )
    participant = None if agent is None else room.present(agent[0])
    program = None if agent is None else load_program(append.sql, agent[0])
    if participant is None or program is None or participant.session is None:
        raise NotApplicable(f"agent {target.agent!r} takes no part in the room", "let it in first")
    if not room.works_for(program, new.principals):
        raise NotFound("agent", target.agent, Action.LIST_PROGRAMS)
    id, senders = ids.posted, (row.id, *new.principals)
    parts = TurnEvents(append, id, actor=DEFAULT_AGENT, scope=room.scope).parts(new.message.content)
    meta = room.contents.put_json({"trigger": row.id}, "meta")
    with append.in_name_of(senders):
        mention = MentionFact(kind=ParticipantKind.AGENT, id=program.id)
        place = room.say(id, RoomMessageKind.SYSTEM, parts, mentions=(mention,), meta=meta, hops=1)
    sent, context, _ = delivered_parts(room, participant, place.position, place.n, ROOM_LIMITS)
    source = new.message.source
    assert source is not None
    delivery = RoomDelivery(
        posted=id,
        parts=sent,
        senders=senders,
        source=source,
        context=context,
        scope=room.scope,
        is_untrusted=True,
        trigger=row.id,
        source_event_id=ids.source_event_id,
    )
    deliver(append, append.view.session(participant.session), delivery, DEFAULT_LIMITS, message=ids.message)


# --- facts about a trigger -------------------------------------------------------------------------------------------


def _occasion_fields(occasion: TriggerOccasion, digest: str) -> dict[str, Any]:
    """What is recorded of an occasion. What was delivered stands in the message alone, where it can be erased."""
    return {
        "occasion": digest,
        "source": occasion.source,
        "due": UNSET if occasion.due_ms is None else iso_from_ms(occasion.due_ms),
        "cause": occasion.cause or UNSET,
        "hops": occasion.hops or UNSET,
    }


def _add_trigger_event(append: Append, row: ProgramRow, principals: tuple[str, ...], kind: Any, **fields: Any) -> str:
    with append.in_name_of((row.id, *principals)):
        return _trigger_stream(append, row).add(kind, **fields)


def _trigger_stream(append: Append, row: ProgramRow) -> EventStream:
    name = program_stream(row.id)
    tip = append.sql.fetch_row("SELECT last FROM stream_tip WHERE stream = ?", (name,))
    return append.stream(name, bytes(tip[0]).hex() if tip else None, row.id)


def _pause_trigger(append: Append, row: ProgramRow, reason: str) -> None:
    with append.by_the_ledger():
        _trigger_stream(append, row).add(TriggerPaused, reason=append.put_text(reason, "reason"))


def record_error(writer: LedgerWriter, new: NewFiring, error: Exception) -> FiringOutcome:
    """Record that a trigger could not fire. As many in a row as its breaker allows pause it."""

    def work(append: Append) -> FiringOutcome:
        row, since_n = _active_trigger(append, new.trigger, new.version)
        if not _move_cursor(append, row.id, new.cursor):
            return FiringOutcome(firing=None, is_new=False)
        now = append.now_ms
        failed = sha256(f"weft.occasion.error.1 {new.occasion.digest} {now}".encode()).hexdigest()
        digest, _ = _own_occasion(append, row.id, failed)
        words = error_text(error)
        fact = ErrorFact(code=append.named(error_code(error), "code"), message=append.put_text(words, "message"))
        _add_trigger_event(
            append, row, new.principals, TriggerFired, **_occasion_fields(new.occasion, digest), error=fact
        )
        reason = None
        if errors_in_a_row(append.sql, row.id, since_n, new.breaker) >= new.breaker:
            reason = f"its last {new.breaker} firings failed: {words}"
            _pause_trigger(append, row, reason)
        append.seal()
        txn = ReadTxn(append.sql, append.txn.facts)
        return FiringOutcome(firing=find_firing(txn, row.id, digest), is_new=True, paused=reason)

    return writer.write(work)


def record_missed(writer: LedgerWriter, trigger: str, times: Sequence[int], reason: str, cursor: CursorMove) -> None:
    """Record times of a schedule at which a trigger did not fire, and go on behind them. Each is recorded once: others
    may have looked at some of them, and a clock that was ahead may have passed them before."""

    def work(append: Append) -> None:
        row, since_n = _active_trigger(append, trigger, cursor.version)
        _move_cursor(append, row.id, cursor)
        missed = unrecorded_times(append.sql, row.id, since_n, times)
        if missed:
            with append.by_the_ledger():
                _trigger_stream(append, row).add(
                    TriggerMissed,
                    count=len(missed),
                    first=iso_from_ms(missed[0]),
                    last=iso_from_ms(missed[-1]),
                    reason=append.put_text(reason, "reason"),
                )
        append.seal()

    writer.write(work)


def move_cursor(writer: LedgerWriter, trigger: str, cursor: CursorMove) -> bool:
    """Remember how far a trigger has looked, where nothing else is to be written."""
    return writer.write(lambda append: _move_cursor(append, trigger, cursor))


def _move_cursor(append: Append, trigger: str, cursor: CursorMove | None) -> bool:
    """False where the trigger remembers something else by now: another broker was here. What it remembers of another
    version of its configuration does not count, nor what a comparing move finds at another position."""
    if cursor is None:
        return True
    before = load_cursor(append.sql, trigger)
    if before is not None and before.version != cursor.version:
        before = None
    position = cursor.position
    if cursor.is_compared:
        if before is not None and before.position > position:
            return False
        state = before.state if before is not None and before.position == position else None
        if state != cursor.expected:
            return False
    elif before is not None and before.state == cursor.state and not cursor.is_set_back:
        position = max(position, before.position)
    append.sql.run(
        "INSERT INTO trigger_cursor(trigger_id, version, position, state) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (trigger_id) DO UPDATE SET version = excluded.version, position = excluded.position,"
        " state = excluded.state",
        (trigger, cursor.version, position, cursor.state),
    )
    return True
