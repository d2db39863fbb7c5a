"""Nodes say since when and until when they hold, where events give it."""

from __future__ import annotations

from pathlib import Path

import pytest

import weft
from tests.conftest import NewPostgresLedger
from tests.graph.histories import PASSED, new
from tests.ledger.rooms import cast
from weft.kernel.clock import FixedClock
from weft.ledger.api.resources import ResourceLog
from weft.programs import Programs

NOON = 1_794_700_800_000
MINUTE = 60_000


@pytest.mark.parametrize("store", ["disk", "postgres"])
def test_a_node_holds_from_its_beginning_to_its_end(
    store: str, tmp_path: Path, new_postgres_ledger: NewPostgresLedger
) -> None:
    clock = FixedClock(NOON)
    address = new_postgres_ledger() if store == "postgres" else str(tmp_path / "ledger.db")
    with weft.open(address, clock=clock) as ledger:

        def validity(name: str) -> tuple[int | None, int | None]:
            """In minutes after the beginning."""
            node = ledger.graph.node(name)
            since, until = (
                (time - NOON) // MINUTE if time is not None else None for time in (node.valid_from, node.valid_to)
            )
            return since, until

        turn = ledger.record_turn(session="main", query="q", response="r")
        programs, log = Programs(ledger), ResourceLog(ledger)
        clock.tick(MINUTE)
        agent = programs.create("agent", "ada", {"soul": "You are Ada."})
        human = programs.create("human", "ann", {"email": "ann@example.org"})
        folder = log.declare(new("folder"))
        handle = log.open_handle(folder.id, "docker", "abc")
        careful = ledger.policies.propose("careful", "print(1)")
        careless = ledger.policies.propose("careless", "print(2)")
        clock.tick(MINUTE)
        ledger.policies.activate(careful.id, digest=careful.digest, tests=PASSED)
        clock.tick(MINUTE)
        ledger.policies.activate(careless.id, digest=careless.digest, tests=PASSED)
        programs.delete("ada")
        log.close_handle(folder.id, handle)
        log.record_probe(folder.id, "dead")
        assert validity(f"agent:{agent.id}") == (1, 3)
        assert validity(f"program:{human.id}") == (1, None)
        assert validity(f"resource:{folder.id}") == (1, 3)
        assert validity(f"handle:{handle}") == (1, 3)
        assert validity(f"policy:{careful.id}") == (2, 3)
        assert validity(f"policy:{careless.id}") == (3, None)
        assert validity(f"run:{turn.id}") == (None, None)
        clock.tick(MINUTE)
        ledger.policies.roll_back(careful.id, digest=careful.digest)
        assert validity(f"policy:{careful.id}") == (2, None)
        assert validity(f"policy:{careless.id}") == (3, 4)


@pytest.mark.parametrize("store", ["disk", "postgres"])
def test_a_participant_of_a_room_takes_part_from_joining_to_leaving(
    store: str, tmp_path: Path, new_postgres_ledger: NewPostgresLedger
) -> None:
    clock = FixedClock(NOON)
    address = new_postgres_ledger() if store == "postgres" else str(tmp_path / "ledger.db")
    with weft.open(address, clock=clock) as ledger:
        people = cast(ledger)
        alice = people.ledger_of("alice")
        clock.tick(MINUTE)
        alice.rooms.create("plans", agents=["helper"])
        clock.tick(MINUTE)
        alice.rooms.remove("plans", "helper")
        (helper,) = (one for one in alice.rooms.participants("plans", removed=True) if one.name == "helper")
        assert (helper.valid_from, helper.valid_to) == (NOON + MINUTE, NOON + 2 * MINUTE)
        (host,) = (one for one in alice.rooms.participants("plans") if one.name == "alice")
        assert (host.valid_from, host.valid_to) == (NOON + MINUTE, None)
