"""`weft graph`: what relates to what, asked of the agent graph, and the graph as people read
it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import click
import orjson

from weft.graph.edge_reader import (
    Ancestry,
    AncestryStep,
    CallPair,
    GraphEdge,
    GraphNode,
    GraphWalk,
    Neighbours,
    PathsFound,
    PolicyStep,
    ResourceState,
    RunHistory,
)
from weft.graph.graph import Graph
from weft.ledger.model import UNDATED
from weft.surfaces.cli.arguments import STANDARD, complete_nodes, piped_input, stdout_bytes
from weft.surfaces.cli.command_line import Call
from weft.surfaces.cli.progress import counted
from weft.surfaces.cli.screen import Line, Span, local_time
from weft.surfaces.cli.turn_lists import short
from weft.surfaces.cli.verb_commands import asks_first, group_of, shows
from weft.surfaces.plain_text import safe
from weft.verbs import report_verbs as verbs
from weft.verbs.answers import Listing
from weft.verbs.declaration import opt

if TYPE_CHECKING:
    from weft.ledger.api import Ledger
    from weft.surfaces.cli.screen import Screen


# --- `weft graph`: what relates to what, since when and until when.

NO_EVENTS = "no events were given: pipe them in, or name a FILE"
_OF_CALLS = ("CALLS_TOOL", "RETURNS_RESULT")
Dot = Annotated[bool, opt("Write a picture for Graphviz.")]
Svg = Annotated[bool, opt("Write a picture as SVG.")]


def _refuse_two_forms(call: Call, dot: Dot = False, svg: Svg = False) -> None:
    if (dot and svg) or (call.json and (dot or svg)):
        raise click.UsageError("one of --dot, --svg and --json says what is written")


def _draw_picture(dot: bool, nodes: Iterable[GraphNode], edges: Iterable[GraphEdge]) -> None:
    from weft.graph.graph import GraphPicture, to_dot, to_svg

    picture = GraphPicture(nodes, edges)
    click.echo(to_dot(picture) if dot else to_svg(picture), nl=False)


def _table(call: Call, rows: Sequence[Row], header: Sequence[str], nothing: str, spare: Sequence[str] = ()) -> None:
    if rows:
        call.screen.table(rows, header, spare=spare)
    else:
        call.note(nothing)


def _note_cut(call: Call, is_cut: bool, limit: int) -> None:
    if is_cut:
        call.note(f"there are more: `-n {min(2 * limit, 10_000)}` shows them")


@shows(verbs.graph_node)
def show_node(call: Call, node: GraphNode) -> None:
    call.screen.page(node_lines(node))


@shows(verbs.graph_neighbours)
def show_neighbours(call: Call, walk: Neighbours, limit: int, dot: Dot = False, svg: Svg = False) -> None:
    if dot or svg:
        _draw_picture(dot, [walk.node, *walk.nodes.values()], walk.edges)
        return
    rows = GraphTables(call.screen, walk.nodes).neighbours(walk.node.name, walk.edges)
    _table(call, rows, NEIGHBOURS, "it has no such edges", ("until", "since"))
    _note_cut(call, walk.is_cut, limit)


@shows(verbs.graph_path)
def show_paths(call: Call, paths: PathsFound, dot: Dot = False, svg: Svg = False) -> None:
    if dot or svg:
        _draw_picture(dot, paths.nodes.values(), [edge for path in paths.paths for edge in path.edges])
    elif paths.paths:
        call.screen.page(GraphTables(call.screen, paths.nodes).paths(paths))
    elif paths.is_cut:
        call.note("so many edges were looked at without finding a way: --type leaves out those that lead nowhere")
    else:
        call.note("there is no way between them of so few edges")


@shows(verbs.graph_history)
def show_history(
    call: Call,
    history: RunHistory,
    ledger: Ledger,
    run: str,
    known_at: str | None,
    limit: int,
    dot: Dot = False,
    svg: Svg = False,
) -> None:
    if dot or svg:
        edges = Graph(ledger).neighbours(run, ["RUN_HAS_EVENT"], known_at=known_at, limit=limit).edges
        _draw_picture(dot, [history.run, *history.events], edges)
        return
    _table(call, GraphTables(call.screen).history(history.events), HISTORY, "it has no events", ("when",))
    _note_cut(call, history.is_cut, limit)


@shows(verbs.graph_lineage)
def show_lineage(call: Call, walk: GraphWalk, limit: int, dot: Dot = False, svg: Svg = False) -> None:
    if dot or svg:
        _draw_picture(dot, walk.nodes.values(), walk.edges)
        return
    rows = GraphTables(call.screen, walk.nodes).edges(walk.edges)
    _table(call, rows, EDGES, "it was derived from nothing that is recorded", ("until", "since"))
    _note_cut(call, walk.is_cut, limit)


@shows(verbs.graph_calls)
def show_calls(
    call: Call, calls: Listing[CallPair], ledger: Ledger, known_at: str | None, dot: Dot = False, svg: Svg = False
) -> None:
    if dot or svg:
        graph = Graph(ledger)
        around = [graph.neighbours(pair.call.name, _OF_CALLS, known_at=known_at) for pair in calls.items]
        nodes = [node for walk in around for node in (*walk.nodes.values(), walk.node)]
        _draw_picture(dot, nodes, [edge for walk in around for edge in walk.edges])
        return
    _table(call, GraphTables(call.screen).calls(calls.items), CALLS, "it has no tool calls", ("asked by",))


@shows(verbs.graph_resources)
def show_resources(
    call: Call, states: Listing[ResourceState], ledger: Ledger, dot: Dot = False, svg: Svg = False
) -> None:
    graph, nodes = Graph(ledger), {state.resource.name: state.resource for state in states.items}
    edges = [edge for state in states.items for edge in (*state.attached, *state.mounted, *state.parts)]
    edges += [state.owner for state in states.items if state.owner is not None]
    ends = dict.fromkeys(end for edge in edges for end in (edge.source, edge.target))
    nodes |= {end: graph.node(end) for end in ends if end not in nodes}
    if dot or svg:
        _draw_picture(dot, nodes.values(), edges)
        return
    rows = GraphTables(call.screen, nodes).resources(states.items)
    _table(call, rows, RESOURCES, "there are no resources", ("mounted by", "attached to"))


@shows(verbs.graph_policies)
def show_policies(call: Call, steps: Listing[PolicyStep], ledger: Ledger, dot: Dot = False, svg: Svg = False) -> None:
    if dot or svg:
        graph = Graph(ledger)
        nodes = [step.policy for step in steps.items] + [graph.node(step.edge.source) for step in steps.items]
        _draw_picture(dot, nodes, [step.edge for step in steps.items])
        return
    _table(call, GraphTables(call.screen).policies(steps.items), POLICIES, "there are no policies")


@shows(verbs.graph_ancestry)
def show_ancestry(call: Call, ancestry: Ancestry, limit: int, dot: Dot = False, svg: Svg = False) -> None:
    if dot or svg:
        _draw_picture(dot, ancestry.nodes.values(), [step.edge for step in ancestry.steps])
        return
    rows = GraphTables(call.screen, ancestry.nodes).ancestry(ancestry.steps)
    _table(call, rows, ANCESTRY, "it is no fork and no subagent", ("since",))
    _note_cut(call, ancestry.is_cut, limit)


_PICTURED = (
    verbs.graph_neighbours,
    verbs.graph_path,
    verbs.graph_history,
    verbs.graph_lineage,
    verbs.graph_calls,
    verbs.graph_resources,
    verbs.graph_policies,
    verbs.graph_ancestry,
)
for _verb in _PICTURED:
    asks_first(_verb)(_refuse_two_forms)
graph_command = group_of(verbs.graph_group, verbs.graph_node, *_PICTURED)


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
