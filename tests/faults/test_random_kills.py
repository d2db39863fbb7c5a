"""Four writers, killed together at random moments, again and again: what was acknowledged stays."""

import random
import time
from collections import Counter
from multiprocessing.connection import wait
from pathlib import Path

import pytest

import weft
from tests.faults.checks import assert_kept
from tests.faults.processes import KILLED, Process
from tests.faults.scenarios import Ack
from tests.faults.sizes import SEED, Record, chance, sized
from tests.faults.writers import FORK, write_for_ever
from weft.ledger.ledger import Ledger

RUNS = sized(test=1, prove=4)
CYCLES = sized(test=5, prove=50)
WRITERS = 4
VIEWS_EVERY = 5


def write_and_be_killed(path: Path, dice: random.Random) -> list[Ack]:
    """Start the writers, kill them all after some acknowledgements, and return everything they were told."""
    writers = [Process(write_for_ever, str(path), f"writer {k}", str(dice.random())) for k in range(WRITERS)]
    enough, acks = dice.randint(1, 80), list[Ack]()
    while len(acks) < enough:
        ready = wait([writer.heard for writer in writers])
        acks += [writer.hear() for writer in writers if writer.heard in ready]
    time.sleep(dice.uniform(0, 0.004))  # the random moment itself; nothing waits for it
    for writer in writers:
        writer.kill()
    for writer in writers:
        acks += writer.hear_all()
        assert writer.end() == KILLED
    return acks


def assert_no_accidental_fork(ledger: Ledger) -> None:
    """Two completed children of one turn only where a session was forked there."""
    labels = {session.id: session.label for session in ledger.sessions(every=True)}
    turns = [turn for turn in ledger.log() if turn.status == "completed" and turn.parent_id]
    plain = [turn.parent_id for turn in turns if not labels[turn.session_id or ""].startswith(FORK)]
    assert [parent for parent, children in Counter(plain).items() if children > 1] == []
    assert not any(turn.status in ("pending", "streaming") for turn in ledger.log())


@pytest.mark.parametrize("run", range(RUNS))
def test_nothing_acknowledged_is_lost_when_all_writers_are_killed(
    tmp_path: Path, run: int, record_property: Record
) -> None:
    path, dice = tmp_path / "ledger.db", chance("kills", run)
    acks: list[Ack] = []
    for cycle in range(CYCLES):
        fresh = write_and_be_killed(path, dice)
        acks += fresh
        with weft.open(path) as ledger:
            assert_kept(ledger, fresh)
            assert list(ledger.verify(views=(cycle + 1) % VIEWS_EVERY == 0)) == []
    with weft.open(path) as ledger:
        assert_kept(ledger, acks)
        assert_no_accidental_fork(ledger)
        assert list(ledger.verify()) == []
    assert len({ack.turn for ack in acks}) == len(acks)
    record_property("measured", f"{CYCLES} cycles, {len(acks)} acknowledged turns, seed {SEED}")
