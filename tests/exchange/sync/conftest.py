"""Ledgers on both engines, opened by the tests that sync them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import weft
from tests.conftest import NewPostgresLedger
from weft.kernel.clock import FixedClock
from weft.ledger.api.ledger import Ledger

NOON = 1_794_700_800_000
Make = Callable[..., Ledger]


@pytest.fixture
def clock() -> FixedClock:
    return FixedClock(NOON)


@pytest.fixture
def make(tmp_path: Path, clock: FixedClock, new_postgres_ledger: NewPostgresLedger) -> Iterator[Make]:
    """A ledger of a name: a file, or a schema of a PostgreSQL database. All are closed in the end."""
    opened: list[Ledger] = []

    def open_one(name: str, engine: str = "sqlite") -> Ledger:
        where = tmp_path / f"{name}.db" if engine == "sqlite" else new_postgres_ledger()
        opened.append(weft.open(where, clock=clock))
        return opened[-1]

    yield open_one
    for ledger in opened:
        ledger.close()


@pytest.fixture
def here(make: Make) -> Ledger:
    return make("here")


@pytest.fixture
def there(make: Make) -> Ledger:
    return make("there")
