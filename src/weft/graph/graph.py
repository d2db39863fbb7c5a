"""`ledger.graph`: questions about the agent graph of an open ledger, what people type for a
node, and pictures of a part of the graph, for Graphviz and as SVG that needs no other program.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from html import escape
from io import TextIOBase
from pathlib import Path
from typing import Any

from weft.graph.edge_reader import (
    Ancestry,
    CallPair,
    Direction,
    EdgeReader,
    GraphEdge,
    GraphNode,
    GraphPath,
    GraphWalk,
    Neighbours,
    PathFinder,
    PathsFound,
    PolicyStep,
    ResourceState,
    RunHistory,
    ancestry,
    lineage,
    session_of,
)
from weft.graph.event_lines import (
    ApartEvent,
    EventLines,
    ForeignSession,
    IngestedEvents,
    ReadEvents,
    read_events,
    thread_events,
)
from weft.graph.foreign_events import ForeignEvents, ForeignIds
from weft.graph.nodes import GraphQueries, NodeReader
from weft.kernel.clock import is_ulid
from weft.kernel.errors import Action, AmbiguousName, InvalidInput, NotApplicable, NotFound, quoted
from weft.ledger.api.base import LedgerPart
from weft.ledger.api.ledger import Ledger
from weft.ledger.arguments import (
    checked_file,
    checked_names,
    checked_number,
    checked_path,
    checked_progress,
    checked_text,
    path_error,
)
from weft.ledger.imports import ImportCounts, ImportWriter
from weft.ledger.imports.imported_turns import NativeSession
from weft.ledger.model import DEFAULT_AGENT, IMPORTED_AGENT
from weft.ledger.read.revisions import ParseTime, require, resolve
from weft.ledger.resource_reading import load_resource, load_snapshot
from weft.ledger.upkeep.facts_file import (
    Fact,
    ImportedFacts,
    limited_lines,
    take_batch,
    views_are_stale,
    write_lines,
    write_new,
)
from weft.ledger.upkeep.ledger_copy import FACTS, remembered
from weft.ledger.upkeep.verify import FreshViews
from weft.ledger.views import edges
from weft.ledger.views.edges import EdgeType, node_key, thing_of
from weft.ledger.views.rows import decoded, find_program, load_turn, run_events
from weft.ledger.write.approvals import load_policy
from weft.ledger.write.transaction import reads_whole, requires
from weft.store.port import ReadTxn
from weft.store.sql import Sql

# --- What people type for a node: `KIND:NAME`, or a name alone where only one node has it.

_HEX = re.compile(r"[0-9a-f]{7,64}")
_REF = re.compile(r"[0-9a-f]{64}")
_ALIASES = {"agent": edges.PROGRAM, "turn": edges.RUN, "branch": edges.SESSION, "subagent": edges.SESSION}
Find = Callable[[str], str | None]


class NodeNames:
    """The names of nodes in one transaction, for whoever reads in it."""

    def __init__(self, reader: EdgeReader, parse_time: ParseTime) -> None:
        self._reader, self._txn, self._parse_time = reader, reader.txn, parse_time
        self._finders: dict[str, Find] = {
            edges.RUN: self._run_key,
            edges.SESSION: self._session_key,
            edges.PROGRAM: self._program_key,
            edges.RESOURCE: self._resource_key,
            edges.SNAPSHOT: lambda name: node_key(edges.SNAPSHOT, load_snapshot(self._txn, name).id),
            edges.POLICY: self._policy_key,
        }

    def key(self, name: str, *, first: tuple[str, ...] = ()) -> str:
        """The key of the node that a name means. Of nodes of several kinds the one is meant whose kind stands first in
        `first`, else the name must be the name of one. Raises NotFound, also for what may not be seen, and
        AmbiguousName."""
        text = checked_text(name, "node").strip()
        kind, colon, rest = text.partition(":")
        kind = _ALIASES.get(kind, kind)
        if colon and kind in edges.NODE_KINDS and rest:
            key = self._of_kind(kind, rest)
        else:
            key = self._of_any_kind(text, first)
        if key is None or not self._reader.access.may_see(key):
            raise NotFound("node", name, Action.NAME_A_NODE)
        return key

    def _of_kind(self, kind: str, id: str) -> str | None:
        if kind in edges.EVENT_BACKED:
            return self._event_key(kind, id)
        finder = self._finders.get(kind)
        if finder is not None:
            return finder(id)
        if kind == edges.URI:
            return node_key(kind, id) if _REF.fullmatch(id) else None
        return node_key(kind, id) if is_ulid(id) or _REF.fullmatch(id) else None

    def _of_any_kind(self, text: str, first: tuple[str, ...]) -> str | None:
        if _HEX.fullmatch(text) and (event := self._event_key(edges.EVENT, text)) is not None:
            return event
        visible: dict[str, str] = {}
        ambiguity: AmbiguousName | None = None
        for kind in self._wanted_kinds(first):
            try:
                key = self._find_key(kind, text)
            except AmbiguousName as error:  # a longer name of another kind may be meant
                ambiguity = ambiguity or error
                continue
            if key is not None and self._reader.access.may_see(key):
                visible[kind] = key
        if not visible and ambiguity is not None:
            raise ambiguity
        for kind in first:
            if kind in visible:
                return visible[kind]
        if len(visible) > 1:
            names = [self._reader.name_of(key) for key in visible.values()]
            raise AmbiguousName(text, names, "say which one: KIND:NAME")
        if not visible and is_ulid(text):
            return next((key for key in self._by_ulid(text) if self._reader.access.may_see(key)), None)
        return next(iter(visible.values()), None)

    def _wanted_kinds(self, first: tuple[str, ...]) -> tuple[str, ...]:
        bare = (edges.RUN, edges.PROGRAM, edges.RESOURCE, edges.POLICY, edges.SNAPSHOT)
        return tuple(dict.fromkeys((*first, *bare)))

    def _find_key(self, kind: str, text: str) -> str | None:
        try:
            return self._finders[kind](text)
        except (NotFound, InvalidInput):
            return None

    def _by_ulid(self, text: str) -> list[str]:
        """Of nodes that have nothing but an id, those that edges join."""
        unnamed = (edges.MESSAGE, edges.HANDLE, edges.MATERIALIZATION, edges.SESSION)
        keys = [node_key(kind, text) for kind in unnamed]
        return [key for key in keys if next(self._reader.of(key), None) is not None]

    # --- by kind ------------------------------------------------------------------------------------------------

    def _run_key(self, name: str) -> str | None:
        return node_key(edges.RUN, resolve(self._txn, name, self._parse_time).turn.id)

    def _session_key(self, name: str) -> str | None:
        return node_key(edges.SESSION, require(self._txn, name).id)

    def _program_key(self, name: str) -> str | None:
        if name in (DEFAULT_AGENT, IMPORTED_AGENT):
            return node_key(edges.PROGRAM, name)
        row = find_program(self._txn.sql, name)
        if row is not None:
            return node_key(edges.PROGRAM, row.id)
        named = node_key(edges.PROGRAM, name)
        return named if next(self._reader.of(named), None) is not None else None

    def _resource_key(self, name: str) -> str | None:
        return node_key(edges.RESOURCE, load_resource(self._txn, name).id)

    def _policy_key(self, name: str) -> str | None:
        return node_key(edges.POLICY, load_policy(self._txn, name).id)

    def _event_key(self, kind: str, digits: str) -> str | None:
        """By the beginning of an id, as whichever kind of node it is asked for."""
        if not _HEX.fullmatch(digits):
            raise InvalidInput(f"{quoted(digits)} is no event", "give at least seven hex digits of its id")
        even, odd = digits[: len(digits) // 2 * 2], digits[len(digits) // 2 * 2 :]
        found = self._txn.facts.find_events(bytes.fromhex(even), odd)
        seen = [(n, id) for n, id in found if self._reader.access.may_see(node_key(edges.EVENT, n))]
        if len(seen) > 1:
            raise AmbiguousName(digits, [f"{kind}:{id}" for _, id in seen])
        if not seen:
            return None
        n = seen[0][0]
        line = self._txn.facts.line(n)
        if kind != edges.EVENT and (line is None or thing_of(decoded(n, line)) != kind):
            return None
        return node_key(kind, n)


# --- Nodes by ids that last: of an event, and of what is one, its digest in place of its arrival number.

_TABLES = {edges.RESOURCE: "resource", edges.POLICY: "policy", edges.SNAPSHOT: "resource_snapshot"}
_TOLD_BY_EDGES = (edges.URI, edges.HANDLE, edges.MATERIALIZATION, edges.MESSAGE)


def find_lasting_id(txn: ReadTxn, name: str, parse_time: ParseTime) -> str | None:
    """The id of the node that a name means, if whoever reads may see it. Those that edges alone tell of are known
    as far as the graph was brought up to date; an agent that every ledger has, has a name and no id."""
    reader, digest = EdgeReader(txn, txn.sql), name.lower()
    try:
        key = NodeNames(reader, parse_time).key(f"{edges.URI}:{digest}" if _REF.fullmatch(digest) else name)
    except (NotFound, InvalidInput):
        return None
    kind, _, id = key.partition(":")
    if kind in edges.EVENT_BACKED:
        return reader.event_id(int(id))
    is_known = kind not in _TOLD_BY_EDGES or next(reader.of(key), None) is not None
    return id if is_known and (is_ulid(id) or _REF.fullmatch(id)) else None


def kind_of_lasting_id(sql: Sql, id: str) -> str | None:
    """The kind of a node that is no program, session, turn, message or event."""
    for kind, table in _TABLES.items():
        if sql.fetch_row(f"SELECT 1 FROM {table} WHERE id = ?", (id,)) is not None:
            return kind
    for kind in (edges.HANDLE, edges.MATERIALIZATION) if is_ulid(id) else (edges.URI,):
        key = node_key(kind, id)
        if sql.fetch_row("SELECT 1 FROM edge WHERE source = ? OR target = ? LIMIT 1", (key, key)) is not None:
            return kind
    return None


# --- `ledger.graph`: questions about the agent graph of an open ledger.

When = int | str | None
LIMIT, FEW_PATHS, LONGEST_PATH, MOST = 200, 3, 12, 10_000
GRAPH_ORIGIN, GRAPH_MAPPING = "graph", 2
"""Where events of other programs are said to come from, unless somebody says more; and how they become turns."""


class Graph(LedgerPart):
    """`ledger.graph`: nodes, edges and the questions about them. What may not be read is not in any answer."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._whole = ledger

    def catch_up(self, *, progress: Any = None) -> None:
        """Bring the graph up to the newest fact. Every other verb does that first; this one tells how far it is."""
        edges.catch_up(self._store, checked_progress(progress))

    def node(self, name: str, *, known_at: When = None) -> GraphNode:
        """A node, by its name. With `known_at` as it was known then, which takes as long as making the views anew up to
        that time; raises NotFound for one that was not known yet."""
        with self._queries_at(None, known_at) as (queries, names):
            key = names.key(name)
            reader = queries.reader
            if reader.newest == reader.txn.facts.tip().n:
                return queries.node(key)
            with self._store.scratch() as scratch:
                FreshViews(scratch).compute_until(reader.txn, reader.newest)
                node = NodeReader(reader, ReadTxn(scratch, reader.txn.facts)).node(key)
            if node.properties.get("missing", False):
                raise NotFound("node", name, "this ledger did not know it then: ask about a later time")
            return node

    def neighbours(
        self,
        name: str,
        types: Sequence[str] = (),
        *,
        direction: str = "both",
        at: When = None,
        known_at: When = None,
        limit: int = LIMIT,
    ) -> Neighbours:
        """The edges of a node, of these types or all, that lead from it (`out`), to it (`in`) or both."""
        wanted, way = _edge_types(types), _checked_direction(direction)
        with self._queries_at(at, known_at) as (queries, names):
            return queries.neighbours(names.key(name), wanted, way, _checked_limit(limit))

    def path(
        self,
        start: str,
        end: str,
        types: Sequence[str] = (),
        *,
        at: When = None,
        known_at: When = None,
        limit: int = FEW_PATHS,
        longest: int = LONGEST_PATH,
    ) -> PathsFound:
        """The ways between two nodes that tell most, whichever way the edges lead, of at most `longest` edges: an edge
        costs more where it is one of many, and the ways that cost least are given."""
        wanted, most, steps = _edge_types(types), _checked_limit(limit), _checked_limit(longest, "longest")
        with self._queries_at(at, known_at) as (queries, names):
            finder = PathFinder(queries.reader, wanted)
            found = finder.find(names.key(start), names.key(end), most, steps)
            name_of = queries.reader.name_of
            paths = tuple(
                GraphPath(nodes=tuple(map(name_of, way.nodes)), edges=queries.edges(way.edges), cost=way.cost)
                for way in found.ways
            )
            keys = [key for way in found.ways for key in way.nodes]
            return PathsFound(paths=paths, nodes=queries.nodes.nodes(keys), is_cut=found.is_cut)

    def history(self, run: str, *, known_at: When = None, limit: int = LIMIT) -> RunHistory:
        """The events of a turn in order."""
        with self._queries_at(None, known_at) as (queries, names):
            return queries.history(names.key(run, first=(edges.RUN,)), _checked_limit(limit))

    def lineage(self, name: str, *, at: When = None, known_at: When = None, limit: int = LIMIT) -> GraphWalk:
        """What a node was derived from, step by step."""
        with self._queries_at(at, known_at) as (queries, names):
            key = names.key(name)
            return queries.walk(key, lineage(queries.reader, key, _checked_limit(limit)))

    def calls(self, name: str, *, known_at: When = None, limit: int = LIMIT) -> list[CallPair]:
        """The tool calls of a turn or of an answer, each with its results."""
        with self._queries_at(None, known_at) as (queries, names):
            return queries.calls(names.key(name, first=(edges.RUN,)), _checked_limit(limit))

    def resources(
        self, name: str | None = None, *, at: When = None, known_at: When = None, limit: int = LIMIT
    ) -> list[ResourceState]:
        """Who owned, used and mounted resources at a time, by default now: all resources, one, or those of a turn, a
        session or an agent."""
        with self._queries_at(self._clock.now_ms() if at is None else at, known_at) as (queries, names):
            key = None if name is None else names.key(name, first=(edges.RESOURCE, edges.SESSION, edges.PROGRAM))
            return queries.resources(key, _checked_limit(limit))

    def policies(
        self, name: str | None = None, *, at: When = None, known_at: When = None, limit: int = LIMIT
    ) -> list[PolicyStep]:
        """Which approval policies were proposed and active, and for how long: all, one, or those of an agent. With `at`
        those that were then."""
        with self._queries_at(at, known_at) as (queries, names):
            key = None if name is None else names.key(name, first=(edges.POLICY,))
            return queries.policies(key, _checked_limit(limit))

    def ancestry(self, name: str, *, known_at: When = None, limit: int = LIMIT) -> Ancestry:
        """Of which sessions a session is a fork or a subagent, and they in turn; of a turn, those of its session."""
        with self._queries_at(None, known_at) as (queries, names):
            key = names.key(name, first=(edges.SESSION,))
            session = session_of(queries.reader, key)
            if session is None:
                raise NotApplicable(f"{queries.reader.name_of(key)} belongs to no session", "name a session or a turn")
            return queries.ancestry(session, ancestry(queries.reader, session, _checked_limit(limit)))

    # --- events as lines ----------------------------------------------------------------------------------------

    @reads_whole
    def emit(self, target: str | Path | Any, *, turn: str | None = None) -> int:
        """Write events in the shapes of the agent graph's schema, as JSON lines to a new file or an open binary one:
        all of them, or those of a turn's thread. Each carries its stream, what it follows and the salts of its texts,
        so that `ingest` can hold it against its id. Returns the number of lines."""
        if isinstance(target, TextIOBase):
            raise InvalidInput("target is a file of text", "open it for bytes, or give its path")
        if hasattr(target, "write"):
            return write_lines(target, self._emitted_lines(turn))
        path = checked_file(target, "target", Action.CHOOSE_NEW_FILE)
        try:
            with remembered(self._store, path, FACTS):
                return write_new(path, self._emitted_lines(turn))
        except OSError as error:
            raise path_error(path, error) from error

    def _emitted_lines(self, turn: str | None) -> Iterator[bytes]:
        with self._store.read() as txn:
            numbers = None if turn is None else thread_events(txn, self._resolve(txn, turn).turn)
            yield from EventLines(txn).lines(numbers)

    @requires("facts:import", whole=True)
    def ingest(
        self, events: str | Path | Iterable[bytes | str | dict[str, Any]], *, origin: str = GRAPH_ORIGIN
    ) -> IngestedEvents:
        """Take events in: of a file of JSON lines, or as they are given. One that carries what `emit` writes is held
        against its id. Of other programs' events, runs become imported turns of this origin, known by their native ids,
        and others become nodes and edges. One that is bad is refused with its line, and nothing is written. What comes
        in has no authority."""
        origin = checked_text(origin, "origin")
        read = _read_from(events, origin)
        taken = self._take_facts(read.facts) if read.facts else ImportedFacts(0, 0, 0)
        counts, kept = ImportCounts(), 0
        if read.sessions:
            importer = self._whole.imports.writer(origin, GRAPH_MAPPING)
            ids = self._ids_in(importer)
            for name, session in read.sessions.items():
                kept += self._take_session(importer, name, session, counts, ids)
            self._take_apart(importer, read.apart, counts, ids)
            importer.finish()
        return IngestedEvents(
            events=taken.events,
            contents=taken.contents,
            known=taken.known + counts.known,
            turns=counts.turns,
            kept=kept,
        )

    def _ids_in(self, importer: ImportWriter) -> ForeignIds:
        def is_there(query: str, id: str) -> bool:
            with self._store.read() as txn:
                return txn.sql.fetch_row(query, (id,)) is not None

        return ForeignIds(
            turns={},
            events={},
            sessions=set(),
            find_resource=partial(is_there, "SELECT 1 FROM resource WHERE id = ?"),
            find_policy=partial(is_there, "SELECT 1 FROM policy WHERE id = ?"),
        )

    def _take_session(
        self, importer: ImportWriter, name: str, session: ForeignSession, counts: ImportCounts, ids: ForeignIds
    ) -> int:
        """Turns of one session, and its other events under the hash of what they say; returns how many these are."""
        native, kept = NativeSession(id=name), session.kept()
        landed = importer.take(native, session.turns(), name, counts)
        ids.sessions.add(name)
        with self._store.read() as txn:
            for run, turn in zip(session.told_runs(), landed, strict=False):
                row = load_turn(txn.sql, turn.id)
                if row is not None:
                    ids.turns[run.name] = turn.id
                    ids.add_events(run.event_names(), [stored.id for stored in run_events(txn.facts, row)], turn.id)
        if kept:
            lines = b"".join(line + b"\n" for line in kept)
            importer.keep(native, f"{name}#{sha256(lines).hexdigest()[:16]}", lines)
        return len(kept)

    def _take_apart(
        self, importer: ImportWriter, apart: Sequence[ApartEvent], counts: ImportCounts, ids: ForeignIds
    ) -> None:
        """What belongs to no run and is seen in the graph; branches that it names are there from then on."""
        if not apart:
            return
        made = ForeignEvents(importer.secret, importer.origin, ids)
        for event in apart:
            made.declare(event.shape)
            branch = made.branch_of(event.shape)
            if branch is not None and branch not in ids.sessions:
                importer.take(NativeSession(id=branch), (), branch, counts)
                ids.sessions.add(branch)
        importer.add_apart([each for event in apart for each in made.made_of(event.shape, event.name, event.at)])

    def _take_facts(self, facts: list[tuple[int, Fact]]) -> ImportedFacts:
        """All of them in one transaction, or none."""
        self._store.catch_up()
        brought = self._store.write(partial(take_batch, facts, excerpts=True, own=self._store.replica))
        self._store.catch_up()
        if views_are_stale(self._store):
            self._whole.upkeep.rebuild()
        return brought

    # --- reading ------------------------------------------------------------------------------------------------

    @contextmanager
    def _queries_at(self, at: When, known_at: When) -> Iterator[tuple[GraphQueries, NodeNames]]:
        """The graph at one moment of the ledger, for whoever acts."""
        edges.catch_up(self._store)
        held = None if at is None else self._moment(at, "at")
        known = None if known_at is None else self._moment(known_at, "known_at")
        with self._store.read() as txn, self._edges_database(txn) as database:
            reader = EdgeReader(txn, database, at=held, known_at=known)
            yield GraphQueries(reader), NodeNames(reader, self._parse_time)

    @contextmanager
    def _edges_database(self, txn: ReadTxn) -> Iterator[Sql]:
        """The database that has the edges: the ledger's own, or one beside it where the ledger cannot be written and
        its edges lag behind."""
        newest = txn.facts.tip().n
        if not self._store.read_only or txn.facts.watermark(edges.VIEW) == newest:
            yield txn.sql
            return
        with self._store.scratch() as scratch:
            edges.fill(scratch, txn.facts, 0, newest, views=txn.sql)
            yield scratch


def _read_from(events: Any, origin: str) -> ReadEvents:
    if isinstance(events, type) or not (
        isinstance(events, str | os.PathLike | Iterable) or hasattr(events, "readline")
    ):
        raise InvalidInput(f"events is {quoted(events)}", "give a file's path, an open file, or events one by one")
    if not isinstance(events, str | os.PathLike):
        return read_events(limited_lines(events) if hasattr(events, "readline") else events, origin)
    path = checked_path(events, "events")
    try:
        with path.open("rb") as file:
            return read_events(limited_lines(file), origin)
    except OSError as error:
        raise path_error(path, error) from error


def _edge_types(names: Sequence[str]) -> tuple[EdgeType, ...]:
    known = {type.value.lower(): type for type in EdgeType}
    wanted = [name.lower().replace("-", "_") for name in checked_names(names, "types")]
    for name in wanted:
        if name not in known:
            raise InvalidInput(f"{quoted(name)} is no type of edge", "docs/concepts.md has them, such as DERIVED_FROM")
    return tuple(known[name] for name in wanted)


def _checked_direction(text: str) -> Direction:
    match text:
        case "out" | "in" | "both":
            return text
    raise InvalidInput(f"{quoted(text)} is no direction", "use out, in or both")


def _checked_limit(number: int, what: str = "limit") -> int:
    limit = checked_number(number, what)
    if not 0 < limit <= MOST:
        raise InvalidInput(f"{what} is {limit}", f"give a number from 1 to {MOST}")
    return limit


# --- Pictures of a part of the graph: as a text for Graphviz, and as SVG that needs no other program.

MOST_NODES = 200
_WIDTH, _HEIGHT, _GAP_X, _GAP_Y, _MARGIN = 190, 40, 110, 18, 20
_LETTERS = 26
_COLOURS = {
    "Agent": "#dbe7ff",
    "Program": "#dbe7ff",
    "Run": "#e2f4dc",
    "Branch": "#d5efe3",
    "Subagent": "#d5efe3",
    "Message": "#fff3c9",
    "Generation": "#ffe3cc",
    "ToolCall": "#f6dcf5",
    "ToolResult": "#f6dcf5",
    "Resource": "#e4e0f7",
    "Snapshot": "#e4e0f7",
    "Policy": "#ffd9d9",
}
_TITLES = ("name", "label", "kind", "role", "tool", "model")


class GraphPicture:
    """The nodes and edges that are drawn: the first so many, and the edges between them."""

    def __init__(self, nodes: Iterable[GraphNode], edges: Iterable[GraphEdge], most: int = MOST_NODES) -> None:
        known = {node.name: node for node in nodes}
        self.nodes = dict(list(known.items())[:most])
        self.left_out = len(known) - len(self.nodes)
        drawn = (edge for edge in edges if edge.source in self.nodes and edge.target in self.nodes)
        self.edges = list({(edge.type, edge.source, edge.target, edge.valid_from): edge for edge in drawn}.values())

    def columns(self) -> list[list[str]]:
        """The names of the nodes column by column: one behind all that lead to it, but for circles."""
        leading: dict[str, set[str]] = {name: set() for name in self.nodes}
        after: dict[str, set[str]] = {name: set() for name in self.nodes}
        for edge in self.edges:
            if edge.source != edge.target:
                leading[edge.target].add(edge.source)
                after[edge.source].add(edge.target)
        column: dict[str, int] = {}
        waiting = deque(name for name, sources in leading.items() if not sources)
        left = {name: len(sources) for name, sources in leading.items()}
        while len(column) < len(self.nodes):
            if not waiting:  # a circle: it begins with the node that came first
                waiting.append(next(name for name in self.nodes if name not in column))
            name = waiting.popleft()
            if name in column:
                continue
            column[name] = 1 + max((column[source] for source in leading[name] if source in column), default=-1)
            for target in sorted(after[name]):
                left[target] -= 1
                if left[target] == 0:
                    waiting.append(target)
        found: list[list[str]] = [[] for _ in range(max(column.values(), default=-1) + 1)]
        for name in self.nodes:
            found[column[name]].append(name)
        return found


def caption(node: GraphNode) -> tuple[str, str]:
    """Two short lines for a node: its type, and what tells it from others."""
    properties = node.properties
    titles = () if node.type == "Run" else _TITLES
    words = next((str(properties[name]) for name in titles if isinstance(properties.get(name), str)), "")
    kind, _, id = node.name.partition(":")
    short = id[:12] if len(id) == 64 else id[-8:]
    own = words if words and words != id else ""
    return node.type, " ".join(part for part in (own, short if kind != "program" or not own else "") if part)


def to_dot(picture: GraphPicture) -> str:
    """A directed graph in the language of Graphviz."""
    lines = ["digraph weft {", "  rankdir=LR;", '  node [shape=box, style="rounded,filled", fillcolor=white];']
    for name, node in picture.nodes.items():
        type, words = caption(node)
        colour = _COLOURS.get(node.type, "#f2f2f2")
        lines.append(f'  {_graphviz_text(name)} [label={_graphviz_text(type, words)}, fillcolor="{colour}"];')
    for edge in picture.edges:
        style = "" if edge.valid_to is None else ", style=dashed"
        ends = f"{_graphviz_text(edge.source)} -> {_graphviz_text(edge.target)}"
        lines.append(f"  {ends} [label={_graphviz_text(edge.type.value)}{style}];")
    if picture.left_out:
        lines.append(f"  label={_graphviz_text(f'{picture.left_out} more nodes are not drawn')};")
    return "\n".join([*lines, "}"]) + "\n"


def _graphviz_text(*lines: str) -> str:
    """Text as a string of Graphviz; control characters are left out."""
    texts = ("".join(letter for letter in line if letter.isprintable()) for line in lines if line)
    return '"' + "\\n".join(text.replace("\\", "\\\\").replace('"', '\\"') for text in texts) + '"'


def to_svg(picture: GraphPicture) -> str:
    """A picture that stands by itself: no script, no font, no address of anything else."""
    columns = picture.columns()
    places = _node_places(columns)
    wide = 2 * _MARGIN + max(1, len(columns)) * _WIDTH + max(0, len(columns) - 1) * _GAP_X
    rows = max((len(column) for column in columns), default=1)
    high = 2 * _MARGIN + rows * (_HEIGHT + _GAP_Y) + (20 if picture.left_out else 0)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" height="{high}"'
        ' font-family="sans-serif" font-size="11">',
        '<defs><marker id="end" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="#777"/></marker></defs>',
        f'<rect width="{wide}" height="{high}" fill="white"/>',
        *(_edge_svg(edge, places) for edge in picture.edges),
        *(_node_svg(picture.nodes[name], places[name]) for column in columns for name in column),
    ]
    if picture.left_out:
        parts.append(f'<text x="{_MARGIN}" y="{high - 10}">{picture.left_out} more nodes are not drawn</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _node_places(columns: Sequence[Sequence[str]]) -> dict[str, tuple[int, int]]:
    return {
        name: (_MARGIN + x * (_WIDTH + _GAP_X), _MARGIN + y * (_HEIGHT + _GAP_Y))
        for x, column in enumerate(columns)
        for y, name in enumerate(column)
    }


def _svg_text(words: str) -> str:
    """Text that XML can hold, cut to what fits."""
    printable = "".join(letter for letter in words if letter.isprintable())
    return escape(printable if len(printable) <= _LETTERS else printable[: _LETTERS - 1] + "…")


def _node_svg(node: GraphNode, place: tuple[int, int]) -> str:
    x, y = place
    type, words = caption(node)
    name = escape("".join(letter for letter in node.name if letter.isprintable()))
    return (
        f'<g><title>{name}</title><rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="6"'
        f' fill="{_COLOURS.get(node.type, "#f2f2f2")}" stroke="#999"/>'
        f'<text x="{x + 8}" y="{y + 16}" font-weight="bold">{_svg_text(type)}</text>'
        f'<text x="{x + 8}" y="{y + 31}">{_svg_text(words)}</text></g>'
    )


def _edge_svg(edge: GraphEdge, places: dict[str, tuple[int, int]]) -> str:
    (x1, y1), (x2, y2) = places[edge.source], places[edge.target]
    middle = _HEIGHT // 2
    if x2 > x1:
        start, end = (x1 + _WIDTH, y1 + middle), (x2, y2 + middle)
    else:  # beside or back
        start, end = (x1 + _WIDTH // 2, y1 + _HEIGHT), (x2 + _WIDTH // 2, y2)
    dash = "" if edge.valid_to is None else ' stroke-dasharray="4 3"'
    x, y = (start[0] + end[0]) // 2, (start[1] + end[1]) // 2 - 3
    return (
        f'<path d="M{start[0]} {start[1]}L{end[0]} {end[1]}" stroke="#777" fill="none" marker-end="url(#end)"{dash}/>'
        f'<text x="{x}" y="{y}" font-size="8" fill="#555" text-anchor="middle">{escape(edge.type.value)}</text>'
    )
