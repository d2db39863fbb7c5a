"""Every test that asks for `ledger` runs on a file or on PostgreSQL; `programs` are those of a small world in it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import weft
from tests.conftest import NewPostgresLedger, one_store_each
from tests.ledger.histories import lines, problems
from tests.programs.stories import stocked
from weft.kernel.clock import FixedClock
from weft.ledger.api.ledger import Ledger
from weft.programs import Programs

NOON = 1_794_700_800_000
OpenLedger = Callable[..., Ledger]


@pytest.fixture
def clock() -> FixedClock:
    return FixedClock(NOON)


@pytest.fixture
def open_ledger(tmp_path: Path, clock: FixedClock, new_postgres_ledger: NewPostgresLedger) -> Iterator[OpenLedger]:
    opened: list[Ledger] = []

    def open_one(where: str | Path = tmp_path / "ledger.db") -> Ledger:
        opened.append(weft.open(where, clock=clock))
        return opened[-1]

    yield open_one
    for ledger in opened:
        ledger.close()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    one_store_each(items, Path(__file__).parent, "ledger")


@pytest.fixture(params=["disk", "postgres"])
def ledger(request: pytest.FixtureRequest, new_postgres_ledger: NewPostgresLedger, open_ledger: OpenLedger) -> Ledger:
    return open_ledger(new_postgres_ledger()) if request.param == "postgres" else open_ledger()


@pytest.fixture
def disk(open_ledger: OpenLedger) -> Ledger:
    return open_ledger()


@pytest.fixture
def programs(ledger: Ledger) -> Programs:
    return stocked(ledger)


@pytest.fixture
def world(disk: Ledger) -> Programs:
    """The same on a file alone, for what no database has a say in."""
    return stocked(disk)


@pytest.fixture(scope="module")
def unchanged_world() -> Iterator[Programs]:
    """One for all tests of a module that are refused everything that they try; verified in the end."""
    with weft.open(":memory:", clock=FixedClock(NOON)) as ledger:
        programs = stocked(ledger)
        before = lines(ledger)
        yield programs
        assert lines(ledger) == before
        assert problems(ledger) == []
