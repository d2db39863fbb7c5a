"""Clocks that jump and randomness that repeats: order, leases and ids are unharmed."""

from itertools import pairwise
from pathlib import Path

import pytest

import weft
from tests.faults.processes import Process, Say
from weft.kernel.clock import FixedClock, ms_from_iso, system_random
from weft.kernel.errors import InvalidInput, SessionBusy
from weft.ledger.api.ledger import Ledger

NOW = 1_800_000_000_000
ID_BYTES = 10
YEAR = 365 * 24 * 3600 * 1000
JUMPS = (0, -YEAR, 2 * YEAR, -10 * 24 * 3600 * 1000, 0, -1, YEAR, -YEAR)


def queries(ledger: Ledger, name: str) -> list[str]:
    return [message.text for message in ledger.thread(name).messages if message.role == "user"]


def test_a_clock_that_jumps_changes_neither_order_nor_parents(tmp_path: Path) -> None:
    clock = FixedClock(NOW)
    with weft.open(tmp_path / "ledger.db", clock=clock) as ledger:
        made = []
        for k, jump in enumerate(JUMPS):
            clock.set(NOW + jump)
            made.append(ledger.record_turn(session="main", query=f"{k}", response="yes"))
        assert queries(ledger, "main") == [f"{k}" for k in range(len(JUMPS))]
        assert [turn.id for turn in ledger.log()] == [turn.id for turn in reversed(made)]
        assert all(earlier.id < later.id for earlier, later in pairwise(made))
        assert [turn.started_at - NOW for turn in ledger.thread("main").turns] == list(JUMPS)
        assert [move.turn_id for move in ledger.reflog("main")] == [turn.id for turn in reversed(made)]
        assert list(ledger.verify()) == []


def test_each_event_says_what_the_clock_said(tmp_path: Path) -> None:
    clock = FixedClock(NOW)
    with weft.open(tmp_path / "ledger.db", clock=clock) as ledger:
        for jump in JUMPS:
            clock.set(NOW + jump)
            made = ledger.record_turn(query="x")
            times = {found.event.ts for found in ledger.events(made.id)}
            assert {ms_from_iso(str(time)) for time in times} == {NOW + jump}


def test_a_ledger_opened_again_with_an_earlier_clock_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    for k, jump in enumerate(JUMPS):
        with weft.open(path, clock=FixedClock(NOW + jump)) as ledger:
            ledger.record_turn(session="main", query=f"{k}", response="yes")
    with weft.open(path) as ledger:
        assert queries(ledger, "main") == [f"{k}" for k in range(len(JUMPS))]
        assert list(ledger.verify()) == []


def test_the_head_at_a_time_never_goes_back_with_the_clock(tmp_path: Path) -> None:
    clock = FixedClock(NOW)
    with weft.open(tmp_path / "ledger.db", clock=clock) as ledger:
        first = ledger.record_turn(session="main", query="first")
        clock.set(NOW - YEAR)
        second = ledger.record_turn(session="main", query="second")
        assert ledger.heads.at("main", NOW - 1) is None
        assert ledger.heads.at("main", NOW) == second.id
        clock.set(NOW + YEAR)
        ledger.record_turn(session="main", query="third")
        assert ledger.heads.at("main", NOW + 1) == second.id
        assert first.id != second.id


def test_a_jump_of_the_wall_clock_ends_no_lease(tmp_path: Path) -> None:
    path, clock = tmp_path / "ledger.db", FixedClock(NOW)
    with weft.open(path, clock=clock) as mine, weft.open(path, clock=clock) as theirs:
        turn = mine.begin_turn(session="main")
        for jump in JUMPS:
            clock.set(NOW + jump)
            with pytest.raises(SessionBusy):
                theirs.record_turn(session="main", query="mine", wait=0)
        turn.response("still here")
        assert turn.finish().session == "main"


@pytest.mark.parametrize("moment", [-(10**14), 253_402_300_800_000, 2**60])
def test_a_clock_outside_all_calendars_is_refused(tmp_path: Path, moment: int) -> None:
    clock = FixedClock(NOW)
    with weft.open(tmp_path / "ledger.db", clock=clock) as ledger:
        clock.set(moment)
        with pytest.raises(InvalidInput):
            ledger.record_turn(session="main", query="when?")
        clock.set(NOW)
        ledger.record_turn(session="main", query="now")
        assert list(ledger.verify()) == []


def the_same_ids(size: int) -> bytes:
    """The random part of an id is always the same; salts are random."""
    return bytes(size) if size == ID_BYTES else system_random(size)


def write_the_same_ids(say: Say, path: str, name: str, times: int) -> None:
    """As any other writer, on a machine whose clock stands still and whose randomness repeats itself."""
    with weft.open(path, clock=FixedClock(NOW), random_bytes=the_same_ids) as ledger:
        made = [ledger.record_turn(session=name, query=f"{name} {k}", response="yes").id for k in range(times)]
        made += [ledger.record_turn(session="shared", query=f"{name} shared {k}").id for k in range(times)]
    say(made)


@pytest.mark.usefixtures("turn_path")
def test_ids_that_collide_between_processes_are_minted_anew(tmp_path: Path) -> None:
    path, times = tmp_path / "ledger.db", 20
    writers = [Process(write_the_same_ids, str(path), f"writer {k}", times) for k in range(4)]
    made = [turn for writer in writers for turn in writer.hear()]
    assert [writer.end() for writer in writers] == [0] * 4
    with weft.open(path) as ledger:
        assert len(set(made)) == len(made) == ledger.upkeep.stats()["turns"] == 8 * times
        for k in range(4):
            assert queries(ledger, f"writer {k}") == [f"writer {k} {i}" for i in range(times)]
        assert len(set(queries(ledger, "shared"))) == 4 * times
        assert len({session.id for session in ledger.sessions()}) == 5
        assert list(ledger.verify()) == []
