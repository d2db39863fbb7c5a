"""`ledger.graph`: questions about the agent graph of an open ledger.

Each verb brings the view of edges up to the newest fact, then reads in one transaction. `at` is a time at which edges
held; `known_at` a time of which this ledger's knowledge is asked: what arrived later does not count. Both are Unix
milliseconds or words for a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from weft.graph.edge_reader import Direction, EdgeReader
from weft.graph.model import (
    Ancestry,
    CallPair,
    GraphNode,
    GraphPath,
    GraphWalk,
    Neighbours,
    PathsFound,
    PolicyStep,
    ResourceState,
    RunHistory,
)
from weft.graph.names import NodeNames
from weft.graph.nodes import NodeReader
from weft.graph.paths import PathFinder
from weft.graph.queries import GraphQueries
from weft.graph.walks import ancestry, lineage, session_of
from weft.kernel.errors import InvalidInput, NotApplicable, NotFound
from weft.kernel.weft_error import quoted
from weft.ledger.api.base import LedgerPart
from weft.ledger.api.ledger import Ledger
from weft.ledger.arguments import checked_names, checked_number, checked_progress
from weft.ledger.upkeep.recompute import FreshViews
from weft.ledger.views import edge_types as kinds
from weft.ledger.views import edges
from weft.ledger.views.edge_types import EdgeType
from weft.store.port import ReadTxn
from weft.store.sql import Sql

When = int | str | None
LIMIT, FEW_PATHS, LONGEST_PATH, MOST = 200, 3, 12, 10_000


class Graph(LedgerPart):
    """`ledger.graph`: nodes, edges and the questions about them. What may not be read is not in any answer."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)

    def catch_up(self, *, progress: Any = None) -> None:
        """Bring the graph up to the newest fact. Every other verb does that first; this one tells how far it is."""
        edges.catch_up(self._store, checked_progress(progress))

    def node(self, name: str, *, known_at: When = None) -> GraphNode:
        """A node, by its name. With `known_at` as it was known then, which takes as long as making the views anew up to
        that time; raises NotFound for one that was not known yet."""
        with self._reading(None, known_at) as (queries, names):
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
        wanted, way = _edge_types(types), _direction(direction)
        with self._reading(at, known_at) as (queries, names):
            return queries.neighbours(names.key(name), wanted, way, _limit(limit))

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
        wanted, most, steps = _edge_types(types), _limit(limit), _limit(longest, "longest")
        with self._reading(at, known_at) as (queries, names):
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
        with self._reading(None, known_at) as (queries, names):
            return queries.history(names.key(run, first=(kinds.RUN,)), _limit(limit))

    def lineage(self, name: str, *, at: When = None, known_at: When = None, limit: int = LIMIT) -> GraphWalk:
        """What a node was derived from, step by step."""
        with self._reading(at, known_at) as (queries, names):
            key = names.key(name)
            return queries.walk(key, lineage(queries.reader, key, _limit(limit)))

    def calls(self, name: str, *, known_at: When = None, limit: int = LIMIT) -> list[CallPair]:
        """The tool calls of a turn or of an answer, each with its results."""
        with self._reading(None, known_at) as (queries, names):
            return queries.calls(names.key(name, first=(kinds.RUN,)), _limit(limit))

    def resources(
        self, name: str | None = None, *, at: When = None, known_at: When = None, limit: int = LIMIT
    ) -> list[ResourceState]:
        """Who owned, used and mounted resources at a time, by default now: all resources, one, or those of a turn, a
        session or an agent."""
        with self._reading(self._clock.now_ms() if at is None else at, known_at) as (queries, names):
            key = None if name is None else names.key(name, first=(kinds.RESOURCE, kinds.SESSION, kinds.PROGRAM))
            return queries.resources(key, _limit(limit))

    def policies(
        self, name: str | None = None, *, at: When = None, known_at: When = None, limit: int = LIMIT
    ) -> list[PolicyStep]:
        """Which approval policies were proposed and active, and for how long: all, one, or those of an agent. With `at`
        those that were then."""
        with self._reading(at, known_at) as (queries, names):
            key = None if name is None else names.key(name, first=(kinds.POLICY,))
            return queries.policies(key, _limit(limit))

    def ancestry(self, name: str, *, known_at: When = None, limit: int = LIMIT) -> Ancestry:
        """Of which sessions a session is a fork or a subagent, and they in turn; of a turn, those of its session."""
        with self._reading(None, known_at) as (queries, names):
            key = names.key(name, first=(kinds.SESSION,))
            session = session_of(queries.reader, key)
            if session is None:
                raise NotApplicable(f"{queries.reader.name_of(key)} belongs to no session", "name a session or a turn")
            return queries.ancestry(session, ancestry(queries.reader, session, _limit(limit)))

    # --- reading ------------------------------------------------------------------------------------------------

    @contextmanager
    def _reading(self, at: When, known_at: When) -> Iterator[tuple[GraphQueries, NodeNames]]:
        """The graph at one moment of the ledger, for whoever acts."""
        edges.catch_up(self._store)
        held = None if at is None else self._moment(at, "at")
        known = None if known_at is None else self._moment(known_at, "known_at")
        with self._store.read() as txn, self._edges(txn) as database:
            reader = EdgeReader(txn, database, at=held, known_at=known)
            yield GraphQueries(reader), NodeNames(reader, self._parse_time)

    @contextmanager
    def _edges(self, txn: ReadTxn) -> Iterator[Sql]:
        """The database that has the edges: the ledger's own, or one beside it where the ledger cannot be written and
        its edges lag behind."""
        newest = txn.facts.tip().n
        if not self._store.read_only or txn.facts.watermark(edges.VIEW) == newest:
            yield txn.sql
            return
        with self._store.scratch() as scratch:
            edges.fill(scratch, txn.facts, 0, newest, views=txn.sql)
            yield scratch


def _edge_types(names: Sequence[str]) -> tuple[EdgeType, ...]:
    known = {type.value.lower(): type for type in EdgeType}
    wanted = [name.lower().replace("-", "_") for name in checked_names(names, "types")]
    for name in wanted:
        if name not in known:
            raise InvalidInput(f"{quoted(name)} is no type of edge", "use one of docs/graph.md, such as DERIVED_FROM")
    return tuple(known[name] for name in wanted)


def _direction(text: str) -> Direction:
    match text:
        case "out" | "in" | "both":
            return text
    raise InvalidInput(f"{quoted(text)} is no direction", "use out, in or both")


def _limit(number: int, what: str = "limit") -> int:
    limit = checked_number(number, what)
    if not 0 < limit <= MOST:
        raise InvalidInput(f"{what} is {limit}", f"give a number from 1 to {MOST}")
    return limit
