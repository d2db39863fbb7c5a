"""What several tests of the runtime need."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import NewPostgresLedger, one_store_each
from tests.sandbox import machine_sandbox
from weft.runtime.sandbox.bubblewrap import Sandbox


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    one_store_each(items, Path(__file__).parent, "address")


@pytest.fixture(params=["disk", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path, new_postgres_ledger: NewPostgresLedger) -> str | Path:
    return new_postgres_ledger() if request.param == "postgres" else tmp_path / "ledger.db"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture(scope="session")
def sandbox() -> Sandbox:
    return machine_sandbox()
