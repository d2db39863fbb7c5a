"""The lines beside a tree of turns that is drawn from its root on."""

from __future__ import annotations

from weft.surfaces.cli.turn_lists import COLUMNS, UNICODE, Node, downward, gutter


def drawn(*nodes: Node) -> list[str]:
    return [f"{gutter(row, UNICODE)}● {row.turn}" for row in downward(nodes)]


def test_an_only_child_stands_below_its_parent() -> None:
    assert drawn(("a", None), ("b", "a"), ("c", "b")) == ["● a", "● b", "● c"]


def test_the_last_child_of_several_is_set_in_as_the_others_are() -> None:
    nodes = [("a", None), ("b", "a"), ("c", "a"), ("d", "b"), ("e", "d"), ("f", "d"), ("g", "f"), ("h", "c")]
    assert drawn(*nodes) == [
        "● a",
        "├─● c",
        "│ ● h",
        "└─● b",
        "  ● d",
        "  ├─● e",
        "  └─● f",
        "    ● g",
    ]


def test_several_trees_are_told_apart() -> None:
    assert drawn(("a", None), ("b", "a"), ("c", "a"), ("z", None)) == ["● a", "├─● b", "└─● c", "● z"]


def test_lines_of_a_branch_end_with_it() -> None:
    nodes = [("a", None), ("b", "a"), ("c", "a"), ("d", "b"), ("e", "b"), ("f", "c"), ("g", "f"), ("h", "g")]
    assert drawn(*nodes) == ["● a", "├─● b", "│ ├─● d", "│ └─● e", "└─● c", "  ● f", "  ● g", "  ● h"]


def test_a_thread_with_many_forks_takes_few_columns() -> None:
    nodes: list[Node] = [("0", None)]
    for n in range(1, 1000):
        nodes += [(f"{n}", f"{n - 1}"), (f"side {n}", f"{n - 1}")]
    lines = drawn(*nodes)
    assert len(lines) == len(nodes)
    assert max(line.index("●") for line in lines) == 2 * (COLUMNS + 1)
