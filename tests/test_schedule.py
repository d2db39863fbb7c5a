"""The order of tests, and the share of a sweep's points, or of the stores, that a run takes."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import tests.ledger.conftest
import tests.programs.conftest
import tests.runtime.conftest
from tests import conftest, sizes
from tests.schedule import HERE, dearest_first, shuffle_files

ROOT = Path(__file__).parents[1]
SWEEP = """
import pytest
from tests.sizes import points, share

@pytest.mark.parametrize("letter", share("abcdefgh", test=2))
def test_letters(letter):
    assert letter == "?"
"""
OTHERS = """
from tests.sizes import points

def test_numbers():
    print("took", *points(100, test=10))
    assert False

def test_alone():
    assert False
"""


def test_each_part_begins_with_its_dearest_files_and_every_test_is_in_one() -> None:
    units = ["quick"] * 9 + ["dear"] * 2 + ["dearer"] + ["dearest"] * 3 + ["other"] * 5
    tests = list(range(len(units)))
    ordered = dearest_first(tests, units, {"dear": 2, "dearer": 3, "dearest": 9}, 2)
    assert sorted(ordered) == tests
    parts = [[units[test] for test in ordered[:10]], [units[test] for test in ordered[10:]]]
    assert parts[0][:3] == ["dearest"] * 3
    assert parts[1][:3] == ["dearer", "dear", "dear"]
    assert set(parts[0][3:] + parts[1][3:]) == {"quick", "other"}


def test_a_proof_runs_the_tests_of_each_file_in_an_order_that_the_seed_repeats() -> None:
    one, other = HERE / "test_one.py", HERE / "test_other.py"
    tests = [SimpleNamespace(path=one, name=n) for n in range(20)] + [SimpleNamespace(path=other, name="x")]
    shuffled, again = list(tests), list(tests)
    shuffle_files(cast(Any, shuffled))
    shuffle_files(cast(Any, again))
    assert shuffled == again != tests
    assert sorted(test.name for test in shuffled[:20]) == list(range(20))
    assert shuffled[20:] == tests[20:]


def test_a_file_that_has_no_room_in_any_part_is_spread() -> None:
    assert sorted(dearest_first(range(9), ["all"] * 9, {"all": 1.0}, 2)) == list(range(9))


@pytest.mark.parametrize("offset", [0, 1, 7, 2**28])
@pytest.mark.parametrize(("total", "test"), [(0, 5), (3, 5), (5, 5), (6, 5), (100, 7), (100, 1)])
def test_the_points_of_a_run_are_as_many_as_wanted_or_fewer(
    total: int, test: int, offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sizes, "PROVING", False)
    monkeypatch.setattr(sizes, "points_offset", lambda: offset)
    taken = sizes.points(total, test=test)
    assert len(taken) <= test
    assert len(taken) >= min(total, test) // 2
    assert set(taken) <= set(range(total))


def test_every_point_is_taken_by_some_commit_and_all_by_a_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "PROVING", False)
    taken: set[int] = set()
    for offset in range(15):
        monkeypatch.setattr(sizes, "points_offset", lambda offset=offset: offset)
        taken |= set(sizes.points(100, test=7))
    assert taken == set(range(100))
    monkeypatch.setattr(sizes, "PROVING", True)
    assert list(sizes.points(100, test=7)) == list(range(100))


@pytest.mark.slow("starts two runs of pytest")
def test_a_failed_sweep_prints_the_command_that_takes_the_same_points_again(tmp_path: Path) -> None:
    files = [tmp_path / "test_sweep.py", tmp_path / "test_others.py"]
    for file, text in zip(files, (SWEEP, OTHERS), strict=True):
        file.write_text(text)
    plugins = ["-p", "xdist", "-p", "tests.schedule"]  # others would take longer to load than both runs
    command = [sys.executable, "-m", "pytest", *plugins, "--rootdir", str(tmp_path), "-c", os.devnull]

    def run(points: str, *chosen: Path) -> str:
        environment = {
            "PATH": os.defpath,
            "PYTHONPATH": str(ROOT),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "WEFT_POINTS": points,
        }
        shown = subprocess.run([*command, *chosen], env=environment, check=False, capture_output=True, text=True)
        assert shown.returncode == 1, shown.stderr
        return shown.stdout

    shown = run("3", *files)
    assert "took 3 13 23 33 43 53 63 73 83 93" in shown
    commands = [line for line in shown.splitlines() if line.startswith("WEFT_POINTS=3 .venv/bin/python -m pytest ")]
    tests = [line.rpartition("::")[2].rstrip("'") for line in commands]
    assert tests == ["test_letters[d]", "test_letters[h]", "test_numbers"]  # what took no share says nothing
    assert "took 4 14" in run("4", files[1])


@dataclass(frozen=True)
class ParametrisedTest:
    """A collected test, as much of it as stores are chosen by. It is its own `callspec`."""

    path: Path
    nodeid: str
    params: dict[str, str]
    markers: list[str] = field(default_factory=list)

    @property
    def callspec(self) -> "ParametrisedTest":
        return self

    def add_marker(self, name: str) -> None:
        self.markers.append(name)


def parametrised_tests(file: str, parameter: str, values: Sequence[str]) -> list[ParametrisedTest]:
    return [
        ParametrisedTest(ROOT / "tests" / file, f"tests/{file}::test_{n}[{value}]", {parameter: value})
        for n in range(60)
        for value in values
    ]


THREE_STORES, TWO_STORES = ("disk", "memory", "postgres"), ("disk", "postgres")
CHOICES: dict[str, tuple[Callable[[list[pytest.Item]], None], list[ParametrisedTest]]] = {
    "ledger": (
        tests.ledger.conftest.pytest_collection_modifyitems,
        [
            *parametrised_tests("ledger/test_audit.py", "ledger", THREE_STORES),
            *parametrised_tests("ledger/test_commands.py", "ledger", THREE_STORES),
            *parametrised_tests("ledger/test_labels.py", "ledger", THREE_STORES),
        ],
    ),
    "programs": (
        tests.programs.conftest.pytest_collection_modifyitems,
        parametrised_tests("programs/test_working.py", "ledger", TWO_STORES),
    ),
    "runtime": (
        tests.runtime.conftest.pytest_collection_modifyitems,
        parametrised_tests("runtime/test_sending.py", "address", TWO_STORES),
    ),
}


@pytest.mark.parametrize("folder", CHOICES)
def test_every_test_runs_on_each_of_its_stores_in_make_test_or_in_make_prove(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose, items = CHOICES[folder]
    taken: dict[bool, set[str]] = {}
    for is_proof in (False, True):
        monkeypatch.setattr(sizes, "PROVING", is_proof)
        monkeypatch.setattr(conftest, "PROVING", is_proof)
        for item in items:
            item.markers.clear()
        choose(cast(Any, items))
        taken[is_proof] = {item.nodeid for item in items if ("prove" in item.markers) == is_proof}
    ids = {item.nodeid for item in items}
    assert ids - (taken[False] | taken[True]) == set()
    assert {id.partition("[")[0] for id in taken[False]} == {id.partition("[")[0] for id in ids}
    assert 0 < len(taken[False]) < len(ids)


def test_a_parameter_that_is_no_store_loses_no_value_for_having_the_name_of_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sizes, "PROVING", False)
    monkeypatch.setattr(conftest, "PROVING", False)
    items = parametrised_tests("runtime/test_connections.py", "address", ("fd00::1", "224.0.0.1", "tcp://127.0.0.1:x"))
    tests.runtime.conftest.pytest_collection_modifyitems(cast(Any, items))
    assert [item.nodeid for item in items if item.markers] == []
