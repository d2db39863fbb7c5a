"""What other people begin and nobody watches writes nothing: their triggers, rooms and workers, and their messages that
the owner's broker answers, have no tools for it, unless the ledger's owner said so of the agent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.runtime.workers.crew import Asked, Crew, call, crew_at, say
from weft.kernel.clock import SystemClock
from weft.kernel.errors import NotAllowed
from weft.kernel.message_text import write_mention
from weft.programs import Programs
from weft.runtime.assembly.turn_configuration import UnattendedTurn, unattended_turn
from weft.runtime.invoke.trigger_firing import TriggerSender

WRITING = {"write", "edit", "shell"}
Begin = Callable[[Crew, str], Awaitable[None]]
"""Has somebody begin a turn of `boss` in the workspace."""


def crew(address: Path, body: Callable[[Crew], Awaitable[None]]) -> None:
    async def run() -> None:
        async with crew_at(address) as team:
            await body(team)

    asyncio.run(run())


class Writer:
    """A model that writes a file where it can, and tells what it was offered and answered."""

    def __init__(self) -> None:
        self.tools: list[set[str]] = []
        self.results: list[Any] = []

    def __call__(self, asked: Asked) -> Any:
        self.tools.append(set(asked.tools))
        self.results += asked.results
        return say("done") if asked.results else call(("write", {"path": "new.txt", "content": "x"}))


def prepared(team: Crew, folder: Path, **config: Any) -> None:
    """An agent with tools that write, a session with a folder, and a policy that allows everything."""
    folder.mkdir(exist_ok=True)
    source = 'import json, sys\njson.load(sys.stdin)\nprint(json.dumps({"decision": "allow", "rationale": "yes"}))\n'
    policy = team.ledger.sync.policies.propose("everything", source)
    tests = weft.PolicyTests(total=1, passed=1, failed=0)
    team.ledger.sync.policies.activate(policy.id, digest=policy.digest, tests=tests)
    for name in ("ann", "bob"):
        team.programs.create("human", name, {"permissions": ["configure", "session:*", "turn:*"]})
    team.boss(toolset="worker", **config)
    team.programs.create_session("work", owner="boss", config={"workspace": str(folder), "defaultModel": "fast"})


async def by_a_trigger(team: Crew, who: str) -> None:
    programs = team.programs if who == "local" else team.programs.acting_as(who)
    programs.create("trigger", f"of {who}", {"on": {"interval": "1h"}, "message": "go", "to": {"session": "work"}})
    sender = TriggerSender(team.programs, team.person, SystemClock())
    sender.fire_by_hand(sender.require(f"of {who}"))
    await team.settled()


async def in_a_room(team: Crew, who: str) -> None:
    ledger = team.ledger.sync
    if not ledger.rooms.list():
        ledger.rooms.create("plans", agents=["boss"], people=["ann", "bob"])
    poster = ledger if who == "local" else ledger.acting_as(who)
    mention = write_mention("agent", team.programs.get("boss").id, "boss")
    (reached,) = poster.rooms.post("plans", f"{mention} go").reached
    config = {"workspace": team.programs.get("work").config["workspace"]}
    team.programs.change(reached.session_id, config)
    await team.settled(reached.message)


async def by_a_message(team: Crew, who: str) -> None:
    ledger = team.ledger.sync
    await team.settled((ledger if who == "local" else ledger.acting_as(who)).inbox.admit("go", session="work").message)


BEGUN: dict[str, Begin] = {"a trigger": by_a_trigger, "a room": in_a_room, "a message": by_a_message}


@pytest.mark.parametrize("origin", BEGUN)
def test_a_turn_that_other_people_begin_unwatched_has_no_tools_that_write(tmp_path: Path, origin: str) -> None:
    async def body(team: Crew) -> None:
        prepared(team, tmp_path / "work")
        model = Writer()
        team.answers(model)
        await BEGUN[origin](team, "ann")
        assert model.tools != []
        assert not WRITING & set().union(*model.tools)
        assert {"read", "grep"} <= model.tools[0]
        assert not (tmp_path / "work" / "new.txt").exists()
        reason = f"{origin} of ann began this turn, and nobody watches it"
        assert any(reason in str(result) and "unattended_writes" in str(result) for result in model.results)

    crew(tmp_path / "l.weft", body)


@pytest.mark.parametrize("origin", BEGUN)
@pytest.mark.parametrize("how", ["the owner begins it", "the owner lets the agent write"])
def test_the_owner_has_them_and_gives_them(tmp_path: Path, origin: str, how: str) -> None:
    async def body(team: Crew) -> None:
        is_owners = how == "the owner begins it"
        prepared(team, tmp_path / "work", **({} if is_owners else {"unattended_writes": True}))
        tools = set[str]()

        def offered(asked: Asked) -> Any:
            tools.update(asked.tools)
            return say("done")

        team.answers(offered)
        await BEGUN[origin](team, "local" if is_owners else "ann")
        assert tools >= WRITING

    crew(tmp_path / "l.weft", body)


def test_workers_of_other_peoples_turns_write_nothing(tmp_path: Path) -> None:
    """Nor where the turn that made them had tools for it."""
    offered: dict[str, list[set[str]]] = {"ann": [], "local": []}
    who, team_of = ["ann"], list[Crew]()

    def model(asked: Asked) -> Any:
        if asked.first.startswith("task"):
            offered[who[0]].append(set(asked.tools))
            return say("worked")
        if asked.results or "delegate" not in asked.last:  # what a worker reports begins a turn, too
            return say("delegated")
        team_of[0].programs.change("boss", {"unattended_writes": None})  # before its worker begins
        return call(("spawn", {"task": "task: write a file"}))

    async def body(team: Crew) -> None:
        prepared(team, tmp_path / "work")
        team_of.append(team)
        team.programs.change("boss", {"toolset": "manager", "unattended_writes": True})
        ledger = team.ledger.sync
        team.answers(model)
        for name in ("ann", "local"):
            who[0] = name
            sender = ledger if name == "local" else ledger.acting_as(name)
            await team.settled(sender.inbox.admit("delegate", session="work").message)
        assert not WRITING & set().union(*offered["ann"])
        assert offered["ann"] != []
        assert set().union(*offered["local"]) >= WRITING

    crew(tmp_path / "l.weft", body)


def test_an_agent_that_somebody_else_made_is_no_way_around(tmp_path: Path) -> None:
    """Neither does its maker set that it may write, nor is its word the owner's."""

    async def body(team: Crew) -> None:
        prepared(team, tmp_path / "work")
        ann = team.programs.acting_as("ann")
        ann.create("agent", "hers", {"systemPrompt": "s"})
        boss = Programs(team.ledger.sync.acting_as("boss"))
        for attempt in (
            partial(ann.change, "hers", {"unattended_writes": True}),
            partial(ann.create, "agent", "other", {"unattended_writes": True}),
            partial(boss.create, "agent", "third", {"unattended_writes": True}),
        ):
            with pytest.raises(NotAllowed):
                attempt()
        model = Writer()
        team.answers(model)
        mention = write_mention("agent", team.programs.get("boss").id, "boss")
        ledger = team.ledger.sync
        ledger.rooms.create("plans", agents=["boss", "hers"], people=["ann"])
        (reached,) = ledger.acting_as("hers").rooms.post("plans", f"{mention} go").reached
        team.programs.change(reached.session_id, {"workspace": str(tmp_path / "work")})
        await team.settled(reached.message)
        assert not WRITING & set().union(*model.tools)

    crew(tmp_path / "l.weft", body)


def test_whoever_answers_their_own_message_watches_it(tmp_path: Path) -> None:
    async def body(team: Crew) -> None:
        prepared(team, tmp_path / "work")
        sent = team.ledger.sync.acting_as("ann").inbox.admit("go", session="work")
        message = team.ledger.sync.inbox.get(sent.message)
        anns = Programs(team.ledger.sync.acting_as("ann"))
        assert unattended_turn(anns, [message], is_worker=False) is None
        owners = unattended_turn(team.programs, [message], is_worker=False)
        assert owners == UnattendedTurn("a message", ("ann",))

    crew(tmp_path / "l.weft", body)
