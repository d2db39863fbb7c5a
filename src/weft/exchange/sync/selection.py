"""What a push that is limited to some sessions may send: their threads with all ancestry, their own events, and of the
rest only what these cannot do without.

Events hold no words, so what must not leak are contents: only those go that a chosen event names, and of an imported
turn neither the verbatim source, which may hold other turns as well, nor what other sessions' sources tell of it. Of
ledgers' own streams (tombstones, late results, substitutions) only those events go that are about something chosen, as
excerpts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import UNSET, Struct

from weft.kernel.errors import Action, NotFound
from weft.kernel.events import AgentForked, Event, Substitution, ToolResult, UnknownEvent
from weft.kernel.foreign_input import KINDS, content_refs
from weft.kernel.ledger_events import AgentCreated, ContentErased, SessionCreated, SessionMoved, Sighting
from weft.ledger.api import place_of_event, stream_of
from weft.ledger.views.rows import GOES_ON, SessionRow, load_session
from weft.store.port import ReadTxn, Store
from weft.store.sql import Sql, rows_in


class OwnEvent(Struct, frozen=True, gc=False):
    """An event of some ledger's own stream."""

    n: int
    event: Event | UnknownEvent


class Selection:
    """Which events and contents may go."""

    def __init__(self, sessions: Sequence[str]) -> None:
        self.sessions = set(sessions)
        self.turns: set[str] = set()
        self.cut: dict[str, int] = {}
        """Turns that these sessions left in the middle, and how many of their events belong to them."""
        self._last: dict[str, int] = {}
        """The last of those events, by its arrival number."""
        self.agents: set[str] = set()
        self.contents: set[bytes] = set()
        self._excerpts: set[int] = set()
        """Arrival numbers of events of ledgers' own streams."""

    def holds(self, n: int, line: bytes) -> bool:
        stream = stream_of(n, line)
        kind, _, name = stream.partition(":")
        if kind == "run":
            return name in self.turns and n <= self._last.get(name, n)
        if kind == "session":
            return name in self.sessions
        if kind == "import":
            return (name in self.turns or name in self.sessions) and self._is_chosen(KINDS.decode(line))
        if kind == "ledger":
            return n in self._excerpts
        return kind == "program" and name in self.agents and isinstance(KINDS.decode(line), AgentCreated)

    def take(self, n: int, stream: str, line: bytes) -> None:
        """An event of some stream: if it is chosen, so are the contents that it names and the agents that act in it."""
        kind, _, name = stream.partition(":")
        if kind == "run" and not self._is_reached(n, name):
            return
        is_turn, is_session = name in self.turns, name in self.sessions
        if not {"run": is_turn, "session": is_session, "import": is_turn or is_session}.get(kind):
            return
        event = KINDS.decode(line)
        if self._is_chosen(event):
            self.take_refs(event)
            self.agents.update(_agents(event))

    def _is_reached(self, n: int, turn: str) -> bool:
        """Do these sessions' threads get to the turn's next event, which came as number `n`?"""
        if turn not in self.cut:
            return True
        self.cut[turn] -= 1
        if self.cut[turn] >= 0:
            self._last[turn] = n
        return self.cut[turn] >= 0

    def _is_chosen(self, event: Event | UnknownEvent) -> bool:
        """A turn that several sessions have is told of as each of them saw it: not what others' sources say of it, nor
        of one that was left in the middle."""
        return not isinstance(event, Sighting) or (event.session in self.sessions and event.turn not in self.cut)

    def take_refs(self, event: Event | UnknownEvent) -> None:
        raw = event.raw if isinstance(event, Sighting) else UNSET
        self.contents.update(bytes.fromhex(ref) for ref in content_refs(event) if ref != raw)

    def take_excerpts(self, txn: ReadTxn, events: list[OwnEvent]) -> None:
        """Once it is known which contents are chosen."""
        for own in events:
            if self._concerns(txn, own.event):
                self._excerpts.add(own.n)
                self.take_refs(own.event)
            if isinstance(own.event, Substitution) and own.n in self._excerpts:
                self._take_replacement(txn, own.event)

    def _take_replacement(self, txn: ReadTxn, substitution: Substitution) -> None:
        """What is shown instead, where it was recorded for that. An event of a turn that does not go stays here."""
        n = txn.facts.find_event(bytes.fromhex(substitution.replacement_event.event_id))
        line = None if n is None else txn.facts.line(n)
        if n is not None and line is not None and stream_of(n, line).startswith("ledger:"):
            self._excerpts.add(n)
            self.take_refs(KINDS.decode(line))

    def _concerns(self, txn: ReadTxn, event: Event | UnknownEvent) -> bool:
        if isinstance(event, ContentErased):
            named = event.turn in self.turns or event.session in self.sessions
            return named or bytes.fromhex(event.content) in self.contents
        if isinstance(event, ToolResult):
            return self._holds_event(txn, event.call.event_id)
        return isinstance(event, Substitution) and self._holds_event(txn, event.original_event.event_id)

    def _holds_event(self, txn: ReadTxn, id: str) -> bool:
        n = txn.facts.find_event(bytes.fromhex(id))
        line = None if n is None else txn.facts.line(n)
        return n is not None and line is not None and self.holds(n, line)


def select(store: Store, sessions: Sequence[str]) -> Selection:
    """The selection of these sessions, by their ids, as the ledger is now."""
    chosen = Selection(sessions)
    with store.read() as txn:
        rows = [_session(txn.sql, session) for session in sessions]
        places = Places()
        chosen.turns = _with_ancestors(txn.sql, _turns(txn, rows, chosen.sessions, places), places)
        chosen.cut = places.left_inside()
        names: dict[str, AgentCreated] = {}
        own: list[OwnEvent] = []
        for n, line in txn.facts.lines():
            stream = stream_of(n, line)
            if stream.startswith("ledger:"):
                own.append(OwnEvent(n, KINDS.decode(line)))
            elif stream.startswith("program:"):
                if isinstance(event := KINDS.decode(line), AgentCreated):
                    names[stream[8:]] = event
            else:
                chosen.take(n, stream, line)
        for agent in chosen.agents & names.keys():
            chosen.take_refs(names[agent])
        chosen.take_excerpts(txn, own)
    return chosen


def _session(sql: Sql, session: str) -> SessionRow:
    row = load_session(sql, session)
    if row is None:
        raise NotFound("session", session, Action.LIST_SESSIONS)
    return row


def _agents(event: Event | UnknownEvent) -> Iterator[str]:
    yield event.actor
    if isinstance(event, Event) and event.on_behalf_of is not UNSET:
        yield from event.on_behalf_of
    if isinstance(event, SessionCreated):
        yield event.persona


class Places:
    """How far threads reach into turns."""

    def __init__(self) -> None:
        self._whole: set[str] = set()
        self._events: dict[str, int] = {}

    def add(self, turn: str, events: int | None = None) -> None:
        """All of a turn is reached, or so many of its events."""
        if events is None:
            self._whole.add(turn)
        else:
            self._events[turn] = max(events, self._events.get(turn, 0))

    def left_inside(self) -> dict[str, int]:
        return {turn: events for turn, events in self._events.items() if turn not in self._whole}


def _turns(txn: ReadTxn, rows: list[SessionRow], sessions: set[str], places: Places) -> set[str]:
    """Every turn that a session has made or stood at, on any branch."""
    found: set[str] = set()
    for row in rows:
        made = {turn for (turn,) in txn.sql.all("SELECT id FROM turn WHERE session = ?", (row.n,))}
        found |= made
        for turn in made:
            places.add(turn)
        if row.head:
            found.add(row.head)
            places.add(row.head, row.head_events)
    streams = [f'"stream":"session:{session}"'.encode() for session in sessions]
    for _, line in txn.facts.lines():
        if any(stream in line for stream in streams):
            event = KINDS.decode(line)
            if isinstance(event, SessionMoved):
                found.update(turn for turn in (event.to, event.before) if turn)
                if event.to:
                    places.add(event.to, None if event.at is UNSET else _reached(txn, event.at))
            elif isinstance(event, AgentForked):
                found.add(event.at_turn)
                places.add(event.at_turn, _reached(txn, event.at_event.event_id))
    return found


def _reached(txn: ReadTxn, event: str) -> int | None:
    """How many events of its turn there are up to this one; None if that is all there will be."""
    turn, position = place_of_event(txn.sql, txn.facts, event)
    return None if turn.closed and turn.digest == event else position + 1


def _with_ancestors(sql: Sql, turns: set[str], places: Places) -> set[str]:
    """Every turn of the threads that end there, also beyond the links across which a thread goes on."""
    known, edge = set(turns), set(turns)
    query = (
        "SELECT t.parent, t.depth - s.base, s.parent_events FROM turn t JOIN segment s ON s.n = t.segment"
        " WHERE t.parent IS NOT NULL AND t.id IN"
    )
    while edge:
        above = _across_links(sql, edge)
        for turn in above:
            places.add(turn)
        for parent, further, events in rows_in(sql, query, edge):
            above.add(parent)
            places.add(parent, None if further else events)
        edge = above - known
        known |= edge
    return known


def _across_links(sql: Sql, turns: set[str]) -> set[str]:
    """Where the threads of those that are roots go on in another chain."""
    query = (
        "SELECT l.child, p.current, p.id FROM link l JOIN turn t ON t.id = l.child JOIN turn p ON p.id = l.parent"
        f" WHERE {GOES_ON} AND t.parent IS NULL AND l.child IN"
    )
    found: dict[str, tuple[bool, str]] = {}
    for child, current, parent in rows_in(sql, query, turns):
        first = found.get(child)
        found[child] = (not current, parent) if first is None else min(first, (not current, parent))
    return {parent for _, parent in found.values()}
