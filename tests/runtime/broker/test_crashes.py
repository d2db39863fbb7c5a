"""A turn with three tools whose process dies at every step: the next one goes on where it stopped."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

import weft
from tests.runtime.broker import crash_driver
from tests.runtime.broker.crash_driver import IDEMPOTENT, TOOLS, Died, Doom, answer, raise_died
from tests.runtime.broker.tool_server import FAULTS, Fault, ToolServer, tool_server
from tests.sizes import PROVING, Record, chance, points, points_offset, share, sized
from tests.surfaces.forking import shared_forker
from weft.ledger.api import Ledger, Runs
from weft.runtime.broker.turn_state import Run
from weft.store.replicas import process_owner


@dataclass
class Standing:
    """What is recorded at a crash."""

    answers: int = 0
    settled_tools: list[str] = field(default_factory=list)


def standing_of(ledger: Ledger) -> Standing:
    with ledger._store.read() as txn:
        turn = txn.sql.fetch_row("SELECT id FROM turn")
    run = Run("").apply(Runs(ledger).events(str(turn[0])) if turn else [])
    answers = sum(request.is_answered for request in run.requests)
    return Standing(answers, [call.tool for call in run.calls.values() if call.outcome is not None])


def runs_of(folder: Path) -> Counter[str]:
    log = folder / "tools.log"
    return Counter(log.read_text().splitlines() if log.exists() else [])


def check(ledger: Ledger, message: str, folder: Path, server: ToolServer, at: Standing, before: Sequence[int]) -> None:
    """Nothing that was answered was asked again, nothing that was finished ran again, and one turn is there. `before`
    are the requests until the crash, each by how many results it brought: every one brings more than the one before,
    or is that one once more."""
    again = Counter(server.asked[len(before) :])
    answered = sorted(set(server.asked))[: at.answers]
    assert not again.keys() & set(answered)
    assert all(count == 1 for count in again.values())
    runs = runs_of(folder)
    ends = "completed" if server.fault is None else server.fault.ends
    settled = ledger.inbox.get(message)
    assert settled.state == {"completed": "answered", "failed": "dead"}[ends]
    with ledger._store.read() as txn:
        assert txn.sql.fetch_rows("SELECT id, status FROM turn") == [(settled.turn, ends)]
        assert txn.sql.fetch_rows("SELECT turn FROM open_run") == []
    assert ledger.session("main").head == (settled.turn if ends == "completed" else None)
    assert ledger.inbox.list() == []
    run = Run("").apply(Runs(ledger).events(settled.turn or ""))
    if server.fault is None:
        assert [call.tool for call in run.calls.values()] == list(TOOLS)
    asked = Counter(call.tool for call in run.calls.values())
    assert all(runs[f"begin {name}"] <= asked[name] for name in TOOLS if name != IDEMPOTENT)
    assert runs[f"begin {IDEMPOTENT}"] <= asked[IDEMPOTENT] + 1
    assert not run.open_calls
    requests = run.requests if ends == "completed" else run.requests[:-1]
    assert all(request.is_answered or request.interrupted is not None for request in requests)
    assert list(ledger.verify()) == []


def dead_owner() -> str:
    """The name of a process that is over."""
    over = subprocess.Popen([sys.executable, "-c", ""])
    over.wait()
    machine, _, _ = process_owner().rsplit("/", 2)
    return f"{machine}/{over.pid}/1"


async def crash_and_go_on(folder: Path, point: str, owner: str, fault: Fault | None = None, stage: int = 0) -> bool:
    """Whether the point was met."""
    folder.mkdir()
    doom = Doom(point, raise_died)
    async with tool_server(fault, stage) as server:
        with weft.open(folder / "ledger.db") as ledger:
            ledger._owner = owner
            with suppress(Died):
                await answer(ledger, server.url, folder, doom)
            for task in asyncio.all_tasks() - server.connections - {asyncio.current_task()}:
                task.cancel()
            ledger._writer.give_all_up()  # a process that dies gives nothing back
        await go_on(folder, server)
    return doom.is_met


async def go_on(folder: Path, server: ToolServer) -> None:
    """What a new process makes of what a dead one left."""
    with weft.open(folder / "ledger.db") as ledger:
        at, before = standing_of(ledger), list(server.asked)
        message = await answer(ledger, server.url, folder, Doom())
        check(ledger, message, folder, server, at, before)


Trial = Callable[[Path, str], Awaitable[bool]]
"""Dies at a point, goes on, and tells whether the point was met."""


async def die_at_each(when: str, folder: Path, trial: Trial) -> int:
    """At the first step, at the second, and so on until there are no more; how many there were."""
    steps = 0
    while await trial(folder / f"{when} {steps + 1}", f"{when}:{steps + 1}"):
        steps += 1
    return steps


async def steps_of_a_turn(folder: Path) -> Doom:
    """How many steps a turn takes that nothing stops."""
    folder.mkdir()
    doom = Doom()
    async with tool_server() as server:
        with weft.open(folder / "ledger.db") as ledger:
            await answer(ledger, server.url, folder, doom)
    return doom


@pytest.mark.usefixtures("unattended")
def test_a_turn_goes_on_after_a_crash_at_any_step(quick_path: Path) -> None:
    async def main() -> None:
        steps, owner = await steps_of_a_turn(quick_path / "whole"), dead_owner()
        for when, amount, least, share_of_them in (("before", steps.calls, 10, 4), ("after", steps.commits, 4, 2)):
            assert amount >= least
            taken = points(amount, test=share_of_them)
            met = [await crash_and_go_on(quick_path / f"{when} {k + 1}", f"{when}:{k + 1}", owner) for k in taken]
            assert all(met[:-1])  # a turn may take a call less than the one that was counted

    asyncio.run(main())


@pytest.mark.parametrize("tool", TOOLS)
def test_a_turn_goes_on_after_a_crash_inside_a_tool(quick_path: Path, tool: str) -> None:
    assert asyncio.run(crash_and_go_on(quick_path / "ledger", f"in:{tool}", dead_owner()))


@pytest.mark.usefixtures("unattended")
def test_a_turn_whose_provider_fails_goes_on_after_a_crash(quick_path: Path) -> None:
    """Some faults at the first request or at the last, and a crash at one step; at full size all of them."""
    dice = chance("crashes", points_offset())
    faults = dict(share(sorted(FAULTS.items(), key=lambda item: item[0]), test=6))

    async def main() -> None:
        owner = dead_owner()
        for name, fault in faults.items():
            for stage in (0, 3) if PROVING else (dice.choice((0, 3)),):
                folder = quick_path / f"{name} {stage}"
                folder.mkdir()
                trial = partial(crash_and_go_on, owner=owner, fault=fault, stage=stage)
                if PROVING:
                    assert await die_at_each("before", folder, trial) >= 8
                    assert await die_at_each("after", folder, trial) >= 3
                else:
                    assert await trial(folder / "once", dice.choice(("after:1", "after:2", "after:3", "before:7")))

    asyncio.run(main())


async def kill_and_go_on(folder: Path, point: str, fault: Fault | None = None, stage: int = 0) -> bool:
    """The same with a process that is really killed."""
    folder.mkdir()
    async with tool_server(fault, stage) as server:
        arguments = (crash_driver.__name__, str(folder / "ledger.db"), server.url, str(folder), point)
        code = await asyncio.to_thread(shared_forker().run_main(*arguments).wait)
        await go_on(folder, server)
    assert code in (0, -9)
    return code == -9


def test_a_turn_goes_on_after_a_kill(quick_path: Path, record_property: Record) -> None:
    """At two points; at full size at every step, and at every recorded step of a turn whose provider fails, for each
    fault."""

    async def main() -> int:
        places = sized(test=["in:note", "before:10"], prove=[f"in:{tool}" for tool in TOOLS])
        killed = [await kill_and_go_on(quick_path / place.replace(":", " "), place) for place in places]
        assert all(killed)
        return len(killed) + (await kill_everywhere(quick_path) if PROVING else 0)

    record_property("measured", f"{asyncio.run(main())} kills")


async def kill_everywhere(folder: Path) -> int:
    """How often."""
    before, after = [await die_at_each(when, folder, kill_and_go_on) for when in ("before", "after")]
    assert before >= 10
    assert after >= 4
    kills = before + after
    for name, fault in FAULTS.items():
        (folder / name).mkdir()
        steps = await die_at_each("after", folder / name, partial(kill_and_go_on, fault=fault, stage=3))
        assert steps >= 3
        kills += steps
    return kills
