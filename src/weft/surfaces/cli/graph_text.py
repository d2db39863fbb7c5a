"""The agent graph as people read it: nodes by what is typed for them, edges as rows of a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from weft.ledger.model import UNDATED
from weft.surfaces.cli.history import short
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.cli.times import local_time
from weft.surfaces.plain_text import safe

if TYPE_CHECKING:
    from weft.graph.edge_reader import (
        AncestryStep,
        CallPair,
        GraphEdge,
        GraphNode,
        PathsFound,
        PolicyStep,
        ResourceState,
    )
    from weft.surfaces.cli.screen import Screen

EDGES = ("from", "edge", "to", "since", "until")
NEIGHBOURS = ("", "edge", "node", "what", "since", "until")
ANCESTRY = ("session", "edge", "to", "of session", "since")
HISTORY = ("#", "event", "kind", "when")
CALLS = ("call", "tool", "asked by", "result", "status")
RESOURCES = ("resource", "name", "kind", "owner", "attached to", "mounted by")
POLICIES = ("policy", "name", "was", "since", "until")
_SHOWN_DIGITS = 12
_OWN_NAMES = {"session": "label", "program": "name"}
"""Kinds of nodes that have a name which no other one has, and the property that it is."""
Row = tuple[Span | str, ...]


def shown_name(name: str, node: GraphNode | None = None, *, whole: bool) -> str:
    """A node as it can be typed; on a terminal no longer than it must be, and by its label where that is its own."""
    kind, _, id = name.partition(":")
    if whole:
        return safe(name)
    own = None if node is None else node.properties.get(_OWN_NAMES.get(kind, ""))
    if isinstance(own, str) and own:
        return safe(f"{kind}:{own}")
    if kind == "run":
        return f"{kind}:{short(id)}"
    return safe(f"{kind}:{id[:_SHOWN_DIGITS]}" if len(id) == 64 and kind != "uri" else name)


def about(node: GraphNode | None) -> str:
    """What tells a node from others of its type, in a few words."""
    if node is None:
        return ""
    from weft.graph.graph import caption

    type, words = caption(node)
    return f"{type} {safe(words)}".strip()


def node_lines(node: GraphNode) -> Iterator[Line]:
    """All that is known of a node, field by field."""
    yield [Span(node.type, "title"), " ", Span(safe(node.name), "label")]
    for name, value in node.properties.items():
        shown = _readable(name, value)
        if shown is not None:
            text = shown if isinstance(shown, str) else orjson.dumps(shown).decode()
            yield [Span(f"  {safe(name)}: ", "dim"), safe(text)]


def _readable(name: str, value: Any) -> Any:
    """A value as people read it: a time of this place for milliseconds, and None for what nothing is known of. What
    was recorded inside of it stays as it is."""
    if name.endswith("_at") and type(value) is int:
        return local_time(value) if value != UNDATED else None
    return None if value in ((), [], {}) else value


def since_until(edge: GraphEdge) -> tuple[str, str]:
    since = ("~" if edge.is_synthesised else "") + local_time(edge.valid_from)
    return since, "" if edge.valid_to is None else local_time(edge.valid_to)


class GraphTables:
    """Rows for a screen, with what is known of the nodes. When piped, names stay whole."""

    def __init__(self, screen: Screen, nodes: Mapping[str, GraphNode] | None = None) -> None:
        self._whole, self._nodes = not screen.terminal, nodes or {}

    def _shown(self, name: str) -> str:
        return shown_name(name, self._nodes.get(name), whole=self._whole)

    def name(self, name: str) -> Span:
        return Span(self._shown(name), "label")

    def names(self, names: Sequence[str]) -> str:
        return ", ".join(map(self._shown, names))

    def edges(self, edges: Sequence[GraphEdge]) -> list[Row]:
        return [(self.name(edge.source), edge.type.value, self.name(edge.target), *since_until(edge)) for edge in edges]

    def ancestry(self, steps: Sequence[AncestryStep]) -> list[Row]:
        return [
            (
                self.name(step.edge.source),
                step.edge.type.value,
                self.name(step.edge.target),
                "" if step.parent is None else self.name(step.parent),
                since_until(step.edge)[0],
            )
            for step in steps
        ]

    def neighbours(self, of: str, edges: Sequence[GraphEdge]) -> list[Row]:
        rows: list[Row] = []
        for edge in edges:
            way, other = ("->", edge.target) if edge.source == of else ("<-", edge.source)
            rows.append((way, edge.type.value, self.name(other), about(self._nodes.get(other)), *since_until(edge)))
        return rows

    def history(self, events: Sequence[GraphNode]) -> list[Row]:
        return [
            (str(place), self.name(event.name), safe(str(event.properties.get("kind"))), _time(event))
            for place, event in enumerate(events)
        ]

    def calls(self, pairs: Sequence[CallPair]) -> list[Row]:
        rows: list[Row] = []
        for pair in pairs:
            asked = "" if pair.requested_by is None else self._shown(pair.requested_by)
            results = self.names([result.name for result in pair.results])
            states = ", ".join(str(result.properties.get("status")) for result in pair.results) or "open"
            tool = safe(str(pair.call.properties.get("tool")))
            rows.append((self.name(pair.call.name), tool, asked, results, states))
        return rows

    def resources(self, states: Sequence[ResourceState]) -> list[Row]:
        return [
            (
                self.name(state.resource.name),
                safe(str(state.resource.properties.get("name"))),
                str(state.resource.properties.get("kind")),
                "" if state.owner is None else self._shown(state.owner.source),
                self.names([edge.target for edge in state.attached]),
                self.names([edge.source for edge in state.mounted]),
            )
            for state in states
        ]

    def policies(self, steps: Sequence[PolicyStep]) -> list[Row]:
        return [
            (
                self.name(step.policy.name),
                safe(str(step.policy.properties.get("name"))),
                "proposed" if step.edge.type.value == "PROPOSES_POLICY" else "active",
                *since_until(step.edge),
            )
            for step in steps
        ]

    def paths(self, found: PathsFound) -> Iterator[Line]:
        for place, path in enumerate(found.paths):
            if place:
                yield []
            yield [self.name(path.nodes[0]), "  ", Span(about(found.nodes.get(path.nodes[0])), "dim")]
            for name, edge in zip(path.nodes[1:], path.edges, strict=True):
                arrow = f"  -{edge.type.value}-> " if edge.target == name else f"  <-{edge.type.value}- "
                yield [arrow, self.name(name), "  ", Span(about(found.nodes.get(name)), "dim")]


def _time(node: GraphNode) -> str:
    ts = node.properties.get("ts")
    return ts if isinstance(ts, str) else ""
