"""The questions of the agent graph's schema: neighbours, a run's history, calls and their results, resources
and policies at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from weft.graph.edge_reader import Direction, EdgeReader, EdgeRow
from weft.graph.model import (
    Ancestry,
    AncestryStep,
    CallPair,
    GraphEdge,
    GraphNode,
    GraphWalk,
    Neighbours,
    PolicyStep,
    ResourceState,
    RunHistory,
)
from weft.graph.nodes import NodeReader
from weft.graph.walks import Walk
from weft.kernel import dag_events as dag
from weft.kernel.canonical import MAX_INTEGER
from weft.kernel.errors import NotApplicable
from weft.ledger.views import edge_types as kinds
from weft.ledger.views.edge_types import EdgeType, node_key

_OF_RESOURCES = (EdgeType.OWNS_RESOURCE, EdgeType.ATTACHED_TO, EdgeType.MOUNTS_RESOURCE)
_OF_POLICIES = (EdgeType.PROPOSES_POLICY, EdgeType.ACTIVATES_POLICY)


class GraphQueries:
    """One transaction's graph, with the nodes at the ends of its edges."""

    def __init__(self, reader: EdgeReader) -> None:
        self.reader, self.nodes = reader, NodeReader(reader)

    def edges(self, rows: Iterable[EdgeRow]) -> tuple[GraphEdge, ...]:
        return tuple(self.reader.to_edge(row) for row in rows)

    def node(self, key: str) -> GraphNode:
        return self.nodes.node(key)

    def neighbours(self, key: str, types: Sequence[EdgeType], direction: Direction, limit: int) -> Neighbours:
        rows = list(islice(self.reader.of(key, types, direction), limit + 1))
        shown = rows[:limit]
        keys = self.reader.keys_of(key)
        ends = [row.target if row.source in keys else row.source for row in shown]
        return Neighbours(
            node=self.node(key), edges=self.edges(shown), nodes=self.nodes.nodes(ends), is_cut=len(rows) > limit
        )

    def walk(self, start: str, walk: Walk) -> GraphWalk:
        ends = [start, *(end for row in walk.edges for end in (row.source, row.target))]
        return GraphWalk(
            start=self.reader.name_of(start),
            edges=self.edges(walk.edges),
            nodes=self.nodes.nodes(ends),
            is_cut=walk.is_cut,
        )

    def ancestry(self, start: str, walk: Walk) -> Ancestry:
        name_of = self.reader.name_of
        ends = [start, *(end for row, parent in walk.steps for end in (row.source, row.target, parent) if end)]
        return Ancestry(
            start=name_of(start),
            steps=tuple(
                AncestryStep(edge=self.reader.to_edge(row), parent=None if parent is None else name_of(parent))
                for row, parent in walk.steps
            ),
            nodes=self.nodes.nodes(ends),
            is_cut=walk.is_cut,
        )

    # --- runs ---------------------------------------------------------------------------------------------------

    def history(self, run: str, limit: int) -> RunHistory:
        """The events of a run, in the order of its stream."""
        self._ensure_kind(run, (kinds.RUN,), "a turn has a history")
        rows = list(islice(self.reader.of(run, (EdgeType.RUN_HAS_EVENT,), "out"), limit + 1))
        events = tuple(self.node(row.target) for row in rows[:limit])
        return RunHistory(run=self.node(run), events=events, is_cut=len(rows) > limit)

    def calls(self, key: str, limit: int) -> list[CallPair]:
        """The tool calls of a run or of a generation, or one call, each with its results."""
        return [self._pair(call) for call in islice(self._calls_of(key), limit)]

    def _calls_of(self, key: str) -> Iterator[str]:
        kind = key.partition(":")[0]
        if kind == kinds.TOOL_CALL:
            yield key
        elif kind == kinds.TOOL_RESULT:
            yield from (row.source for row in self.reader.of(key, (EdgeType.RETURNS_RESULT,), "in"))
        elif kind == kinds.GENERATION:
            yield from (row.target for row in self.reader.of(key, (EdgeType.CALLS_TOOL,), "out"))
        else:
            self._ensure_kind(key, (kinds.RUN,), "a turn, an answer or a tool call has calls")
            for row in self.reader.of(key, (EdgeType.RUN_HAS_EVENT,), "out"):
                n = row.target.partition(":")[2]
                if isinstance(self.reader.event(int(n)), dag.ToolCallRequested):
                    yield node_key(kinds.TOOL_CALL, n)

    def _pair(self, call: str) -> CallPair:
        asked = next(self.reader.of(call, (EdgeType.CALLS_TOOL,), "in"), None)
        results = self.reader.of(call, (EdgeType.RETURNS_RESULT,), "out")
        return CallPair(
            call=self.node(call),
            requested_by=None if asked is None else self.reader.name_of(asked.source),
            results=tuple(self.node(row.target) for row in results),
        )

    def _ensure_kind(self, key: str, wanted: tuple[str, ...], hint: str) -> None:
        if key.partition(":")[0] not in wanted:
            raise NotApplicable(f"{self.reader.name_of(key)} has none", hint)

    # --- resources and policies ---------------------------------------------------------------------------------

    def resources(self, key: str | None, limit: int) -> list[ResourceState]:
        """Resources at the time that is asked about: all of them, one, or those that somebody owned or used."""
        keys = self._all_resources() if key is None else self._resources_of(key)
        return [self._state(resource) for resource in islice(keys, limit)]

    def _all_resources(self) -> Iterator[str]:
        query = "SELECT id FROM resource WHERE n <= ? AND declared_at <= ? ORDER BY n"
        for (id,) in self.reader.txn.sql.all(query, (self.reader.newest, self._until)):
            key = node_key(kinds.RESOURCE, id)
            if self.reader.access.may_see(key):
                yield key

    @property
    def _until(self) -> int:
        """Resources that were declared after this time were not there yet."""
        return MAX_INTEGER if self.reader.at is None else self.reader.at

    def _resources_of(self, key: str) -> Iterator[str]:
        kind, _, id = key.partition(":")
        if kind == kinds.RESOURCE:
            query = "SELECT 1 FROM resource WHERE id = ? AND n <= ? AND declared_at <= ?"
            if self.reader.txn.sql.one(query, (id, self.reader.newest, self._until)) is not None:
                yield key
            return
        self._ensure_kind(key, (kinds.RUN, kinds.SESSION, kinds.PROGRAM), "a turn, a session or an agent has resources")
        rows = list(self.reader.of(key, _OF_RESOURCES))
        yield from dict.fromkeys(row.source if row.target == key else row.target for row in rows)

    def _state(self, key: str) -> ResourceState:
        owners = list(self.reader.of(key, (EdgeType.OWNS_RESOURCE,), "in", newest_first=True))
        return ResourceState(
            resource=self.node(key),
            owner=self.reader.to_edge(owners[0]) if owners else None,
            attached=self.edges(self.reader.of(key, (EdgeType.ATTACHED_TO,), "out")),
            mounted=self.edges(self.reader.of(key, (EdgeType.MOUNTS_RESOURCE,), "in")),
            parts=self.edges(self.reader.of(key, (EdgeType.HAS_SUBRESOURCE,), "out")),
        )

    def policies(self, key: str | None, limit: int) -> list[PolicyStep]:
        """What was proposed and what became active, in order: of all policies, of one, or of one agent's."""
        rows = [row for policy in self._policies_of(key) for row in self.reader.of(policy, _OF_POLICIES, "in")]
        rows.sort(key=lambda row: row.id)
        return [PolicyStep(policy=self.node(row.target), edge=self.reader.to_edge(row)) for row in rows[:limit]]

    def _policies_of(self, key: str | None) -> Iterator[str]:
        if key is not None and key.partition(":")[0] == kinds.POLICY:
            yield key
            return
        agent = None
        if key is not None:
            self._ensure_kind(key, (kinds.PROGRAM,), "name a policy or an agent")
            agent = key.partition(":")[2]
        where, values = ("", ()) if agent is None else (" AND agent = ?", (agent,))
        query = f"SELECT id FROM policy WHERE n <= ?{where} ORDER BY n"
        for (id,) in self.reader.txn.sql.all(query, (self.reader.newest, *values)):
            policy = node_key(kinds.POLICY, id)
            if self.reader.access.may_see(policy):
                yield policy
