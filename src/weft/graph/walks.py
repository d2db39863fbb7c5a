"""Walks through the graph: lineage, ancestry, and the shortest ways between two nodes.

Each follows so many edges at most, and says when there were more."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import Struct

from weft.graph.edge_reader import EdgeReader, EdgeRow
from weft.ledger.views import edge_types as kinds
from weft.ledger.views.edge_types import EdgeType, node_key

PATH_EDGES = 20_000
"""So many edges are looked at for a way between two nodes."""


class Walk(Struct, frozen=True):
    """Edges in the order in which they were followed; whether there were more."""

    edges: list[EdgeRow]
    is_cut: bool


def _followed(start: str, edges_of: Callable[[str], Iterable[tuple[EdgeRow, str]]], limit: int) -> Walk:
    """Breadth first from a node: `edges_of` gives the edges of one, and where each leads."""
    edges: list[EdgeRow] = []
    seen, waiting = {start}, deque([start])
    while waiting:
        for edge, end in edges_of(waiting.popleft()):
            if len(edges) == limit:
                return Walk(edges, True)
            edges.append(edge)
            if end not in seen:
                seen.add(end)
                waiting.append(end)
    return Walk(edges, False)


def lineage(reader: EdgeReader, start: str, limit: int) -> Walk:
    """What a node was derived from, and what that was derived from, and so on."""

    def sources(key: str) -> Iterator[tuple[EdgeRow, str]]:
        for edge in reader.of(key, (EdgeType.DERIVED_FROM,), "out"):
            yield edge, edge.target

    return _followed(start, sources, limit)


def ancestry(reader: EdgeReader, start: str, limit: int) -> Walk:
    """Of which sessions a session is a fork or a subagent, and they in turn."""

    def parents(session: str) -> Iterator[tuple[EdgeRow, str]]:
        for edge in reader.of(session, (EdgeType.FORKED_FROM,), "out"):
            yield edge, _session_of_fork(reader, edge) or session
        for edge in reader.of(session, (EdgeType.SPAWNED_FROM,), "out"):
            yield edge, session

    return _followed(start, parents, limit)


def _session_of_fork(reader: EdgeReader, edge: EdgeRow) -> str | None:
    """The session that was forked: the one that the edge names, else the one that made the turn."""
    named = edge.attribute("from_branch")
    if named is not None:
        key = node_key(kinds.SESSION, named)
        return key if reader.access.may_see(key) else None
    return session_of(reader, edge.target)


def session_of(reader: EdgeReader, key: str) -> str | None:
    """The session of a node: of a run, or of an event that belongs to one."""
    kind, _, id = key.partition(":")
    if kind == kinds.SESSION:
        return key
    if kind in kinds.EVENT_BACKED and id.isdecimal():
        key = reader.event(int(id)).stream
    made = next(reader.of(key, (EdgeType.SESSION_HAS_RUN,), "in"), None) if key[:4] == "run:" else None
    return None if made is None else made.source


# --- the shortest ways -----------------------------------------------------------------------------------------------


class Ways(Struct, frozen=True):
    """Ways between two nodes: for each the nodes in order, and the edges between them."""

    paths: list[tuple[tuple[str, ...], tuple[EdgeRow, ...]]]
    is_cut: bool


class PathFinder:
    """Looks for the shortest ways from both ends at once, a step at a time, always where fewer nodes are waiting."""

    def __init__(self, reader: EdgeReader, types: Sequence[EdgeType], most_edges: int = PATH_EDGES) -> None:
        self._reader, self._types, self._left = reader, types, most_edges
        self._links: dict[str, dict[str, EdgeRow]] = {}
        self.is_cut = False

    def _neighbours(self, key: str) -> dict[str, EdgeRow]:
        """Where one gets from a node, by the first edge that leads there."""
        links = self._links.get(key)
        if links is None:
            links = self._links[key] = {}
            for edge in self._reader.of(key, self._types):
                if self._left == 0:
                    self.is_cut = True
                    break
                self._left -= 1
                end = self._end(edge, key)
                if end not in links or edge.id < links[end].id:
                    links[end] = edge
        return links

    def _end(self, edge: EdgeRow, key: str) -> str:
        return edge.target if edge.source in self._reader.keys_of(key) else edge.source

    def find(self, start: str, end: str, limit: int, longest: int) -> Ways:
        if start == end:
            return Ways([((start,), ())], False)
        distances = {start: {start: 0}, end: {end: 0}}
        edge_of = {start: [start], end: [end]}
        length = 0
        while length < longest and all(edge_of.values()):
            side = min((start, end), key=lambda side: len(edge_of[side]))
            edge_of[side] = self._step(distances[side], edge_of[side])
            length += 1
            if distances[start].keys() & distances[end].keys():
                return Ways(list(self._paths(start, end, length, distances, limit)), self.is_cut)
        return Ways([], self.is_cut)

    def _step(self, distances: dict[str, int], nodes: list[str]) -> list[str]:
        reached: dict[str, None] = {}
        for node in nodes:
            for end in self._neighbours(node):
                if end not in distances:
                    reached[end] = None
        depth = distances[nodes[0]] + 1
        distances.update(dict.fromkeys(reached, depth))
        return list(reached)

    def _paths(
        self, start: str, end: str, length: int, distances: dict[str, dict[str, int]], limit: int
    ) -> Iterator[tuple[tuple[str, ...], tuple[EdgeRow, ...]]]:
        """All ways of this length, those with the older edges first, up to `limit`."""
        far, dead = distances[end], set[str]()
        reach = max(distances[start].values())
        given = 0
        stack: list[tuple[tuple[str, ...], tuple[EdgeRow, ...]]] = [((start,), ())]
        while stack and given < limit:
            nodes, edges = stack.pop()
            here, steps = nodes[-1], len(edges)
            if here == end:
                if steps == length:
                    given += 1
                    yield nodes, edges
                continue
            if steps == length or here in dead:
                continue
            found = [
                (next_node, edge)
                for next_node, edge in self._neighbours(here).items()
                if self._is_on_way(next_node, steps + 1, length, distances[start], far, reach)
            ]
            if not found:
                dead.add(here)
            for next_node, edge in sorted(found, key=lambda link: link[1].id, reverse=True):
                stack.append(((*nodes, next_node), (*edges, edge)))

    @staticmethod
    def _is_on_way(node: str, steps: int, length: int, near: dict[str, int], far: dict[str, int], reach: int) -> bool:
        if steps <= reach and near.get(node) != steps:
            return False
        return steps < reach or far.get(node) == length - steps
