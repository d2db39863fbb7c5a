"""A ledger in memory under a clock that stands still, verified in the end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import weft
from weft.kernel.clock import FixedClock
from weft.ledger.api import Ledger


@pytest.fixture
def clock() -> FixedClock:
    return FixedClock(1_700_000_000_000)


@pytest.fixture
def ledger(clock: FixedClock) -> Iterator[Ledger]:
    with weft.open(":memory:", clock=clock, lease_ttl=1) as ledger:
        yield ledger
        assert list(ledger.verify()) == []
