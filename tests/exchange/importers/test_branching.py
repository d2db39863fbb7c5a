"""From a tree of messages to turns."""

from hypothesis import given
from hypothesis import strategies as st

from weft.exchange.importers.branching import LONGEST_SHARED, Part, Tree


def grown(*steps: tuple[str, str | None]) -> Tree:
    """Nodes by name: `q` asks, `a` answers, `s` is something else."""
    parts = {"q": Part.PROMPT, "a": Part.ANSWER, "s": Part.OTHER}
    tree = Tree()
    for node, parent in steps:
        tree.add(node, parent, parts[node[0]])
    return tree


def shape(tree: Tree) -> list[tuple[list[str], int | None, int]]:
    return [(plan.nodes, plan.parent, plan.shared) for plan in tree.plans]


def test_a_prompt_begins_a_turn_and_what_comes_before_the_first_belongs_to_it() -> None:
    tree = grown(("s1", None), ("q1", "s1"), ("a1", "q1"), ("s2", "a1"), ("a2", "s2"), ("q2", "a2"))
    assert shape(tree) == [(["s1", "q1", "a1", "s2", "a2"], None, 0), (["q2"], 0, 0)]


def test_another_answer_is_another_turn_with_what_both_share() -> None:
    tree = grown(("q1", None), ("a1", "q1"), ("a2", "q1"), ("q2", "a2"))
    assert shape(tree) == [(["q1", "a1"], None, 0), (["q1", "a2"], None, 1), (["q2"], 1, 0)]


def test_a_prompt_in_the_middle_of_an_answer_follows_it_as_far_as_it_had_come() -> None:
    tree = grown(("q1", None), ("a1", "q1"), ("a2", "a1"), ("q2", "a1"), ("q3", "a1"))
    assert shape(tree) == [(["q1", "a1", "a2"], None, 0), (["q1", "a1"], None, 2), (["q2"], 1, 0), (["q3"], 1, 0)]


def test_an_answer_that_goes_on_after_a_prompt_has_followed_is_another() -> None:
    tree = grown(("q1", None), ("a1", "q1"), ("q2", "a1"), ("a2", "a1"))
    assert shape(tree) == [(["q1", "a1"], None, 0), (["q2"], 0, 0), (["q1", "a1", "a2"], None, 2)]


def test_a_branch_that_leaves_late_does_not_repeat_all_before_it() -> None:
    long = [("q", None), *((f"a{n}", f"a{n - 1}" if n else "q") for n in range(LONGEST_SHARED + 10))]
    tree = grown(*long, ("a-other", f"a{LONGEST_SHARED + 5}"))
    assert shape(tree)[1] == (["a-other"], 0, 0)


def test_an_unknown_parent_makes_a_root_and_a_known_node_stays() -> None:
    tree = grown(("q1", "nowhere"), ("q1", None))
    assert shape(tree) == [(["q1"], None, 0)]


@given(st.lists(st.tuples(st.sampled_from("qas"), st.integers(0, 30)), max_size=40))
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
            path.insert(0, at)
            at = parents[at]
        turn: int | None = tree.turn_of(node)
        told: list[str] = []
        while turn is not None:
            plan = tree.plans[turn]
            told = [*plan.nodes, *told]
            turn = plan.parent
        assert [each for each in told if each in path] == path
        assert told[: len(path)] == path
