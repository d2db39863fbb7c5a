"""Every test that asks for `ledger` runs twice: on a file and in memory."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import weft
from weft.kernel.ambient import FixedClock
from weft.ledger.ledger import Ledger

NOON = 1_794_700_800_000  # 2026-11-15T00:00:00Z
OpenLedger = Callable[..., Ledger]


@pytest.fixture
def clock() -> FixedClock:
    return FixedClock(NOON)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def open_ledger(path: Path, clock: FixedClock) -> Iterator[OpenLedger]:
    """Opens the ledger at `path`, as often as asked; all of them are closed in the end."""
    opened: list[Ledger] = []

    def open_one(where: str | Path = path, **options: object) -> Ledger:
        made = weft.open(where, **{"clock": clock, **options})  # type: ignore[arg-type]
        opened.append(made)
        return made

    yield open_one
    for ledger in opened:
        ledger.close()


@pytest.fixture(params=["disk", "memory"])
def ledger(request: pytest.FixtureRequest, open_ledger: OpenLedger, path: Path) -> Ledger:
    return open_ledger(path if request.param == "disk" else ":memory:")


@pytest.fixture
def disk(open_ledger: OpenLedger) -> Ledger:
    return open_ledger()
