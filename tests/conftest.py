"""Two sizes of every property: repeatable and quick by default, random and long under WEFT_PROVE=1."""

import os
import re
import shutil
import signal
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from tests.collector import count_no_memory, paused_collector
from tests.faults.results import Counted, table
from tests.memory_folders import MEMORY, has_memory, remove_leftovers
from tests.postgres import shared_server
from tests.scratch_databases import keep_scratch_databases
from tests.sizes import PROVING, SEED, points, share, sized

pytest_plugins = ["tests.leaks", "tests.schedule", "tests.turn_paths", "tests.worker_messages"]

TESTS = Path(__file__).parent

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A script lets what it starts in the background ignore interrupts, and every process that a test interrupts would
    # inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
count_no_memory()
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # tests run on every core already: more threads only wait
settings.register_profile(
    "test",
    max_examples=12,
    derandomize=True,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],  # a loaded machine is not a failing test
)
settings.register_profile("prove", parent=settings.get_profile("test"), derandomize=False, max_examples=5_000)
settings.load_profile("prove" if PROVING else "test")
if not PROVING:
    keep_scratch_databases()
    # Constants of the sources that happen to be loaded would go into the examples: those of one test would depend on
    # the tests before it, and reading all sources takes each process seconds.
    providers._get_local_constants = lambda: providers._local_constants


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected lives until the end: the garbage collector does not walk through it, then or later."""
    with paused_collector():
        return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever has a larger size grows under WEFT_PROVE, so `-m prove` takes it, marked or not: fault tests,
    properties, tests of modules that ask `tests.sizes` for a size, and those that a proof runs for both ways of a
    turn."""
    if PROVING:
        for item in items:
            is_property = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
            grows = is_property or "turn_path" in getattr(item, "fixturenames", ())
            if grows or "faults" in item.path.parts or _has_two_sizes(getattr(item, "module", None)):
                item.add_marker("prove")


def _has_two_sizes(module: object) -> bool:
    names = vars(module) if module is not None else {}
    return "PROVING" in names or any(function in names.values() for function in (sized, points, share))


STORES = ("disk", "postgres")
"""The names of stores among the values of a parameter; others with a parameter of that name run as they are."""


def one_store_each(items: list[pytest.Item], folder: Path, fixture: str) -> None:
    """Tests of a folder that run on several stores run on one of them in `make test`: a quarter of them on PostgreSQL,
    which takes several times as long as a file, and each of them by turns. In `make prove` they run on all. Where the
    stores differ is shown by their contract."""
    by_test: dict[str, list[pytest.Item]] = {}
    for item in items:
        stores = _params_of(item)
        if stores.get(fixture) in STORES and folder in item.path.parents:
            by_test.setdefault(item.nodeid.replace(str(stores[fixture]), "", 1), []).append(item)
    on_server = points(len(by_test), test=max(-(-len(by_test) // 4), 1))
    for number, variants in enumerate(by_test.values()):
        store = "postgres" if number in on_server else "disk"
        leave_to_proof(variants, [item for item in variants if _params_of(item)[fixture] == store] or variants)


def _params_of(item: pytest.Item) -> dict[str, object]:
    params: dict[str, object] = getattr(getattr(item, "callspec", None), "params", {})
    return params


def leave_to_proof(items: Iterable[pytest.Item], taken: Iterable[pytest.Item]) -> None:
    """`make test` runs those of the items that are taken, `make prove` runs all: there a share is everything, so what
    is not taken is not what a proof must run."""
    in_test = {id(item) for item in taken}
    for item in items:
        if PROVING or id(item) not in in_test:
            item.add_marker("prove")


FOLDER_PREFIX, ENOUGH_BYTES = "weft-tests-", 2 * 1024**3
IN_MEMORY = ("chat", "contract", "exchange", "graph", "ledger", "programs", "store", "surfaces", "upgrades")
FOLDER_NUMBERS = count()


@pytest.fixture(scope="session")
def memory_folder(request: pytest.FixtureRequest) -> Iterator[Path | None]:
    """Where the system offers enough memory; removed at the end, or by the next run if a test failed."""
    if not has_memory(ENOUGH_BYTES):
        yield None
        return
    remove_leftovers(FOLDER_PREFIX, MEMORY)
    folder = Path(tempfile.mkdtemp(prefix=f"{FOLDER_PREFIX}{os.getpid()}-", dir=MEMORY))
    yield folder
    if not request.session.testsfailed:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, memory_folder: Path | None) -> Path:
    """As pytest's, in memory where tests are no matter of the disk: a ledger syncs every commit, and memory has nothing
    to sync. A module with `ON_DISK = True` stays on the disk, for one: no sandbox takes a workspace below `/dev`. So do
    all at full size, where they would need more memory than there may be."""
    is_small = request.path.relative_to(TESTS).parts[0] in IN_MEMORY and not PROVING
    if memory_folder is None or not is_small or getattr(request.module, "ON_DISK", False):
        factory: pytest.TempPathFactory = request.getfixturevalue("tmp_path_factory")
        return factory.mktemp(_folder_name(request))
    folder = memory_folder / f"{_folder_name(request)}{next(FOLDER_NUMBERS)}"
    folder.mkdir(0o700)
    return folder


def _folder_name(request: pytest.FixtureRequest) -> str:
    return re.sub(r"\W", "_", request.node.name)[:30]


@pytest.fixture
def quick_path(tmp_path: Path, memory_folder: Path | None) -> Iterator[Path]:
    """In memory where the system offers enough of it, whatever the module, for thousands of ledgers that are made and
    thrown away."""
    with tempfile.TemporaryDirectory(dir=memory_folder or tmp_path) as folder:
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
