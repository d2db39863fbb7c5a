"""Turns are counted by the way they went, also those of processes that were killed."""

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.faults.processes import KILLED, Say, run
from tests.turn_paths import (
    CONTEXTS,
    GENERAL,
    POSTGRESQL,
    PROPERTY,
    SQLITE,
    STRAIGHT,
    general_only,
    problems,
    taken,
    told,
)


def record_and_die(say: Say, address: str) -> None:
    ledger = weft.open(address)
    for k in range(4):
        ledger.record_turn(session="main", query=f"{k}", response="yes")
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("engine", [SQLITE, POSTGRESQL])
def test_turns_of_a_killed_process_are_counted_by_their_way(
    engine: str, tmp_path: Path, new_postgres_ledger: Any
) -> None:
    address = new_postgres_ledger() if engine == POSTGRESQL else str(tmp_path / "ledger.db")
    assert run(record_and_die, address)[0] == KILLED
    assert taken() == {(engine, GENERAL): 1, (engine, STRAIGHT): 3}
    with general_only():
        assert run(record_and_die, address)[0] == KILLED
    assert taken() == {(engine, GENERAL): 5, (engine, STRAIGHT): 3}


def test_contexts_are_counted_by_the_turns_in_them(tmp_path: Path) -> None:
    with weft.open(tmp_path / "ledger.db") as ledger:
        ledger.record_turn(session="main", query="plain", response="yes")
        ledger.record_turn(session="main", query={"content": [{"type": "reasoning", "text": "parts"}]}, response="yes")
        ledger.context(session="main")
        assert (taken()[CONTEXTS, STRAIGHT], taken()[CONTEXTS, GENERAL]) == (1, 1)
        with general_only():
            ledger.context(session="main")
        assert (taken()[CONTEXTS, STRAIGHT], taken()[CONTEXTS, GENERAL]) == (1, 3)


def test_a_test_whose_turns_went_another_way_is_told_so() -> None:
    one, other, both = (
        {(SQLITE, STRAIGHT): 2},
        {(POSTGRESQL, GENERAL): 3},
        {(SQLITE, STRAIGHT): 2, (SQLITE, GENERAL): 1},
    )
    assert (
        problems(Counter(one), STRAIGHT) == problems(Counter(both), STRAIGHT) == problems(Counter(other), GENERAL) == []
    )
    assert problems(Counter(one), GENERAL) == ["SQLite: 2 turns went straight"]
    assert problems(Counter(other), STRAIGHT) == ["PostgreSQL: none of 3 turns went straight"]
    assert problems(Counter({**one, **other}), STRAIGHT) == ["PostgreSQL: none of 3 turns went straight"]
    assert problems(Counter({(CONTEXTS, STRAIGHT): 1}), STRAIGHT) == ["no turn was recorded"]


def test_what_is_told_at_the_end_adds_up_the_parts_of_a_test() -> None:
    def report(test: str, *paths: tuple[str, str, int]) -> pytest.TestReport:
        place = ("tests/a.py", 1, test)
        return pytest.TestReport(
            f"tests/a.py::{test}", place, {}, "passed", None, "call", user_properties=[(PROPERTY, list(paths))]
        )

    reports = [
        report("test_b[straight-0]", (SQLITE, STRAIGHT, 1_000), (SQLITE, GENERAL, 1)),
        report("test_b[straight-1]", (SQLITE, STRAIGHT, 812), (POSTGRESQL, GENERAL, 2)),
        report("test_c"),
    ]
    assert list(told(reports)) == [
        "tests/a.py::test_b[straight] SQLite: 1,812 straight, 1 general; PostgreSQL: 0 straight, 2 general",
        "1 other tests neither recorded turns nor read contexts",
    ]
