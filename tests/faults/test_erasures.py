"""`kill -9` at every statement and every write of an erasure: nothing of it happened, or the next open finishes it.

And of packing and unpacking: whatever was done, every reader says the same.
"""

from pathlib import Path

import pytest

import weft
from tests.faults import scenarios
from tests.faults.checks import Answers, answers, assert_sound, copy_ledger
from tests.faults.processes import assert_swept, count_steps, run, was_killed
from tests.faults.scenarios import SECRET
from tests.ledger.canaries import files_with_canary
from tests.sizes import Record, points
from weft.ledger.api.ledger import Ledger

PACKING_WRITES = 5
"""Every so many writes of packing and unpacking are points of the sweep."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("base") / "ledger.db"
    scenarios.make_ledger_with_secret(path)
    return path


def is_erased(path: Path) -> bool:
    """Wholly, or not at all: the next open decides nothing, it only finishes."""
    with weft.open(path) as ledger:
        erased = bool(ledger.erasure.done())
        label = next((one.label for one in ledger.sessions(every=True) if SECRET in one.label), None)
        said = [message.text for turn in ledger.log() for message in ledger.messages(turn.id)]
        assert list(ledger.verify()) == []
    assert erased == (label is None) == (not any(SECRET in text for text in said))
    assert erased == (files_with_canary(path.parent, canary=SECRET) == [])
    return erased


WAYS = pytest.mark.parametrize(
    ("torn", "at_statements"),
    [(False, True), (False, False), (True, False)],
    ids=["at statements", "between writes", "inside a write"],
)


@pytest.mark.slow("kills an erasure at several points, and verifies the ledger after each")
@WAYS
def test_an_erasure_killed_at_any_point_did_not_happen_or_is_finished_by_the_next_open(
    tmp_path: Path, base: Path, torn: bool, at_statements: bool, record_property: Record
) -> None:
    path, work, outcomes, kills = tmp_path / "ledger.db", scenarios.die_while_erasing, list[bool](), 0
    steps, said = count_steps(work, str(copy_ledger(base, path)), 0, torn, at_statements)
    assert said == [True]
    assert is_erased(path)
    assert_sound(path)
    taken = sorted({0, *points(steps, test=5)})
    for k in taken:
        copy_ledger(base, path)
        code, said = run(work, str(path), k + 1, torn, at_statements)
        outcomes.append(is_erased(path))
        assert outcomes == sorted(outcomes), "a later step undid an erasure"
        assert said == ([] if was_killed(code) else [True])
        kills += was_killed(code)
        assert_sound(path)
    assert not outcomes[0]
    assert_swept(kills, taken)
    record_property("measured", f"{kills} kills")


def answers_but_for_packs(ledger: Ledger) -> Answers:
    """What readers are told; how much of it lies in packs is no part of that."""
    told = answers(ledger)
    return {**told, "stats": {name: value for name, value in told["stats"].items() if "pack" not in name}}


@WAYS
def test_packing_killed_at_any_point_changes_no_answer(
    tmp_path: Path, base: Path, torn: bool, at_statements: bool, record_property: Record
) -> None:
    path, work, kills = copy_ledger(base, tmp_path / "ledger.db"), scenarios.die_while_packing, 0
    with weft.open(path) as ledger:
        before = answers_but_for_packs(ledger)

    def check() -> None:
        with weft.open(path) as ledger:
            assert answers_but_for_packs(ledger) == before
            assert list(ledger.verify()) == []

    steps, (packed, unpacked) = count_steps(work, str(copy_ledger(base, path)), 0, torn, at_statements)
    assert packed == unpacked > 0
    check()
    apart = 1 if at_statements else PACKING_WRITES
    taken = points(steps // apart, test=3)
    for k in taken:
        code, _ = run(work, str(copy_ledger(base, path)), k * apart + 1, torn, at_statements)
        check()
        kills += was_killed(code)
    assert_swept(kills, taken)
    record_property("measured", f"{kills} kills")
