"""A ledger in memory under a clock that stands still, verified in the end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import weft
from weft.kernel.clock import FixedClock
from weft.ledger.api import Ledger
from weft.runtime.broker import broker


@pytest.fixture
def clock() -> FixedClock:
    return FixedClock(1_700_000_000_000)


@pytest.fixture
def unattended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers that answer one message do nothing because time passed: on a slow machine such calls would count, too."""
    for name in ("ATTEND_SECONDS", "RENEW_SECONDS"):
        monkeypatch.setattr(broker, name, 1_000_000.0)


@pytest.fixture
def ledger(clock: FixedClock) -> Iterator[Ledger]:
    with weft.open(":memory:", clock=clock, lease_ttl=1) as ledger:
        yield ledger
        assert list(ledger.verify()) == []
