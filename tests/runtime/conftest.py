"""What several tests of the runtime need."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.postgres import shared_server
from tests.sandbox import machine_sandbox
from weft.runtime.sandbox.bubblewrap import Sandbox


@pytest.fixture(params=["disk", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str | Path:
    return shared_server().address() if request.param == "postgres" else tmp_path / "ledger.db"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture(scope="session")
def sandbox() -> Sandbox:
    return machine_sandbox()
