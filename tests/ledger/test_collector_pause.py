"""Python's collector of cycles rests while somebody holds the pause, and is then as it was before."""

import gc
from collections.abc import Iterator

import pytest

from weft.ledger.api.ledger import Ledger
from weft.ledger.read.context_columns import CollectorPause, TurnRows


@pytest.fixture(autouse=True)
def collector_as_before() -> Iterator[None]:
    yield
    gc.enable()


def test_it_rests_until_the_last_holder_lets_go() -> None:
    pause = CollectorPause()
    with pause:
        with pause:
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_one_that_was_off_stays_off() -> None:
    gc.disable()
    with CollectorPause():
        pass
    assert not gc.isenabled()


def test_it_goes_on_after_an_accident() -> None:
    with pytest.raises(ValueError, match="an accident"), CollectorPause():
        raise ValueError("an accident")
    assert gc.isenabled()


def test_it_rests_while_a_context_is_read(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.record_turn(session="main", query="q", response="a")
    states: list[bool] = []
    read_block = TurnRows.read_block

    def watched(rows: TurnRows, high: int) -> object:
        states.append(gc.isenabled())
        return read_block(rows, high)

    monkeypatch.setattr(TurnRows, "read_block", watched)
    ledger.context(session="main")
    assert states == [False]
    assert gc.isenabled()
