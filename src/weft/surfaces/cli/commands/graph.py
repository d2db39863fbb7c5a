"""`weft graph`: what relates to what, since when and until when."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from weft.kernel.errors import StoreError, WeftError
from weft.surfaces.cli import graph_text as text
from weft.surfaces.cli.arguments import complete_labels
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import group
from weft.surfaces.cli.progress import progress

if TYPE_CHECKING:
    from weft.graph.edge_reader import GraphEdge, GraphNode
    from weft.graph.graph import Graph

F = TypeVar("F", bound=Callable[..., Any])
command = group("graph", "Ask what relates to what: turns, events, tools, resources, policies, forks.")
DIRECTIONS = ("both", "out", "in")
_OF_CALLS = ("CALLS_TOOL", "RETURNS_RESULT")


def complete_nodes(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Sessions, and what has a name: programs, resources and policies."""
    labels = complete_labels(ctx, parameter, incomplete)
    try:
        with Call.completing(ctx).reading() as ledger:
            from weft.programs import Programs

            named = [f"program:{program.name}" for program in Programs(ledger).all()]
            named += [f"resource:{resource.name}" for resource in ledger.resources.list()]
            named += [f"policy:{policy.name}" for policy in ledger.policies.list()]
    except (WeftError, OSError):
        return labels
    return [*labels, *(name for name in dict.fromkeys(named) if name.startswith(incomplete))]


def _node(name: str = "node", **details: Any) -> Callable[[F], F]:
    return click.argument(name, shell_complete=complete_nodes, **details)


_at = click.option("--at", metavar="TIME", help="What held at this time.")
_known_at = click.option("--known-at", metavar="TIME", help="What this ledger knew at this time.")
_limit = click.option(
    "-n", "--limit", type=click.IntRange(1, 10_000), default=200, metavar="N", help="At most N (200)."
)
_types = click.option(
    "--type", "types", multiple=True, metavar="TYPE", help="Only edges of this type; can be repeated."
)


def _pictures(function: F) -> F:
    """The options that ask for a picture in the place of a table."""
    function = click.option("--svg", is_flag=True, help="Write a picture as SVG.")(function)
    return click.option("--dot", is_flag=True, help="Write a picture for Graphviz.")(function)


@contextmanager
def _asking(call: Call) -> Iterator[Graph]:
    """The graph, brought up to date first; where nothing can be written, it is made for this question alone."""
    from weft.graph.graph import Graph

    try:
        ledger = call.writing()
    except StoreError:
        ledger = call.reading()
    with ledger:
        graph = Graph(ledger)
        with progress(call, "graph") as bar:
            graph.catch_up(progress=bar.staged)
        yield graph


def _drawn(call: Call, dot: bool, svg: bool, nodes: Iterable[GraphNode], edges: Iterable[GraphEdge]) -> bool:
    """Whether a picture was asked for, and written."""
    if not dot and not svg:
        return False
    if (dot and svg) or call.json:
        raise click.UsageError("one of --dot, --svg and --json says what is written")
    from weft.graph.graph import Picture, to_dot, to_svg

    picture = Picture(nodes, edges)
    click.echo(to_dot(picture) if dot else to_svg(picture), nl=False)
    return True


def _table(
    call: Call, rows: Sequence[text.Row], header: Sequence[str], nothing: str, spare: Sequence[str] = ()
) -> None:
    if rows:
        call.screen.table(rows, header, spare=spare)
    else:
        call.note(nothing)


def _note_cut(call: Call, is_cut: bool, limit: int) -> None:
    if is_cut:
        call.note(f"there are more: `-n {min(2 * limit, 10_000)}` shows them")


@command.verb("node")
@_node()
@_known_at
def node(call: Call, node: str, known_at: str | None) -> None:
    """Show what is known of a node.

    NODE is a turn (main~1), an event by the beginning of its id, or KIND:NAME, such as session:main,
    program:researcher, resource:folder, policy:careful. What other commands show is taken too.
    """
    with _asking(call) as graph:
        found = graph.node(node, known_at=known_at)
    if call.json:
        call.document(found)
    else:
        call.screen.page(text.node_lines(found))


@command.verb("neighbours")
@_node()
@_types
@click.option("--direction", type=click.Choice(DIRECTIONS), default="both", help="Edges from it, to it, or both.")
@_at
@_known_at
@_limit
@_pictures
def neighbours(
    call: Call,
    node: str,
    types: tuple[str, ...],
    direction: str,
    at: str | None,
    known_at: str | None,
    limit: int,
    dot: bool,
    svg: bool,
) -> None:
    """List the edges of a node and what is at their other ends.

    \b
    weft graph neighbours main --type EVENT_PRODUCES
    weft graph neighbours resource:folder --at yesterday
    """
    with _asking(call) as graph:
        found = graph.neighbours(node, types, direction=direction, at=at, known_at=known_at, limit=limit)
    if _drawn(call, dot, svg, [found.node, *found.nodes.values()], found.edges):
        return
    if call.json:
        call.document(found)
        return
    rows = text.GraphTables(call.screen, found.nodes).neighbours(found.node.name, found.edges)
    _table(call, rows, text.NEIGHBOURS, "it has no such edges", ("until", "since"))
    _note_cut(call, found.is_cut, limit)


@command.verb("path")
@_node("start", metavar="FROM")
@_node("end", metavar="TO")
@_types
@_at
@_known_at
@click.option("-n", "--limit", type=click.IntRange(1, 100), default=3, metavar="N", help="At most N ways (3).")
@click.option("--longest", type=click.IntRange(1, 50), default=12, metavar="N", help="Of at most N edges (12).")
@_pictures
def path(
    call: Call,
    start: str,
    end: str,
    types: tuple[str, ...],
    at: str | None,
    known_at: str | None,
    limit: int,
    longest: int,
    dot: bool,
    svg: bool,
) -> None:
    """Show the ways between two nodes that tell most, whichever way the edges lead.

    An edge costs 1, and more where it is one of many: the agent of a thousand turns is far from each of them. The ways
    that cost least are shown.
    """
    with _asking(call) as graph:
        found = graph.path(start, end, types, at=at, known_at=known_at, limit=limit, longest=longest)
    if _drawn(call, dot, svg, found.nodes.values(), [edge for path in found.paths for edge in path.edges]):
        return
    if call.json:
        call.document(found)
        return
    if found.paths:
        call.screen.page(text.GraphTables(call.screen, found.nodes).paths(found))
    elif found.is_cut:
        call.note("so many edges were looked at without finding a way: --type leaves out those that lead nowhere")
    else:
        call.note("there is no way between them of so few edges")


@command.verb("history")
@_node("run", metavar="TURN")
@_known_at
@_limit
@_pictures
def history(call: Call, run: str, known_at: str | None, limit: int, dot: bool, svg: bool) -> None:
    """List the events of a turn in order."""
    with _asking(call) as graph:
        found = graph.history(run, known_at=known_at, limit=limit)
        if dot or svg:
            edges = graph.neighbours(run, ["RUN_HAS_EVENT"], known_at=known_at, limit=limit).edges
            _drawn(call, dot, svg, [found.run, *found.events], edges)
            return
    if call.json:
        call.document(found)
        return
    _table(call, text.GraphTables(call.screen).history(found.events), text.HISTORY, "it has no events", ("when",))
    _note_cut(call, found.is_cut, limit)


@command.verb("lineage")
@_node()
@_at
@_known_at
@_limit
@_pictures
def lineage(call: Call, node: str, at: str | None, known_at: str | None, limit: int, dot: bool, svg: bool) -> None:
    """Show what a node was derived from, step by step."""
    with _asking(call) as graph:
        found = graph.lineage(node, at=at, known_at=known_at, limit=limit)
    if _drawn(call, dot, svg, found.nodes.values(), found.edges):
        return
    if call.json:
        call.document(found)
        return
    rows = text.GraphTables(call.screen, found.nodes).edges(found.edges)
    _table(call, rows, text.EDGES, "it was derived from nothing that is recorded", ("until", "since"))
    _note_cut(call, found.is_cut, limit)


@command.verb("calls")
@_node(metavar="TURN|CALL")
@_known_at
@_limit
@_pictures
def calls(call: Call, node: str, known_at: str | None, limit: int, dot: bool, svg: bool) -> None:
    """List the tool calls of a turn or of an answer, each with its results."""
    with _asking(call) as graph:
        found = graph.calls(node, known_at=known_at, limit=limit)
        if dot or svg:
            around = [graph.neighbours(pair.call.name, _OF_CALLS, known_at=known_at) for pair in found]
            nodes = [node for each in around for node in (*each.nodes.values(), each.node)]
            _drawn(call, dot, svg, nodes, [edge for each in around for edge in each.edges])
            return
    if call.json:
        call.documents(found)
        return
    _table(call, text.GraphTables(call.screen).calls(found), text.CALLS, "it has no tool calls", ("asked by",))


@command.verb("resources")
@_node(required=False)
@_at
@_known_at
@_limit
@_pictures
def resources(
    call: Call, node: str | None, at: str | None, known_at: str | None, limit: int, dot: bool, svg: bool
) -> None:
    """Show who owned, used and mounted resources at a time, by default now.

    NODE is a resource, or a turn, a session or an agent whose resources are meant; without it, all of them.
    """
    with _asking(call) as graph:
        found = graph.resources(node, at=at, known_at=known_at, limit=limit)
        nodes = {state.resource.name: state.resource for state in found}
        edges = [edge for state in found for edge in (*state.attached, *state.mounted, *state.parts)]
        edges += [state.owner for state in found if state.owner is not None]
        if not call.json:
            ends = dict.fromkeys(end for edge in edges for end in (edge.source, edge.target))
            nodes |= {end: graph.node(end) for end in ends if end not in nodes}
    if _drawn(call, dot, svg, nodes.values(), edges):
        return
    if call.json:
        call.documents(found)
        return
    rows = text.GraphTables(call.screen, nodes).resources(found)
    _table(call, rows, text.RESOURCES, "there are no resources", ("mounted by", "attached to"))


@command.verb("policies")
@_node(required=False)
@_at
@_known_at
@_limit
@_pictures
def policies(
    call: Call, node: str | None, at: str | None, known_at: str | None, limit: int, dot: bool, svg: bool
) -> None:
    """List which approval policies were proposed and active, and for how long.

    NODE is a policy, or an agent whose policies are meant; without it, all of them.
    """
    with _asking(call) as graph:
        found = graph.policies(node, at=at, known_at=known_at, limit=limit)
        if dot or svg:
            nodes = [step.policy for step in found] + [graph.node(step.edge.source) for step in found]
            _drawn(call, dot, svg, nodes, [step.edge for step in found])
            return
    if call.json:
        call.documents(found)
        return
    _table(call, text.GraphTables(call.screen).policies(found), text.POLICIES, "there are no policies")


@command.verb("ancestry")
@_node(metavar="SESSION|TURN")
@_known_at
@_limit
@_pictures
def ancestry(call: Call, node: str, known_at: str | None, limit: int, dot: bool, svg: bool) -> None:
    """Show of what a session is a fork or a subagent, and that in turn."""
    with _asking(call) as graph:
        found = graph.ancestry(node, known_at=known_at, limit=limit)
    if _drawn(call, dot, svg, found.nodes.values(), [step.edge for step in found.steps]):
        return
    if call.json:
        call.document(found)
        return
    rows = text.GraphTables(call.screen, found.nodes).ancestry(found.steps)
    _table(call, rows, text.ANCESTRY, "it is no fork and no subagent", ("since",))
    _note_cut(call, found.is_cut, limit)
