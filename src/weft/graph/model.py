"""What questions about the graph give: nodes, edges, and small records made of them."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from weft.ledger.views.edge_types import EdgeType


class GraphNode(Struct, frozen=True, kw_only=True):
    """A thing in the graph. `name` is what every verb takes for it; `type` is its type in the agent graph's schema,
    and `properties` what is known of it, with texts in the place of references."""

    name: str
    type: str
    properties: dict[str, Any]


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
