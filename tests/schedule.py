"""In which order tests run, what each of them costs, and how a failed sweep is repeated. A plugin.

Each worker is given an equal part of all tests, and takes tests of others once its own are done. So the dearest files
stand at the beginning of each part (`durations.json` knows them), and thousands of quick tests at the end, where they
fill what time is left. Files that load the same heavy thing follow each other in one part. In `make prove` the tests
of each file run in an order of chance.

`WEFT_COSTS` names a folder: each process that runs tests writes there what each test took. `scripts/measure_suite`
reads it, and writes `durations.json`.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import TextIO, TypeVar

import pytest

from tests.sizes import OFFSET_VARIABLE, PROVING, chance, points_offset, takes_share
from weft.exchange.importing.reading_ahead import usable_cores

HERE = Path(__file__).parent
DURATIONS = HERE / "durations.json"
COSTS_VARIABLE = "WEFT_COSTS"
T = TypeVar("T")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow(why): takes more than a second of CPU, and why it has to")
    config.addinivalue_line("markers", "load(name): loads something heavy; files of one name run in one worker")
    os.environ.setdefault(OFFSET_VARIABLE, str(points_offset()))  # workers take the points of the one that starts them
    if folder := os.environ.get(COSTS_VARIABLE):
        name = os.environ.get("PYTEST_XDIST_WORKER", "alone")
        config.pluginmanager.register(Costs((Path(folder) / f"{name}.jsonl").open("a")), "costs")


def pytest_xdist_auto_num_workers() -> int:
    return max(round(usable_cores()), 1)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if PROVING:
        shuffle_files(items)
    if workers > 1:
        seconds: dict[str, float] = json.loads(DURATIONS.read_text())
        items[:] = dearest_first(items, [_unit_of(item) for item in items], seconds, workers)


def shuffle_files(items: list[pytest.Item]) -> None:
    """The tests of each file in an order of chance, which `WEFT_SEED` repeats: no test needs one before it."""
    of_file: dict[Path, list[pytest.Item]] = {}
    for item in items:
        of_file.setdefault(item.path, []).append(item)
    for file, tests in of_file.items():
        chance("order", file.relative_to(HERE)).shuffle(tests)
    items[:] = [item for tests in of_file.values() for item in tests]


def _unit_of(item: pytest.Item) -> str:
    """Tests of one unit follow each other: those of a load, or of a file, whose fixtures they share."""
    load = item.get_closest_marker("load")
    return item.path.relative_to(HERE).as_posix() if load is None else str(load.args[0])


def dearest_first(tests: Sequence[T], units: Sequence[str], seconds: Mapping[str, float], workers: int) -> list[T]:
    """The tests in as many equally long parts as there are workers. Each part begins with its dearest units."""
    of_unit: dict[str, list[T]] = {}
    for test, unit in zip(tests, units, strict=True):
        of_unit.setdefault(unit, []).append(test)
    room = [len(tests) * (k + 1) // workers - len(tests) * k // workers for k in range(workers)]
    parts: list[list[T]] = [[] for _ in range(workers)]
    taken = [0.0] * workers
    quick: list[T] = []
    for unit in sorted(of_unit, key=lambda name: -seconds.get(name, 0)):
        group = of_unit[unit]
        free = [k for k in range(workers) if len(parts[k]) + len(group) <= room[k]]
        if unit in seconds and free:
            lightest = min(free, key=lambda k: taken[k])
            parts[lightest] += group
            taken[lightest] += seconds[unit]
        else:
            quick += group
    for part, size in zip(parts, room, strict=True):
        missing = size - len(part)
        part += quick[:missing]
        del quick[:missing]
    return [test for part in parts for test in part]


class Costs:
    """Writes what every phase of every test took: CPU time, that of ended processes that it started among it."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        cpu, clock = _cpu_seconds(), time.perf_counter()
        result = yield
        took = {"cpu": round(_cpu_seconds() - cpu, 4), "wall": round(time.perf_counter() - clock, 4)}
        row = {"test": item.nodeid, "unit": _unit_of(item), "why": _why_slow(item), **took}
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()
        return result


def _why_slow(item: pytest.Item) -> str | None:
    slow = item.get_closest_marker("slow")
    return None if slow is None else str(slow.args[0])


def _cpu_seconds() -> float:
    times = os.times()
    forking = sys.modules.get("tests.surfaces.forking")
    forked = sum(forking.forked_seconds) if forking is not None else 0
    return times.user + times.system + times.children_user + times.children_system + forked


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and takes_share(item.nodeid, item.path):
        report.sections.append(("the points of this run again", repeating(item.nodeid)))
    return report


def repeating(test_id: str) -> str:
    """The command that runs a test with the points that it had here."""
    return f"{OFFSET_VARIABLE}={points_offset()} .venv/bin/python -m pytest {shlex.quote(test_id)}"
