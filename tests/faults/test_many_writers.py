"""Sixteen processes append at once: nothing is lost, doubled or forked by accident, and nobody waits long."""

from pathlib import Path

import weft
from tests.faults.checks import assert_kept
from tests.faults.processes import Process, barrier
from tests.faults.scenarios import Ack
from tests.faults.sizes import PROVING, Record, sized
from tests.faults.writers import write_so_often
from weft.ledger.ledger import Ledger

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


def test_sixteen_writers_of_one_session_make_one_line(tmp_path: Path, record_property: Record) -> None:
    path = tmp_path / "ledger.db"
    acks, longest = write_all(path, ["shared"] * WRITERS)
    with weft.open(path) as ledger:
        found = queries(ledger, "shared")
        assert len(found) == len(set(found)) == WRITERS * TURNS == ledger.stats()["turns"]
        for k in range(WRITERS):
            assert [count for writer, count in found if writer == f"writer {k}"] == list(range(TURNS))
        assert all(len(ledger.children(ack.turn)) <= 1 for ack in acks)
        assert len(ledger.heads()) == 1
        assert_kept(ledger, acks)
        assert list(ledger.verify()) == []
    record_property("measured", f"{WRITERS} x {TURNS} turns, longest wait {longest:.3f} s")
    assert longest <= LONGEST_WAIT or not PROVING


def test_sixteen_writers_of_sixteen_sessions_make_sixteen_lines(tmp_path: Path, record_property: Record) -> None:
    path = tmp_path / "ledger.db"
    acks, longest = write_all(path, [f"session {k}" for k in range(WRITERS)])
    with weft.open(path) as ledger:
        for k in range(WRITERS):
            assert queries(ledger, f"session {k}") == [(f"writer {k}", count) for count in range(TURNS)]
        assert len(ledger.heads()) == len(ledger.sessions()) == WRITERS
        assert_kept(ledger, acks)
        assert list(ledger.verify()) == []
    record_property("measured", f"{WRITERS} x {TURNS} turns, longest wait {longest:.3f} s")
    assert longest <= LONGEST_WAIT or not PROVING
