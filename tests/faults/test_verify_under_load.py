"""verify and rebuild of a large ledger while another process writes to it: both find the truth, the writer goes on."""

import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import weft
from tests.ledger.histories import change, problems
from tests.sizes import Record, sized
from weft.ledger.api.ledger import Ledger

ROOT = Path(__file__).parents[2]
TURNS = sized(test=160, prove=100_000)
WRITER = """
import select, sys, time, weft
from tests.turn_paths import watch

watch()
longest, count = 0.0, 0
with weft.open(sys.argv[1]) as ledger:
    print("ready", flush=True)
    while not count or not select.select([sys.stdin], [], [], 0.002)[0]:
        began = time.monotonic()
        ledger.record_turn(session="live", query=f"live {count}", response="yes")
        longest, count = max(longest, time.monotonic() - began), count + 1
print(count, longest, flush=True)
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "ledger.db"
    with weft.open(path) as ledger:
        workers = [threading.Thread(target=_record, args=(ledger, k)) for k in range(8)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        ledger.upkeep.catch_up()
    return path


def _record(ledger: Ledger, k: int) -> None:
    for i in range(TURNS // 8):
        ledger.record_turn(
            session=f"s{k}-{i // 500}",
            query=f"question {k} {i}",
            response=f"answer {i}: " + "lorem ipsum " * 10,
            tool_calls=[{"id": "c", "name": "read", "arguments": {"path": f"src/{i}.py"}, "result": f"text {i}"}],
        )


class Writer:
    """Another process that records turn after turn."""

    def __init__(self, path: Path) -> None:
        command = [sys.executable, "-c", WRITER, str(path)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"

    def end(self) -> tuple[int, float]:
        out, _ = self._process.communicate(b"enough\n")
        count, longest = out.split()
        return int(count), float(longest)


@pytest.mark.slow("another process writes all the while")
@pytest.mark.usefixtures("turn_path")
def test_verify_finds_nothing_while_another_process_writes(large: Path, record_property: Record) -> None:
    writer = Writer(large)
    with weft.open(large, read_only=True) as ledger:
        assert problems(ledger) == []
    count, longest = writer.end()
    assert count > 0
    _measured(record_property, count, longest)


@pytest.mark.slow("another process writes all the while")
@pytest.mark.usefixtures("turn_path")
def test_rebuild_mends_everything_while_another_process_writes(large: Path, record_property: Record) -> None:
    wrong = change(large, "UPDATE message SET role = 'damaged' WHERE turn % 10 = 0")
    assert wrong > 0
    writer = Writer(large)
    with weft.open(large) as ledger:
        assert ledger.upkeep.rebuild() == wrong
        count, longest = writer.end()
        assert problems(ledger) == []
        assert ledger.session("live").head is not None
    _measured(record_property, count, longest)


def _measured(record: Record, count: int, longest: float) -> None:
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    record("measured", f"{TURNS:,} turns, {count:,} written meanwhile, longest wait {longest:.2f} s, {memory} MB")
