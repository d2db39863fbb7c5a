"""The checker of histories finds what it is there for."""

from __future__ import annotations

import pytest

from tests.faults.histories import (
    Said,
    ToldTurn,
    Written,
    problems_of_answers,
    problems_of_writes,
    sent_messages,
)


def sent(text: str, at: int, *outcomes: str, session: str = "s") -> list[Said]:
    lines = [Said(outcome, session, text, at + 1 + i) for i, outcome in enumerate(outcomes)]
    return [Said("invoke", session, text, at), *lines]


def turn(n: int, *questions: str, answer: str | None = None, exit: str = "success") -> ToldTurn:
    return ToldTurn("s", n, exit, questions, f"re: {questions[-1]}" if answer is None else answer)


LOG = [*sent("a", 0, "ok"), *sent("b", 10, "unknown", "ok"), *sent("c", 20, "unknown"), *sent("d", 30, "fail")]
GOOD = [turn(1, "a"), turn(2, "b")]


@pytest.mark.parametrize("turns", [GOOD, [*GOOD, turn(3, "c")], [turn(1, "a", "b")]])
def test_a_history_that_may_be_has_no_problems(turns: list[ToldTurn]) -> None:
    assert problems_of_answers(sent_messages(LOG), [turns, turns]) == []


@pytest.mark.parametrize(
    ("turns", "problem"),
    [
        ([turn(1, "a")], "'b' was admitted and not answered"),
        ([*GOOD, turn(3, "a")], "'a' was answered 2 times"),
        ([*GOOD, turn(3, "c"), turn(4, "c")], "'c' was answered 2 times"),
        ([*GOOD, turn(3, "d")], "'d' was refused and answered"),
        ([*GOOD, turn(3, "e")], "'e' was answered and never sent"),
        ([turn(1, "b"), turn(2, "a")], "'b' overtook 'a'"),
        ([turn(2, "a"), turn(1, "b")], "turn 1 was told after turn 2"),
        ([turn(1, "a", answer="re: b"), turn(2, "b")], "('a',) was answered with 're: b': success"),
        ([turn(1, "a", exit="error"), turn(2, "b")], "('a',) was answered with 're: a': error"),
    ],
)
def test_a_history_that_may_not_be_has_its_problem(turns: list[ToldTurn], problem: str) -> None:
    assert f"s: {problem}" in problems_of_answers(sent_messages(LOG), [turns])


def test_readers_that_were_told_different_things_are_a_problem() -> None:
    assert problems_of_answers(sent_messages(LOG), [GOOD, GOOD[:1]]) == ["s: readers were told different turns"]


@pytest.mark.parametrize(
    ("writes", "count"),
    [
        ([("x", 1, 1), ("x", 1, 2), ("y", 2, 3), ("x", 3, 4)], 0),
        ([("x", 1, 1), ("y", 2, 3), ("x", 1, 4)], 1),
        ([("x", 1, 1), ("y", 1, 2)], 1),
    ],
)
def test_a_write_under_an_epoch_that_is_over_is_a_problem(writes: list[tuple[str, int, int]], count: int) -> None:
    assert len(problems_of_writes(Written("s", *write) for write in reversed(writes))) == count
