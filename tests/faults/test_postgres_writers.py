"""Sixteen processes append to one PostgreSQL ledger: nothing is lost, doubled or forked by accident."""

import time

import pytest

import weft
from tests.faults.checks import assert_kept
from tests.faults.processes import Process, barrier
from tests.faults.scenarios import Ack
from tests.faults.writers import write_many
from tests.postgres import shared_server
from tests.sizes import Record, sized
from weft.ledger.api.ledger import Ledger

WRITERS = 16
TURNS = sized(test=5, prove=6_250)
LOOKED_AT = sized(test=1, prove=100)
"""Every so many-th receipt is held against the ledger."""


def write_all(address: str, labels: list[str]) -> tuple[list[list[Ack]], float, float]:
    """Everybody's acknowledgements, the turns a second of all, and the longest that anybody waited."""
    start = barrier(WRITERS + 1)
    writers = [Process(write_many, address, mine(labels, k), f"writer {k}", TURNS, start) for k in range(WRITERS)]
    start.wait()
    began = time.monotonic()
    said = [writer.hear() for writer in writers]
    took = time.monotonic() - began
    assert [writer.end() for writer in writers] == [0] * WRITERS
    return [acks for acks, _ in said], WRITERS * TURNS / took, max(longest for _, longest in said)


def mine(labels: list[str], writer: int) -> list[str]:
    """Everybody begins elsewhere, so that no two are in step."""
    at = writer * len(labels) // WRITERS
    return labels[at:] + labels[:at]


def asked(ledger: Ledger, session: str) -> list[tuple[str, int]]:
    texts = [message.text for message in ledger.thread(session).messages if message.role == "user"]
    return [(text.rpartition(" ")[0], int(text.rpartition(" ")[2])) for text in texts]


@pytest.mark.usefixtures("turn_path")
@pytest.mark.parametrize("sessions", sized(test=[16], prove=[16, 200]))
def test_sixteen_processes_append_to_postgresql_and_nothing_is_lost_doubled_or_forked(
    sessions: int, record_property: Record
) -> None:
    append_together(sessions, record_property)


def test_sixteen_processes_append_to_one_session_and_nothing_is_lost_doubled_or_forked(record_property: Record) -> None:
    """Whoever finds that the head has moved goes the general way: hardly a turn goes straight."""
    append_together(1, record_property)


def append_together(sessions: int, record_property: Record) -> None:
    address, labels = shared_server().address(), [f"session {k}" for k in range(sessions)]
    weft.open(address).close()
    acks, rate, longest = write_all(address, labels)
    with weft.open(address) as ledger:
        found = {session.label: asked(ledger, session.label) for session in ledger.sessions()}
        every = sorted(one for line in found.values() for one in line)
        assert every == sorted((f"writer {k}", count) for k in range(WRITERS) for count in range(TURNS))
        for line in found.values():
            for k in range(WRITERS):
                own = [count for writer, count in line if writer == f"writer {k}"]
                assert own == sorted(own)
        assert len(ledger.tree.heads()) == len(found) <= sessions
        digests = {turn.id: turn.digest for turn in ledger.log(limit=WRITERS * TURNS + 1)}
        assert digests == {ack.turn: ack.digest for mine in acks for ack in mine}
        assert_kept(ledger, [ack for mine in acks for ack in mine[::LOOKED_AT]])
        assert list(ledger.verify()) == []
    told = f"{WRITERS} x {TURNS:,} turns in {sessions} sessions, {rate:,.0f} turns/s, longest wait {longest:.3f} s"
    record_property("measured", told)
    print(told)
