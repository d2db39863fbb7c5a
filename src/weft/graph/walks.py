"""Walks through the graph: lineage and ancestry.

Each follows so many edges at most, and says when there were more."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from msgspec import Struct

from weft.graph.edge_reader import EdgeReader, EdgeRow
from weft.ledger.views import edge_types as kinds
from weft.ledger.views.edge_types import EdgeType, node_key


class Walk(Struct, frozen=True):
    """Edges in the order in which they were followed, with the node that each led to; whether there were more."""

    steps: list[tuple[EdgeRow, str | None]]
    is_cut: bool

    @property
    def edges(self) -> list[EdgeRow]:
        return [edge for edge, _ in self.steps]


def _followed(start: str, edges_of: Callable[[str], Iterable[tuple[EdgeRow, str | None]]], limit: int) -> Walk:
    """Breadth first from a node: `edges_of` gives the edges of one, and where each leads, if anywhere."""
    steps: list[tuple[EdgeRow, str | None]] = []
    seen, waiting = {start}, deque([start])
    while waiting:
        for edge, end in edges_of(waiting.popleft()):
            if len(steps) == limit:
                return Walk(steps, True)
            steps.append((edge, end))
            if end is not None and end not in seen:
                seen.add(end)
                waiting.append(end)
    return Walk(steps, False)


def lineage(reader: EdgeReader, start: str, limit: int) -> Walk:
    """What a node was derived from, and what that was derived from, and so on."""

    def sources(key: str) -> Iterator[tuple[EdgeRow, str]]:
        for edge in reader.of(key, (EdgeType.DERIVED_FROM,), "out"):
            yield edge, edge.target

    return _followed(start, sources, limit)


def ancestry(reader: EdgeReader, start: str, limit: int) -> Walk:
    """Of which sessions a session is a fork or a subagent, and they in turn."""

    def parents(session: str) -> Iterator[tuple[EdgeRow, str | None]]:
        for edge in reader.of(session, (EdgeType.FORKED_FROM,), "out"):
            yield edge, _session_of_fork(reader, edge)
        for edge in reader.of(session, (EdgeType.SPAWNED_FROM,), "out"):
            yield edge, None

    return _followed(start, parents, limit)


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
