"""One writer per session: others wait, get SessionBusy, or take over from a writer that is gone."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import weft
from tests.ledger.conftest import NOON, OpenLedger
from tests.ledger.histories import kinds, problems, texts
from weft.kernel.clock import FixedClock
from weft.kernel.errors import LeaseLost, SessionBusy
from weft.ledger.api.ledger import Ledger

BEGIN_AND_DIE = """
import os, sys, weft
writer = weft.open(sys.argv[1]).begin_turn(session="main")
writer.message("last words")
writer.tool_call("rm", {})
print(writer.id, flush=True)
os._exit(9)
"""


class HookedClock(FixedClock):
    """Something happens whenever somebody waits, and each wait takes 25 times as long as was asked for."""

    def __init__(self, now_ms: int) -> None:
        super().__init__(now_ms)
        self.hook: Callable[[], object] = lambda: None

    def sleep(self, seconds: float) -> None:
        super().sleep(25 * seconds)  # one lease's time in 60 waits, not in 1500
        self.hook()


@pytest.fixture
def clock() -> HookedClock:
    return HookedClock(NOON)


def test_a_session_in_use_is_busy_for_all_others(ledger: Ledger) -> None:
    ledger.record_turn(session="main", query="q")
    writer = ledger.begin_turn(session="main")
    with pytest.raises(SessionBusy, match=writer.id) as busy:
        ledger.begin_turn(session="main", wait=0)
    assert (busy.value.label, busy.value.turn) == ("main", writer.id)
    for verb in (
        lambda: ledger.record_turn(session="main", query="q", wait=0),
        lambda: ledger.compactions.record(session="main", summary="s", wait=0),
        lambda: ledger.move_head("main", new=None),
        lambda: ledger.heads.reset("main"),
        lambda: ledger.heads.restore("main", 0),
    ):
        with pytest.raises(SessionBusy):
            verb()
    writer.finish()
    assert ledger.record_turn(session="main", query="q", wait=0).parent_id == writer.id


def test_other_sessions_and_forks_are_free_meanwhile(ledger: Ledger) -> None:
    root = ledger.record_turn(session="main", query="q")
    writer = ledger.begin_turn(session="main")
    ledger.fork(root.id, label="alt")
    assert ledger.record_turn(session="alt", query="q", wait=0).parent_id == root.id
    assert ledger.record_turn(parent=root.id, query="q", wait=0).parent_id == root.id
    assert writer.finish().parent_id == root.id


def test_whoever_waits_goes_on_after_the_turn_that_was_in_the_way(ledger: Ledger, clock: HookedClock) -> None:
    writer = ledger.begin_turn(session="main")
    clock.hook = lambda: None if clock.now_ms() < NOON + 3000 else finish_once()

    def finish_once() -> None:
        clock.hook = lambda: None
        writer.finish()

    assert ledger.record_turn(session="main", query="next", wait=10).parent_id == writer.id


@pytest.mark.parametrize("sign_of_life", ["renew", "message"])
def test_a_writer_that_shows_life_keeps_its_session(ledger: Ledger, clock: HookedClock, sign_of_life: str) -> None:
    writer = ledger.begin_turn(session="main")
    beats: dict[str, Callable[[], object]] = {"renew": writer.renew, "message": lambda: writer.message("still here")}
    clock.hook = lambda: beats[sign_of_life]() if (clock.now_ms() - NOON) % 20_000 < 20 else None
    with pytest.raises(SessionBusy):
        ledger.record_turn(session="main", query="next", wait=100)
    assert ledger.turn(writer.finish().id).status == "completed"


def test_a_silent_writer_loses_its_session_after_one_ttl(ledger: Ledger, clock: HookedClock) -> None:
    writer = ledger.begin_turn(session="main")
    writer.message("q")
    writer.tool_call("slow", {})
    taken = ledger.begin_turn(session="main", wait=31)
    assert clock.now_ms() - NOON >= 30_000
    turn = ledger.turn(writer.id)
    assert (turn.status, turn.interruption_reason, turn.error_code) == ("failed", "crash", "lease_lost")
    assert [call.outcome for call in ledger.tool_calls(writer.id)] == ["interrupted"]
    assert texts(ledger.thread(writer.id).messages) == ["q"]
    assert taken.finish().parent_id is None
    assert problems(ledger) == []


def test_a_writer_that_lost_its_session_is_told_so(ledger: Ledger) -> None:
    writer = ledger.begin_turn(session="main")
    other = ledger.begin_turn(session="main", wait=60)
    for step in (
        lambda: writer.message("late"),
        writer.renew,
        writer.finish,
        lambda: writer.fail("x"),
        writer.interrupt,
    ):
        with pytest.raises(LeaseLost, match=writer.id):
            step()
    with pytest.raises(LeaseLost), writer:
        pass
    with pytest.raises(KeyError), writer:
        raise KeyError("what happened inside matters more")
    assert kinds(ledger, writer.id) == ["run_started", "interruption", "run_finished"]
    assert ledger.session("main").head is None
    other.finish()
    assert ledger.session("main").head == other.id


def test_a_writer_whose_session_was_taken_and_released_is_still_told_so(ledger: Ledger) -> None:
    writer = ledger.begin_turn(session="main")
    ledger.record_turn(session="main", query="q", wait=60)
    with pytest.raises(LeaseLost):
        writer.message("late")
    with pytest.raises(LeaseLost):
        writer.renew()


def test_the_patience_of_a_ledger_is_chosen_when_it_is_opened(open_ledger: OpenLedger, clock: HookedClock) -> None:
    patient, hasty = open_ledger(), open_ledger(lease_ttl=2.0)
    writer = patient.begin_turn(session="main")
    with pytest.raises(SessionBusy):
        patient.begin_turn(session="main", wait=25)
    hasty.begin_turn(session="main", wait=3).finish()
    assert patient.turn(writer.id).status == "failed"


def test_leases_are_seen_by_every_ledger_on_the_file(open_ledger: OpenLedger) -> None:
    ours, theirs = open_ledger(), open_ledger()
    writer = ours.begin_turn(session="main")
    with pytest.raises(SessionBusy):
        theirs.record_turn(session="main", query="q", wait=0)
    writer.finish()
    assert theirs.record_turn(session="main", query="q", wait=0).parent_id == writer.id


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system does not tell whether an owner lives")
def test_a_turn_whose_process_died_is_failed_when_the_ledger_is_opened(path: Path) -> None:
    died = subprocess.run([sys.executable, "-c", BEGIN_AND_DIE, str(path)], capture_output=True, text=True, check=False)
    turn = died.stdout.strip()
    with weft.open(path) as ledger:
        assert (ledger.turn(turn).status, ledger.turn(turn).interruption_reason) == ("failed", "crash")
        assert texts(ledger.messages(turn)) == ["last words"]
        assert [call.outcome for call in ledger.tool_calls(turn)] == ["interrupted"]
        assert ledger.record_turn(session="main", query="go on", wait=0).parent_id is None
        assert problems(ledger) == []
