"""Pictures of a part of the graph: as a text for Graphviz, and as SVG that needs no other program.

Nodes stand in columns, each behind those that lead to it. Whatever stands in a ledger is escaped, and a picture has so
many nodes at most."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from html import escape

from weft.graph.model import GraphEdge, GraphNode

MOST_NODES = 200
_WIDTH, _HEIGHT, _GAP_X, _GAP_Y, _MARGIN = 190, 40, 110, 18, 20
_LETTERS = 26
_COLOURS = {
    "Agent": "#dbe7ff",
    "Program": "#dbe7ff",
    "Run": "#e2f4dc",
    "Branch": "#d5efe3",
    "Subagent": "#d5efe3",
    "Message": "#fff3c9",
    "Generation": "#ffe3cc",
    "ToolCall": "#f6dcf5",
    "ToolResult": "#f6dcf5",
    "Resource": "#e4e0f7",
    "Snapshot": "#e4e0f7",
    "Policy": "#ffd9d9",
}
_TITLES = ("name", "label", "kind", "role", "tool", "model")


class Picture:
    """The nodes and edges that are drawn: the first so many, and the edges between them."""

    def __init__(self, nodes: Iterable[GraphNode], edges: Iterable[GraphEdge], most: int = MOST_NODES) -> None:
        known = {node.name: node for node in nodes}
        self.nodes = dict(list(known.items())[:most])
        self.left_out = len(known) - len(self.nodes)
        drawn = (edge for edge in edges if edge.source in self.nodes and edge.target in self.nodes)
        self.edges = list({(edge.type, edge.source, edge.target, edge.valid_from): edge for edge in drawn}.values())

    def columns(self) -> list[list[str]]:
        """The names of the nodes column by column: one behind all that lead to it, but for circles."""
        leading: dict[str, set[str]] = {name: set() for name in self.nodes}
        after: dict[str, set[str]] = {name: set() for name in self.nodes}
        for edge in self.edges:
            if edge.source != edge.target:
                leading[edge.target].add(edge.source)
                after[edge.source].add(edge.target)
        column: dict[str, int] = {}
        waiting = deque(name for name, sources in leading.items() if not sources)
        left = {name: len(sources) for name, sources in leading.items()}
        while len(column) < len(self.nodes):
            if not waiting:  # a circle: it begins with the node that came first
                waiting.append(next(name for name in self.nodes if name not in column))
            name = waiting.popleft()
            if name in column:
                continue
            column[name] = 1 + max((column[source] for source in leading[name] if source in column), default=-1)
            for target in sorted(after[name]):
                left[target] -= 1
                if left[target] == 0:
                    waiting.append(target)
        found: list[list[str]] = [[] for _ in range(max(column.values(), default=-1) + 1)]
        for name in self.nodes:
            found[column[name]].append(name)
        return found


def caption(node: GraphNode) -> tuple[str, str]:
    """Two short lines for a node: its type, and what tells it from others."""
    properties = node.properties
    titles = () if node.type == "Run" else _TITLES
    words = next((str(properties[name]) for name in titles if isinstance(properties.get(name), str)), "")
    kind, _, id = node.name.partition(":")
    short = id[:12] if len(id) == 64 else id[-8:]
    own = words if words and words != id else ""
    return node.type, " ".join(part for part in (own, short if kind != "program" or not own else "") if part)


def to_dot(picture: Picture) -> str:
    """A directed graph in the language of Graphviz."""
    lines = ["digraph weft {", "  rankdir=LR;", '  node [shape=box, style="rounded,filled", fillcolor=white];']
    for name, node in picture.nodes.items():
        type, words = caption(node)
        colour = _COLOURS.get(node.type, "#f2f2f2")
        lines.append(f'  {_quoted(name)} [label={_quoted(type, words)}, fillcolor="{colour}"];')
    for edge in picture.edges:
        style = "" if edge.valid_to is None else ", style=dashed"
        lines.append(f"  {_quoted(edge.source)} -> {_quoted(edge.target)} [label={_quoted(edge.type.value)}{style}];")
    if picture.left_out:
        lines.append(f"  label={_quoted(f'{picture.left_out} more nodes are not drawn')};")
    return "\n".join([*lines, "}"]) + "\n"


def _quoted(*lines: str) -> str:
    """Text as a string of Graphviz; control characters are left out."""
    texts = ("".join(letter for letter in line if letter.isprintable()) for line in lines if line)
    return '"' + "\\n".join(text.replace("\\", "\\\\").replace('"', '\\"') for text in texts) + '"'


def to_svg(picture: Picture) -> str:
    """A picture that stands by itself: no script, no font, no address of anything else."""
    columns = picture.columns()
    places = _places(columns)
    wide = 2 * _MARGIN + max(1, len(columns)) * _WIDTH + max(0, len(columns) - 1) * _GAP_X
    rows = max((len(column) for column in columns), default=1)
    high = 2 * _MARGIN + rows * (_HEIGHT + _GAP_Y) + (20 if picture.left_out else 0)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" height="{high}"'
        ' font-family="sans-serif" font-size="11">',
        '<defs><marker id="end" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="#777"/></marker></defs>',
        f'<rect width="{wide}" height="{high}" fill="white"/>',
        *(_edge_svg(edge, places) for edge in picture.edges),
        *(_node_svg(picture.nodes[name], places[name]) for column in columns for name in column),
    ]
    if picture.left_out:
        parts.append(f'<text x="{_MARGIN}" y="{high - 10}">{picture.left_out} more nodes are not drawn</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _places(columns: Sequence[Sequence[str]]) -> dict[str, tuple[int, int]]:
    return {
        name: (_MARGIN + x * (_WIDTH + _GAP_X), _MARGIN + y * (_HEIGHT + _GAP_Y))
        for x, column in enumerate(columns)
        for y, name in enumerate(column)
    }


def _text(words: str) -> str:
    """Text that XML can hold, cut to what fits."""
    printable = "".join(letter for letter in words if letter.isprintable())
    return escape(printable if len(printable) <= _LETTERS else printable[: _LETTERS - 1] + "…")


def _node_svg(node: GraphNode, place: tuple[int, int]) -> str:
    x, y = place
    type, words = caption(node)
    name = escape("".join(letter for letter in node.name if letter.isprintable()))
    return (
        f'<g><title>{name}</title><rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="6"'
        f' fill="{_COLOURS.get(node.type, "#f2f2f2")}" stroke="#999"/>'
        f'<text x="{x + 8}" y="{y + 16}" font-weight="bold">{_text(type)}</text>'
        f'<text x="{x + 8}" y="{y + 31}">{_text(words)}</text></g>'
    )


def _edge_svg(edge: GraphEdge, places: dict[str, tuple[int, int]]) -> str:
    (x1, y1), (x2, y2) = places[edge.source], places[edge.target]
    middle = _HEIGHT // 2
    if x2 > x1:
        start, end = (x1 + _WIDTH, y1 + middle), (x2, y2 + middle)
    else:  # beside or back
        start, end = (x1 + _WIDTH // 2, y1 + _HEIGHT), (x2 + _WIDTH // 2, y2)
    dash = "" if edge.valid_to is None else ' stroke-dasharray="4 3"'
    x, y = (start[0] + end[0]) // 2, (start[1] + end[1]) // 2 - 3
    return (
        f'<path d="M{start[0]} {start[1]}L{end[0]} {end[1]}" stroke="#777" fill="none" marker-end="url(#end)"{dash}/>'
        f'<text x="{x}" y="{y}" font-size="8" fill="#555" text-anchor="middle">{escape(edge.type.value)}</text>'
    )
