"""A tree of messages becomes turns: one per prompt, and one per answer where a prompt has several."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from weft.exchange.importers.native_turns import LONGEST_SHARED, Tree, TreePart, ends_of, in_order, keys_of

PARTS = {"q": TreePart.PROMPT, "a": TreePart.ANSWER, "s": TreePart.OTHER, "n": TreePart.NOTHING}


def grown(*steps: tuple[str, str | None], whole_answers: bool = False) -> Tree:
    """Nodes by name: `q` asks, `a` answers, `s` is something else, `n` says nothing."""
    tree = Tree(whole_answers=whole_answers)
    for node, parent in steps:
        tree.add(node, parent, PARTS[node[0]])
    return tree


def shape(tree: Tree) -> list[tuple[list[str], int | None, int]]:
    return [(plan.nodes, plan.parent, plan.shared) for plan in tree.plans]


def keys(tree: Tree) -> list[str]:
    return keys_of(tree.plans, str.upper)


def test_a_prompt_begins_a_turn_and_what_comes_before_the_first_belongs_to_it() -> None:
    tree = grown(("s1", None), ("q1", "s1"), ("a1", "q1"), ("s2", "a1"), ("a2", "s2"), ("q2", "a2"))
    assert shape(tree) == [(["s1", "q1", "a1", "s2", "a2"], None, 0), (["q2"], 0, 0)]
    assert keys(tree) == ["Q1", "Q2"]


def test_another_answer_is_another_turn_with_what_both_share() -> None:
    tree = grown(("q1", None), ("a1", "q1"), ("a2", "q1"), ("q2", "a2"))
    assert shape(tree) == [(["q1", "a1"], None, 0), (["q1", "a2"], None, 1), (["q2"], 1, 0)]
    assert keys(tree) == ["Q1", "Q1#A2", "Q2"]


def test_two_prompts_below_one_answer_are_two_branches() -> None:
    tree = grown(("q1", None), ("a1", "q1"), ("q2", "a1"), ("q3", "a1"))
    assert shape(tree) == [(["q1", "a1"], None, 0), (["q2"], 0, 0), (["q3"], 0, 0)]


def test_what_says_nothing_has_no_place() -> None:
    tree = grown(("n1", None), ("n2", "n1"), ("q1", "n2"), ("n3", "q1"), ("a1", "n3"))
    assert shape(tree) == [(["q1", "a1"], None, 0)]
    assert "n1" not in tree
    assert tree.turn_of("n3") == 0


def test_a_prompt_in_the_middle_of_an_answer_follows_it_as_far_as_it_had_come() -> None:
    tree = grown(("q1", None), ("a1", "q1"), ("a2", "a1"), ("q2", "a1"), ("q3", "a1"))
    assert shape(tree) == [(["q1", "a1", "a2"], None, 0), (["q1", "a1"], None, 2), (["q2"], 1, 0), (["q3"], 1, 0)]
    assert keys(tree) == ["Q1", "Q1#A1", "Q2", "Q3"]


def test_an_answer_that_goes_on_after_a_prompt_has_followed_is_another() -> None:
    tree = grown(("q1", None), ("a1", "q1"), ("q2", "a1"), ("a2", "a1"))
    assert shape(tree) == [(["q1", "a1"], None, 0), (["q2"], 0, 0), (["q1", "a1", "a2"], None, 2)]


def test_where_answers_stay_whole_what_hangs_in_one_follows_all_of_it() -> None:
    tree = grown(("q1", None), ("a1", "q1"), ("a2", "a1"), ("q2", "a1"), ("q3", "a2"), ("a3", "a2"), whole_answers=True)
    assert shape(tree) == [(["q1", "a1", "a2", "a3"], None, 0), (["q2"], 0, 0), (["q3"], 0, 0)]
    early = grown(("s1", None), ("s2", "s1"), ("q1", "s1"), ("q2", "s2"), whole_answers=True)
    assert shape(early) == [(["s1", "s2", "q2"], None, 0), (["q1"], 0, 0)]


def test_a_branch_that_leaves_late_does_not_repeat_all_before_it() -> None:
    long = [("q", None), *((f"a{n}", f"a{n - 1}" if n else "q") for n in range(LONGEST_SHARED + 10))]
    tree = grown(*long, ("a-other", f"a{LONGEST_SHARED + 5}"))
    assert shape(tree)[1] == (["a-other"], 0, 0)
    assert keys(tree) == ["Q", "Q#A-OTHER"]


def test_an_unknown_parent_makes_a_root_and_a_known_node_stays() -> None:
    tree = grown(("q1", "nowhere"), ("q1", None))
    assert shape(tree) == [(["q1"], None, 0)]


def test_turns_without_a_prompt_go_by_their_first_message_and_no_two_by_one_name() -> None:
    tree = grown(("a1", None), ("a2", None))
    assert keys_of(tree.plans, lambda node: "same") == ["same", "same~2"]
    assert keys(tree) == ["A1", "A2"]


def test_the_turn_that_a_conversation_stands_on_goes_to_its_end() -> None:
    order = ["q1", "a1", "q2", "q3"]
    tree = grown(("q1", None), ("a1", "q1"), ("q2", "a1"), ("q3", "a1"))
    assert ends_of(tree, order, "q2", 1000) == [2, 1000, 4]
    assert ends_of(tree, order, None, 1000) == [2, 3, 4]
    assert ends_of(tree, order, "nowhere", 3) == [2, 2, 2]


@given(st.lists(st.tuples(st.sampled_from("qasn"), st.integers(0, 30)), max_size=40))
def test_every_path_through_the_tree_is_a_path_through_the_turns(drawn: list[tuple[str, int]]) -> None:
    steps: list[tuple[str, str | None]] = []
    for number, (kind, above) in enumerate(drawn):
        parent = steps[above % len(steps)][0] if steps and above else None
        steps.append((f"{kind}{number}", parent))
    tree = grown(*steps)
    parents = dict(steps)
    for node in parents:
        path: list[str] = []
        at: str | None = node
        while at is not None:
            path = [at, *path] if at[0] != "n" else path
            at = parents[at]
        assert (node in tree) == bool(path)
        turn: int | None = tree.turn_of(node) if path else None
        told: list[str] = []
        while turn is not None:
            plan = tree.plans[turn]
            told = [*plan.nodes, *told]
            turn = plan.parent
        assert told[: len(path)] == path


@given(st.lists(st.tuples(st.sampled_from("qasn"), st.integers(0, 30)), max_size=40), st.booleans())
def test_every_node_that_says_something_is_in_a_turn_of_its_own_name(drawn: list[tuple[str, int]], whole: bool) -> None:
    steps = [
        (f"{kind}{k}", f"{drawn[above][0]}{above}" if above < k else None) for k, (kind, above) in enumerate(drawn)
    ]
    tree = grown(*steps, whole_answers=whole)
    fresh = [each for plan in tree.plans for each in plan.nodes[plan.shared :]]
    assert sorted(fresh) == sorted(node for node, _ in steps if node[0] != "n")
    assert len(set(keys(tree))) == len(tree.plans)
    assert all(plan.parent is None or plan.parent < k for k, plan in enumerate(tree.plans))


@given(st.dictionaries(st.sampled_from("abcdefgh"), st.none() | st.sampled_from("abcdefghxy"), max_size=8))
def test_every_node_is_visited_once_whatever_the_parents_are(parents: dict[str, str | None]) -> None:
    """Loops and parents that are not there harm nothing."""
    order = in_order(parents, lambda id: [child for child, parent in parents.items() if parent == id])
    assert sorted(order) == sorted(parents)
