"""What a push that is limited to some sessions may send: their threads with all ancestry, their own events, and of the
rest only what these cannot do without.

Events hold no words, so what must not leak are contents: only those go that a chosen event names, and of an imported
turn neither the verbatim source, which may hold other turns as well, nor what other sessions' sources tell of it. Of
ledgers' own streams (tombstones, late results) only those events go that are about something chosen, as excerpts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import UNSET, Struct

from weft.kernel.dag_events import AgentForked, ToolResult
from weft.kernel.errors import NotFound
from weft.kernel.events import Event, UnknownEvent
from weft.kernel.facts import content_refs
from weft.kernel.kinds import KINDS
from weft.kernel.ledger_events import AgentCreated, ContentErased, SessionCreated, SessionMoved, Sighting
from weft.ledger.batches import rows_in
from weft.ledger.rows import GOES_ON, SessionRow, load_session
from weft.ledger.runs import place_of_event, stream_of
from weft.store.port import ReadTxn, Sql, Store


class OwnEvent(Struct, frozen=True, gc=False):
    """An event of some ledger's own stream."""

    n: int
    event: Event | UnknownEvent


class Selection:
    """Which events and contents may go."""

    def __init__(self, sessions: Sequence[str]) -> None:
        self.sessions = set(sessions)
        self.turns: set[str] = set()
        self.agents: set[str] = set()
        self.contents: set[bytes] = set()
        self._excerpts: set[int] = set()
        """Arrival numbers of events of ledgers' own streams."""

    def holds(self, n: int, line: bytes) -> bool:
        stream = stream_of(n, line)
        kind, _, name = stream.partition(":")
        if kind == "run":
            return name in self.turns
        if kind == "session":
            return name in self.sessions
        if kind == "import":
            return (name in self.turns or name in self.sessions) and self._is_told(KINDS.decode(line))
        if kind == "ledger":
            return n in self._excerpts
        return kind == "program" and name in self.agents and isinstance(KINDS.decode(line), AgentCreated)

    def take(self, stream: str, line: bytes) -> None:
        """An event of some stream: if it is chosen, so are the contents that it names and the agents that act in it."""
        kind, _, name = stream.partition(":")
        is_turn, is_session = name in self.turns, name in self.sessions
        if not {"run": is_turn, "session": is_session, "import": is_turn or is_session}.get(kind):
            return
        event = KINDS.decode(line)
        if self._is_told(event):
            self.take_refs(event)
            self.agents.update(_agents(event))

    def _is_told(self, event: Event | UnknownEvent) -> bool:
        """A turn that several sessions have is told of as each of them saw it: not what others' sources say of it."""
        return not isinstance(event, Sighting) or event.session in self.sessions

    def take_refs(self, event: Event | UnknownEvent) -> None:
        raw = event.raw if isinstance(event, Sighting) else UNSET
        self.contents.update(bytes.fromhex(ref) for ref in content_refs(event) if ref != raw)

    def take_excerpts(self, txn: ReadTxn, events: list[OwnEvent]) -> None:
        """Once it is known which contents are chosen."""
        for own in events:
            if self._concerns(txn, own.event):
                self._excerpts.add(own.n)
                self.take_refs(own.event)

    def _concerns(self, txn: ReadTxn, event: Event | UnknownEvent) -> bool:
        if isinstance(event, ContentErased):
            named = event.turn in self.turns or event.session in self.sessions
            return named or bytes.fromhex(event.content) in self.contents
        if isinstance(event, ToolResult):
            try:
                turn, _ = place_of_event(txn.sql, txn.facts, event.call.event_id)
            except NotFound:
                return False
            return turn.id in self.turns
        return False


def select(store: Store, sessions: Sequence[str]) -> Selection:
    """The selection of these sessions, by their ids, as the ledger is now."""
    chosen = Selection(sessions)
    with store.read() as txn:
        rows = [_session(txn.sql, session) for session in sessions]
        chosen.turns = _with_ancestors(txn.sql, _turns(txn, rows, chosen.sessions))
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
                chosen.take(stream, line)
        for agent in chosen.agents & names.keys():
            chosen.take_refs(names[agent])
        chosen.take_excerpts(txn, own)
    return chosen


def _session(sql: Sql, session: str) -> SessionRow:
    row = load_session(sql, session)
    if row is None:
        raise NotFound("session", session, "`weft sessions` lists them")
    return row


def _agents(event: Event | UnknownEvent) -> Iterator[str]:
    yield event.actor
    if isinstance(event, SessionCreated):
        yield event.persona


def _turns(txn: ReadTxn, rows: list[SessionRow], sessions: set[str]) -> set[str]:
    """Every turn that a session has made or stood at, on any branch."""
    found: set[str] = set()
    for row in rows:
        found.update(turn for (turn,) in txn.sql.all("SELECT id FROM turn WHERE session = ?", (row.n,)))
        if row.head:
            found.add(row.head)
    streams = [f'"stream":"session:{session}"'.encode() for session in sessions]
    for _, line in txn.facts.lines():
        if any(stream in line for stream in streams):
            event = KINDS.decode(line)
            if isinstance(event, SessionMoved):
                found.update(turn for turn in (event.to, event.before) if turn)
            elif isinstance(event, AgentForked):
                found.add(event.at_turn)
    return found


def _with_ancestors(sql: Sql, turns: set[str]) -> set[str]:
    """Every turn of the threads that end there, also beyond the links across which a thread goes on."""
    known, edge = set(turns), set(turns)
    while edge:
        parents = rows_in(sql, "SELECT parent FROM turn WHERE parent IS NOT NULL AND id IN", edge)
        edge = ({parent for (parent,) in parents} | _across_links(sql, edge)) - known
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
