"""The forest of turns as lines: where each turn stands, and how the lines around it run. Pure, and never recursive.

Newest first (`upward`), a branch is drawn as soon as it is complete and bends into its parent's line, so ten thousand
children of one turn take two columns. Oldest first (`downward`), the branches of a turn are set in below it, the
heaviest as the last. Where that has taken some columns, the heaviest runs straight on instead, which keeps the further
columns under the logarithm of the turns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import NamedTuple

COLUMNS = 8


class GraphRow(Enum):
    """What a row of the drawing shows."""

    TURN = "turn"
    BRANCH = "branch"  # a turn that leaves the line to its left
    LAST = "last"  # the same, where that line ends
    JOIN = "join"  # a line that ends in the one to its left
    CUT = "cut"  # the line goes on to turns that are not shown
    GAP = "gap"  # between two trees


class Row(NamedTuple):
    place: GraphRow
    column: int = 0
    turn: str = ""
    goes_on: bool = False  # a line leaves the turn downwards
    ended: frozenset[int] = frozenset()  # columns to the left whose lines have ended


Node = tuple[str, str | None]


class Glyphs(NamedTuple):
    """The characters that a graph is drawn with."""

    line: str
    join: str
    branch: str
    last: str
    cut: str
    turn: dict[str, str]


UNICODE = Glyphs(
    "│", "├─╯", "├─", "└─", "┊", {"normal": "●", "compaction": "◆", "failed": "✗", "interrupted": "◍", "open": "○"}
)
ASCII = Glyphs(
    "|", "|/", "|-", "`-", ":", {"normal": "*", "compaction": "#", "failed": "x", "interrupted": "!", "open": "o"}
)


def gutter(row: Row, glyphs: Glyphs) -> str:
    """What stands left of a row's text, without the mark of its turn."""
    lines = [f"{' ' if column in row.ended else glyphs.line} " for column in range(row.column)]
    match row.place:
        case GraphRow.TURN:
            return "".join(lines)
        case GraphRow.BRANCH:
            return "".join(lines[:-1]) + glyphs.branch
        case GraphRow.LAST:
            return "".join(lines[:-1]) + glyphs.last
        case GraphRow.JOIN:
            return "".join(lines[:-1]) + glyphs.join
        case GraphRow.CUT:
            return "".join(lines) + glyphs.cut
        case GraphRow.GAP:
            return ""


def gutter_below(row: Row, glyphs: Glyphs) -> str:
    """What stands left of the further lines of a turn's text."""
    return f"{glyphs.line} " * row.column + (glyphs.line if row.goes_on else " ")


class Forest:
    """Turns by parent. A parent that is not among them is a cut end, unless it is null: then its child is a root."""

    def __init__(self, children_first: Sequence[Node]) -> None:
        self.nodes = children_first
        turns = {turn for turn, _ in children_first}
        self.children: dict[str, list[str]] = {}
        self.roots: list[str] = []
        self.cut: set[str] = set()
        for turn, parent in children_first:
            if parent is None:
                self.roots.append(turn)
                continue
            if parent not in turns and parent not in self.cut:
                self.cut.add(parent)
                self.roots.append(parent)
            self.children.setdefault(parent, []).append(turn)

    def below(self) -> Iterator[tuple[str, list[str]]]:
        """Every node after all its children."""
        for turn, _ in self.nodes:
            yield turn, self.children.get(turn, [])
        for turn in self.cut:
            yield turn, self.children[turn]


def upward(newest_first: Sequence[Node]) -> Iterator[Row]:
    """Rows from the newest turn to the roots; a tree with something newer comes first."""
    forest = Forest(newest_first)
    newest = _newest(forest)
    order = _branch_order(forest, newest)
    for i, root in enumerate(sorted(forest.roots, key=lambda turn: newest[turn])):
        if i:
            yield Row(GraphRow.GAP)
        yield from _draw_upward(forest, root, order)


def _draw_upward(forest: Forest, root: str, order: dict[str, list[str]]) -> Iterator[Row]:
    stack = [(root, 0, 0)]
    while stack:
        turn, column, done = stack.pop()
        branches = order.get(turn, [])
        if done > 1:
            yield Row(GraphRow.JOIN, column + 1)
        if done < len(branches):
            stack.append((turn, column, done + 1))
            stack.append((branches[done], column + min(done, 1), 0))
        elif turn in forest.cut:
            yield Row(GraphRow.CUT, column)
        else:
            yield Row(GraphRow.TURN, column, turn, turn != root)


def _newest(forest: Forest) -> dict[str, int]:
    """For every node, the place in the input of the newest turn at or above it."""
    place = {turn: i for i, (turn, _) in enumerate(forest.nodes)}
    newest: dict[str, int] = {}
    for turn, children in forest.below():
        newest[turn] = min([place.get(turn, len(place)), *(newest[child] for child in children)])
    return newest


def _branch_order(forest: Forest, newest: dict[str, int]) -> dict[str, list[str]]:
    """Branches of each fork, the newest first; where that would take too many columns, the widest first."""
    width: dict[str, int] = {}
    order: dict[str, list[str]] = {}
    for turn, children in forest.below():
        if not children:
            width[turn] = 1
            continue
        order[turn] = sorted(children, key=lambda child: newest[child])
        width[turn] = _columns_of(order[turn], width)
        if width[turn] > COLUMNS:
            order[turn] = sorted(children, key=lambda child: (-width[child], newest[child]))
            width[turn] = _columns_of(order[turn], width)
    return order


def _columns_of(branches: list[str], width: dict[str, int]) -> int:
    return max(width[branches[0]], *(1 + width[branch] for branch in branches[1:]), 1)


def downward(oldest_first: Sequence[Node]) -> Iterator[Row]:
    """Rows from the root on: an only child below its parent, of several the heaviest behind the others."""
    forest = Forest(oldest_first[::-1])
    size: dict[str, int] = {}
    for turn, children in forest.below():
        size[turn] = 1 + sum(size[child] for child in children)
    for root in reversed(forest.roots):
        stack = [Row(GraphRow.TURN, 0, root)]
        while stack:
            row = stack.pop()
            branches = forest.children.get(row.turn, [])[::-1]
            yield row._replace(goes_on=bool(branches))
            if branches:
                main = max(reversed(branches), key=lambda child: size[child])
                stack.append(_below(row, main, is_only=len(branches) == 1))
                set_in = Row(GraphRow.BRANCH, row.column + 1, ended=row.ended)
                stack += [set_in._replace(turn=child) for child in reversed(branches) if child != main]


def _below(row: Row, turn: str, *, is_only: bool) -> Row:
    """Where the heaviest child of a turn stands."""
    if is_only or row.column >= COLUMNS:
        return Row(GraphRow.TURN, row.column, turn, ended=row.ended)
    return Row(GraphRow.LAST, row.column + 1, turn, ended=row.ended | {row.column})
