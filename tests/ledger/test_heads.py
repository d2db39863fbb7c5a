"""Heads: appended to wherever they are, pinned by `parent` and `expected`, and never lost between threads."""

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from msgspec.structs import replace

import weft
from tests.ledger.conftest import OpenLedger
from tests.ledger.histories import grow, problems, queries, texts
from tests.ledger.test_forks import long_turn
from weft.kernel.errors import HeadMoved, NotFound
from weft.ledger.api.ledger import Ledger

WRITERS, TURNS = 32, 6


@pytest.mark.parametrize("pin", ["parent", "expected"])
def test_a_pinned_turn_goes_where_it_was_pinned_or_nowhere(ledger: Ledger, pin: str) -> None:
    at: Callable[[str | None], dict[str, Any]] = lambda turn: {pin: turn}  # noqa: E731
    first, second = grow(ledger, "main", "a", "b")
    before = ledger.upkeep.stats()["events"]
    with pytest.raises(HeadMoved) as moved:
        ledger.record_turn(session="main", query="c", **at(first))
    assert (moved.value.label, moved.value.expected, moved.value.actual) == ("main", first, second)
    with pytest.raises(HeadMoved):
        ledger.begin_turn(session="main", **at(None))
    assert ledger.upkeep.stats()["events"] == before
    assert ledger.record_turn(session="main", query="c", **at(second)).parent_id == second


def test_expecting_no_head_makes_sure_that_a_turn_is_the_first(ledger: Ledger) -> None:
    first = ledger.record_turn(session="main", query="a", expected=None)
    assert first.parent_id is None
    with pytest.raises(HeadMoved):
        ledger.record_turn(session="main", query="b", expected=None)


def test_expecting_a_head_of_a_session_that_is_not_there_makes_no_session(ledger: Ledger) -> None:
    (turn,) = grow(ledger, "main", "a")
    with pytest.raises(HeadMoved) as moved:
        ledger.record_turn(session="gone", query="b", expected=turn)
    assert moved.value.actual is None
    with pytest.raises(NotFound):
        ledger.session("gone")


def test_a_new_session_begins_at_the_parent_it_is_given(ledger: Ledger) -> None:
    first, second = grow(ledger, "main", "a", "b")
    assert ledger.record_turn(session="at-once", query="c", parent=first).parent_id == first
    with ledger.begin_turn(session="in-steps", parent=first) as writer:
        assert writer.finish().parent_id == first
    ledger.create_session("made-before")
    assert ledger.record_turn(session="made-before", query="d", parent=first).parent_id == first
    assert ledger.session("main").head == second
    assert queries(ledger, "made-before") == ["a", "d"]
    assert problems(ledger) == []


def test_a_session_that_was_reset_is_at_no_turn(ledger: Ledger) -> None:
    (turn,) = grow(ledger, "main", "a")
    ledger.heads.reset("main")
    with pytest.raises(HeadMoved):
        ledger.record_turn(session="main", query="b", parent=turn)
    assert ledger.record_turn(session="main", query="b", parent=None).depth == 1


def test_a_begun_turn_pins_its_parent(ledger: Ledger) -> None:
    (first,) = grow(ledger, "main", "a")
    writer = ledger.begin_turn(session="main")
    assert ledger.turn(writer.id).parent_id == first
    assert writer.finish().parent_id == first


def test_moving_a_head_compares_and_swaps(ledger: Ledger) -> None:
    first, second = grow(ledger, "main", "a", "b")
    with pytest.raises(HeadMoved) as moved:
        ledger.move_head("main", expected=first, new=first)
    assert moved.value.actual == second
    assert ledger.move_head("main", expected=second, new=first, reason="back").head == first
    assert ledger.move_head("main", new=None).head is None
    assert [move.why for move in ledger.reflog("main")] == ["move", "move", "turn", "turn"]


def test_a_head_cannot_move_to_a_turn_that_is_not_there(ledger: Ledger) -> None:
    grow(ledger, "main", "a")
    with pytest.raises(NotFound):
        ledger.move_head("main", new="01ARZ3NDEKTSV4RRFFQ69G5FAV")


def write_together(ledgers: Sequence[Ledger], session_of: list[str]) -> None:
    start = Barrier(WRITERS)

    def write(writer: int) -> None:
        start.wait()
        for i in range(TURNS):
            ledger, session = ledgers[writer % len(ledgers)], session_of[writer]
            ledger.record_turn(session=session, query=f"{writer}/{i}", response="yes", wait=60)

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(write, range(WRITERS)))


@pytest.mark.usefixtures("turn_path")
@pytest.mark.parametrize("place", ["disk", "memory", "two ledgers on one file"])
def test_threads_on_one_session_make_one_chain_and_nothing_is_lost(place: str, path: Path) -> None:
    opened = [weft.open(":memory:" if place == "memory" else path) for _ in range(2 if place[0] == "t" else 1)]
    write_together(opened, ["main"] * WRITERS)
    said = queries(opened[0], "main")
    assert Counter(said) == Counter(f"{writer}/{i}" for writer in range(WRITERS) for i in range(TURNS))
    for writer in range(WRITERS):
        own = [text for text in said if text.startswith(f"{writer}/")]
        assert own == [f"{writer}/{i}" for i in range(TURNS)]
    assert len(opened[0].reflog("main")) == WRITERS * TURNS
    assert problems(opened[0]) == []
    for ledger in opened:
        ledger.close()


@pytest.mark.usefixtures("turn_path")
def test_threads_on_sessions_of_their_own_do_not_meet(open_ledger: OpenLedger, path: Path) -> None:
    with weft.open(path) as ledger:
        write_together([ledger], [f"s{writer % 8}" for writer in range(WRITERS)])
        assert sum(len(queries(ledger, f"s{i}")) for i in range(8)) == WRITERS * TURNS
        assert all(turn.parent_id is None for turn in ledger.log() if turn.depth == 1)
        assert ledger.upkeep.stats()["trees"] == 8
        assert problems(ledger) == []


def test_threads_that_expect_the_same_head_have_one_winner(path: Path) -> None:
    with weft.open(path) as ledger:
        (root,) = grow(ledger, "main", "a")
        start = Barrier(8)

        def write(writer: int) -> str | None:
            start.wait()
            try:
                return ledger.record_turn(session="main", query=f"{writer}", expected=root).id
            except HeadMoved:
                return None

        with ThreadPoolExecutor(8) as pool:
            winners = [turn for turn in pool.map(write, range(8)) if turn]
        assert [ledger.session("main").head] == winners
        assert [turn.id for turn in ledger.tree.children(root)] == winners


@pytest.mark.parametrize("position", range(12))
def test_a_head_can_be_moved_inside_a_turn_as_a_fork_can_begin_there(ledger: Ledger, position: int) -> None:
    turn = long_turn(ledger)
    event = ledger.events(turn)[position].id
    grow(ledger, "main", "beyond")
    forked, moved = ledger.fork(event, label="alt"), ledger.move_head("main", new=event)
    assert (moved.head, moved.head_event) == (forked.head, forked.head_event)
    assert ledger.point("main") == replace(ledger.point(event), session="main")
    assert texts(ledger.thread("main").messages) == texts(ledger.thread("alt").messages)
    assert ledger.context(session="main") == ledger.context(session="alt")
    (child,) = grow(ledger, "main", "go on")
    assert ledger.turn(child).parent_id == turn
    ledger.heads.restore("main", 1)
    assert ledger.session("main").head_event == moved.head_event
    assert problems(ledger) == []


def test_a_head_inside_a_turn_is_moved_by_compare_and_swap_too(ledger: Ledger) -> None:
    turn = long_turn(ledger)
    event = ledger.events(turn)[4].id
    (beyond,) = grow(ledger, "main", "beyond")
    with pytest.raises(HeadMoved):
        ledger.move_head("main", new=event, expected=turn)
    ledger.move_head("main", new=event, expected=beyond)
    assert ledger.move_head("main", new=turn, expected=turn).head_event is None
    assert [(move.turn_id, move.at_event) for move in ledger.reflog("main", limit=2)] == [(turn, None), (turn, 5)]


def test_an_event_outside_of_turns_is_no_place_for_a_head(ledger: Ledger) -> None:
    grow(ledger, "main", "a")
    outside = [change.id for change in ledger.changes() if change.event.stream.startswith("session:")]
    for event in (outside[0], "0" * 64):
        with pytest.raises(NotFound):
            ledger.move_head("main", new=event)
    assert len(ledger.reflog("main")) == 1
