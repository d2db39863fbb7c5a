"""Threads, heads, ancestors, differences and trees, against a plain walk over parent pointers."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from tests.ledger.histories import grow, grow_at_once, problems
from tests.sizes import sized
from weft.ledger.api.ledger import Ledger

Shape = list[tuple[int | None, str]]

# each turn: its parent (counted back over all turns so far, None for a root) and how it ends
shapes = st.lists(
    st.tuples(st.none() | st.integers(0, 8) | st.just(0), st.sampled_from(["ok", "ok", "ok", "failed", "open"])),
    min_size=1,
    max_size=24,
)


class Forest:
    """The same turns as plain dicts."""

    def __init__(self, ledger: Ledger, shape: Shape) -> None:
        self.ledger, self.ids = ledger, list[str]()
        self.parent: dict[str, str | None] = {}
        self.completed: set[str] = set()
        self.tokens: dict[str, int] = {}
        for back, ending in shape:
            self._add(None if back is None or not self.ids else self.ids[-1 - back % len(self.ids)], ending)

    def _add(self, parent: str | None, ending: str) -> None:
        number, pin = len(self.ids), {} if parent is None else {"parent": parent}
        if ending == "open":
            writer = self.ledger.begin_turn(**pin)  # type: ignore[arg-type]
            writer.message(f"q{number}")
            made = writer.id
        else:
            fields: dict[str, Any] = {"query": f"q{number}", "error": "x" if ending == "failed" else None, **pin}
            made = self.ledger.record_turn(**fields, usage={"output_tokens": number}).id
            self.tokens[made] = number
        self.ids.append(made)
        self.parent[made] = parent
        if ending == "ok":
            self.completed.add(made)

    def ancestry(self, turn: str) -> list[str]:
        parent = self.parent[turn]
        return [*([] if parent is None else self.ancestry(parent)), turn]

    def children(self, turn: str) -> list[str]:
        return [other for other in self.ids if self.parent[other] == turn]

    def common(self, left: str, right: str) -> str | None:
        shared = [one for one, other in zip(self.ancestry(left), self.ancestry(right), strict=False) if one == other]
        return shared[-1] if shared else None


@settings(max_examples=sized(test=6, prove=1050))
@given(shapes)
def test_every_thread_is_the_walk_to_its_root(shape: Shape) -> None:
    with weft.open(":memory:") as ledger:
        forest = Forest(ledger, shape)
        for turn in forest.ids:
            thread, walk = ledger.thread(turn), forest.ancestry(turn)
            assert list(thread.ancestry) == [found.id for found in thread.turns] == walk
            assert thread.depth == len(walk) == ledger.turn(turn).depth
            assert [message.text for message in thread.messages] == [f"q{forest.ids.index(id)}" for id in walk]
            assert thread.total_tokens == sum(forest.tokens.get(id, 0) for id in walk)
            assert [child.id for child in ledger.tree.children(turn)] == forest.children(turn)
        assert problems(ledger) == []


@settings(max_examples=sized(test=6, prove=1050))
@given(shapes)
def test_heads_are_the_turns_without_a_completed_child(shape: Shape) -> None:
    with weft.open(":memory:") as ledger:
        forest = Forest(ledger, shape)
        expected = [turn for turn in forest.ids if not forest.completed & set(forest.children(turn))]
        assert [turn.id for turn in ledger.tree.heads()] == expected


@settings(max_examples=sized(test=6, prove=1050))
@given(shapes, st.data())
def test_two_threads_share_what_their_walks_share(shape: Shape, data: st.DataObject) -> None:
    with weft.open(":memory:") as ledger:
        forest = Forest(ledger, shape)
        picks = st.sampled_from(forest.ids)
        for left, right in data.draw(st.lists(st.tuples(picks, picks), min_size=1, max_size=12)):
            common = forest.common(left, right)
            assert ledger.tree.common_ancestor(left, right) == ledger.diff(left, right).ancestor == common
            shared = [] if common is None else forest.ancestry(common)
            found = ledger.diff(left, right)
            assert [turn.id for turn in found.left] == forest.ancestry(left)[len(shared) :]
            assert [turn.id for turn in found.right] == forest.ancestry(right)[len(shared) :]


@settings(max_examples=sized(test=6, prove=1050))
@given(shapes)
def test_a_tree_is_all_that_grew_from_one_root_parents_first(shape: Shape) -> None:
    with weft.open(":memory:") as ledger:
        forest = Forest(ledger, shape)
        for turn in forest.ids:
            root = forest.ancestry(turn)[0]
            expected = [other for other in forest.ids if forest.ancestry(other)[0] == root]
            assert [found.id for found in ledger.tree.turns(turn)] == expected
        roots = sum(parent is None for parent in forest.parent.values())
        assert ledger.upkeep.stats()["trees"] == roots


@settings(max_examples=sized(test=6, prove=1050))
@given(shapes, st.integers(0, 30))
def test_the_log_shows_children_before_parents(shape: Shape, limit: int) -> None:
    with weft.open(":memory:") as ledger:
        forest = Forest(ledger, shape)
        assert [turn.id for turn in ledger.log()] == forest.ids[::-1]
        assert [turn.id for turn in ledger.log(limit)] == forest.ids[::-1][:limit]


@pytest.mark.parametrize("depth", [511, 512, 513, 1500])
def test_a_long_thread_is_read_to_its_root_in_order(depth: int) -> None:
    with weft.open(":memory:") as ledger:
        turns = grow_at_once(ledger, "main", *(f"{i}" for i in range(depth)))
        ledger.fork(turns[-2], label="alt")
        grow(ledger, "alt", "tip")
        thread = ledger.thread("alt")
        assert list(thread.ancestry)[:-1] == turns[:-1]
        assert [turn.depth for turn in thread.turns] == list(range(1, depth + 1))
        said = [message.text for message in thread.messages if message.role == "user"]
        assert said == [*map(str, range(depth - 1)), "tip"]
        assert all(turn.parent_id == before.id for before, turn in pairwise(thread.turns))


def test_threads_are_read_while_others_write(ledger: Ledger) -> None:
    grow(ledger, "main", *"abc")
    reading = ledger.thread("main").messages
    first = next(reading)
    grow(ledger, "main", "d")
    assert [first.text, *(message.text for message in reading)] == ["a", "re: a", "b", "re: b", "c", "re: c"]
