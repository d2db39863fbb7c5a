"""Views from facts: one code path for appending, rebuilding and verifying.

`apply` takes events in order of arrival and changes rows in memory; `flush` writes each changed row once. Nothing here
reads a clock or the environment: the same facts in the same order give the same rows, to the byte.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from msgspec import UNSET, UnsetType

from weft.kernel import dag_events as dag
from weft.kernel import ledger_events as own
from weft.kernel.errors import InvalidFact
from weft.kernel.events import Event, UnknownEvent
from weft.kernel.fields import Named, Words
from weft.kernel.times import ms_from_iso
from weft.ledger.rows import (
    CALL,
    HISTORY,
    MESSAGE,
    SESSION,
    TURN,
    CallRow,
    HistoryRow,
    MessageRow,
    SessionRow,
    TurnRow,
    find_session,
    has_turn_at,
    load_session,
    load_turn,
)
from weft.store.facts import FactReader
from weft.store.port import Sql


class Contents(Protocol):
    """Where a projector finds the contents that events refer to."""

    def number(self, ref: str) -> int:
        """The content's number; 0 when it is not here."""

    def content_text(self, n: int) -> str | None:
        """Its text; None when it is not here."""


class Projector:
    """Applies events to the views of one database."""

    def __init__(self, sql: Sql, facts: FactReader, contents: Contents) -> None:
        self.sql, self.facts, self.contents = sql, facts, contents
        self.turns: dict[str, TurnRow] = {}
        self.new_turns: list[TurnRow] = []
        self.changed: set[str] = set()
        self.sessions: dict[str, SessionRow] = {}
        self.new_sessions: set[str] = set()
        self.calls: dict[bytes, CallRow] = {}
        self.new_calls: set[bytes] = set()
        self.messages: list[MessageRow] = []
        self.history: list[HistoryRow] = []

    def apply(self, n: int, at: int, event_id: bytes, event: Event | UnknownEvent) -> None:
        """One fact. Events of unknown kinds still move their stream on."""
        stream = event.stream
        if stream.startswith("run:") and not isinstance(event, dag.RunStarted):
            row = self.turn(stream[4:])
            handler = HANDLERS.get(type(event))
            if handler is not None:
                handler(self, Moment(n, at, event_id, row), event)
            row.events += 1
            row.last_event = event_id
            self.changed.add(row.id)
        elif stream.startswith("session:") and not isinstance(event, own.SessionCreated):
            self._apply_to_session(n, at, event_id, event)
        else:
            handler = HANDLERS.get(type(event))
            if handler is not None:
                handler(self, Moment(n, at, event_id, None), event)
            if not stream.startswith(("run:", "session:")):
                self._move_stream_tip(stream, event_id)

    def _apply_to_session(self, n: int, at: int, event_id: bytes, event: Event | UnknownEvent) -> None:
        """A session's branch is the chain this ledger follows; another replica's branch is kept but moves nothing."""
        session = self.session(event.stream[8:])
        if event.prev is None or bytes.fromhex(event.prev) != session.last_event:
            return
        handler = HANDLERS.get(type(event))
        if handler is not None:
            handler(self, Moment(n, at, event_id, session), event)
        session.last_event = event_id
        self.changed.add(session.id)
        if (when := when_of(event, at)) > session.updated_at:
            session.updated_at = when

    def _move_stream_tip(self, stream: str, event_id: bytes) -> None:
        self.sql.run(
            "INSERT INTO stream_tip(stream, last) VALUES (?, ?)"
            " ON CONFLICT (stream) DO UPDATE SET last = excluded.last",
            (stream, event_id),
        )

    def turn(self, turn: str) -> TurnRow:
        row = self.turns.get(turn)
        if row is None:
            row = load_turn(self.sql, turn)
            if row is None:
                raise InvalidFact(f"turn {turn}", "an event belongs to a run that was never started")
            self.turns[turn] = row
        return row

    def remember(self, row: TurnRow) -> TurnRow:
        return self.turns.setdefault(row.id, row)

    def session(self, session: str) -> SessionRow:
        row = self.sessions.get(session)
        if row is None:
            row = load_session(self.sql, session)
            if row is None:
                raise InvalidFact(f"session {session}", "an event belongs to a session that was never created")
            self.sessions[session] = row
        return row

    def find_session(self, name: str) -> SessionRow | None:
        """By label or alias; also one that this very append has created."""
        for row in self.sessions.values():
            if row.label == name and row.status != "deleted":
                return row
        found = find_session(self.sql, name)
        return self.sessions.setdefault(found.id, found) if found else None

    def add_turn(self, row: TurnRow) -> None:
        self.turns[row.id] = row
        self.new_turns.append(row)

    def add_session(self, row: SessionRow) -> None:
        self.sessions[row.id] = row
        self.new_sessions.add(row.id)

    def add_call(self, row: CallRow) -> None:
        self.calls[row.event] = row
        self.new_calls.add(row.event)

    def call(self, turn: TurnRow, event_id: bytes) -> CallRow | None:
        row = self.calls.get(event_id)
        if row is None:
            found = self.sql.one(
                f"{CALL.select} WHERE segment = ? AND depth = ? AND event = ?", (turn.segment, turn.depth, event_id)
            )
            if found is not None:
                row = self.calls[event_id] = CallRow(*found)
        return row

    def session_number(self, session: str) -> int | None:
        row = self.sessions.get(session) or load_session(self.sql, session)
        return row.n if row else None

    def holds_turn_at(self, segment: int, depth: int) -> bool:
        fresh = any(row.segment == segment and row.depth == depth for row in self.new_turns)
        return fresh or has_turn_at(self.sql, segment, depth)

    def flush(self) -> None:
        """Every changed row into its table, once; the next `apply` starts from what is there."""
        sql = self.sql
        TURN.add(sql, self.new_turns)
        self.changed.difference_update(row.id for row in self.new_turns)
        for turn in self.turns.values():
            if turn.id in self.changed:
                TURN.change(sql, turn)
        MESSAGE.add(sql, self.messages)
        CALL.add(sql, [row for event, row in self.calls.items() if event in self.new_calls])
        for event, row in self.calls.items():
            if event not in self.new_calls:
                CALL.change(sql, row)
        for session in self.sessions.values():
            if session.id in self.new_sessions:
                SESSION.add(sql, (session,))
            elif session.id in self.changed:
                SESSION.change(sql, session)
        HISTORY.add(sql, self.history)
        for held in (self.turns, self.sessions, self.calls, self.new_turns, self.messages, self.history):
            held.clear()
        for known in (self.changed, self.new_calls, self.new_sessions):
            known.clear()

    def number(self, ref: str | UnsetType) -> int | None:
        return None if ref is UNSET else self.contents.number(ref)

    def name(self, value: Named | UnsetType) -> str | None:
        """A name as it stands in a column: itself, or '#' and the number of the content that holds it."""
        if isinstance(value, str):
            return value
        return f"#{self.contents.number(value.content)}" if isinstance(value, Words) else None


class Moment:
    """Where an event stands: its arrival, its id, and the row of the stream it belongs to."""

    __slots__ = ("at", "event_id", "n", "row")

    def __init__(self, n: int, at: int, event_id: bytes, row: Any) -> None:
        self.n, self.at, self.event_id, self.row = n, at, event_id, row


Handler = Callable[[Projector, Moment, Any], None]
HANDLERS: dict[type, Handler] = {}


def handles(kind: type) -> Callable[[Handler], Handler]:
    def register(handler: Handler) -> Handler:
        HANDLERS[kind] = handler
        return handler

    return register


def when_of(event: Event | UnknownEvent, at: int) -> int:
    """The event's own time, or the arrival's where it has none."""
    return ms_from_iso(event.ts) if isinstance(event.ts, str) else at


def plain(value: Any) -> Any:
    """A column's value: null where the event has no such field."""
    return None if value is UNSET else value
