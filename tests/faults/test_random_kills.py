"""Writers killed at random moments, alone or four together, again and again: what was acknowledged stays."""

import random
import time
from collections import Counter
from multiprocessing.connection import wait
from pathlib import Path

import pytest

import weft
from tests.faults.checks import assert_kept, assert_unbroken
from tests.faults.power import put_image
from tests.faults.processes import KILLED, Process
from tests.faults.scenarios import Ack
from tests.faults.writers import FORK, write_for_ever
from tests.sizes import Record, chance, sized
from weft.ledger.api.ledger import Ledger

RUNS = sized(test=1, prove=4)
CYCLES = sized(test=3, prove=50)
LONE_RUNS = sized(test=1, prove=20)
LONE_CYCLES = sized(test=6, prove=250)
LONE_LEDGER = 10  # so many cycles on one ledger, which is then verified as a whole
WRITERS = 4
VIEWS_EVERY = 5


def write_and_be_killed(path: Path, dice: random.Random, together: int, most: int) -> list[Ack]:
    """Start the writers, kill them all after some acknowledgements, and return everything they were told."""
    writers = [Process(write_for_ever, str(path), f"writer {k}", str(dice.random())) for k in range(together)]
    enough, acks = dice.randint(1, most), list[Ack]()
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


@pytest.mark.slow("kills four writers three times, and verifies every receipt")
@pytest.mark.usefixtures("turn_path")
@pytest.mark.parametrize("run", range(RUNS))
def test_nothing_acknowledged_is_lost_when_all_writers_are_killed(
    quick_path: Path, run: int, record_property: Record
) -> None:
    path, dice = quick_path / "ledger.db", chance("kills", run)
    acks: list[Ack] = []
    for cycle in range(CYCLES):
        fresh = write_and_be_killed(path, dice, WRITERS, 80)
        acks += fresh
        with weft.open(path) as ledger:
            assert_kept(ledger, fresh)
            assert list(ledger.verify(views=(cycle + 1) % VIEWS_EVERY == 0)) == []
    with weft.open(path) as ledger:
        assert_kept(ledger, acks)
        assert_no_accidental_fork(ledger)
        assert list(ledger.verify()) == []
    assert len({ack.turn for ack in acks}) == len(acks)
    record_property("measured", f"{CYCLES} cycles, {len(acks)} acknowledged turns")


@pytest.mark.usefixtures("turn_path")
@pytest.mark.parametrize("run", range(LONE_RUNS))
def test_nothing_acknowledged_is_lost_when_a_lone_writer_is_killed(
    quick_path: Path, run: int, record_property: Record
) -> None:
    path, dice = quick_path / "ledger.db", chance("lone kills", run)
    acks: list[Ack] = []
    told = 0
    for cycle in range(LONE_CYCLES):
        if cycle % LONE_LEDGER == 0:
            put_image({}, path)
            acks = []
        fresh = write_and_be_killed(path, dice, 1, 20)
        acks, told = acks + fresh, told + len(fresh)
        last = cycle % LONE_LEDGER == LONE_LEDGER - 1 or cycle == LONE_CYCLES - 1
        with weft.open(path) as ledger:
            assert_kept(ledger, acks if last else fresh)
            if last:
                assert list(ledger.verify()) == []
                assert_no_accidental_fork(ledger)
                assert_unbroken(path)
    record_property("measured", f"{LONE_CYCLES} cycles, {told} acknowledged turns")
