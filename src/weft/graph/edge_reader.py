"""Edges read as of a time, in both senses: when they held (`at`), and what this ledger knew then (`known_at`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Literal

from msgspec import UNSET, Struct

from weft.graph.model import GraphEdge
from weft.graph.visibility import NodeAccess
from weft.kernel.errors import Damaged
from weft.kernel.events import Event, UnknownEvent, event_id
from weft.kernel.ledger_events import Sighting
from weft.kernel.weft_error import quoted
from weft.ledger.model import UNDATED
from weft.ledger.views import edge_types as kinds
from weft.ledger.views.edge_types import EdgeType, node_key
from weft.ledger.views.edges import read_attributes
from weft.ledger.views.recorded_events import decoded
from weft.ledger.views.rows import load_session, load_session_number, load_turn
from weft.ledger.views.runs import ROWS_PER_EVENT
from weft.ledger.views.sightings import is_dated
from weft.ledger.views.values import shown_text
from weft.store.port import ReadTxn
from weft.store.sql import Sql

Direction = Literal["out", "in", "both"]
_COLUMNS = "id, type, source, target, attributes, valid_from, valid_to, closed"
_PAGE = 256
_SESSIONS_NAMED, _PROGRAMS_NAMED, _RUNS_NAMED = "from_branch", "agent", "first_kept"
_NAMED = {_SESSIONS_NAMED: kinds.SESSION, _PROGRAMS_NAMED: kinds.PROGRAM, _RUNS_NAMED: kinds.RUN}
"""Attributes that name another node, and of which kind."""


class EdgeRow(Struct, frozen=True):
    """An edge as it was known at a time: its ends by their keys. Times are Unix milliseconds; `stored_from` is that of
    the arrival where the event has none."""

    id: int
    type: EdgeType
    source: str
    target: str
    attributes: str | None
    stored_from: int
    valid_to: int | None
    closed: int | None

    @property
    def opened(self) -> int:
        """The arrival number of the event that opened it."""
        return self.id // ROWS_PER_EVENT

    def attribute(self, name: str) -> Any:
        return read_attributes(self.attributes).get(name)


class EdgeReader:
    """The graph in one transaction, as far as whoever reads may see it. `edges` is the database that has the edges;
    `at`: those that held then; `known_at`: what this ledger knew then."""

    def __init__(self, txn: ReadTxn, edges: Sql, *, at: int | None = None, known_at: int | None = None) -> None:
        self.txn, self.access, self.at = txn, NodeAccess(txn, edges), at
        self._edges = edges
        self.newest = txn.facts.tip().n if known_at is None else newest_known(txn, known_at)
        self._began: dict[str, int | None] = {}
        self._ids: dict[int, str] = {}

    def of(
        self,
        key: str,
        types: Sequence[EdgeType] = (),
        direction: Direction = "both",
        *,
        after: int = -1,
        newest_first: bool = False,
    ) -> Iterator[EdgeRow]:
        """The edges of a node, type by type, each in the order in which they came. With `after` those behind an edge of
        that number."""
        wanted = types or tuple(EdgeType)
        for end in self.keys_of(key):
            for type in wanted:
                if direction in ("out", "both"):
                    yield from self._ends("source", end, type, after, newest_first)
                if direction in ("in", "both"):
                    for row in self._ends("target", end, type, after, newest_first):
                        if direction == "in" or row.source != row.target:
                            yield row

    def count(self, key: str, type: EdgeType, direction: Literal["out", "in"], most: int) -> int:
        """How many edges of a type lead from a node, or to it; no more than `most` are counted."""
        if self.at is not None or not self.access.is_unlimited:
            return sum(1 for _ in islice(self.of(key, (type,), direction), most))
        column, high = "source" if direction == "out" else "target", (self.newest + 1) * ROWS_PER_EVENT
        edges = f"SELECT 1 FROM edge WHERE {column} = ? AND type = ? AND id >= 0 AND id < ? LIMIT ?"
        counted = 0
        for end in self.keys_of(key):
            values = (end, type.value, high, most - counted)
            ((found,),) = self._edges.all(f"SELECT count(*) FROM ({edges}) edges", values)
            counted += found
        return counted

    def keys_of(self, key: str) -> tuple[str, ...]:
        """A node's keys: an event that came after those that name it is named there by its id."""
        kind, _, id = key.partition(":")
        if kind in kinds.EVENT_BACKED and id.isdecimal():
            return key, f"{kinds.EVENT}:{self.event_id(int(id))}"
        return (key,)

    def _ends(self, column: str, key: str, type: EdgeType, after: int, newest_first: bool) -> Iterator[EdgeRow]:
        """Those of one end and one type that were known, held, and may be seen."""
        low, high = after, (self.newest + 1) * ROWS_PER_EVENT
        order = "DESC" if newest_first else "ASC"
        query = (
            f"SELECT {_COLUMNS} FROM edge WHERE {column} = ? AND type = ? AND id > ? AND id < ?"
            f" ORDER BY id {order} LIMIT ?"
        )
        while True:
            rows = self._edges.all(query, (key, type.value, low, high, _PAGE))
            for row in rows:
                edge = self._to_row(row)
                if (self.at is None or self.holds_at(edge, self.at)) and self._may_see(edge):
                    yield edge
            if len(rows) < _PAGE:
                return
            low, high = (low, rows[-1][0]) if newest_first else (rows[-1][0], high)

    def _may_see(self, edge: EdgeRow) -> bool:
        access = self.access
        return access.is_unlimited or (access.may_see(edge.source) and access.may_see(edge.target))

    def _to_row(self, row: Sequence[Any]) -> EdgeRow:
        id, type, source, target, attributes, valid_from, valid_to, closed = row
        try:
            kind = EdgeType(type)
        except ValueError as error:
            raise Damaged(f"{quoted(type)} is no type of edge") from error
        if closed is not None and closed > self.newest:
            valid_to = closed = None
        return EdgeRow(id, kind, source, target, attributes, valid_from, valid_to, closed)

    def holds_at(self, edge: EdgeRow, when: int) -> bool:
        return (edge.valid_to is None or when < edge.valid_to) and self.since(edge)[0] <= when

    def since(self, edge: EdgeRow) -> tuple[int, bool]:
        """Since when an edge holds, and whether that is a time that its event did not name."""
        event = self.event(edge.opened)
        if isinstance(event.ts, str):
            return edge.stored_from, False
        when = _call_time(event, edge)
        if when is None:
            when = self._time_of(event)
        return (edge.stored_from if when is None else when), True

    def _time_of(self, event: Event | UnknownEvent) -> int | None:
        """Of an event without a time: when the turn or the session that it is about began, as their sources tell."""
        stream, _, id = event.stream.partition(":")
        if stream not in ("run", "session", "import"):
            return None
        if event.stream not in self._began:
            began = self._turn_time(id) if stream != "session" else None
            self._began[event.stream] = self._session_time(id) if began is None and stream != "run" else began
        return self._began[event.stream]

    def _turn_time(self, id: str) -> int | None:
        turn = load_turn(self.txn.sql, id)
        return None if turn is None else turn.started_at

    def _session_time(self, id: str) -> int | None:
        """A session that no source dates began with the turn that called it."""
        session = load_session(self.txn.sql, id)
        if session is None or session.created_at != UNDATED:
            return None if session is None else session.created_at
        return None if session.parent_turn is None else self._turn_time(session.parent_turn)

    def owner_of(self, run: str) -> str | None:
        """The session that a run is listed under."""
        turn = load_turn(self.txn.sql, run.partition(":")[2])
        session = None if turn is None or turn.session is None else load_session_number(self.txn.sql, turn.session)
        return None if session is None else node_key(kinds.SESSION, session.id)

    # --- events and what they name ------------------------------------------------------------------------------

    def event(self, n: int) -> Event | UnknownEvent:
        line = self.txn.facts.line(n)
        if line is None:
            raise Damaged(f"an edge names event {n}, which is not there")
        return decoded(n, line)

    def event_id(self, n: int) -> str:
        id = self._ids.get(n)
        if id is None:
            line = self.txn.facts.line(n)
            if line is None:
                raise Damaged(f"an edge names event {n}, which is not there")
            id = self._ids[n] = event_id(line)
        return id

    def name_of(self, key: str) -> str:
        """What people are shown for a node, and every verb takes."""
        kind, _, id = key.partition(":")
        return f"{kind}:{self.event_id(int(id))}" if kind in kinds.EVENT_BACKED and id.isdecimal() else key

    def to_edge(self, row: EdgeRow) -> GraphEdge:
        valid_from, is_synthesised = self.since(row)
        return GraphEdge(
            type=row.type,
            source=self.name_of(row.source),
            target=self.name_of(row.target),
            attributes=self._shown(read_attributes(row.attributes)),
            valid_from=valid_from,
            valid_to=row.valid_to,
            is_synthesised=is_synthesised,
            known_from=arrival_of(self.txn, row.opened),
            known_to=None if row.closed is None else arrival_of(self.txn, row.closed),
            opened_by=self.event_id(row.opened),
            closed_by=None if row.closed is None else self.event_id(row.closed),
        )

    def _shown(self, attributes: dict[str, Any]) -> dict[str, Any]:
        """With texts in the place of references, and without what may not be seen."""
        shown: dict[str, Any] = {}
        for name, value in attributes.items():
            kind = _NAMED.get(name)
            if kind is None or self.access.may_see(f"{kind}:{value}"):
                shown[name] = self._text(value["content"]) if isinstance(value, dict) else value
        return shown

    def _text(self, ref: str) -> str:
        return shown_text(self.txn.facts, self.txn.facts.find_content(bytes.fromhex(ref)) or 0)


def _call_time(event: Event | UnknownEvent, edge: EdgeRow) -> int | None:
    """When the call began that started a session, if that is what an edge tells and a source says when."""
    if edge.type is not EdgeType.FORKED_FROM or not isinstance(event, Sighting):
        return None
    times = (
        call.at
        for call in event.calls or ()
        if call.spawned is not UNSET and node_key(kinds.SESSION, call.spawned) == edge.source
    )
    return next((when for when in times if when is not UNSET and is_dated(when)), None)


def newest_known(txn: ReadTxn, when: int) -> int:
    """The number of the newest event that this ledger had when its clock last showed a time: the last one to arrive at
    that time or an earlier one, 0 where none did. What came before it counts, also if the clock, which was set back
    since, showed a later time then. Looked for from the newest arrival back: clocks may go back, numbers do not."""
    row = txn.sql.one('SELECT n FROM log WHERE "at" <= ? ORDER BY n DESC LIMIT 1', (when,))
    return 0 if row is None else int(row[0])


def arrival_of(txn: ReadTxn, n: int) -> int:
    """When an event arrived."""
    row = txn.sql.one("SELECT at FROM log WHERE n >= ? ORDER BY n LIMIT 1", (n,))
    return 0 if row is None else int(row[0])
