"""A trigger fires: the fact that it did and the message that it sends, in one transaction.

An occasion is a digest, unique for each trigger. Whoever comes second for one, another broker or the same after a
crash, finds what the first one did and changes nothing. What another ledger says of a trigger's firings neither counts
nor stands in the way. Errors have an occasion of their own: an occasion that failed can be tried again.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from msgspec import UNSET

from weft.kernel.advice import Action
from weft.kernel.clock import iso_from_ms
from weft.kernel.enums import ParticipantKind, ProgramKind, RoomMessageKind
from weft.kernel.errors import NotApplicable, NotFound
from weft.kernel.events import program_stream
from weft.kernel.fields import ErrorFact, MentionFact
from weft.kernel.program_events import TriggerFired, TriggerMissed, TriggerPaused
from weft.ledger.model import DEFAULT_AGENT
from weft.ledger.rooms.deliveries import delivered_parts
from weft.ledger.rooms.model import ROOM_LIMITS
from weft.ledger.rooms.open_room import OpenRoom
from weft.ledger.runs.admission import (
    Delivery,
    NewAdmission,
    add_message,
    admission_of,
    deliver,
    refuse_worker,
    resolve_target,
    scope_of,
)
from weft.ledger.runs.model import DEFAULT_LIMITS, Admission
from weft.ledger.triggers.model import (
    CAUSED_PERIOD_MS,
    MAX_HOPS,
    MOST_CAUSED_FIRINGS,
    CursorMove,
    FiringOutcome,
    NewFiring,
    Occasion,
    RoomTarget,
)
from weft.ledger.triggers.reading import (
    caused_firings,
    errors_in_a_row,
    find_firing,
    load_cursor,
    trigger_standing,
    unrecorded_times,
)
from weft.ledger.views.program_rows import ProgramRow, load_program
from weft.ledger.write.append import MESSAGE_ROOM, Append, EventStream, LedgerWriter
from weft.ledger.write.new_turn import weigh
from weft.ledger.write.turn_events import TurnEvents
from weft.store.port import ReadTxn
from weft.store.replica_names import OwnEvents


def fire(writer: LedgerWriter, new: NewFiring) -> FiringOutcome:
    """Fire for an occasion, in the name of the trigger and on behalf of whoever `writer` writes for."""
    writer.ensure_allowed("room:post" if isinstance(new.target, RoomTarget) else "turn:record")
    message = writer.ulids.mint(MESSAGE_ROOM + 1)
    weight = weigh([new.message], ())
    if weight.large:
        writer.put_large(weight.large, scope_of(message))

    def work(append: Append) -> FiringOutcome:
        row, since_n = _active(append, new.trigger, new.version)
        outcome = _fired(append, row, since_n, new, message)
        append.seal()
        return outcome

    return writer.write(work, weight.size)


def _active(append: Append, trigger: str, version: int) -> tuple[ProgramRow, int]:
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


def _fired(append: Append, row: ProgramRow, since_n: int, new: NewFiring, message: str) -> FiringOutcome:
    txn = ReadTxn(append.sql, append.txn.facts)
    if not _move_cursor(append, row.id, new.cursor):
        return FiringOutcome(firing=None, is_new=False)
    digest, earlier = _own_occasion(append, row.id, new.occasion.digest)
    if earlier:
        return FiringOutcome(firing=find_firing(txn, row.id, digest), is_new=False)
    reason = _breaking_reason(append, row, since_n, new)
    if reason is not None:
        _pause(append, row, reason)
        return FiringOutcome(firing=None, is_new=False, paused=reason)
    posted: str | None = None
    admission: Admission | None = None
    if isinstance(new.target, RoomTarget):
        posted, message = _post(append, row, new, new.target)
    else:
        admission = _admit(append, row, new, message)
    _add(
        append,
        row,
        new.principals,
        TriggerFired,
        **_fields(new.occasion, digest),
        message=message,
        posted=posted or UNSET,
    )
    return FiringOutcome(firing=find_firing(txn, row.id, digest), is_new=True, admission=admission)


def _own_occasion(append: Append, trigger: str, digest: str) -> tuple[str, bool]:
    """The digest under which this ledger fires for an occasion, and whether it has. A digest that another ledger's
    firing took is passed over: the next one is computed from it."""
    own = OwnEvents(append.sql)
    while True:
        row = append.sql.one(
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


def _admit(append: Append, row: ProgramRow, new: NewFiring, message: str) -> Admission:
    assert not isinstance(new.target, RoomTarget)
    session, is_fork = resolve_target(append, new.target)
    refuse_worker(append, session)
    admitted = NewAdmission(message=new.message, target=new.target, route=new.route)
    with append.in_name_of((row.id, *new.principals)):
        answer = add_message(
            append,
            session,
            message,
            admitted,
            key=None,
            limits=DEFAULT_LIMITS,
            is_fork=is_fork,
            trigger=row.id,
            is_untrusted=new.is_untrusted,
        )
    return admission_of(append, answer)


def _post(append: Append, row: ProgramRow, new: NewFiring, target: RoomTarget) -> tuple[str, str]:
    """Post to a conversation what its agent is to answer; the ids of the message there and in the agent's inbox. The
    system says it, so it brings nobody in and is never a person's."""
    room = OpenRoom.named(append, target.room)
    room.ensure_open()
    room.ensure_member("room:post", "post to the room")
    agent = append.sql.one(
        "SELECT id FROM program WHERE (name = ? OR id = ?) AND kind = 'agent' AND deleted = 0",
        (target.agent, target.agent),
    )
    participant = None if agent is None else room.present(agent[0])
    program = None if agent is None else load_program(append.sql, agent[0])
    if participant is None or program is None or participant.session is None:
        raise NotApplicable(f"agent {target.agent!r} takes no part in the room", "let it in first")
    if not room.works_for(program, new.principals):
        raise NotFound("agent", target.agent, Action.LIST_PROGRAMS)
    id, senders = append.ulids.mint(), (row.id, *new.principals)
    parts = TurnEvents(append, id, actor=DEFAULT_AGENT, scope=room.scope).parts(new.message.content)
    meta = room.contents.put_json({"trigger": row.id}, "meta")
    with append.in_name_of(senders):
        mention = MentionFact(kind=ParticipantKind.AGENT, id=program.id)
        place = room.say(id, RoomMessageKind.SYSTEM, parts, mentions=(mention,), meta=meta, hops=1)
    sent, context, _ = delivered_parts(room, participant, place.position, place.n, ROOM_LIMITS)
    source = new.message.source
    assert source is not None
    delivery = Delivery(
        posted=id,
        parts=sent,
        senders=senders,
        source=source,
        context=context,
        scope=room.scope,
        is_untrusted=True,
        trigger=row.id,
    )
    return id, deliver(append, append.view.session(participant.session), delivery, DEFAULT_LIMITS)


# --- facts about a trigger -------------------------------------------------------------------------------------------


def _fields(occasion: Occasion, digest: str) -> dict[str, Any]:
    """What is recorded of an occasion. What was delivered stands in the message alone, where it can be erased."""
    return {
        "occasion": digest,
        "source": occasion.source,
        "due": UNSET if occasion.due_ms is None else iso_from_ms(occasion.due_ms),
        "cause": occasion.cause or UNSET,
        "hops": occasion.hops or UNSET,
    }


def _add(append: Append, row: ProgramRow, principals: tuple[str, ...], kind: Any, **fields: Any) -> None:
    with append.in_name_of((row.id, *principals)):
        _stream(append, row).add(kind, **fields)


def _stream(append: Append, row: ProgramRow) -> EventStream:
    name = program_stream(row.id)
    tip = append.sql.one("SELECT last FROM stream_tip WHERE stream = ?", (name,))
    return append.stream(name, bytes(tip[0]).hex() if tip else None, row.id)


def _pause(append: Append, row: ProgramRow, reason: str) -> None:
    with append.by_the_ledger():
        _stream(append, row).add(TriggerPaused, reason=append.put_text(reason, "reason"))


def record_error(writer: LedgerWriter, new: NewFiring, error: Exception) -> FiringOutcome:
    """Record that a trigger could not fire. As many in a row as its breaker allows pause it."""

    def work(append: Append) -> FiringOutcome:
        row, since_n = _active(append, new.trigger, new.version)
        if not _move_cursor(append, row.id, new.cursor):
            return FiringOutcome(firing=None, is_new=False)
        now = append.now_ms
        failed = sha256(f"weft.occasion.error.1 {new.occasion.digest} {now}".encode()).hexdigest()
        digest, _ = _own_occasion(append, row.id, failed)
        words = str(error) or type(error).__name__
        fact = ErrorFact(code=append.named(type(error).__name__, "code"), message=append.put_text(words, "message"))
        _add(append, row, new.principals, TriggerFired, **_fields(new.occasion, digest), error=fact)
        reason = None
        if errors_in_a_row(append.sql, row.id, since_n, new.breaker) >= new.breaker:
            reason = f"its last {new.breaker} firings failed: {words}"
            _pause(append, row, reason)
        append.seal()
        txn = ReadTxn(append.sql, append.txn.facts)
        return FiringOutcome(firing=find_firing(txn, row.id, digest), is_new=True, paused=reason)

    return writer.write(work)


def record_missed(writer: LedgerWriter, trigger: str, times: Sequence[int], reason: str, cursor: CursorMove) -> None:
    """Record times of a schedule at which a trigger did not fire, and go on behind them. Each is recorded once: others
    may have looked at some of them, and a clock that was ahead may have passed them before."""

    def work(append: Append) -> None:
        row, since_n = _active(append, trigger, cursor.version)
        _move_cursor(append, row.id, cursor)
        missed = unrecorded_times(append.sql, row.id, since_n, times)
        if missed:
            with append.by_the_ledger():
                _stream(append, row).add(
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
