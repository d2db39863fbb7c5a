"""One lease for sessions and agents: taken by one, renewed, fenced, taken over from who is silent or gone."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pytest

import weft
from tests.faults.processes import KILLED, Say, run
from tests.programs.conftest import OpenLedger
from weft.kernel.clock import FixedClock
from weft.kernel.errors import AgentBusy, Conflict, LeaseLost, SessionBusy, StoreError
from weft.ledger.api.base import store_of
from weft.ledger.api.ledger import Ledger
from weft.ledger.views.rows import Lease, held_leases
from weft.programs import Programs
from weft.store.replicas import process_owner

TTL_MS = 30_000


class Holder(Protocol):
    """What every kind of lease is asked to do."""

    @property
    def lost(self) -> type[Conflict]: ...

    @property
    def busy(self) -> type[Conflict]: ...

    def take(self, ledger: Ledger) -> Any: ...
    def renew(self, held: Any) -> None: ...
    def write(self, held: Any) -> object: ...
    def release(self, held: Any) -> object: ...


class SessionHolder:
    """A turn that is begun in a session."""

    lost: type[Conflict] = LeaseLost
    busy: type[Conflict] = SessionBusy

    def take(self, ledger: Ledger) -> Any:
        return ledger.begin_turn(session="main", wait=0)

    def renew(self, held: Any) -> None:
        held.renew()

    def write(self, held: Any) -> object:
        return held.message("a step")

    def release(self, held: Any) -> object:
        return held.finish()


class AgentHolder:
    """An agent that is run."""

    lost: type[Conflict] = AgentBusy
    busy: type[Conflict] = AgentBusy

    def take(self, ledger: Ledger) -> tuple[Programs, Lease]:
        programs = Programs(ledger)
        return programs, programs.hold_agent("ada")

    def renew(self, held: tuple[Programs, Lease]) -> None:
        held[0].renew_agent(held[1])

    def write(self, held: tuple[Programs, Lease]) -> object:
        return held[0].acting_as("local", held[1]).change("ada", {"description": str(held[0].get("ada").version)})

    def release(self, held: tuple[Programs, Lease]) -> object:
        held[0].release_agent(held[1])
        return held[1]


HOLDERS: dict[str, Holder] = {"session": SessionHolder(), "agent": AgentHolder()}


@pytest.fixture(params=HOLDERS)
def holder(request: pytest.FixtureRequest) -> Holder:
    return HOLDERS[request.param]


@pytest.fixture
def ledgers(ledger: Ledger, open_ledger: OpenLedger) -> tuple[Ledger, Ledger]:
    """The same ledger twice, with an agent."""
    Programs(ledger).create("agent", "ada", {})
    return ledger, open_ledger(ledger.path)


def leases(ledger: Ledger) -> list[Lease]:
    with store_of(ledger).read() as txn:
        return held_leases(txn.sql)


def test_one_at_a_time_holds_it(ledgers: tuple[Ledger, Ledger], holder: Holder) -> None:
    ours, theirs = ledgers
    held = holder.take(ours)
    for other in ledgers:
        with pytest.raises(holder.busy):
            holder.take(other)
    (lease,) = leases(theirs)
    assert (lease.owner, lease.epoch, lease.beat) == (process_owner(), 1, 0)
    holder.write(held)
    holder.renew(held)
    assert [(lease.epoch, lease.beat) for lease in leases(theirs)] == [(1, 2)]
    holder.release(held)
    assert leases(theirs) == []
    holder.take(theirs)
    assert [lease.epoch for lease in leases(ours)] == [2]


def test_who_was_silent_for_one_ttl_loses_it_and_writes_no_more(
    ledgers: tuple[Ledger, Ledger], holder: Holder, clock: FixedClock
) -> None:
    ours, theirs = ledgers
    held = holder.take(ours)
    clock.tick(10 * TTL_MS)  # the contender's own clock counts, from when it first looked
    with pytest.raises(holder.busy):
        holder.take(theirs)
    clock.tick(TTL_MS - 1)
    with pytest.raises(holder.busy):
        holder.take(theirs)
    clock.tick(1)
    taken = holder.take(theirs)
    steps: list[Callable[[Any], object]] = [holder.write, holder.renew, holder.release]
    before = theirs.newest()
    for step in steps:
        with pytest.raises(holder.lost):
            step(held)
    assert theirs.newest() == before
    holder.write(taken)
    holder.release(taken)


def test_who_shows_life_keeps_it(ledgers: tuple[Ledger, Ledger], holder: Holder, clock: FixedClock) -> None:
    ours, theirs = ledgers
    held = holder.take(ours)
    for step in (holder.renew, holder.write, holder.renew):
        with pytest.raises(holder.busy):
            holder.take(theirs)
        clock.tick(TTL_MS - 1)
        step(held)
    with pytest.raises(holder.busy):
        holder.take(theirs)
    holder.release(held)


def test_an_old_epoch_of_the_same_owner_is_fenced_off(
    ledgers: tuple[Ledger, Ledger], holder: Holder, clock: FixedClock
) -> None:
    ours, _ = ledgers
    first = holder.take(ours)
    with pytest.raises(holder.busy):
        holder.take(ours)
    clock.tick(TTL_MS)
    second = holder.take(ours)
    with pytest.raises(holder.lost):
        holder.write(first)
    holder.write(second)


def test_closing_the_ledger_releases_it(ledgers: tuple[Ledger, Ledger], holder: Holder) -> None:
    ours, theirs = ledgers
    held = holder.take(ours)
    ours.close()
    assert leases(theirs) == []
    with pytest.raises(StoreError):
        holder.write(held)
    holder.release(holder.take(theirs))


def test_closing_a_ledger_that_lost_it_leaves_the_new_holder_alone(
    ledgers: tuple[Ledger, Ledger], holder: Holder, clock: FixedClock
) -> None:
    ours, theirs = ledgers
    holder.take(ours)
    with pytest.raises(holder.busy):
        holder.take(theirs)
    clock.tick(TTL_MS)
    taken = holder.take(theirs)
    ours.close()
    holder.write(taken)
    holder.release(taken)


def take_and_die(say: Say, address: str, kind: str) -> None:
    HOLDERS[kind].take(weft.open(address))
    say(process_owner())
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system does not tell whether an owner lives")
@pytest.mark.parametrize("kind", HOLDERS)
def test_it_is_free_at_once_when_its_process_is_killed(ledgers: tuple[Ledger, Ledger], kind: str) -> None:
    ours, _ = ledgers
    code, (owner,) = run(take_and_die, ours.path, kind)
    assert code == KILLED
    assert [lease.owner for lease in leases(ours)] == [owner]
    HOLDERS[kind].release(HOLDERS[kind].take(ours))


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system does not tell whether an owner lives")
@pytest.mark.parametrize("kind", HOLDERS)
def test_the_next_opening_ends_what_a_killed_process_held(
    ledgers: tuple[Ledger, Ledger], open_ledger: OpenLedger, kind: str
) -> None:
    run(take_and_die, ledgers[0].path, kind)
    assert leases(open_ledger(ledgers[0].path)) == []


def test_a_lease_says_what_it_is_held_for(ledger: Ledger) -> None:
    programs = Programs(ledger)
    agent, task = programs.create("agent", "ada", {}), programs.create("task", "greet", {"title": "Greet"})
    in_session, without = ledger.begin_turn(session="main"), ledger.begin_turn()
    session = ledger.session("main").id
    programs.hold_agent("ada", task="greet")
    assert [(lease.kind, lease.key, lease.purpose) for lease in leases(ledger)] == [
        ("agent", agent.id, task.id),
        ("session", session, in_session.id),
        ("turn", without.id, without.id),
    ]


def test_the_doctor_says_who_runs_an_agent(ledger: Ledger, clock: FixedClock) -> None:
    programs = Programs(ledger)
    programs.create("agent", "ada", {})
    hold = programs.hold_agent("ada")
    (found,) = [one for one in weft.examine(ledger.path, clock=clock) if one.check == "agents"]
    assert (found.what, found.grade) == (f"agent 'ada' is run by process {os.getpid()}", "note")
    programs.release_agent(hold)
    assert [one for one in weft.examine(ledger.path, clock=clock) if one.check == "agents"] == []
