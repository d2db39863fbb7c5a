"""What several tests of the runtime need."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.postgres import shared_server
from weft.kernel.errors import Unsupported
from weft.runtime.sandbox.bubblewrap import Sandbox, find_sandbox


@pytest.fixture(params=["disk", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str | Path:
    return shared_server().address() if request.param == "postgres" else tmp_path / "ledger.db"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture(scope="session")
def sandbox() -> Sandbox:
    try:
        return asyncio.run(find_sandbox())
    except Unsupported as error:
        pytest.skip(str(error))
