"""Every test that asks for `ledger` runs on a file and on PostgreSQL."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import weft
from tests.conftest import NewPostgresLedger
from weft.ledger.api.ledger import Ledger


@pytest.fixture(params=["disk", "postgres"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path, new_postgres_ledger: NewPostgresLedger) -> Iterator[Ledger]:
    where = new_postgres_ledger() if request.param == "postgres" else tmp_path / "ledger.db"
    with weft.open(where) as opened:
        yield opened


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Ledger]:
    with weft.open(tmp_path / "disk.db") as opened:
        yield opened


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Ledger]:
    """An empty ledger of somebody else."""
    with weft.open(tmp_path / "other.db") as opened:
        yield opened


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "thread.weft"
