"""The drawing of turns, apart from any ledger: what is drawn says exactly who descends from whom."""

from __future__ import annotations

from math import log2

from hypothesis import given
from hypothesis import strategies as st

from weft.surfaces.cli.graph import ASCII, COLUMNS, UNICODE, GraphRow, Node, Row, downward, gutter, gutter_below, upward

# Each turn in order of arrival: which earlier turn is its parent (0: none, it is a root).
forests = st.integers(0, 60).flatmap(lambda size: st.tuples(*(st.integers(0, i) for i in range(size))))
trees = st.integers(1, 60).flatmap(lambda size: st.tuples(st.just(0), *(st.integers(1, i) for i in range(1, size))))


def newest_first(parents: tuple[int, ...]) -> list[Node]:
    nodes: list[Node] = [(str(i), str(parent) if parent else None) for i, parent in enumerate(parents, 1)]
    return nodes[::-1]


def read_upward(rows: list[Row]) -> dict[str, str | None]:
    """Follow the lines with a finger: each turn's parent, as a person would read it. '?' is not shown."""
    parents: dict[str, str | None] = {}
    lines: list[list[str]] = []  # by column: the turns whose line runs down there
    for row in rows:
        if row.place is GraphRow.JOIN:
            assert len(lines) == row.column + 1
            lines[row.column - 1] += lines.pop()
            continue
        assert row.place is GraphRow.GAP or row.column in (len(lines), len(lines) - 1)
        arriving = lines.pop() if row.place is not GraphRow.GAP and row.column < len(lines) else []
        if row.place is GraphRow.TURN:
            parents |= {row.turn: None, **dict.fromkeys(arriving, row.turn)}
            lines += [[row.turn]] if row.goes_on else []
        elif row.place is GraphRow.CUT:
            parents |= dict.fromkeys(arriving, "?")
    assert lines == []
    return parents


def read_downward(rows: list[Row]) -> dict[str, str | None]:
    parents: dict[str, str | None] = {}
    last: dict[int, str] = {}
    for row in rows:
        parents[row.turn] = last.get(row.column - (row.place is GraphRow.BRANCH))
        last = {column: turn for column, turn in last.items() if column < row.column} | {row.column: row.turn}
    return parents


@given(forests)
def test_the_lines_of_the_graph_say_who_descends_from_whom(parents: tuple[int, ...]) -> None:
    nodes = newest_first(parents)
    assert read_upward(list(upward(nodes))) == dict(nodes)


@given(forests, st.integers(0, 60))
def test_a_limited_graph_shows_where_lines_go_on_unseen(parents: tuple[int, ...], limit: int) -> None:
    nodes = newest_first(parents)[:limit]
    shown = {turn for turn, _ in nodes}
    expected = {turn: parent if parent is None or parent in shown else "?" for turn, parent in nodes}
    assert read_upward(list(upward(nodes))) == expected


@given(forests)
def test_every_turn_comes_after_all_its_children(parents: tuple[int, ...]) -> None:
    nodes = newest_first(parents)
    order = [row.turn for row in upward(nodes) if row.place is GraphRow.TURN]
    assert sorted(order) == sorted(turn for turn, _ in nodes)
    places = {turn: i for i, turn in enumerate(order)}
    assert all(parent is None or places[turn] < places[parent] for turn, parent in nodes)


@given(trees)
def test_the_lines_of_the_tree_say_who_descends_from_whom(parents: tuple[int, ...]) -> None:
    nodes = newest_first(parents)[::-1]
    rows = list(downward(nodes))
    assert read_downward(rows) == dict(nodes)
    assert max(row.column for row in rows) <= log2(len(nodes))


def test_ten_thousand_children_take_two_columns() -> None:
    nodes = newest_first((0, *[1] * 10_000))
    assert max(row.column for row in upward(nodes)) == 1
    assert max(row.column for row in downward(nodes[::-1])) == 1


def test_a_thread_of_a_hundred_thousand_turns_is_drawn() -> None:
    nodes = newest_first(tuple(range(100_000)))
    assert sum(row.place is GraphRow.TURN for row in upward(nodes)) == 100_000
    assert sum(row.place is GraphRow.TURN for row in downward(nodes[::-1])) == 100_000


def test_forks_at_ever_earlier_turns_do_not_run_off_the_screen() -> None:
    chain, forks = tuple(range(200)), tuple(range(200, 0, -1))
    rows = list(upward(newest_first((*chain, *forks))))
    assert read_upward(rows) == dict(newest_first((*chain, *forks)))
    assert max(row.column for row in rows) <= COLUMNS + 1


def test_the_newest_branch_and_the_newest_tree_come_first() -> None:
    rows = list(upward(newest_first((0, 1, 1, 0, 2))))
    assert [(row.place.value, row.column, row.turn) for row in rows] == [
        ("turn", 0, "5"),
        ("turn", 0, "2"),
        ("turn", 1, "3"),
        ("join", 1, ""),
        ("turn", 0, "1"),
        ("gap", 0, ""),
        ("turn", 0, "4"),
    ]


def test_lines_are_drawn_in_unicode_or_in_ascii() -> None:
    join, branch = Row(GraphRow.JOIN, 2), Row(GraphRow.BRANCH, 2, "t", goes_on=True)
    assert [gutter(join, glyphs) for glyphs in (UNICODE, ASCII)] == ["│ ├─╯", "| |/"]
    assert [gutter(branch, glyphs) for glyphs in (UNICODE, ASCII)] == ["│ ├─", "| |-"]
    assert [gutter_below(branch, glyphs) for glyphs in (UNICODE, ASCII)] == ["│ │ │", "| | |"]
    assert "".join((*ASCII[:4], *ASCII.turn.values())).isascii()
    assert UNICODE.turn.keys() == ASCII.turn.keys()


def test_nothing_is_drawn_of_nothing() -> None:
    assert list(upward([])) == []
    assert list(downward([])) == []
