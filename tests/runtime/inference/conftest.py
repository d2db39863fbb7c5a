"""The embedded model, loaded once for all tests."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest

from weft.runtime.inference.local_models import LocalModel


@pytest.fixture(scope="session")
def local() -> Iterator[LocalModel]:
    running = asyncio.run(LocalModel.start(os.urandom))
    yield running
    asyncio.run(running.stop())
