"""Every test that asks for `ledger` runs twice: on a file and in memory."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import weft
from tests.conftest import PROVING
from weft.kernel.ambient import FixedClock
from weft.ledger.ledger import Ledger

NOON = 1_794_700_800_000  # 2026-11-15T00:00:00Z
OpenLedger = Callable[..., Ledger]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A property grows under WEFT_PROVE, so `-m prove` takes them all."""
    for item in items:
        if PROVING and "ledger" in item.path.parts and getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker("prove")


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
