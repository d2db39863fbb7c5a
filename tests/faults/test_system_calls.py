"""Each system call that writes, syncs, cuts or deletes in an append and in closing kills the process, fails or lags."""

import fcntl
import threading
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import pytest

import weft
from tests.faults import system_calls
from tests.faults.checks import Kinds, assert_sound, copy_ledger, end_of, kinds_after
from tests.faults.processes import KILLED, Process, Say
from tests.faults.scenarios import SCENARIOS, Ack, ack, make_ledger
from tests.faults.system_calls import CALLS, counted, run_traced, stop_before, traced, wait_until_stopped
from tests.sizes import Record, share, sized
from weft.kernel.errors import StoreFailed
from weft.ledger.api.ledger import Ledger

MISSING = system_calls.missing()
pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

SWEPT = ("Interruption", "RunFinished")  # how a turn that was left open is closed
FAULTS = {"kill": "signal=KILL", "EIO": "error=EIO", "ENOSPC": "error=ENOSPC", "delay": "delay_enter=20000"}
NAMES = sized(test=["whole_turn"], prove=sorted(SCENARIOS))
LARGE_APART = 10
"""Every so many calls of a long message are points of the sweep."""
SLOW_SECONDS = sized(test=3, prove=5)
REFUSED = "refused"


def act_in_spite(say: Say, stop: Callable[[], None], path: str, name: str) -> None:
    """The scenario, then one more turn, whatever the disk says once; then close."""
    ledger = weft.open(path)
    stop()
    try:
        for made in SCENARIOS[name](ledger, 7):
            say(made)
    except StoreFailed:
        say(REFUSED)
    try:
        made = afterwards(ledger)
    except StoreFailed:
        made = afterwards(ledger)
    say(made)
    ledger.close()


def afterwards(ledger: Ledger) -> Ack:
    return ack(ledger.record_turn(session="after", query="once more"))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("base") / "ledger.db"
    make_ledger(path).close()
    return path


def appends_of(path: Path, name: str) -> tuple[int, list[Kinds]]:
    """Where the ledger ends, and the events of each append when nothing goes wrong; the last one is the turn after."""
    with weft.open(path) as ledger:
        begin = end = end_of(ledger)
        appends = []
        for _ in chain(SCENARIOS[name](ledger, 7), map(afterwards, [ledger])):
            appends.append(kinds_after(ledger, end))
            end = end_of(ledger)
    return begin, appends


def possible(appends: list[Kinds], said: list[object], killed: bool) -> set[Kinds]:
    """What may be in the ledger, given what was said: all that was acknowledged, and only whole appends."""
    refused = REFUSED in said
    done = [*appends[: said.index(REFUSED)], appends[-1]] if refused else appends
    told = len(said) - refused
    ways = [sum(done[:k], ()) for k in ((told, told + 1) if killed else (told,))]
    return {kinds + swept for kinds in ways for swept in ((), SWEPT)}


@pytest.mark.usefixtures("turn_path")
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", NAMES)
def test_a_fault_at_any_system_call_leaves_whole_appends_and_all_that_was_acknowledged(
    quick_path: Path, base: Path, name: str, fault: str, record_property: Record
) -> None:
    path, out, refusals, times = quick_path / "ledger.db", quick_path / "calls", 0, 0
    end, appends = appends_of(copy_ledger(base, path), name)
    run_traced(out, ("-e", f"trace={','.join(CALLS)}"), act_in_spite, str(copy_ledger(base, path)), name)
    apart = LARGE_APART if name == "large_content" else 1
    calls = [(call, k) for call, found in sorted(counted(out).items()) for k in range(1, found + 1)][::apart]
    taken = sorted({calls[0], *share(calls, test=3)})  # the first one is the sync of an append, which is refused
    for call, k in taken:
        inject = ("-e", f"trace={call}", "-e", f"inject={call}:{FAULTS[fault]}:when={k}")
        code, said = run_traced(out, inject, act_in_spite, str(copy_ledger(base, path)), name)
        times += "INJECTED" in out.read_text() or "DELAYED" in out.read_text() or code == KILLED
        assert code == (KILLED if fault == "kill" else 0), (call, k)
        with weft.open(path) as ledger:
            assert kinds_after(ledger, end) in possible(appends, said, fault == "kill"), (call, k, said)
            assert not any(turn.status in ("pending", "streaming") for turn in ledger.log())
        assert_sound(path, [ack for ack in said if isinstance(ack, Ack)])
        refusals += REFUSED in said
    assert times == len(taken)
    assert bool(refusals) == (fault in ("EIO", "ENOSPC"))
    record_property("measured", f"{len(taken)} calls, {refusals} appends refused")


def record_slowly(say: Say, stop: Callable[[], None], path: str) -> None:
    with weft.open(path) as ledger:
        stop()
        say(ack(ledger.record_turn(session="slow", query="this takes its time")))


def is_locked(path: Path) -> bool:
    """Is somebody writing?"""
    with Path(f"{path}-lock").open("r+b") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def test_while_a_sync_takes_its_time_readers_go_on_writers_wait_and_no_lease_is_lost(tmp_path: Path) -> None:
    path, waited = tmp_path / "ledger.db", list[Ack]()
    make_ledger(path).close()
    with weft.open(path) as ledger:
        held = ledger.begin_turn(session="held")
        slow = Process(stop_before, record_slowly, str(path))
        wait_until_stopped(pid := slow.hear())
        delay = f"inject=fdatasync:delay_exit={SLOW_SECONDS * 1_000_000}:when=1"
        with traced(pid, tmp_path / "calls", "-e", "trace=fdatasync", "-e", delay):
            slow.go_on()
            while not is_locked(path):
                time.sleep(0.001)
            writer = threading.Thread(
                target=lambda: waited.append(ack(ledger.record_turn(session="other", query="waiting", wait=60)))
            )
            writer.start()
            read = [ledger.thread("main").depth for _ in range(20)]
            assert is_locked(path), "the sync was over too soon to show anything"
            assert waited == []
            first = slow.hear()
            assert slow.end() == 0
        writer.join()
        held.response("still mine")
        finished = ack(held.finish())
        assert read == [2] * 20
        assert first.receipt.n < waited[0].receipt.n < finished.receipt.n
    assert_sound(path, [first, *waited, finished])
