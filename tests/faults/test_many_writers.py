"""Sixteen processes append at once: nothing is lost, doubled or forked by accident, and nobody waits long."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.faults.checks import assert_kept, assert_sound, facts_of
from tests.faults.processes import KILLED, Process, Say, barrier
from tests.faults.scenarios import Ack, ack, make_ledger, whole_turn
from tests.faults.tripwires import WatchedVfs
from tests.faults.writers import write_so_often
from tests.sizes import PROVING, Record, sized
from weft.kernel.errors import HeadMoved
from weft.ledger.api.ledger import Ledger

WRITERS = 16
TURNS = sized(test=10, prove=250)
LONGEST_WAIT = 1.0  # seconds; asserted where the machine has nothing else to do


def write_all(path: Path, labels: list[str]) -> tuple[list[Ack], float]:
    """One writer per label, all at once; their acknowledgements, and the longest that any of them waited."""
    start = barrier(len(labels))
    writers = [Process(write_so_often, str(path), label, f"writer {k}", TURNS, start) for k, label in enumerate(labels)]
    said = [writer.hear() for writer in writers]
    assert [writer.end() for writer in writers] == [0] * len(labels)
    return [ack for acks, _ in said for ack in acks], max(longest for _, longest in said)


def queries(ledger: Ledger, session: str) -> list[tuple[str, int]]:
    """(writer, how many turns it had written before), for each turn of the session's thread."""
    asked = [message.text for message in ledger.thread(session).messages if message.role == "user"]
    return [(text.rpartition(" ")[0], int(text.rpartition(" ")[2])) for text in asked]


@pytest.mark.slow("starts sixteen processes, and verifies every receipt")
@pytest.mark.usefixtures("turn_path")
def test_sixteen_writers_of_one_session_make_one_line(tmp_path: Path, record_property: Record) -> None:
    path = tmp_path / "ledger.db"
    acks, longest = write_all(path, ["shared"] * WRITERS)
    with weft.open(path) as ledger:
        found = queries(ledger, "shared")
        assert len(found) == len(set(found)) == WRITERS * TURNS == ledger.upkeep.stats()["turns"]
        for k in range(WRITERS):
            assert [count for writer, count in found if writer == f"writer {k}"] == list(range(TURNS))
        assert all(len(ledger.tree.children(ack.turn)) <= 1 for ack in acks)
        assert len(ledger.tree.heads()) == 1
        assert_kept(ledger, acks)
        assert list(ledger.verify()) == []
    record_property("measured", f"{WRITERS} x {TURNS} turns, longest wait {longest:.3f} s")
    assert longest <= LONGEST_WAIT or not PROVING


@pytest.mark.slow("starts sixteen processes, and verifies every receipt")
@pytest.mark.usefixtures("turn_path")
def test_sixteen_writers_of_sixteen_sessions_make_sixteen_lines(tmp_path: Path, record_property: Record) -> None:
    path = tmp_path / "ledger.db"
    acks, longest = write_all(path, [f"session {k}" for k in range(WRITERS)])
    with weft.open(path) as ledger:
        for k in range(WRITERS):
            assert queries(ledger, f"session {k}") == [(f"writer {k}", count) for count in range(TURNS)]
        assert len(ledger.tree.heads()) == len(ledger.sessions()) == WRITERS
        assert_kept(ledger, acks)
        assert list(ledger.verify()) == []
    record_property("measured", f"{WRITERS} x {TURNS} turns, longest wait {longest:.3f} s")
    assert longest <= LONGEST_WAIT or not PROVING


def test_whoever_brings_the_lagging_views_up_to_date_does_not_chase_after_other_writers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An append that fills the lookups may not wait until everybody else has nothing more to say."""
    with weft.open(tmp_path / "ledger.db") as ledger, weft.open(tmp_path / "ledger.db") as other:
        ledger.record_turn(session="main", query="one")
        write, added = ledger._store.write, 0

        def write_and_be_overtaken(*arguments: Any, **named: Any) -> Any:
            nonlocal added
            result = write(*arguments, **named)
            if added < 32:
                other.record_turn(session="other", query=f"meanwhile {added}")
                added += 1
            return result

        monkeypatch.setattr(ledger._store, "write", write_and_be_overtaken)
        ledger.upkeep.catch_up()
        assert added == 6  # once for each of three views; totals are begun, counted, and told what came since
        assert len(list(ledger.search("meanwhile"))) == 6


def test_the_same_turn_sent_ten_times_for_one_place_is_recorded_once(tmp_path: Path) -> None:
    """Whoever names the head that a turn shall follow may send it again and again."""
    with make_ledger(tmp_path / "ledger.db") as ledger:
        before = ledger.session("main").head

        def send(text: str) -> str | None:
            try:
                return ledger.record_turn(session="main", query=text, expected=before).id
            except HeadMoved as moved:
                return None if moved.actual == ledger.session("main").head else "somewhere else"

        with ThreadPoolExecutor(10) as pool:
            sent = list(pool.map(send, ["the same"] * 10))
        made = [turn for turn in sent if turn is not None]
        assert made == [ledger.session("main").head]
        assert [send("the same"), send("something else")] == [None, None]
        assert ledger.upkeep.stats()["turns"] == 3
        assert list(ledger.verify()) == []


def test_the_same_facts_sent_ten_times_at_once_are_there_once(tmp_path: Path) -> None:
    with make_ledger(tmp_path / "origin.db") as origin:
        sent, head = b"\n".join(facts_of(origin)), origin.session("main").head
    with weft.open(tmp_path / "ledger.db") as ledger:
        with ThreadPoolExecutor(10) as pool:
            list(pool.map(lambda _: ledger.upkeep.import_facts(BytesIO(sent)), range(10)))
        assert sorted(facts_of(ledger)) == sorted(sent.splitlines())
        assert [turn.id for turn in ledger.tree.heads()] == [head]
        assert list(ledger.verify()) == []


def stop_inside_a_commit(say: Say, path: str) -> None:
    """Stops for good where its commit should reach the disk: it holds the writers' lock."""
    vfs = WatchedVfs(
        "stopping", lambda operation, file, half: _stop(say) if operation == "sync" else None, default=True
    )
    with weft.open(path) as ledger:
        list(whole_turn(ledger, 1))
    vfs.unregister()


def _stop(say: Say) -> None:
    say("inside")
    os.kill(os.getpid(), signal.SIGSTOP)


def test_a_writer_killed_while_it_holds_the_lock_keeps_others_waiting_no_longer(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with make_ledger(path) as ledger:
        stuck = Process(stop_inside_a_commit, str(path))
        assert stuck.hear() == "inside"
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(ledger.record_turn, session="main", query="waiting")
            assert [ledger.thread("main").depth for _ in range(20)] == [2] * 20
            assert not waiting.done()
            stuck.kill()
            made = waiting.result()
        assert stuck.end() == KILLED
        assert ledger.thread("main").depth == 3
    assert_sound(path, [ack(made)])
