"""The ways between two nodes that tell most: those that cost least.

An edge costs 1, and more where it is one of many: for each of its ends the binary logarithm, rounded down, of how many
edges of its type lead the same way there. A turn's only parent is near; the agent that a thousand turns have is far. Of
ways that cost the same those of fewer edges are taken. The costs of all nodes around the end are found first, nearest
first, until the start is among them; then the ways are followed from the start on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from itertools import islice
from typing import Literal

from msgspec import Struct

from weft.graph.edge_reader import EdgeReader, EdgeRow
from weft.ledger.views.edge_types import EDGE_FACTS, EdgeType

PATH_EDGES = 50_000
"""So many edges are looked at for a way between two nodes."""
COUNTED_EDGES = 1024
"""So many edges of a type are counted at a node; more are as far as these."""
Leading = Literal["out", "in"]
_OTHER: dict[Leading, Leading] = {"out": "in", "in": "out"}
Label = tuple[int, int]
"""The cost of a way to the end, and of how many edges it is."""


class Way(Struct, frozen=True):
    """A way between two nodes: its nodes in order, the edges between them, and what they cost together."""

    nodes: tuple[str, ...]
    edges: tuple[EdgeRow, ...]
    cost: int


class Ways(Struct, frozen=True):
    """Ways of equal cost. `is_cut`: not everything could be looked at, so there may be others."""

    ways: list[Way]
    is_cut: bool


class Bundle(Struct, frozen=True):
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
        self._farness: dict[Bundle, int | None] = {}

    def find(self, start: str, end: str, limit: int, longest: int) -> Ways:
        """The first so many of the ways that cost least, those with older edges first."""
        if start == end:
            return Ways([Way((start,), (), 0)], False)
        search = _Search(self, start, end, longest)
        try:
            label = search.run()
        except _NothingLeft:
            return Ways([], True)
        return Ways([] if label is None else list(islice(search.ways(label), limit)), False)

    def bundles(self, key: str) -> Iterator[Bundle]:
        """All that a node of its kind can have."""
        kind = key.partition(":")[0]
        for type in self._types:
            if kind in EDGE_FACTS[type].sources:
                yield Bundle(key, type, "out")
            if kind in EDGE_FACTS[type].targets:
                yield Bundle(key, type, "in")

    def edges(self, bundle: Bundle) -> Iterator[EdgeRow]:
        for edge in self._reader.of(bundle.key, (bundle.type,), bundle.leading):
            if self._left == 0:
                raise _NothingLeft
            self._left -= 1
            yield edge

    def far(self, bundle: Bundle) -> int | None:
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

    bundle: Bundle
    label: Label


class _EdgeFollowed(Struct, frozen=True):
    """An edge was followed; of how many it is one at its other end is not yet known."""

    bundle: Bundle
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
        self._push((0, 0), _NodeReached(self._end, None))
        while self._waiting:
            label, _, item = heappop(self._waiting)
            found = self._labels.get(self._start)
            if found is not None and label > found[0]:
                break
            match item:
                case _EdgesNear():
                    self._leave(label, item)
                case _EdgeFollowed():
                    far = self._finder.far(item.bundle) or 0
                    self._push((label[0] + far, label[1]), _NodeReached(item.bundle.key, item.link))
                case _NodeReached():
                    self._settle(label, item)
        return self._labels[self._start][0] if self._start in self._labels else None

    def _push(self, label: Label, item: _EdgesNear | _EdgeFollowed | _NodeReached) -> None:
        self._pushed += 1
        heappush(self._waiting, (label, self._pushed, item))

    def _leave(self, label: Label, item: _EdgesNear) -> None:
        bundle = item.bundle
        for edge in self._finder.edges(bundle):
            other = edge.target if bundle.leading == "out" else edge.source
            link = WayLink(edge, bundle.key, item.label)
            self._push(
                (label[0], label[1] + 1), _EdgeFollowed(Bundle(other, bundle.type, _OTHER[bundle.leading]), link)
            )

    def _settle(self, label: Label, item: _NodeReached) -> None:
        labels = self._labels.setdefault(item.key, [])
        if label not in labels:
            if any(label[1] >= edges for _, edges in labels):
                return
            labels.append(label)
            if label[1] < self._longest and item.key != self._start:
                for bundle in self._finder.bundles(item.key):
                    far = self._finder.far(bundle)
                    if far is not None:
                        self._push((label[0] + 1 + far, label[1]), _EdgesNear(bundle, label))
        if item.link is not None:
            self._links.setdefault((item.key, label), []).append(item.link)

    def ways(self, whole: Label) -> Iterator[Way]:
        """All ways from the start with this label, those with older edges first."""
        stack: list[tuple[Label, tuple[str, ...], tuple[EdgeRow, ...]]] = [(whole, (self._start,), ())]
        while stack:
            label, nodes, edges = stack.pop()
            if nodes[-1] == self._end:
                yield Way(nodes, edges, whole[0])
                continue
            oldest: dict[str, WayLink] = {}
            for link in self._links[nodes[-1], label]:
                if link.then not in oldest or link.edge.id < oldest[link.then].edge.id:
                    oldest[link.then] = link
            for link in sorted(oldest.values(), key=lambda link: link.edge.id, reverse=True):
                stack.append((link.label, (*nodes, link.then), (*edges, link.edge)))
