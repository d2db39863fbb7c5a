"""What several tests of the runtime need."""

from __future__ import annotations

import asyncio

import pytest

from weft.kernel.errors import Unsupported
from weft.runtime.sandbox import Sandbox, find_sandbox


@pytest.fixture(scope="session")
def sandbox() -> Sandbox:
    try:
        return asyncio.run(find_sandbox())
    except Unsupported as error:
        pytest.skip(str(error))
