"""Views from facts: one code path for appending, rebuilding and verifying.

`apply` takes events in order of arrival and changes rows in memory; `flush` writes each changed row once. Nothing here
reads a clock or the environment: the same facts in the same order give the same rows, to the byte.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Protocol

from msgspec import UNSET, Struct, UnsetType

from weft.kernel.clock import ms_from_iso
from weft.kernel.errors import InvalidFact
from weft.kernel.events import Event, Named, UnknownEvent, Words
from weft.ledger.views.rows import (
    CALL,
    HISTORY,
    LOOKUP_TEXTS,
    MESSAGE,
    MOVED_SESSION,
    PERSONAS,
    SESSION,
    TURN,
    CallRow,
    HistoryRow,
    MessageRow,
    RowMemory,
    SessionRow,
    TurnRow,
    find_standing,
    has_turn_at,
    load_session,
    load_session_number,
    load_turn,
)
from weft.store.fact_log import FactReader
from weft.store.replicas import OwnEvents
from weft.store.sql import Sql


class ContentLookup(Protocol):
    """Where a projector finds the contents that events refer to."""

    def number(self, ref: str) -> int:
        """The content's number; 0 when it is not here."""

    def content_text(self, n: int) -> str | None:
        """Its text; None when it is not here."""

    def readable_text(self, n: int) -> str | None:
        """Its text as a database can hold it; None when it is not here."""


class Projector:
    """Applies events to the views of one database."""

    def __init__(self, sql: Sql, facts: FactReader, contents: ContentLookup, memory: RowMemory | None = None) -> None:
        self.sql, self.facts, self.contents = sql, facts, contents
        self.memory = memory or RowMemory()
        self.new_turns: list[TurnRow] = []
        self.changed_turns: dict[str, TurnRow] = {}
        self.new_sessions: list[SessionRow] = []
        self.changed_sessions: dict[str, SessionRow] = {}
        self._indexed: dict[str, tuple[object, ...]] = {}
        self.calls: dict[bytes, CallRow] = {}
        self.new_calls: list[CallRow] = []
        self.repeats: dict[tuple[int, int], int] = defaultdict(int)
        """How many of the new calls share a turn and a call id."""
        self.messages: list[MessageRow] = []
        self.history: list[HistoryRow] = []
        self.changed_messages: list[MessageRow] = []
        self.childless: set[int] = set()
        """Sessions, by number, none of whose calls a subagent names; as `is_childless` has found."""
        self.replaced: list[tuple[str, str]] = []
        """Imported turns that were current and no longer are, each with the version that is, since a writer asked."""
        self._moment = EventMoment()

    @cached_property
    def own_events(self) -> OwnEvents:
        """Which events the ledger wrote itself whose facts these are."""
        return OwnEvents(self.facts.sql)

    def may_change(self, moment: EventMoment, event: Event, row: Sequence[Any]) -> bool:
        """Whether an event may change what another one wrote, of which `row` has the arrival number and the replica:
        what this ledger wrote is changed by its own events alone."""
        own = self.own_events
        return not own.has(row[0], row[1]) or own.has(moment.n, plain(event.replica))

    def is_childless(self, turn: TurnRow) -> bool:
        """Whether no subagent names a call of the session that made this turn; of a turn without a session, of the turn
        itself, which nobody can name if it came in this very append."""
        if turn.session is None:
            return any(row is turn for row in self.new_turns)
        if turn.session in self.childless:
            return True
        session = self.session_of_number(turn.session)
        if session is None or session.has_subagents:
            return False
        self.childless.add(session.n)
        return True

    def apply(self, n: int, when: int, event_id: bytes, event: Event | UnknownEvent) -> None:
        """One fact. An event whose kind is unknown, or does not belong in its stream, only moves the stream on."""
        moment, kind = self._moment, type(event)
        moment.n, moment.when, moment.event_id, moment.row = n, when, event_id, None
        stream = event.stream
        begin = BEGINNINGS.get(kind)
        if begin is not None and event.prev is None and stream.startswith(begin.stream):
            begin.handler(self, moment, event)
        elif stream[:4] == "run:":
            moment.row = row = self.turn(stream[4:])
            handler = RUN.get(kind)
            if handler is not None:
                handler(self, moment, event)
            row.events += 1
            row.last_event = event_id
            self.changed_turns[row.id] = row
        elif stream[:8] == "session:":
            self._apply_to_session(moment, event, SESSIONS.get(kind))
        elif stream[:7] == "import:":
            handler = IMPORTS.get(kind)
            if handler is not None:
                handler(self, moment, event)
        else:
            handler = OTHERS.get(kind)
            if handler is not None:
                handler(self, moment, event)
            self.move_stream_tip(stream, event_id)

    def _apply_to_session(self, moment: EventMoment, event: Event | UnknownEvent, handler: Handler | None) -> None:
        """A session's branch is the chain this ledger follows; another replica's branch is kept but moves nothing,
        until it settles with this one."""
        moment.row = session = self.session(event.stream[8:])
        if not _goes_on_from(event, session.last_event):
            for aside in (BRANCHES.get(type(event)), BRANCHES.get(Event)):
                if aside is not None:
                    aside(self, moment, event)
            return
        self.before_change(session)
        if handler is not None:
            handler(self, moment, event)
        self.after_change(session, moment)

    def before_change(self, session: SessionRow) -> None:
        """Remember what indexes hold of a session, for the one who writes its row."""
        if session.id not in self.changed_sessions:
            self._indexed[session.id] = session.indexed

    def after_change(self, session: SessionRow, moment: EventMoment) -> None:
        """An event of its branch has changed a session."""
        session.last_event = moment.event_id
        self.changed_sessions[session.id] = session
        if moment.when > session.updated_at:
            session.updated_at = moment.when

    def move_stream_tip(self, stream: str, event_id: bytes) -> None:
        self.sql.run(
            "INSERT INTO stream_tip(stream, last) VALUES (?, ?)"
            " ON CONFLICT (stream) DO UPDATE SET last = excluded.last",
            (stream, event_id),
        )

    def turn(self, turn: str) -> TurnRow:
        row = self.memory.turns.get(turn) or self.find_turn(turn)
        if row is None:
            raise InvalidFact(f"turn {turn}", "an event belongs to a run that was never started")
        return row

    def find_turn(self, turn: str) -> TurnRow | None:
        row = self.memory.turns.get(turn) or load_turn(self.sql, turn)
        if row is not None:
            self.memory.turns[turn] = row
        return row

    def session(self, session: str) -> SessionRow:
        row = self.memory.sessions.get(session) or load_session(self.sql, session)
        if row is None:
            raise InvalidFact(f"session {session}", "an event belongs to a session that was never created")
        self.memory.sessions[session] = row
        return row

    def find_session(self, name: str) -> SessionRow | None:
        """By label or alias; also one that this very append has created."""
        row = self.memory.labels.get(name)
        if row is None:
            new = next((new for new in self.new_sessions if new.label == name), None)
            if new is not None:
                row = self.memory.labels[name] = self.memory.sessions.setdefault(new.id, new)
            elif (found := find_standing(self.sql, name)) is not None:
                row = self.memory.learn(name, found)
        return row

    def add_turn(self, row: TurnRow) -> None:
        self.memory.turns[row.id] = row
        self.memory.ends[row.segment] = row.depth
        self.new_turns.append(row)

    def add_session(self, row: SessionRow) -> None:
        self.memory.sessions[row.id] = row
        self.new_sessions.append(row)

    def add_call(self, row: CallRow) -> None:
        self.calls[row.event] = row
        self.new_calls.append(row)
        self.repeats[row.turn, row.call_id] += 1

    def call(self, turn: TurnRow, event_id: bytes) -> CallRow | None:
        row = self.calls.get(event_id)
        if row is None:
            found = self.sql.fetch_row(f"{CALL.select} WHERE turn = ? AND event = ?", (turn.n, event_id))
            if found is not None:
                row = self.calls[event_id] = CallRow(*found)
        return row

    def find_session_id(self, session: str) -> SessionRow | None:
        row = self.memory.sessions.get(session) or load_session(self.sql, session)
        if row is not None:
            self.memory.sessions[session] = row
        return row

    def session_of_number(self, n: int) -> SessionRow | None:
        known = next((row for row in self.memory.sessions.values() if row.n == n), None)
        found = known or load_session_number(self.sql, n)
        return found and self.memory.sessions.setdefault(found.id, found)

    def messages_of(self, turn: TurnRow) -> list[MessageRow]:
        """A turn's rows, to be changed: those not written yet, or read and written again."""
        fresh = self.messages[-turn.messages :] if turn.messages else []
        if fresh and (fresh[0].turn, fresh[0].seq) == (turn.n, 0):
            return fresh
        self.flush(keep=True)
        found = self.sql.fetch_rows(f"{MESSAGE.select} WHERE turn = ? ORDER BY seq", (turn.n,))
        rows = [MessageRow(*row) for row in found]
        self.changed_messages += rows
        return rows

    def calls_of(self, turn: TurnRow) -> list[CallRow]:
        """The same of its tool calls."""
        fresh = self.new_calls[-turn.calls :] if turn.calls else []
        if fresh and (fresh[0].turn, fresh[0].seq) == (turn.n, 0):
            return fresh
        self.flush_calls()
        found = self.sql.fetch_rows(f"{CALL.select} WHERE turn = ? ORDER BY seq", (turn.n,))
        rows = [self.calls.setdefault(call.event, call) for call in (CallRow(*row) for row in found)]
        return rows

    def session_number(self, session: str) -> int | None:
        row = self.memory.sessions.get(session) or load_session(self.sql, session)
        return row.n if row else None

    def ends_segment(self, turn: TurnRow) -> bool:
        """Is this the last turn of its segment, so that a first child can follow it there?"""
        end = self.memory.ends.get(turn.segment)
        if end is None and not has_turn_at(self.sql, turn.segment, turn.depth + 1):
            end = self.memory.ends[turn.segment] = turn.depth
        return end == turn.depth

    def flush(self, keep: bool = False) -> None:
        """Every new and every changed row into its table, once; with `keep` the rows in hand stay good."""
        sql = self.sql
        if self.new_turns:
            TURN.add(sql, self.new_turns)
            for row in self.new_turns:
                self.changed_turns.pop(row.id, None)
            self.new_turns.clear()
        if self.changed_turns:
            TURN.change(sql, self.changed_turns.values())
            self.changed_turns.clear()
        if self.messages:
            MESSAGE.add(sql, self.messages)
            self.messages.clear()
        if self.changed_messages:
            MESSAGE.change(sql, self.changed_messages)
            self.changed_messages.clear()
        if self.calls:
            self.flush_calls()
        self.flush_sessions()
        if not keep:
            self.memory.shrink()

    def flush_calls(self) -> None:
        """The same of tool calls, whose rows are read again."""
        if self.new_calls:
            CALL.add(self.sql, self.new_calls)
            for row in self.new_calls:
                del self.calls[row.event]
            self.new_calls.clear()
            self.repeats.clear()
        if self.calls:
            CALL.change(self.sql, self.calls.values())
            self.calls.clear()

    def flush_sessions(self) -> None:
        """Every new and every changed session into its table; the rows in hand stay good."""
        if self.new_sessions:
            SESSION.add(self.sql, self.new_sessions)
            for row in self.new_sessions:
                self.changed_sessions.pop(row.id, None)
            self.new_sessions.clear()
        for session in self.changed_sessions.values():
            moved = session.indexed == self._indexed.get(session.id)
            (MOVED_SESSION if moved else SESSION).change(self.sql, (session,))
        self.changed_sessions.clear()
        self._indexed.clear()
        if self.history:
            HISTORY.add(self.sql, self.history)
            self.history.clear()

    def number(self, ref: str | UnsetType) -> int | None:
        return None if ref is UNSET else self.contents.number(ref)

    def lookup_number(self, ref: str) -> int:
        """The number of a content by whose text plain SQL finds rows. The text is noted, once."""
        number = self.contents.number(ref)
        if number and number not in self.memory.lookup_texts:
            text = self.contents.readable_text(number)
            if text is not None:
                self.sql.add(LOOKUP_TEXTS, [(number, text)])
                self.memory.lookup_texts.add(number)
        return number

    def note_persona(self, persona: str) -> None:
        """An owner of a turn or a session. Until an event names it, its id is its name."""
        self.sql.add(PERSONAS, [(persona, persona)])

    def shared(self, ref: str | UnsetType) -> str | None:
        """A content that stands in a column of text: '#' and its number."""
        return None if ref is UNSET else f"#{self.contents.number(ref)}"

    def name(self, value: Named | UnsetType) -> str | None:
        """A name as it stands in a column: itself, or '#' and the number of the content that holds it."""
        if isinstance(value, str):
            return value
        return f"#{self.contents.number(value.content)}" if isinstance(value, Words) else None


def _goes_on_from(event: Event | UnknownEvent, end: bytes) -> bool:
    """Does it follow the end of the branch, or settle it with the one that it follows?"""
    if event.prev is not None and bytes.fromhex(event.prev) == end:
        return True
    tips = getattr(event, "tips", UNSET)
    return tips is not UNSET and any(bytes.fromhex(tip.event_id) == end for tip in tips)


class EventMoment:
    """Where an event stands: its arrival, its time, its id, and the row of the stream it belongs to."""

    __slots__ = ("event_id", "n", "row", "when")

    n: int
    when: int
    event_id: bytes
    row: Any


Handler = Callable[[Projector, EventMoment, Any], None]
Handlers = dict[type, Handler]
# Filled by `handles` and `begins` in the other modules of this package, which its `__init__` imports.
RUN: Handlers = {}
SESSIONS: Handlers = {}
OTHERS: Handlers = {}
IMPORTS: Handlers = {}
BRANCHES: Handlers = {}
"""What an event does that lies on another replica's branch of a session; under `Event`, what every one does."""


class StreamBeginning(Struct, frozen=True):
    """The kind of event with which a stream begins to have a row."""

    stream: str
    handler: Handler


BEGINNINGS: dict[type, StreamBeginning] = {}


def begins(kind: type, stream: str) -> Callable[[Handler], Handler]:
    def register(handler: Handler) -> Handler:
        BEGINNINGS[kind] = StreamBeginning(stream, handler)
        return handler

    return register


def handles(kind: type, *streams: Handlers) -> Callable[[Handler], Handler]:
    """What an event of this kind does in streams where it belongs."""

    def register(handler: Handler) -> Handler:
        for handlers in streams:
            handlers[kind] = handler
        return handler

    return register


def when_of(event: Event | UnknownEvent, at: int) -> int:
    """The event's own time, or the arrival's where it has none."""
    return ms_from_iso(event.ts) if isinstance(event.ts, str) else at


def plain(value: Any) -> Any:
    """A column's value: null where the event has no such field."""
    return None if value is UNSET else value
