"""What an event is about, and what caused it: how many firings of triggers lie before it, and who may know of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import UNSET, Struct

from weft.ledger.model import DEFAULT_AGENT
from weft.ledger.read.access import access_of
from weft.ledger.rooms.rows import load_conversation, readable_ranges
from weft.ledger.runs.inbox import admission_event
from weft.ledger.views.program_rows import load_program
from weft.ledger.views.rows import load_session, load_turn
from weft.store.port import ReadTxn
from weft.store.replica_names import OwnEvents

MOST_CAUSES = 256
"""So many turns and messages are looked at for what caused an event."""
_OPEN_TURNS = "SELECT t.id FROM open_run o JOIN turn t ON t.id = o.turn WHERE t.persona = ? AND t.n < ?"
_LAST_TURN = "SELECT id FROM turn WHERE persona = ? AND n < ? ORDER BY n DESC LIMIT 1"


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

    def note_last_firing(self, trigger: str, n: int) -> None:
        """Count the last firing of a trigger before an event as a cause."""
        row = self._sql.one(
            f"SELECT f.hops FROM trigger_firing f WHERE f.trigger_id = ? AND f.n < ? AND {self._is_own}"
            " ORDER BY f.n DESC LIMIT 1",
            (trigger, n, *self._own_values),
        )
        if row is not None:
            self._hops = max(self._hops, int(row[0]) + 1)

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


def place_of(txn: ReadTxn, n: int, fields: dict[str, Any]) -> EventPlace:
    """Of an event by its arrival number and its fields."""
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
    if kind == "program":
        return EventPlace(cause=id, program=id, hops=_hops_of_program(txn, n, id, fields))
    return EventPlace()


def _hops_of_program(txn: ReadTxn, n: int, program: str, fields: dict[str, Any]) -> int:
    """By the turns of the agents that did it or on whose behalf it was done: those that are not over, and the last one
    before it. No event of a program names the turn in which it was done. That a trigger was paused for its errors comes
    of its last firing."""
    sql, causes = txn.sql, Causes(txn)
    turns: list[str] = []
    for agent in dict.fromkeys((fields.get("actor"), *(fields.get("on_behalf_of") or ()))):
        if isinstance(agent, str) and agent != DEFAULT_AGENT:
            turns += [turn for (turn,) in sql.all(_OPEN_TURNS, (agent, n))]
            turns += [turn for (turn,) in sql.all(_LAST_TURN, (agent, n))]
    if fields.get("kind") == "trigger_paused":
        causes.note_last_firing(program, n)
    return causes.hops(turns=turns)


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
    message = sql.one("SELECT conversation, position FROM room_message WHERE id = ?", (cause,))
    room = load_conversation(sql, cause if message is None else message[0])
    ranges = () if room is None else readable_ranges(sql, access, room, OwnEvents(sql))
    return bool(ranges) if message is None else any(low < message[1] <= high for low, high in ranges)
