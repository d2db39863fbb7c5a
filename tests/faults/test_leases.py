"""A writer that dies or falls silent in the middle of a turn: the turn is failed and kept, the session goes on."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import weft
from tests.faults.processes import KILLED, Process, Say, run
from weft.kernel.clock import FixedClock
from weft.kernel.errors import LeaseLost, SessionBusy
from weft.ledger.api.ledger import Ledger

NOW = 1_800_000_000_000


def begin(ledger: Ledger) -> str:
    """A turn with a call whose result is still to come; returns its id."""
    turn = ledger.begin_turn(session="main")
    turn.message("go")
    turn.request("m")
    turn.tool_call("read", {"path": "x"}, id="c1")
    return turn.id


def die_in_a_turn(say: Say, path: str) -> None:
    ledger = weft.open(path)
    ledger.record_turn(session="main", query="before", response="yes")
    say(begin(ledger))
    os.kill(os.getpid(), signal.SIGKILL)


def be_stopped_in_a_turn(say: Say, path: str) -> None:
    """Begins a turn, says so and stops; once it goes on, it takes the next step and says what became of it."""
    with weft.open(path) as ledger:
        turn = ledger.begin_turn(session="main")
        turn.message("slow")
        say(turn.id)
        os.kill(os.getpid(), signal.SIGSTOP)
        try:
            turn.response("too late")
            say("went on")
        except LeaseLost as error:
            say(error.turn)


def assert_failed(ledger: Ledger, turn: str) -> None:
    """Failed, addressable, and nobody's head."""
    found = ledger.turn(turn)
    assert (found.status, found.interruption_reason) == ("failed", "crash")
    assert [message.text for message in ledger.messages(turn)][:1] in (["go"], ["slow"])
    assert ledger.session("main").head != turn
    assert all(call.outcome == "interrupted" for call in ledger.tool_calls(turn))


def test_a_turn_whose_writer_was_killed_is_failed_at_the_next_open(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    code, (turn,) = run(die_in_a_turn, str(path))
    assert code == KILLED
    with weft.open(path) as ledger:
        assert_failed(ledger, turn)
        made = ledger.record_turn(session="main", query="at once", response="yes", wait=0)
        assert made.parent_id == ledger.turn(turn).parent_id
        assert list(ledger.verify()) == []


def test_a_reader_sees_the_open_turn_as_it_was_left(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    _, (turn,) = run(die_in_a_turn, str(path))
    with weft.open(path, read_only=True) as ledger:
        assert ledger.turn(turn).status == "streaming"
        assert list(ledger.verify(views=False)) == []


def test_a_ledger_that_was_open_all_along_takes_over_from_a_dead_writer(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with weft.open(path) as ledger:
        _, (turn,) = run(die_in_a_turn, str(path))
        made = ledger.record_turn(session="main", query="at once", response="yes", wait=0)
        assert_failed(ledger, turn)
        assert ledger.session("main").head == made.id
        assert list(ledger.verify()) == []


def test_a_stopped_writer_keeps_its_session_until_its_time_is_up_and_then_cannot_write(tmp_path: Path) -> None:
    path, clock = tmp_path / "ledger.db", FixedClock(NOW)
    writer = Process(be_stopped_in_a_turn, str(path))
    turn = writer.hear()
    with weft.open(path, clock=clock, lease_ttl=3) as ledger:
        with pytest.raises(SessionBusy):
            ledger.record_turn(session="main", query="too early", wait=2)
        made = ledger.record_turn(session="main", query="now", response="yes", wait=4)
        assert_failed(ledger, turn)
        before = ledger.events(turn)
        writer.go_on()
        assert writer.hear() == turn
        assert writer.end() == 0
        assert ledger.events(turn) == before
        assert ledger.session("main").head == made.id
        assert list(ledger.verify()) == []


def test_a_writer_that_renews_its_lease_is_waited_for(tmp_path: Path) -> None:
    path, clock = tmp_path / "ledger.db", FixedClock(NOW)
    with weft.open(path) as mine, weft.open(path, clock=clock, lease_ttl=3) as theirs:
        turn = mine.begin_turn(session="main")
        for _ in range(5):
            with pytest.raises(SessionBusy):
                theirs.record_turn(session="main", query="mine", wait=2)
            turn.renew()
        turn.response("here")
        made = turn.finish()
        assert theirs.record_turn(session="main", query="mine", wait=0).parent_id == made.id


def test_every_step_of_a_writer_without_its_lease_is_refused(tmp_path: Path) -> None:
    path, clock = tmp_path / "ledger.db", FixedClock(NOW)
    with weft.open(path) as mine, weft.open(path, clock=clock, lease_ttl=1) as theirs:
        turn = mine.begin_turn(session="main")
        call = turn.tool_call("read")
        theirs.record_turn(session="main", query="mine", wait=2)
        before = mine.events(turn.id)
        steps: list[Callable[[], object]] = [
            lambda: turn.message("x"),
            lambda: turn.request("m"),
            lambda: turn.response("x"),
            lambda: turn.tool_call("read"),
            lambda: turn.tool_result(call, "x"),
            turn.renew,
            turn.finish,
            lambda: turn.fail("x"),
            turn.interrupt,
        ]
        for step in steps:
            with pytest.raises(LeaseLost):
                step()
        assert mine.events(turn.id) == before
        assert list(mine.verify()) == []


def test_many_openers_find_a_dead_writer_s_turn_and_fail_it_once(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    _, (turn,) = run(die_in_a_turn, str(path))
    openers = [Process(open_and_append, str(path), k) for k in range(6)]
    assert sorted(opener.hear() for opener in openers) == list(range(6))
    assert [opener.end() for opener in openers] == [0] * 6
    with weft.open(path) as ledger:
        assert_failed(ledger, turn)
        assert [type(found.event).__name__ for found in ledger.events(turn)][-2:] == ["Interruption", "RunFinished"]
        assert ledger.thread("main").depth == 7
        assert list(ledger.verify()) == []


def open_and_append(say: Say, path: str, k: int) -> None:
    with weft.open(path) as ledger:
        ledger.record_turn(session="main", query=f"{k}")
    say(k)
