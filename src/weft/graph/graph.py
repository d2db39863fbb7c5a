"""`ledger.graph`: questions about the agent graph of an open ledger, what people type for a
node, and pictures of a part of the graph, for Graphviz and as SVG that needs no other program.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from typing import Any

from weft.graph.edge_reader import (
    Ancestry,
    CallPair,
    Direction,
    EdgeReader,
    GraphEdge,
    GraphNode,
    GraphPath,
    GraphWalk,
    Neighbours,
    PathFinder,
    PathsFound,
    PolicyStep,
    ResourceState,
    RunHistory,
    ancestry,
    lineage,
    session_of,
)
from weft.graph.nodes import GraphQueries, NodeReader
from weft.kernel.clock import is_ulid
from weft.kernel.errors import Action, AmbiguousName, InvalidInput, NotApplicable, NotFound, quoted
from weft.ledger.api.base import LedgerPart
from weft.ledger.api.ledger import Ledger
from weft.ledger.arguments import checked_names, checked_number, checked_progress, checked_text
from weft.ledger.model import DEFAULT_AGENT, IMPORTED_AGENT
from weft.ledger.read.revisions import ParseTime, require, resolve
from weft.ledger.resource_reading import load_resource, load_snapshot
from weft.ledger.upkeep.verify import FreshViews
from weft.ledger.views import edges
from weft.ledger.views.edges import EdgeType, node_key, thing_of
from weft.ledger.views.rows import decoded, find_program
from weft.ledger.write.approvals import load_policy
from weft.store.port import ReadTxn
from weft.store.sql import Sql

# --- What people type for a node: `KIND:NAME`, or a name alone where only one node has it.

_HEX = re.compile(r"[0-9a-f]{7,64}")
_REF = re.compile(r"[0-9a-f]{64}")
_ALIASES = {"agent": edges.PROGRAM, "turn": edges.RUN, "branch": edges.SESSION, "subagent": edges.SESSION}
Find = Callable[[str], str | None]


class NodeNames:
    """The names of nodes in one transaction, for whoever reads in it."""

    def __init__(self, reader: EdgeReader, parse_time: ParseTime) -> None:
        self._reader, self._txn, self._parse_time = reader, reader.txn, parse_time
        self._finders: dict[str, Find] = {
            edges.RUN: self._run,
            edges.SESSION: self._session,
            edges.PROGRAM: self._program,
            edges.RESOURCE: self._resource,
            edges.SNAPSHOT: lambda name: node_key(edges.SNAPSHOT, load_snapshot(self._txn, name).id),
            edges.POLICY: self._policy,
        }

    def key(self, name: str, *, first: tuple[str, ...] = ()) -> str:
        """The key of the node that a name means. Of nodes of several kinds the one is meant whose kind stands first in
        `first`, else the name must be the name of one. Raises NotFound, also for what may not be seen, and
        AmbiguousName."""
        text = checked_text(name, "node").strip()
        kind, colon, rest = text.partition(":")
        kind = _ALIASES.get(kind, kind)
        if colon and kind in edges.NODE_KINDS and rest:
            key = self._of_kind(kind, rest)
        else:
            key = self._of_any_kind(text, first)
        if key is None or not self._reader.access.may_see(key):
            raise NotFound("node", name, Action.NAME_A_NODE)
        return key

    def _of_kind(self, kind: str, id: str) -> str | None:
        if kind in edges.EVENT_BACKED:
            return self._event(kind, id)
        finder = self._finders.get(kind)
        if finder is not None:
            return finder(id)
        if kind == edges.URI:
            return node_key(kind, id) if _REF.fullmatch(id) else None
        return node_key(kind, id) if is_ulid(id) or _REF.fullmatch(id) else None

    def _of_any_kind(self, text: str, first: tuple[str, ...]) -> str | None:
        if _HEX.fullmatch(text) and (event := self._event(edges.EVENT, text)) is not None:
            return event
        visible: dict[str, str] = {}
        ambiguity: AmbiguousName | None = None
        for kind in self._wanted(first):
            try:
                key = self._found(kind, text)
            except AmbiguousName as error:  # a longer name of another kind may be meant
                ambiguity = ambiguity or error
                continue
            if key is not None and self._reader.access.may_see(key):
                visible[kind] = key
        if not visible and ambiguity is not None:
            raise ambiguity
        for kind in first:
            if kind in visible:
                return visible[kind]
        if len(visible) > 1:
            names = [self._reader.name_of(key) for key in visible.values()]
            raise AmbiguousName(text, names, "say which one: KIND:NAME")
        if not visible and is_ulid(text):
            return next((key for key in self._by_ulid(text) if self._reader.access.may_see(key)), None)
        return next(iter(visible.values()), None)

    def _wanted(self, first: tuple[str, ...]) -> tuple[str, ...]:
        bare = (edges.RUN, edges.PROGRAM, edges.RESOURCE, edges.POLICY, edges.SNAPSHOT)
        return tuple(dict.fromkeys((*first, *bare)))

    def _found(self, kind: str, text: str) -> str | None:
        try:
            return self._finders[kind](text)
        except (NotFound, InvalidInput):
            return None

    def _by_ulid(self, text: str) -> list[str]:
        """Of nodes that have nothing but an id, those that edges join."""
        unnamed = (edges.MESSAGE, edges.HANDLE, edges.MATERIALIZATION, edges.SESSION)
        keys = [node_key(kind, text) for kind in unnamed]
        return [key for key in keys if next(self._reader.of(key), None) is not None]

    # --- by kind ------------------------------------------------------------------------------------------------

    def _run(self, name: str) -> str | None:
        return node_key(edges.RUN, resolve(self._txn, name, self._parse_time).turn.id)

    def _session(self, name: str) -> str | None:
        return node_key(edges.SESSION, require(self._txn, name).id)

    def _program(self, name: str) -> str | None:
        if name in (DEFAULT_AGENT, IMPORTED_AGENT):
            return node_key(edges.PROGRAM, name)
        row = find_program(self._txn.sql, name)
        if row is not None:
            return node_key(edges.PROGRAM, row.id)
        named = node_key(edges.PROGRAM, name)
        return named if next(self._reader.of(named), None) is not None else None

    def _resource(self, name: str) -> str | None:
        return node_key(edges.RESOURCE, load_resource(self._txn, name).id)

    def _policy(self, name: str) -> str | None:
        return node_key(edges.POLICY, load_policy(self._txn, name).id)

    def _event(self, kind: str, digits: str) -> str | None:
        """By the beginning of an id, as whichever kind of node it is asked for."""
        if not _HEX.fullmatch(digits):
            raise InvalidInput(f"{quoted(digits)} is no event", "give at least seven hex digits of its id")
        even, odd = digits[: len(digits) // 2 * 2], digits[len(digits) // 2 * 2 :]
        found = self._txn.facts.find_events(bytes.fromhex(even), odd)
        seen = [(n, id) for n, id in found if self._reader.access.may_see(node_key(edges.EVENT, n))]
        if len(seen) > 1:
            raise AmbiguousName(digits, [f"{kind}:{id}" for _, id in seen])
        if not seen:
            return None
        n = seen[0][0]
        line = self._txn.facts.line(n)
        if kind != edges.EVENT and (line is None or thing_of(decoded(n, line)) != kind):
            return None
        return node_key(kind, n)


# --- `ledger.graph`: questions about the agent graph of an open ledger.

When = int | str | None
LIMIT, FEW_PATHS, LONGEST_PATH, MOST = 200, 3, 12, 10_000


class Graph(LedgerPart):
    """`ledger.graph`: nodes, edges and the questions about them. What may not be read is not in any answer."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)

    def catch_up(self, *, progress: Any = None) -> None:
        """Bring the graph up to the newest fact. Every other verb does that first; this one tells how far it is."""
        edges.catch_up(self._store, checked_progress(progress))

    def node(self, name: str, *, known_at: When = None) -> GraphNode:
        """A node, by its name. With `known_at` as it was known then, which takes as long as making the views anew up to
        that time; raises NotFound for one that was not known yet."""
        with self._reading(None, known_at) as (queries, names):
            key = names.key(name)
            reader = queries.reader
            if reader.newest == reader.txn.facts.tip().n:
                return queries.node(key)
            with self._store.scratch() as scratch:
                FreshViews(scratch).compute_until(reader.txn, reader.newest)
                node = NodeReader(reader, ReadTxn(scratch, reader.txn.facts)).node(key)
            if node.properties.get("missing", False):
                raise NotFound("node", name, "this ledger did not know it then: ask about a later time")
            return node

    def neighbours(
        self,
        name: str,
        types: Sequence[str] = (),
        *,
        direction: str = "both",
        at: When = None,
        known_at: When = None,
        limit: int = LIMIT,
    ) -> Neighbours:
        """The edges of a node, of these types or all, that lead from it (`out`), to it (`in`) or both."""
        wanted, way = _edge_types(types), _direction(direction)
        with self._reading(at, known_at) as (queries, names):
            return queries.neighbours(names.key(name), wanted, way, _limit(limit))

    def path(
        self,
        start: str,
        end: str,
        types: Sequence[str] = (),
        *,
        at: When = None,
        known_at: When = None,
        limit: int = FEW_PATHS,
        longest: int = LONGEST_PATH,
    ) -> PathsFound:
        """The ways between two nodes that tell most, whichever way the edges lead, of at most `longest` edges: an edge
        costs more where it is one of many, and the ways that cost least are given."""
        wanted, most, steps = _edge_types(types), _limit(limit), _limit(longest, "longest")
        with self._reading(at, known_at) as (queries, names):
            finder = PathFinder(queries.reader, wanted)
            found = finder.find(names.key(start), names.key(end), most, steps)
            name_of = queries.reader.name_of
            paths = tuple(
                GraphPath(nodes=tuple(map(name_of, way.nodes)), edges=queries.edges(way.edges), cost=way.cost)
                for way in found.ways
            )
            keys = [key for way in found.ways for key in way.nodes]
            return PathsFound(paths=paths, nodes=queries.nodes.nodes(keys), is_cut=found.is_cut)

    def history(self, run: str, *, known_at: When = None, limit: int = LIMIT) -> RunHistory:
        """The events of a turn in order."""
        with self._reading(None, known_at) as (queries, names):
            return queries.history(names.key(run, first=(edges.RUN,)), _limit(limit))

    def lineage(self, name: str, *, at: When = None, known_at: When = None, limit: int = LIMIT) -> GraphWalk:
        """What a node was derived from, step by step."""
        with self._reading(at, known_at) as (queries, names):
            key = names.key(name)
            return queries.walk(key, lineage(queries.reader, key, _limit(limit)))

    def calls(self, name: str, *, known_at: When = None, limit: int = LIMIT) -> list[CallPair]:
        """The tool calls of a turn or of an answer, each with its results."""
        with self._reading(None, known_at) as (queries, names):
            return queries.calls(names.key(name, first=(edges.RUN,)), _limit(limit))

    def resources(
        self, name: str | None = None, *, at: When = None, known_at: When = None, limit: int = LIMIT
    ) -> list[ResourceState]:
        """Who owned, used and mounted resources at a time, by default now: all resources, one, or those of a turn, a
        session or an agent."""
        with self._reading(self._clock.now_ms() if at is None else at, known_at) as (queries, names):
            key = None if name is None else names.key(name, first=(edges.RESOURCE, edges.SESSION, edges.PROGRAM))
            return queries.resources(key, _limit(limit))

    def policies(
        self, name: str | None = None, *, at: When = None, known_at: When = None, limit: int = LIMIT
    ) -> list[PolicyStep]:
        """Which approval policies were proposed and active, and for how long: all, one, or those of an agent. With `at`
        those that were then."""
        with self._reading(at, known_at) as (queries, names):
            key = None if name is None else names.key(name, first=(edges.POLICY,))
            return queries.policies(key, _limit(limit))

    def ancestry(self, name: str, *, known_at: When = None, limit: int = LIMIT) -> Ancestry:
        """Of which sessions a session is a fork or a subagent, and they in turn; of a turn, those of its session."""
        with self._reading(None, known_at) as (queries, names):
            key = names.key(name, first=(edges.SESSION,))
            session = session_of(queries.reader, key)
            if session is None:
                raise NotApplicable(f"{queries.reader.name_of(key)} belongs to no session", "name a session or a turn")
            return queries.ancestry(session, ancestry(queries.reader, session, _limit(limit)))

    # --- reading ------------------------------------------------------------------------------------------------

    @contextmanager
    def _reading(self, at: When, known_at: When) -> Iterator[tuple[GraphQueries, NodeNames]]:
        """The graph at one moment of the ledger, for whoever acts."""
        edges.catch_up(self._store)
        held = None if at is None else self._moment(at, "at")
        known = None if known_at is None else self._moment(known_at, "known_at")
        with self._store.read() as txn, self._edges(txn) as database:
            reader = EdgeReader(txn, database, at=held, known_at=known)
            yield GraphQueries(reader), NodeNames(reader, self._parse_time)

    @contextmanager
    def _edges(self, txn: ReadTxn) -> Iterator[Sql]:
        """The database that has the edges: the ledger's own, or one beside it where the ledger cannot be written and
        its edges lag behind."""
        newest = txn.facts.tip().n
        if not self._store.read_only or txn.facts.watermark(edges.VIEW) == newest:
            yield txn.sql
            return
        with self._store.scratch() as scratch:
            edges.fill(scratch, txn.facts, 0, newest, views=txn.sql)
            yield scratch


def _edge_types(names: Sequence[str]) -> tuple[EdgeType, ...]:
    known = {type.value.lower(): type for type in EdgeType}
    wanted = [name.lower().replace("-", "_") for name in checked_names(names, "types")]
    for name in wanted:
        if name not in known:
            raise InvalidInput(f"{quoted(name)} is no type of edge", "docs/concepts.md has them, such as DERIVED_FROM")
    return tuple(known[name] for name in wanted)


def _direction(text: str) -> Direction:
    match text:
        case "out" | "in" | "both":
            return text
    raise InvalidInput(f"{quoted(text)} is no direction", "use out, in or both")


def _limit(number: int, what: str = "limit") -> int:
    limit = checked_number(number, what)
    if not 0 < limit <= MOST:
        raise InvalidInput(f"{what} is {limit}", f"give a number from 1 to {MOST}")
    return limit


# --- Pictures of a part of the graph: as a text for Graphviz, and as SVG that needs no other program.

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
