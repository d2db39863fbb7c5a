"""A tree of messages becomes turns: one per prompt, and one per answer where a prompt has several."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from weft.exchange.importers.trees import LONGEST_SHARED, Node, Standing, in_order, turns_of

P, A, J, N = Standing.PROMPT, Standing.ANSWER, Standing.INJECTED, Standing.NOTHING


def shaped(*nodes: tuple[str, int | None, Standing]) -> list[tuple[str, int | None, list[int]]]:
    return [(plan.key, plan.parent, plan.nodes) for plan in turns_of([Node(*node) for node in nodes]).plans]


def test_a_line_is_a_turn_per_prompt() -> None:
    assert shaped(("u", None, P), ("a", 0, A), ("v", 1, P), ("b", 2, A)) == [("u", None, [0, 1]), ("v", 0, [2, 3])]


def test_a_second_answer_is_a_turn_beside_the_first() -> None:
    found = shaped(("u", None, P), ("a", 0, A), ("b", 0, A), ("v", 2, P))
    assert found == [("u", None, [0, 1]), ("u#b", None, [0, 2]), ("v", 1, [3])]


def test_two_prompts_below_one_answer_are_two_branches() -> None:
    found = shaped(("u", None, P), ("a", 0, A), ("v", 1, P), ("w", 1, P))
    assert found == [("u", None, [0, 1]), ("v", 0, [2]), ("w", 0, [3])]


def test_what_says_nothing_has_no_place() -> None:
    found = shaped(("r", None, N), ("s", 0, N), ("u", 1, P), ("h", 2, N), ("a", 3, A))
    assert found == [("u", None, [2, 4])]


def test_what_was_put_there_belongs_to_the_prompt_after_it() -> None:
    assert shaped(("c", None, J), ("u", 0, P), ("a", 1, A)) == [("u", None, [0, 1, 2])]


def test_a_branch_late_in_a_long_answer_is_told_as_its_continuation() -> None:
    line = [("u", None, P), *((f"a{k}", k, A) for k in range(LONGEST_SHARED + 3))]
    found = shaped(*line, ("b", LONGEST_SHARED + 1, A))
    assert [(key, parent) for key, parent, _ in found] == [("u", None), ("u#b", 0)]


@given(st.lists(st.tuples(st.integers(0, 30), st.sampled_from([P, A, J, N])), max_size=30))
def test_every_node_that_says_something_is_in_a_turn(drawn: list[tuple[int, Standing]]) -> None:
    nodes = [Node(f"n{k}", parent if parent < k else None, standing) for k, (parent, standing) in enumerate(drawn)]
    turns = turns_of(nodes)
    assert {each for plan in turns.plans for each in plan.nodes} == {
        k for k, node in enumerate(nodes) if node.standing is not N
    }
    fresh = [each for plan in turns.plans for each in plan.nodes[plan.shared :]]
    assert len(fresh) == len(set(fresh))
    assert len({plan.key for plan in turns.plans}) == len(turns.plans)
    assert all(plan.parent is None or plan.parent < k for k, plan in enumerate(turns.plans))


@given(st.dictionaries(st.sampled_from("abcdefgh"), st.none() | st.sampled_from("abcdefghxy"), max_size=8))
def test_every_node_is_visited_once_whatever_the_parents_are(parents: dict[str, str | None]) -> None:
    """Loops and parents that are not there harm nothing."""
    order = in_order(parents, lambda id: [child for child, parent in parents.items() if parent == id])
    assert sorted(order) == sorted(parents)
