"""Every movement of a head is remembered: by number, by time, by turn."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from tests.ledger.conftest import NOON
from tests.ledger.histories import PROPERTY_SCALE, grow, problems, queries, texts
from weft.kernel.clock import FixedClock
from weft.kernel.errors import InvalidInput, NotFound
from weft.ledger.api.ledger import Ledger

HOUR, DAY = 3_600_000, 86_400_000


def test_the_reflog_tells_every_move_newest_first(ledger: Ledger, clock: FixedClock) -> None:
    first, second = grow(ledger, "main", "a", "b")
    clock.tick(HOUR)
    ledger.move_head("main", new=first, reason="the answer was wrong")
    ledger.heads.reset("main", reason="start over")
    ledger.heads.restore("main", 2, reason="no, back")
    found = [(move.number, move.turn_id, move.why, move.reason) for move in ledger.reflog("main")]
    assert found == [
        (0, second, "restore", "no, back"),
        (1, None, "reset", "start over"),
        (2, first, "move", "the answer was wrong"),
        (3, second, "turn", None),
        (4, first, "turn", None),
    ]
    assert [move.changed_at for move in ledger.reflog("main")] == [NOON + HOUR] * 3 + [NOON] * 2
    assert ledger.reflog("main", limit=2) == ledger.reflog("main")[:2]


def test_a_fork_begins_a_reflog_of_its_own(ledger: Ledger) -> None:
    (turn,) = grow(ledger, "main", "a")
    ledger.fork("main", label="alt")
    assert [(move.turn_id, move.why) for move in ledger.reflog("alt")] == [(turn, "fork")]


def test_a_lost_head_is_restored(ledger: Ledger) -> None:
    turns = grow(ledger, "main", "a", "b", "c")
    ledger.heads.reset("main")
    grow(ledger, "main", "fresh")
    assert ledger.heads.restore("main", 2).head == turns[2]
    assert queries(ledger, "main") == ["a", "b", "c"]
    assert ledger.heads.restore("main").head != turns[2]
    assert problems(ledger) == []


def test_restoring_a_reset_takes_the_head_away_again(ledger: Ledger) -> None:
    grow(ledger, "main", "a")
    ledger.heads.reset("main")
    grow(ledger, "main", "b")
    assert ledger.heads.restore("main", 1).head is None


def test_a_head_inside_a_turn_is_restored_inside_it(ledger: Ledger) -> None:
    (turn,) = grow(ledger, "main", "a")
    ledger.fork(ledger.events(turn)[1].id, label="inside")
    ledger.move_head("inside", new=turn)
    assert texts(ledger.thread("inside").messages) == ["a", "re: a"]
    ledger.heads.restore("inside")
    assert texts(ledger.thread("inside").messages) == ["a"]
    assert problems(ledger) == []


@pytest.mark.parametrize("number", [2, 99, -1])
def test_there_is_nothing_before_the_first_move(ledger: Ledger, number: int) -> None:
    grow(ledger, "main", "a", "b")
    with pytest.raises(NotFound, match="move of session"):
        ledger.heads.restore("main", number)


def test_the_head_at_a_time_is_the_one_of_the_last_move_before_it(ledger: Ledger, clock: FixedClock) -> None:
    assert ledger.create_session("main").head is None
    clock.tick(HOUR)
    (first,) = grow(ledger, "main", "a")
    clock.tick(HOUR)
    (second,) = grow(ledger, "main", "b")
    clock.tick(HOUR)
    ledger.heads.reset("main")
    clock.tick(2 * DAY)
    expected = {0: None, HOUR - 1: None, HOUR: first, 2 * HOUR - 1: first, 2 * HOUR: second, 3 * HOUR: None}
    assert {after: ledger.heads.at("main", NOON + after) for after in expected} == expected
    assert ledger.heads.at("main", "2026-11-15T01:30:00Z") == first
    assert ledger.heads.at("main", "2026-11-15 02:30") == second
    assert ledger.heads.at("main", "now") is None
    with pytest.raises(InvalidInput):
        ledger.heads.at("main", "once upon a time")


def test_a_clock_that_went_back_counts_as_standing_still(ledger: Ledger, clock: FixedClock) -> None:
    (first,) = grow(ledger, "main", "a")
    clock.set(NOON - DAY)
    (second,) = grow(ledger, "main", "b")
    clock.set(NOON + DAY)
    (third,) = grow(ledger, "main", "c")
    assert ledger.heads.at("main", NOON - 1) is None
    assert ledger.heads.at("main", NOON) == second
    assert ledger.heads.at("main", NOON + DAY - 1) == second
    assert ledger.heads.at("main", NOON + DAY) == third
    assert [move.changed_at for move in ledger.reflog("main")] == [NOON + DAY, NOON - DAY, NOON]
    assert ledger.turn(first).started_at == NOON
    assert problems(ledger) == []


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=12), st.integers(-10, 10))
def test_the_head_at_any_time_is_found_under_any_clock(steps: list[int], when: int) -> None:
    clock = FixedClock(NOON)
    with weft.open(":memory:", clock=clock) as ledger:
        moves: list[tuple[int, str]] = []
        for step in steps:
            clock.set(clock.now_ms() + step)
            since = max([clock.now_ms(), *(earlier for earlier, _ in moves)])
            moves.append((since, *grow(ledger, "main", "q")))  # type: ignore[arg-type]
        expected = [turn for since, turn in moves if since <= NOON + when]
        assert ledger.heads.at("main", NOON + when) == (expected[-1] if expected else None)


def random_history(ledger: Ledger, seed: int, steps: int) -> tuple[list[str], dict[str, list[str | None]]]:
    """Turns, and for each session every head it ever had."""
    dice, turns = random.Random(seed), list(grow(ledger, "s0", "root"))
    heads: dict[str, list[str | None]] = {"s0": list(turns)}
    for i in range(steps):
        label = dice.choice(list(heads))
        match dice.choice(["grow", "grow", "grow", "fork", "move", "reset", "restore"]):
            case "grow":
                turns += grow(ledger, label, f"{i}")
                heads[label].append(turns[-1])
            case "fork":
                label = f"s{len(heads)}"
                heads[label] = [dice.choice(turns)]
                ledger.fork(str(heads[label][0]), label=label)
            case "move":
                heads[label].append(dice.choice(turns))
                ledger.move_head(label, new=heads[label][-1])
            case "reset":
                heads[label].append(None)
                ledger.heads.reset(label)
            case "restore":
                back = dice.randrange(len(heads[label]))
                ledger.heads.restore(label, back)
                heads[label].append(heads[label][-1 - back])
    return turns, heads


@settings(max_examples=9 * PROPERTY_SCALE)
@given(st.integers(0, 2**32), st.integers(1, 40))
def test_the_sessions_that_ever_contained_a_turn_are_found_as_by_looking_at_all(seed: int, steps: int) -> None:
    with weft.open(":memory:") as ledger:
        turns, heads = random_history(ledger, seed, steps)
        parents = {turn: ledger.turn(turn).parent_id for turn in turns}

        def ancestry(turn: str | None) -> set[str]:
            return set() if turn is None else {turn} | ancestry(parents[turn])

        contained = {label: set().union(*map(ancestry, ever)) for label, ever in heads.items()}
        for turn in turns:
            expected = {label for label, members in contained.items() if turn in members}
            assert {session.label for session in ledger.tree.sessions_containing(turn)} == expected
        assert problems(ledger) == []


def test_a_deleted_session_still_counts_among_those_that_contained_a_turn(ledger: Ledger) -> None:
    (turn,) = grow(ledger, "main", "a")
    ledger.labels.delete("main")
    assert [session.status for session in ledger.tree.sessions_containing(turn)] == ["deleted"]
