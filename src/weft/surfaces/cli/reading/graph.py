"""`weft graph`: what relates to what, asked of the agent graph, and the graph as people read
it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click
import orjson

from weft.kernel.errors import StoreError
from weft.ledger.model import UNDATED
from weft.surfaces.cli.arguments import STANDARD, complete_nodes, piped_input, stdout_bytes
from weft.surfaces.cli.command_line import Call, group
from weft.surfaces.cli.progress import counted, progress
from weft.surfaces.cli.screen import Line, Span, local_time
from weft.surfaces.cli.turn_lists import short
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
    from weft.graph.graph import Graph
    from weft.surfaces.cli.screen import Screen


# --- `weft graph`: what relates to what, since when and until when.

F = TypeVar("F", bound=Callable[..., Any])
graph_command = group(
    "graph",
    """Ask what relates to what: turns, events, tools, resources, policies, forks.

    docs/concepts.md#the-agent-graph lists the types of nodes and edges, and explains the two times of an edge. The
    first question about a large ledger takes a while.
    """,
)
DIRECTIONS = ("both", "out", "in")
NO_EVENTS = "no events were given: pipe them in, or name a FILE"
_OF_CALLS = ("CALLS_TOOL", "RETURNS_RESULT")


def _node(name: str = "node", **details: Any) -> Callable[[F], F]:
    return click.argument(name, shell_complete=complete_nodes, **details)


_at = click.option("--at", metavar="TIME", help="What held at this time.")
_known_at = click.option("--known-at", metavar="TIME", help="What this ledger knew at this time.")
_limit = click.option(
    "-n", "--limit", type=click.IntRange(1, 10_000), default=200, metavar="N", help="At most N rows. Default: 200."
)
_types = click.option(
    "--type", "types", multiple=True, metavar="TYPE", help="Only edges of this type; can be repeated."
)


def _pictures(function: F) -> F:
    """The options that ask for a picture in the place of a table."""
    function = click.option("--svg", is_flag=True, help="Write a picture as SVG.")(function)
    return click.option("--dot", is_flag=True, help="Write a picture for Graphviz.")(function)


@contextmanager
def _current_graph(call: Call) -> Iterator[Graph]:
    """The graph, brought up to date first; where nothing can be written, it is made for this question alone."""
    from weft.graph.graph import Graph

    try:
        ledger = call.writing()
    except StoreError:
        ledger = call.reading()
    with ledger:
        graph = Graph(ledger)
        with progress(call, "graph") as bar:
            graph.catch_up(progress=lambda _stage, done, of: bar.counted(done, of))
        yield graph


def _draw_picture(call: Call, dot: bool, svg: bool, nodes: Iterable[GraphNode], edges: Iterable[GraphEdge]) -> bool:
    """Whether a picture was asked for, and written."""
    if not dot and not svg:
        return False
    if (dot and svg) or call.json:
        raise click.UsageError("one of --dot, --svg and --json says what is written")
    from weft.graph.graph import GraphPicture, to_dot, to_svg

    picture = GraphPicture(nodes, edges)
    click.echo(to_dot(picture) if dot else to_svg(picture), nl=False)
    return True


def _table(call: Call, rows: Sequence[Row], header: Sequence[str], nothing: str, spare: Sequence[str] = ()) -> None:
    if rows:
        call.screen.table(rows, header, spare=spare)
    else:
        call.note(nothing)


def _note_cut(call: Call, is_cut: bool, limit: int) -> None:
    if is_cut:
        call.note(f"there are more: `-n {min(2 * limit, 10_000)}` shows them")


@graph_command.verb("node")
@_node()
@_known_at
def node(call: Call, node: str, known_at: str | None) -> None:
    """Show what is known of a node.

    NODE is a turn (main~1), an event by the beginning of its id, or KIND:NAME, such as session:main,
    program:researcher, resource:folder, policy:careful. What other commands show is taken too.
    """
    with _current_graph(call) as graph:
        graph_node = graph.node(node, known_at=known_at)
    if call.json:
        call.document(graph_node)
    else:
        call.screen.page(node_lines(graph_node))


@graph_command.verb("neighbours")
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
    with _current_graph(call) as graph:
        walk = graph.neighbours(node, types, direction=direction, at=at, known_at=known_at, limit=limit)
    if _draw_picture(call, dot, svg, [walk.node, *walk.nodes.values()], walk.edges):
        return
    if call.json:
        call.document(walk)
        return
    rows = GraphTables(call.screen, walk.nodes).neighbours(walk.node.name, walk.edges)
    _table(call, rows, NEIGHBOURS, "it has no such edges", ("until", "since"))
    _note_cut(call, walk.is_cut, limit)


@graph_command.verb("path")
@_node("start", metavar="FROM")
@_node("end", metavar="TO")
@_types
@_at
@_known_at
@click.option("-n", "--limit", type=click.IntRange(1, 100), default=3, metavar="N", help="At most N paths. Default: 3.")
@click.option(
    "--longest", type=click.IntRange(1, 50), default=12, metavar="N", help="Only paths of at most N edges. Default: 12."
)
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
    """Show the shortest paths between two nodes; edges count in both directions.

    An edge costs 1, and more where it is one of many: the agent of a thousand turns is far from each of them. The ways
    that cost least are shown.
    """
    with _current_graph(call) as graph:
        paths = graph.path(start, end, types, at=at, known_at=known_at, limit=limit, longest=longest)
    if _draw_picture(call, dot, svg, paths.nodes.values(), [edge for path in paths.paths for edge in path.edges]):
        return
    if call.json:
        call.document(paths)
        return
    if paths.paths:
        call.screen.page(GraphTables(call.screen, paths.nodes).paths(paths))
    elif paths.is_cut:
        call.note("so many edges were looked at without finding a way: --type leaves out those that lead nowhere")
    else:
        call.note("there is no way between them of so few edges")


@graph_command.verb("history")
@_node("run", metavar="TURN")
@_known_at
@_limit
@_pictures
def history(call: Call, run: str, known_at: str | None, limit: int, dot: bool, svg: bool) -> None:
    """List the events of a turn in order."""
    with _current_graph(call) as graph:
        history = graph.history(run, known_at=known_at, limit=limit)
        if dot or svg:
            edges = graph.neighbours(run, ["RUN_HAS_EVENT"], known_at=known_at, limit=limit).edges
            _draw_picture(call, dot, svg, [history.run, *history.events], edges)
            return
    if call.json:
        call.document(history)
        return
    _table(call, GraphTables(call.screen).history(history.events), HISTORY, "it has no events", ("when",))
    _note_cut(call, history.is_cut, limit)


@graph_command.verb("lineage")
@_node()
@_at
@_known_at
@_limit
@_pictures
def lineage(call: Call, node: str, at: str | None, known_at: str | None, limit: int, dot: bool, svg: bool) -> None:
    """Show what a node was derived from, step by step."""
    with _current_graph(call) as graph:
        walk = graph.lineage(node, at=at, known_at=known_at, limit=limit)
    if _draw_picture(call, dot, svg, walk.nodes.values(), walk.edges):
        return
    if call.json:
        call.document(walk)
        return
    rows = GraphTables(call.screen, walk.nodes).edges(walk.edges)
    _table(call, rows, EDGES, "it was derived from nothing that is recorded", ("until", "since"))
    _note_cut(call, walk.is_cut, limit)


@graph_command.verb("calls")
@_node(metavar="TURN|CALL")
@_known_at
@_limit
@_pictures
def calls(call: Call, node: str, known_at: str | None, limit: int, dot: bool, svg: bool) -> None:
    """List the tool calls of a turn or of an answer, each with its results."""
    with _current_graph(call) as graph:
        pairs = graph.calls(node, known_at=known_at, limit=limit)
        if dot or svg:
            around = [graph.neighbours(pair.call.name, _OF_CALLS, known_at=known_at) for pair in pairs]
            nodes = [node for walk in around for node in (*walk.nodes.values(), walk.node)]
            _draw_picture(call, dot, svg, nodes, [edge for walk in around for edge in walk.edges])
            return
    if call.json:
        call.documents(pairs)
        return
    _table(call, GraphTables(call.screen).calls(pairs), CALLS, "it has no tool calls", ("asked by",))


@graph_command.verb("resources")
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
    with _current_graph(call) as graph:
        states = graph.resources(node, at=at, known_at=known_at, limit=limit)
        nodes = {state.resource.name: state.resource for state in states}
        edges = [edge for state in states for edge in (*state.attached, *state.mounted, *state.parts)]
        edges += [state.owner for state in states if state.owner is not None]
        if not call.json:
            ends = dict.fromkeys(end for edge in edges for end in (edge.source, edge.target))
            nodes |= {end: graph.node(end) for end in ends if end not in nodes}
    if _draw_picture(call, dot, svg, nodes.values(), edges):
        return
    if call.json:
        call.documents(states)
        return
    rows = GraphTables(call.screen, nodes).resources(states)
    _table(call, rows, RESOURCES, "there are no resources", ("mounted by", "attached to"))


@graph_command.verb("policies")
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
    with _current_graph(call) as graph:
        steps = graph.policies(node, at=at, known_at=known_at, limit=limit)
        if dot or svg:
            nodes = [step.policy for step in steps] + [graph.node(step.edge.source) for step in steps]
            _draw_picture(call, dot, svg, nodes, [step.edge for step in steps])
            return
    if call.json:
        call.documents(steps)
        return
    _table(call, GraphTables(call.screen).policies(steps), POLICIES, "there are no policies")


@graph_command.verb("ancestry")
@_node(metavar="SESSION|TURN")
@_known_at
@_limit
@_pictures
def ancestry(call: Call, node: str, known_at: str | None, limit: int, dot: bool, svg: bool) -> None:
    """Show what a session was forked from or started by, back to the first session."""
    with _current_graph(call) as graph:
        ancestry = graph.ancestry(node, known_at=known_at, limit=limit)
    if _draw_picture(call, dot, svg, ancestry.nodes.values(), [step.edge for step in ancestry.steps]):
        return
    if call.json:
        call.document(ancestry)
        return
    rows = GraphTables(call.screen, ancestry.nodes).ancestry(ancestry.steps)
    _table(call, rows, ANCESTRY, "it is no fork and no subagent", ("since",))
    _note_cut(call, ancestry.is_cut, limit)


# --- Events out and in, in the shapes of the agent graph's schema.


@graph_command.verb("emit")
@click.argument("file", type=click.Path(), default=STANDARD)
@click.option("--turn", metavar="TURN", help="Only the events of this turn's thread.", shell_complete=complete_nodes)
def emit(call: Call, file: str, turn: str | None) -> None:
    """Write events as JSON lines, in the shapes of the agent graph's schema.

    FILE must not exist yet; without it, or with -, they go to standard output. Each event carries its stream, the event
    before it and the salts of its texts, so `weft graph ingest` can check it by its id. Into an empty ledger the lines
    give the same digests.
    """
    from weft.graph.graph import Graph
    from weft.verbs.answers import FactsFile

    with call.copying() as ledger:
        if file == STANDARD and call.screen.terminal:
            raise click.UsageError(
                "events are for files and pipes, stored text could control the terminal: give a FILE, or pipe them"
            )
        lines = Graph(ledger).emit(stdout_bytes() if file == STANDARD else file, turn=turn)
    if file != STANDARD:
        call.answer(FactsFile(file=file, lines=lines), [f"wrote {counted(lines, 'line')} to ", Span(file, "heading")])


@graph_command.verb("ingest")
@click.argument("file", type=click.Path(), default=STANDARD)
@click.option("--origin", default="graph", metavar="NAME", help="The origin of other programs' events. Default: graph.")
def ingest(call: Call, file: str, origin: str) -> None:
    """Take events in from JSON lines, in the shapes of the agent graph's schema.

    FILE is what `weft graph emit` or another program wrote; without it, or with -, standard input is read. Events that
    carry what `emit` writes are checked by their ids. Of those that do not, runs become imported turns, each known by
    its run_id; of the others forks, resources, snapshots, policies and notices become nodes and edges that decide
    nothing, and all are kept as they are. What is known already is passed over. A bad event is refused with its line,
    and nothing is written. Nothing that comes in has authority: `weft pending` lists what waits.
    """
    from weft.graph.graph import Graph
    from weft.surfaces.cli.ledgers.sync import note_pending

    with call.writing() as ledger:
        brought = Graph(ledger).ingest(piped_input(NO_EVENTS) if file == STANDARD else file, origin=origin)
    new = f"{counted(brought.events, 'new event')}, {counted(brought.contents, 'new content')}"
    of_others = f"{counted(brought.turns, 'new turn')} of other programs"
    call.answer(brought, [f"{new}, {of_others}, {brought.known:,} known already"])
    if brought.kept:
        call.note(f"{counted(brought.kept, 'event')} that no turn is made of kept as they are: they count for nothing")
    with call.reading() as ledger:
        note_pending(call, ledger)


# --- The agent graph as people read it: nodes by what is typed for them, edges as rows of a table.

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
    yield [Span(node.type, "heading"), " ", Span(safe(node.name), "label")]
    for name, time in (("valid from", node.valid_from), ("valid to", node.valid_to)):
        if time is not None:
            yield [Span(f"  {name}: ", "dim"), local_time(time)]
    for name, value in node.properties.items():
        shown = _readable_value(name, value)
        if shown is not None:
            text = shown if isinstance(shown, str) else orjson.dumps(shown).decode()
            yield [Span(f"  {safe(name)}: ", "dim"), safe(text)]


def _readable_value(name: str, value: Any) -> Any:
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

    def _shown_node(self, name: str) -> str:
        return shown_name(name, self._nodes.get(name), whole=self._whole)

    def name(self, name: str) -> Span:
        return Span(self._shown_node(name), "label")

    def names(self, names: Sequence[str]) -> str:
        return ", ".join(map(self._shown_node, names))

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
            asked = "" if pair.requested_by is None else self._shown_node(pair.requested_by)
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
                "" if state.owner is None else self._shown_node(state.owner.source),
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

    def paths(self, walk: PathsFound) -> Iterator[Line]:
        for place, path in enumerate(walk.paths):
            if place:
                yield []
            yield [self.name(path.nodes[0]), "  ", Span(about(walk.nodes.get(path.nodes[0])), "dim")]
            for name, edge in zip(path.nodes[1:], path.edges, strict=True):
                arrow = f"  -{edge.type.value}-> " if edge.target == name else f"  <-{edge.type.value}- "
                yield [arrow, self.name(name), "  ", Span(about(walk.nodes.get(name)), "dim")]


def _time(node: GraphNode) -> str:
    ts = node.properties.get("ts")
    return ts if isinstance(ts, str) else ""
