"""Two sizes of every property: repeatable and quick by default, random and long under WEFT_PROVE=1."""

import gc
import os
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.collector import paused_collector
from tests.faults.results import Counted, table
from tests.faults.sizes import SEED
from tests.postgres import shared_server

pytest_plugins = ["tests.leaks", "tests.turn_paths"]

PROVING = os.environ.get("WEFT_PROVE", "") not in ("", "0")

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # tests run on every core already: more threads only wait
settings.register_profile(
    "test",
    max_examples=30,
    derandomize=True,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],  # a loaded machine is not a failing test
)
settings.register_profile("prove", parent=settings.get_profile("test"), derandomize=False, max_examples=5_000)
settings.load_profile("prove" if PROVING else "test")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected lives until the end: the garbage collector does not walk through it, then or later."""
    with paused_collector():
        result = yield
        gc.collect()
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A fault test and a property grow under WEFT_PROVE, so `-m prove` takes them all, marked or not."""
    if PROVING:
        for item in items:
            is_property = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
            if is_property or "faults" in item.path.parts:
                item.add_marker("prove")


MEMORY = Path("/dev/shm")
ENOUGH_BYTES = 1024**3


@pytest.fixture
def quick_path(tmp_path: Path) -> Iterator[Path]:
    """As tmp_path, for what is no matter of the disk, where thousands of ledgers may be made and thrown away; in memory
    where the system offers enough of it."""
    if not os.access(MEMORY, os.W_OK) or shutil.disk_usage(MEMORY).free < ENOUGH_BYTES:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=MEMORY, prefix="weft-tests-") as folder:
        yield Path(folder)


NewPostgresLedger = Callable[[], str]


@pytest.fixture
def new_postgres_ledger() -> Iterator[NewPostgresLedger]:
    """Gives addresses of new ledgers in PostgreSQL, which are dropped when the test has ended."""
    with ExitStack() as ledgers:
        yield lambda: ledgers.enter_context(shared_server().ledger())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What the fault tests counted, as the table that docs/proofs.md keeps."""
    if not PROVING:
        return
    terminalreporter.section(f"counted by the fault tests, seed {SEED}")
    counted = [
        Counted(report.nodeid.rpartition("::")[2], str(value), report.duration)
        for report in terminalreporter.getreports("passed")
        for name, value in report.user_properties
        if name == "measured"
    ]
    for line in table(counted):
        terminalreporter.write_line(line)
