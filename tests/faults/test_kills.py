"""`kill -9` at every statement and inside every write of an append: all of it is there afterwards, or none.

Kills between two writes are strace's (test_system_calls.py), which sees the real calls."""

from collections.abc import Callable
from itertools import accumulate, count
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.faults import scenarios
from tests.faults.checks import Kinds, assert_sound, copy_ledger, end_of, kinds_after
from tests.faults.processes import KILLED, run
from tests.faults.scenarios import SCENARIOS, Ack
from tests.sizes import Record, sized

SWEPT = ("Interruption", "RunFinished")  # how the next opener closes a turn that was left open
STRIDE = {"whole_turn": sized(test=3, prove=1), "large_content": sized(test=60, prove=5)}
OTHERS = sized(test=13, prove=1)
SHARED = sized(test=48, prove=2)
CHECKPOINT = sized(test=7, prove=1)
NAMES = sorted(SCENARIOS)
Work = Callable[..., None]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("base") / "ledger.db"
    assert run(scenarios.leave_unclosed, str(path)) == (KILLED, [])
    return path


def outcomes(path: Path, name: str) -> tuple[int, list[Kinds]]:
    """Where the ledger ends, and what may follow after 0, 1, 2 … appends: whole appends, and an open turn closed."""
    appends: list[Kinds] = []
    with weft.open(path) as ledger:
        begin = end = end_of(ledger)
        for _ in SCENARIOS[name](ledger, 0):
            appends.append(kinds_after(ledger, end))
            end = end_of(ledger)
    whole = list(accumulate(appends, initial=()))
    if name == "turn_by_steps":
        whole = [whole[0], *(kinds + SWEPT for kinds in whole[1:-1]), whole[-1]]
    return begin, whole


def kill_at_each_step(folder: Path, base: Path, name: str, work: Work, *args: Any) -> int:
    """Kill at the first, second, third … step until the scenario runs to its end; returns how often it was killed."""
    path = folder / "ledger.db"
    end, allowed = outcomes(copy_ledger(base, path), name)
    for kills, k in enumerate(count(1, STRIDE.get(name, OTHERS))):
        copy_ledger(base, path)
        code, said = run(work, str(path), name, k, *args)
        with weft.open(path) as ledger:
            survived = allowed.index(kinds_after(ledger, end))
            assert survived - len(said) in (0, 1), "an acknowledged append is gone"
        assert_sound(path, [ack for ack in said if isinstance(ack, Ack)])
        if code == 0:
            return kills
        assert code == KILLED
    raise AssertionError("unreachable")


@pytest.mark.usefixtures("turn_path")
@pytest.mark.parametrize("name", NAMES)
def test_a_kill_at_any_statement_leaves_all_of_an_append_or_none(
    quick_path: Path, base: Path, name: str, record_property: Record
) -> None:
    kills = kill_at_each_step(quick_path, base, name, scenarios.die_at_a_statement)
    record_property("measured", f"{kills} kills")


@pytest.mark.usefixtures("turn_path")
@pytest.mark.parametrize("name", NAMES)
def test_a_kill_inside_any_write_leaves_all_of_an_append_or_none(
    quick_path: Path, base: Path, name: str, record_property: Record
) -> None:
    kills = kill_at_each_step(quick_path, base, name, scenarios.die_in_a_write)
    record_property("measured", f"{kills} kills")


@pytest.mark.usefixtures("turn_path")
def test_a_kill_at_any_statement_of_a_shared_commit_leaves_whole_appends(
    quick_path: Path, base: Path, record_property: Record
) -> None:
    path, code, kills = quick_path / "ledger.db", KILLED, -1
    while code == KILLED:
        kills += 1
        copy_ledger(base, path)
        code, said = run(scenarios.die_in_a_shared_commit, str(path), 1 + kills * SHARED)
        assert_sound(path, said)
        with weft.open(path) as ledger:
            assert all(turn.status == "completed" for turn in ledger.log())
    assert code == 0
    record_property("measured", f"{kills} kills")


@pytest.mark.usefixtures("turn_path")
def test_a_kill_inside_any_write_of_a_checkpoint_loses_nothing(
    quick_path: Path, base: Path, record_property: Record
) -> None:
    path, code, kills = quick_path / "ledger.db", KILLED, -1
    while code == KILLED:
        kills += 1
        copy_ledger(base, path)
        code, said = run(scenarios.die_while_closing, str(path), 1 + kills * CHECKPOINT)
        assert len(said) == 1
        assert_sound(path, said)
    assert code == 0
    record_property("measured", f"{kills} kills")


@pytest.mark.parametrize(
    ("torn", "at_statements"),
    [(False, True), (False, False), (True, False)],
    ids=["at statements", "between writes", "inside a write"],
)
def test_a_ledger_whose_making_was_cut_short_is_made_whole_by_the_next_open(
    quick_path: Path, torn: bool, at_statements: bool, record_property: Record
) -> None:
    code, kills = KILLED, -1
    while code == KILLED:
        kills += 1
        path = quick_path / f"{kills}.db"
        code, said = run(scenarios.die_while_creating, str(path), 1 + kills * OTHERS, torn, at_statements)
        with weft.open(path) as ledger:
            assert len(kinds_after(ledger, 0)) in (0, 9)
        assert_sound(path, said[1:])
    assert code == 0
    record_property("measured", f"{kills} kills")
