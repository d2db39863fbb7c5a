"""Imported turns of which no source tells a time are listed where they belong, never as new."""

from pathlib import Path

import pytest

import weft
from tests.ledger.histories import exported, grow, import_into, problems
from tests.ledger.imported import native_turn, take
from weft import Ledger

DAY = 86_400_000


def listed(ledger: Ledger) -> list[str]:
    """Turns as `weft log` lists them, by their prompts."""
    return [ledger.messages(turn.id)[-2].text.removeprefix("ask ") for turn in ledger.log(limit=100)]


def test_turns_without_a_time_are_listed_with_what_is_known_around_them(ledger: Ledger) -> None:
    grow(ledger, "main", "today")
    take(ledger, "none", native_turn("n1", end=1), native_turn("n2", parent=0, offset=1, end=2), file="none")
    take(ledger, "made", native_turn("m1", end=1), native_turn("m2", parent=0, end=2), file="made", created=20 * DAY)
    dated = native_turn("d1", started=30 * DAY, end=1)
    after = native_turn("d3", parent=1, started=50 * DAY, offset=2, end=3)
    take(ledger, "some", dated, native_turn("d2", parent=0, offset=1, end=2), after, file="some")
    take(ledger, "other", native_turn("o1", started=40 * DAY, end=1), file="other")
    assert listed(ledger) == ["today", "d3", "o1", "d2", "d1", "m2", "m1", "n2", "n1"]
    assert [turn.time_known for turn in ledger.thread("made").turns] == [False, False]
    assert problems(ledger) == []


@pytest.mark.parametrize("undated_first", [True, False])
def test_a_time_that_is_told_later_moves_what_grew_from_the_turn(ledger: Ledger, undated_first: bool) -> None:
    take(ledger, "other", native_turn("o1", started=20 * DAY, end=1), file="other")
    later = native_turn("d2", parent=0, offset=1, end=2)
    files = [[native_turn("d1", end=1), later], [native_turn("d1", started=30 * DAY, end=1)]]
    for number, turns in enumerate(files if undated_first else files[::-1]):
        take(ledger, "some", *turns, file=f"{number}")
    assert listed(ledger) == ["d2", "d1", "o1"]
    assert problems(ledger) == []


def test_ledgers_that_exchange_facts_list_undated_turns_alike(tmp_path: Path) -> None:
    one, two = (weft.open(tmp_path / f"{name}.db") for name in ("one", "two"))
    two.imports.share_with(one)
    shared = native_turn("t1", end=1)
    take(one, "a", shared, file="a", created=20 * DAY)
    take(two, "b", shared, native_turn("t2", parent=0, offset=1, end=2), file="b", created=10 * DAY)
    take(two, "c", native_turn("c1", started=15 * DAY, end=1), file="c")
    facts = [exported(ledger) for ledger in (one, two)]
    for ledger, other in ((one, facts[1]), (two, facts[0])):
        import_into(ledger, other)
        assert listed(ledger) == ["c1", "t2", "t1"]
        assert problems(ledger) == []
