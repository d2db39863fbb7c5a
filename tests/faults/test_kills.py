"""`kill -9` at every statement and inside every write of an append: all of it is there afterwards, or none.

Kills between two writes are strace's (test_system_calls.py), which sees the real calls."""

from collections.abc import Callable
from itertools import accumulate
from pathlib import Path

import pytest

import weft
from tests.faults import scenarios
from tests.faults.checks import Kinds, assert_sound, copy_ledger, end_of, kinds_after
from tests.faults.processes import KILLED, assert_swept, count_steps, run, was_killed
from tests.faults.scenarios import SCENARIOS, Ack
from tests.sizes import Record, points

SWEPT = ("Interruption", "RunFinished")  # how the next opener closes a turn that was left open
POINTS = 2
"""Of each sweep, in `make test`."""
APPENDS, COMMIT_STEPS = 16, 4
"""Of threads that share commits; how many commits they make is chance."""
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


def kill_at_each_step(folder: Path, base: Path, name: str, work: Work) -> int:
    """Kill at the first, second, third … step of the scenario; returns how often it was killed."""
    path, kills = folder / "ledger.db", 0
    end, allowed = outcomes(copy_ledger(base, path), name)

    def check(said: list[Ack | None]) -> int:
        with weft.open(path) as ledger:
            survived = allowed.index(kinds_after(ledger, end))
            assert survived - len(said) in (0, 1), "an acknowledged append is gone"
        assert_sound(path, [ack for ack in said if isinstance(ack, Ack)])
        return survived

    steps, said = count_steps(work, str(copy_ledger(base, path)), name, 0)
    assert check(said) == len(said) == len(allowed) - 1
    taken = points(steps, test=POINTS)
    for k in taken:
        code, said = run(work, str(copy_ledger(base, path)), name, k + 1)
        check(said)
        kills += was_killed(code)
    assert_swept(kills, taken)
    return kills


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
    path, work, kills = quick_path / "ledger.db", scenarios.die_in_a_shared_commit, 0

    def check(said: list[Ack]) -> None:
        assert_sound(path, said)
        with weft.open(path) as ledger:
            assert all(turn.status == "completed" for turn in ledger.log())

    steps, said = count_steps(work, str(copy_ledger(base, path)), 0)
    assert len(said) == APPENDS
    check(said)
    taken = points(steps, test=POINTS)
    for k in taken:
        code, said = run(work, str(copy_ledger(base, path)), k + 1)
        check(said)
        kills += was_killed(code)
    assert_swept(kills, taken, different=APPENDS * COMMIT_STEPS)
    record_property("measured", f"{kills} kills")


@pytest.mark.usefixtures("turn_path")
def test_a_kill_inside_any_write_of_a_checkpoint_loses_nothing(
    quick_path: Path, base: Path, record_property: Record
) -> None:
    path, work, kills = quick_path / "ledger.db", scenarios.die_while_closing, 0

    def check(said: list[Ack]) -> None:
        assert len(said) == 1
        assert_sound(path, said)

    steps, said = count_steps(work, str(copy_ledger(base, path)), 0)
    check(said)
    taken = points(steps, test=2 * POINTS)
    for k in taken:
        code, said = run(work, str(copy_ledger(base, path)), k + 1)
        check(said)
        kills += was_killed(code)
    assert_swept(kills, taken)
    record_property("measured", f"{kills} kills")


@pytest.mark.parametrize(
    ("torn", "at_statements"),
    [(False, True), (False, False), (True, False)],
    ids=["at statements", "between writes", "inside a write"],
)
def test_a_ledger_whose_making_was_cut_short_is_made_whole_by_the_next_open(
    quick_path: Path, torn: bool, at_statements: bool, record_property: Record
) -> None:
    work, kills, whole = scenarios.die_while_creating, 0, quick_path / "whole.db"

    def check(path: Path, said: list[Ack | None], *events: int) -> None:
        with weft.open(path) as ledger:
            assert len(kinds_after(ledger, 0)) in events
        assert_sound(path, [ack for ack in said if ack is not None])

    steps, said = count_steps(work, str(whole), 0, torn, at_statements)
    assert [type(ack) for ack in said] == [type(None), Ack]
    check(whole, said, 9)
    taken = points(steps, test=2 * POINTS)
    for k in taken:
        path = quick_path / f"{k}.db"
        code, said = run(work, str(path), k + 1, torn, at_statements)
        check(path, said, 0, 9)
        kills += was_killed(code)
    assert_swept(kills, taken)
    record_property("measured", f"{kills} kills")
