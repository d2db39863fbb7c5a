"""Edges read as of a time, in both senses: when they held (`at`), and what this ledger knew
then (`known_at`); whether whoever reads may see a node, which every verb asks; walks along edges,
and the ways between two nodes that cost least.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from heapq import heappop, heappush
from itertools import islice
from typing import Any, Literal

from msgspec import UNSET, Struct

from weft.kernel import events as kernel_events
from weft.kernel import ledger_events as own
from weft.kernel.enums import MessageRole
from weft.kernel.errors import Damaged, quoted
from weft.kernel.events import Event, UnknownEvent, event_id
from weft.kernel.ledger_events import Sighting
from weft.ledger.model import UNDATED
from weft.ledger.read.access import READ_LEDGER, access_of
from weft.ledger.resource_reading import READ_RESOURCE, find_resource, may_use_resource
from weft.ledger.room_records import load_conversation, present, readable_ranges
from weft.ledger.views import edges as kinds
from weft.ledger.views.edges import EDGE_FACTS, EdgeType, node_key, read_attributes
from weft.ledger.views.rows import decoded, load_program, load_session, load_session_number, load_turn, shown_text
from weft.ledger.views.sightings import is_dated
from weft.ledger.views.turns import ROWS_PER_EVENT
from weft.store.port import ReadTxn
from weft.store.replicas import OwnEvents
from weft.store.sql import Sql

# --- What questions about the graph give: nodes, edges, and small records made of them.


class GraphNode(Struct, frozen=True, kw_only=True):
    """A thing in the graph. `name` is what every verb takes for it; `type` is its type in the agent graph's schema,
    and `properties` what is known of it, with texts in the place of references."""

    name: str
    type: str
    properties: dict[str, Any]
    valid_from: int | None = None
    """Since when it is what it is, in Unix milliseconds: of programs, policies, resources and handles; else None."""
    valid_to: int | None = None
    """Until when: it was deleted, replaced, found dead or closed. None: it still is, or no event tells."""


class GraphEdge(Struct, frozen=True, kw_only=True):
    """A relation between two nodes, by their names. Times are Unix milliseconds."""

    type: EdgeType
    source: str
    target: str
    attributes: dict[str, Any]
    valid_from: int
    """Since when it holds: the time of the event that opened it."""
    valid_to: int | None
    """Until when it holds; None: it still does, or tells what happened."""
    is_synthesised: bool
    """Whether the opening event had no time of its own, so that another one stands in `valid_from`."""
    known_from: int
    """When this ledger learned of it."""
    known_to: int | None
    """When this ledger learned that it ended."""
    opened_by: str
    """The id of the event that opened it."""
    closed_by: str | None


class Neighbours(Struct, frozen=True, kw_only=True):
    """A node, its edges, and the nodes at their other ends by their names. `is_cut`: there are more edges."""

    node: GraphNode
    edges: tuple[GraphEdge, ...]
    nodes: dict[str, GraphNode]
    is_cut: bool = False


class GraphWalk(Struct, frozen=True, kw_only=True):
    """Edges in the order in which they were followed from a node, and the nodes that they join."""

    start: str
    edges: tuple[GraphEdge, ...]
    nodes: dict[str, GraphNode]
    is_cut: bool = False


class AncestryStep(Struct, frozen=True, kw_only=True):
    """Of what a session is a fork or a subagent. `parent` is the name of the session that it came from; None where the
    edge tells of an agent, or where that session is not known or may not be seen."""

    edge: GraphEdge
    parent: str | None


class Ancestry(Struct, frozen=True, kw_only=True):
    """Where a session came from, step by step, and the nodes that the steps name."""

    start: str
    steps: tuple[AncestryStep, ...]
    nodes: dict[str, GraphNode]
    is_cut: bool = False


class GraphPath(Struct, frozen=True, kw_only=True):
    """A way between two nodes: the names of its nodes in order, and the edges between them, whichever way they lead.
    `cost`: each edge costs 1, and more where it is one of many of its type at an end."""

    nodes: tuple[str, ...]
    edges: tuple[GraphEdge, ...]
    cost: int


class PathsFound(Struct, frozen=True, kw_only=True):
    """The ways between two nodes that cost least. `is_cut`: not everything could be looked at, so there may be some."""

    paths: tuple[GraphPath, ...]
    nodes: dict[str, GraphNode]
    is_cut: bool = False


class RunHistory(Struct, frozen=True, kw_only=True):
    """The events of a run in order."""

    run: GraphNode
    events: tuple[GraphNode, ...]
    is_cut: bool = False


class CallPair(Struct, frozen=True, kw_only=True):
    """A tool call, what asked for it, and its results: none while it is open, several where one came late."""

    call: GraphNode
    requested_by: str | None
    results: tuple[GraphNode, ...]


class ResourceState(Struct, frozen=True, kw_only=True):
    """A resource at a time: who owned it, what had it attached or mounted, and its parts."""

    resource: GraphNode
    owner: GraphEdge | None
    attached: tuple[GraphEdge, ...]
    mounted: tuple[GraphEdge, ...]
    parts: tuple[GraphEdge, ...]


class PolicyStep(Struct, frozen=True, kw_only=True):
    """A policy that was proposed or became active, and for how long it was."""

    policy: GraphNode
    edge: GraphEdge


# --- The authorisation point of the graph: whether whoever reads may see a node.


class NodeAccess:
    """What may be seen of the graph in one transaction. `edges` is the database that has its edges."""

    def __init__(self, txn: ReadTxn, edges: Sql) -> None:
        self._txn, self._edges, self._access = txn, edges, access_of(txn)
        self._seen: dict[str, bool] = {}

    @property
    def is_unlimited(self) -> bool:
        return self._access.is_unlimited

    def may_see(self, key: str) -> bool:
        """Whether the node of this key may be seen."""
        if self._access.is_unlimited:
            return True
        seen = self._seen.get(key)
        if seen is None:
            self._seen[key] = False  # of a circle nothing is seen
            kind, _, id = key.partition(":")
            seen = self._seen[key] = self._checks_by_kind[kind](id) if kind in self._checks_by_kind else False
        return seen

    def may_see_prompt(self, n: int) -> bool:
        """Whether the configuration that the turn of an event ran with may be seen: it goes with its agent."""
        event = None if self._access.is_unlimited else self._event_at(n)
        turn = load_turn(self._txn.sql, event.stream[4:]) if event is not None and event.stream[:4] == "run:" else None
        return turn is None or self._access.may_read_prompt(turn.n)

    @cached_property
    def _checks_by_kind(self) -> dict[str, Callable[[str], bool]]:
        return {
            kinds.RUN: self._may_see_run,
            kinds.SESSION: self._may_see_session,
            kinds.PROGRAM: self._may_see_program,
            kinds.EVENT: self._may_see_event,
            kinds.GENERATION: self._may_see_event,
            kinds.TOOL_CALL: self._may_see_event,
            kinds.TOOL_RESULT: self._may_see_event,
            kinds.SUMMARY: self._may_see_event,
            kinds.MESSAGE: lambda id: self._may_see_produced(f"{kinds.MESSAGE}:{id}"),
            kinds.RESOURCE: self._may_see_resource,
            kinds.SNAPSHOT: self._may_see_snapshot,
            kinds.HANDLE: self._may_see_handle,
            kinds.POLICY: self._may_see_policy,
            kinds.URI: lambda _: self._access.may_whole(READ_LEDGER),
            kinds.MATERIALIZATION: lambda id: self._may_see_produced(f"{kinds.MATERIALIZATION}:{id}"),
        }

    def _may_see_run(self, turn: str) -> bool:
        row = load_turn(self._txn.sql, turn)
        return row is not None and self._access.may_read_turn(row)

    def _may_see_session(self, session: str) -> bool:
        row = load_session(self._txn.sql, session)
        return row is not None and self._access.may_read(row)

    def _may_see_program(self, program: str) -> bool:
        row = load_program(self._txn.sql, program)
        return row is None or self._access.may_read_program(row)

    def _may_see_produced(self, key: str) -> bool:
        """What events produce goes with them."""
        return any(self.may_see(source) for source in self.producers(key))

    def producers(self, key: str) -> list[str]:
        """The keys of the events that produced a node, the first one first."""
        query = "SELECT source FROM edge WHERE target = ? AND type = ? ORDER BY id"
        return [source for (source,) in self._edges.fetch_rows(query, (key, EdgeType.EVENT_PRODUCES.value))]

    def _may_see_position(self, conversation: str, position: int) -> bool:
        row = load_conversation(self._txn.sql, conversation)
        if row is None:
            return False
        ranges = readable_ranges(self._txn.sql, self._access, row, OwnEvents(self._txn.sql))
        return any(low < position <= high for low, high in ranges)

    def _may_see_resource(self, resource: str) -> bool:
        found = find_resource(self._txn, resource)
        return found is not None and may_use_resource(self._access, self._txn, found, READ_RESOURCE)

    def _may_see_snapshot(self, snapshot: str) -> bool:
        row = self._txn.sql.fetch_row("SELECT resource, run FROM resource_snapshot WHERE id = ?", (snapshot,))
        if row is None:
            return False
        return self._may_see_resource(row[0]) or (row[1] is not None and self._may_see_run(row[1]))

    def _may_see_handle(self, handle: str) -> bool:
        row = self._txn.sql.fetch_row("SELECT resource FROM resource_handle WHERE id = ?", (handle,))
        return row is not None and self._may_see_resource(row[0])

    def _may_see_policy(self, policy: str) -> bool:
        row = self._txn.sql.fetch_row("SELECT agent FROM policy WHERE id = ?", (policy,))
        return row is not None and (row[0] is None or self._may_see_program(row[0]))

    # --- events -------------------------------------------------------------------------------------------------

    def _event_at(self, n: int) -> Event | UnknownEvent | None:
        line = self._txn.facts.line(n)
        return None if line is None else decoded(n, line)

    def _may_see_event(self, number: str) -> bool:
        event = self._event_at(int(number)) if number.isdecimal() and len(number) < 16 else None
        if event is None:
            return False
        stream, _, id = event.stream.partition(":")
        if stream == "conversation":
            return self._may_see_conversation_event(event, id, int(number))
        if stream == "import":
            return isinstance(event, own.Sighting) and self._may_see_session(event.session)
        check = self._stream_checks.get(stream)
        if check is None:
            return self._may_see_ledger_event(event)
        return check(id) and not (stream == "run" and self._is_hidden_prompt(event, id))

    @cached_property
    def _stream_checks(self) -> dict[str, Callable[[str], bool]]:
        return {
            "run": self._may_see_run,
            "session": self._may_see_session,
            "program": lambda id: load_program(self._txn.sql, id) is not None and self._may_see_program(id),
            "resource": self._may_see_resource,
        }

    def _is_hidden_prompt(self, event: Event | UnknownEvent, turn: str) -> bool:
        """A system message goes with the agent that it instructs."""
        if not isinstance(event, kernel_events.HistoryAppend) or event.message.role is not MessageRole.SYSTEM:
            return False
        row = load_turn(self._txn.sql, turn)
        return row is None or not self._access.may_read_prompt(row.n)

    def _may_see_conversation_event(self, event: Event | UnknownEvent, conversation: str, n: int) -> bool:
        """What was said, to those who took part then; all else to those who take part now."""
        if isinstance(event, kernel_events.MessagePosted):
            query = "SELECT position FROM room_message WHERE id = ? AND n = ?"
            row = self._txn.sql.fetch_row(query, (event.message, n))
            return row is not None and self._may_see_position(conversation, row[0])
        events = OwnEvents(self._txn.sql)
        return bool(self._access.ids) and all(
            present(self._txn.sql, conversation, id, events) is not None for id in self._access.ids
        )

    def _may_see_ledger_event(self, event: Event | UnknownEvent) -> bool:
        """Events of the ledger's own stream go with what they are about; those about all of it, with the whole."""
        about = self._subject_keys(event)
        return self._access.may_whole(READ_LEDGER) if about is None else all(self.may_see(key) for key in about)

    def _subject_keys(self, event: Event | UnknownEvent) -> tuple[str, ...] | None:
        """The keys of what an event of the ledger's own stream is about; None: the whole ledger."""
        about: tuple[str, ...] | None = None
        match event:
            case kernel_events.PolicyProposed() | kernel_events.PolicyActivated() | kernel_events.PolicyRejected():
                about = (f"policy:{event.policy_ref}",)
            case kernel_events.PolicyRolledBack():
                about = f"policy:{event.policy_ref}", f"policy:{event.to}"
            case kernel_events.ToolResult():
                about = (self._event_key(event.call.event_id),)
            case kernel_events.Substitution():
                ids = event.original_event.event_id, event.replacement_event.event_id
                about = self._event_key(ids[0]), self._event_key(ids[1])
            case own.TurnLinked():
                about = f"run:{event.child}", f"run:{event.parent}"
            case own.TurnRetried():
                about = f"run:{event.turn}", f"run:{event.of}"
            case kernel_events.SnapshotMaterialized() if event.run is not UNSET:
                about = (f"run:{event.run}",)
            case kernel_events.McpResourceUpdated() | kernel_events.McpResourceListChanged() if event.run is not UNSET:
                about = (f"run:{event.run}",)
        return about

    def _event_key(self, event_id: str) -> str:
        return f"{kinds.EVENT}:{self._txn.facts.find_event(bytes.fromhex(event_id)) or event_id}"


# --- Edges read as of a time, in both senses: when they held (`at`), and what this ledger knew then (`known_at`).

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
                    yield from self._edges_of_end("source", end, type, after, newest_first)
                if direction in ("in", "both"):
                    for row in self._edges_of_end("target", end, type, after, newest_first):
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
            ((found,),) = self._edges.fetch_rows(f"SELECT count(*) FROM ({edges}) edges", values)
            counted += found
        return counted

    def keys_of(self, key: str) -> tuple[str, ...]:
        """A node's keys: an event that came after those that name it is named there by its id."""
        kind, _, id = key.partition(":")
        if kind in kinds.EVENT_BACKED and id.isdecimal():
            return key, f"{kinds.EVENT}:{self.event_id(int(id))}"
        return (key,)

    def _edges_of_end(self, column: str, key: str, type: EdgeType, after: int, newest_first: bool) -> Iterator[EdgeRow]:
        """Those of one end and one type that were known, held, and may be seen."""
        low, high = after, (self.newest + 1) * ROWS_PER_EVENT
        order = "DESC" if newest_first else "ASC"
        query = (
            f"SELECT {_COLUMNS} FROM edge WHERE {column} = ? AND type = ? AND id > ? AND id < ?"
            f" ORDER BY id {order} LIMIT ?"
        )
        while True:
            rows = self._edges.fetch_rows(query, (key, type.value, low, high, _PAGE))
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
    row = txn.sql.fetch_row('SELECT n FROM log WHERE "at" <= ? ORDER BY n DESC LIMIT 1', (when,))
    return 0 if row is None else int(row[0])


def arrival_of(txn: ReadTxn, n: int) -> int:
    """When an event arrived."""
    row = txn.sql.fetch_row("SELECT at FROM log WHERE n >= ? ORDER BY n LIMIT 1", (n,))
    return 0 if row is None else int(row[0])


# --- Walks through the graph: lineage and ancestry.


class EdgeWalk(Struct, frozen=True):
    """Edges in the order in which they were followed, with the node that each led to; whether there were more."""

    steps: list[tuple[EdgeRow, str | None]]
    is_cut: bool

    @property
    def edges(self) -> list[EdgeRow]:
        return [edge for edge, _ in self.steps]


def _walk_from(start: str, edges_of: Callable[[str], Iterable[tuple[EdgeRow, str | None]]], limit: int) -> EdgeWalk:
    """Breadth first from a node: `edges_of` gives the edges of one, and where each leads, if anywhere."""
    steps: list[tuple[EdgeRow, str | None]] = []
    seen, waiting = {start}, deque([start])
    while waiting:
        for edge, end in edges_of(waiting.popleft()):
            if len(steps) == limit:
                return EdgeWalk(steps, True)
            steps.append((edge, end))
            if end is not None and end not in seen:
                seen.add(end)
                waiting.append(end)
    return EdgeWalk(steps, False)


def lineage(reader: EdgeReader, start: str, limit: int) -> EdgeWalk:
    """What a node was derived from, and what that was derived from, and so on."""

    def sources(key: str) -> Iterator[tuple[EdgeRow, str]]:
        for edge in reader.of(key, (EdgeType.DERIVED_FROM,), "out"):
            yield edge, edge.target

    return _walk_from(start, sources, limit)


def ancestry(reader: EdgeReader, start: str, limit: int) -> EdgeWalk:
    """Of which sessions a session is a fork or a subagent, and they in turn."""

    def parents(session: str) -> Iterator[tuple[EdgeRow, str | None]]:
        for edge in reader.of(session, (EdgeType.FORKED_FROM,), "out"):
            yield edge, _session_of_fork(reader, edge)
        for edge in reader.of(session, (EdgeType.SPAWNED_FROM,), "out"):
            yield edge, None

    return _walk_from(start, parents, limit)


def _session_of_fork(reader: EdgeReader, edge: EdgeRow) -> str | None:
    """The session that was forked: the one that the edge names, else the one that made the turn."""
    named = edge.attribute("from_branch")
    if named is not None:
        key = node_key(kinds.SESSION, named)
        return key if reader.access.may_see(key) else None
    return session_of(reader, edge.target)


def session_of(reader: EdgeReader, key: str) -> str | None:
    """The session of a node: of a run, or of an event that belongs to one. Of a run that several sessions have, the one
    that it is listed under."""
    kind, _, id = key.partition(":")
    if kind == kinds.SESSION:
        return key
    if kind in kinds.EVENT_BACKED and id.isdecimal():
        key = reader.event(int(id)).stream
    if key[:4] != "run:":
        return None
    sessions = [edge.source for edge in reader.of(key, (EdgeType.SESSION_HAS_RUN,), "in")]
    if len(sessions) > 1 and (owner := reader.owner_of(key)) in sessions:
        return owner
    return sessions[0] if sessions else None


# --- The ways between two nodes that tell most: those that cost least.

PATH_EDGES = 50_000
"""So many edges are looked at for a way between two nodes."""
COUNTED_EDGES = 1024
"""So many edges of a type are counted at a node; more are as far as these."""
Leading = Literal["out", "in"]
_OTHER: dict[Leading, Leading] = {"out": "in", "in": "out"}
Label = tuple[int, int]
"""The cost of a way to the end, and of how many edges it is."""


class NodePath(Struct, frozen=True):
    """A way between two nodes: its nodes in order, the edges between them, and what they cost together."""

    nodes: tuple[str, ...]
    edges: tuple[EdgeRow, ...]
    cost: int


class NodePaths(Struct, frozen=True):
    """Ways of equal cost. `is_cut`: not everything could be looked at, so there may be others."""

    ways: list[NodePath]
    is_cut: bool


class EdgeBundle(Struct, frozen=True):
    """The edges of one type that lead from a node (`out`), or to it (`in`)."""

    key: str
    type: EdgeType
    leading: Leading


class WayLink(Struct, frozen=True):
    """The first edge of a way to the end, the node that it leads to, and the label of the way from there on."""

    edge: EdgeRow
    then: str
    label: Label


class _NothingLeft(Exception):
    """As many edges were looked at as may be."""


class PathFinder:
    """Looks for the ways between two nodes, along edges of these types or all, whichever way they lead."""

    def __init__(self, reader: EdgeReader, types: Sequence[EdgeType]) -> None:
        self._reader, self._types, self._left = reader, types or tuple(EdgeType), PATH_EDGES
        self._farness: dict[EdgeBundle, int | None] = {}

    def find(self, start: str, end: str, limit: int, longest: int) -> NodePaths:
        """The first so many of the ways that cost least, those with older edges first."""
        if start == end:
            return NodePaths([NodePath((start,), (), 0)], False)
        search = _Search(self, start, end, longest)
        try:
            label = search.run()
        except _NothingLeft:
            return NodePaths([], True)
        return NodePaths([] if label is None else list(islice(search.ways(label), limit)), False)

    def bundles(self, key: str) -> Iterator[EdgeBundle]:
        """All that a node of its kind can have."""
        kind = key.partition(":")[0]
        for type in self._types:
            if kind in EDGE_FACTS[type].sources:
                yield EdgeBundle(key, type, "out")
            if kind in EDGE_FACTS[type].targets:
                yield EdgeBundle(key, type, "in")

    def edges(self, bundle: EdgeBundle) -> Iterator[EdgeRow]:
        for edge in self._reader.of(bundle.key, (bundle.type,), bundle.leading):
            if self._left == 0:
                raise _NothingLeft
            self._left -= 1
            yield edge

    def far(self, bundle: EdgeBundle) -> int | None:
        """The binary logarithm of how many edges it has, rounded down; None: it has none."""
        if bundle not in self._farness:
            count = self._reader.count(bundle.key, bundle.type, bundle.leading, min(COUNTED_EDGES, self._left + 1))
            if count > self._left:
                raise _NothingLeft
            self._left -= count
            self._farness[bundle] = count.bit_length() - 1 if count else None
        return self._farness[bundle]


class _EdgesNear(Struct, frozen=True):
    """The edges of a node are near enough to be followed; the way from the node on has this label."""

    bundle: EdgeBundle
    label: Label


class _EdgeFollowed(Struct, frozen=True):
    """An edge was followed; of how many it is one at its other end is not yet known."""

    bundle: EdgeBundle
    link: WayLink


class _NodeReached(Struct, frozen=True):
    key: str
    link: WayLink | None


class _Search:
    """From the end on, the nearest first: what ways to the end cost, the cheapest of each node, and those that cost
    more and are of fewer edges. Edges are followed only when they are near enough, so those of hubs mostly are not."""

    def __init__(self, finder: PathFinder, start: str, end: str, longest: int) -> None:
        self._finder, self._start, self._end, self._longest = finder, start, end, longest
        self._labels: dict[str, list[Label]] = {}
        self._links: dict[tuple[str, Label], list[WayLink]] = {}
        self._waiting: list[tuple[Label, int, _EdgesNear | _EdgeFollowed | _NodeReached]] = []
        self._pushed = 0

    def run(self) -> Label | None:
        """The label of the start; None: no way leads there."""
        self._push_item((0, 0), _NodeReached(self._end, None))
        while self._waiting:
            label, _, item = heappop(self._waiting)
            found = self._labels.get(self._start)
            if found is not None and label > found[0]:
                break
            match item:
                case _EdgesNear():
                    self._leave_node(label, item)
                case _EdgeFollowed():
                    far = self._finder.far(item.bundle) or 0
                    self._push_item((label[0] + far, label[1]), _NodeReached(item.bundle.key, item.link))
                case _NodeReached():
                    self._settle_node(label, item)
        return self._labels[self._start][0] if self._start in self._labels else None

    def _push_item(self, label: Label, item: _EdgesNear | _EdgeFollowed | _NodeReached) -> None:
        self._pushed += 1
        heappush(self._waiting, (label, self._pushed, item))

    def _leave_node(self, label: Label, item: _EdgesNear) -> None:
        bundle = item.bundle
        for edge in self._finder.edges(bundle):
            other = edge.target if bundle.leading == "out" else edge.source
            link = WayLink(edge, bundle.key, item.label)
            self._push_item(
                (label[0], label[1] + 1), _EdgeFollowed(EdgeBundle(other, bundle.type, _OTHER[bundle.leading]), link)
            )

    def _settle_node(self, label: Label, item: _NodeReached) -> None:
        labels = self._labels.setdefault(item.key, [])
        if label not in labels:
            if any(label[1] >= edges for _, edges in labels):
                return
            labels.append(label)
            if label[1] < self._longest and item.key != self._start:
                for bundle in self._finder.bundles(item.key):
                    far = self._finder.far(bundle)
                    if far is not None:
                        self._push_item((label[0] + 1 + far, label[1]), _EdgesNear(bundle, label))
        if item.link is not None:
            self._links.setdefault((item.key, label), []).append(item.link)

    def ways(self, whole: Label) -> Iterator[NodePath]:
        """All ways from the start with this label, those with older edges first."""
        stack: list[tuple[Label, tuple[str, ...], tuple[EdgeRow, ...]]] = [(whole, (self._start,), ())]
        while stack:
            label, nodes, edges = stack.pop()
            if nodes[-1] == self._end:
                yield NodePath(nodes, edges, whole[0])
                continue
            oldest: dict[str, WayLink] = {}
            for link in self._links[nodes[-1], label]:
                if link.then not in oldest or link.edge.id < oldest[link.then].edge.id:
                    oldest[link.then] = link
            for link in sorted(oldest.values(), key=lambda link: link.edge.id, reverse=True):
                stack.append((link.label, (*nodes, link.then), (*edges, link.edge)))
