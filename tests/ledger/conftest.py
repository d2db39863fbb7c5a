"""Every test that asks for `ledger` runs three times: on a file, in memory, and on PostgreSQL.

Where the stores differ is shown by their contract, so `make test` runs all tests on a file, and some of the modules on
the other two: a share of their tests at each commit. `make prove` runs all tests on all three.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import weft
from tests.conftest import NewPostgresLedger, leave_to_proof
from tests.sizes import share
from weft.kernel.clock import FixedClock
from weft.ledger.api.ledger import Ledger

NOON = 1_794_700_800_000  # 2026-11-15T00:00:00Z
OpenLedger = Callable[..., Ledger]


ON_ALL_STORES = {
    "trees",
    "full_threads",
    "verifying",
    "copies",
    "digests",
    "late_results",
    "listing",
    "reflog",
    "related_turns",
    "audit",
    "erasing",
    "merging",
    "unifying",
    "commands",
    "secrets",
    "versions",
    "rooms",
    "room_profiles",
    "room_search",
    "plain_turns",
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What runs in memory and on PostgreSQL in `make prove` alone."""
    for engine, size in (("memory", 20), ("postgres", 30)):
        there = [item for item in items if _engine(item) == engine and Path(__file__).parent in item.path.parents]
        shared = [item for item in there if item.path.stem.removeprefix("test_") in ON_ALL_STORES]
        leave_to_proof(there, share(shared, test=size))


def _engine(item: pytest.Item) -> object:
    return getattr(getattr(item, "callspec", None), "params", {}).get("ledger")


@pytest.fixture
def clock() -> FixedClock:
    return FixedClock(NOON)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def open_ledger(path: Path, clock: FixedClock, new_postgres_ledger: NewPostgresLedger) -> Iterator[OpenLedger]:
    """Opens the ledger at `path`, as often as asked; all of them are closed in the end."""
    opened: list[Ledger] = []

    def open_one(where: str | Path = path, **options: object) -> Ledger:
        made = weft.open(where, **{"clock": clock, **options})  # type: ignore[arg-type]
        opened.append(made)
        return made

    yield open_one
    for ledger in opened:
        ledger.close()


@pytest.fixture(params=["disk", "memory", "postgres"])
def ledger(
    request: pytest.FixtureRequest, new_postgres_ledger: NewPostgresLedger, open_ledger: OpenLedger, path: Path
) -> Ledger:
    if request.param == "postgres":
        return open_ledger(new_postgres_ledger())
    return open_ledger(path if request.param == "disk" else ":memory:")


@pytest.fixture
def disk(open_ledger: OpenLedger) -> Ledger:
    return open_ledger()
