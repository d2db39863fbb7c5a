"""An agent has workers: spawned by its tool calls, answered for, cut short with it, with no more rights than it has."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from tests.runtime.scripted import HANG, HOLD, Script
from tests.runtime.workers.crew import Asked, Crew, call, crew_at, say, text_of
from weft.kernel.errors import InvalidConfig, NotApplicable
from weft.kernel.ledger_events import RunParked, SessionCreated, WorkersAnswered
from weft.ledger.api import Runs, WorkerSession
from weft.runtime.assembly.configuration_layers import MessageOverrides

COMPARE = [("spawn", {"task": f"task: colour {n}", "name": f"w{n}"}) for n in range(3)]


def leading(asked: Asked) -> Script:
    """The manager spawns three workers, waits for all of them and tells what they said."""
    if asked.first.startswith("task:"):
        return say(f"done: {asked.first}")
    if not asked.results:
        return call(*COMPARE)
    if len(asked.results) == 3:
        return call(("await_workers", {}))
    return say(" | ".join(f"{one['worker']} {one['answer']}" for one in asked.results[-1]["answers"]))


def test_a_manager_gets_what_its_workers_answer(address: str | Path) -> None:
    async def body() -> None:
        async with crew_at(address) as crew:
            crew.boss()
            crew.answers(leading)
            message = crew.send("compare colours")
            await crew.settled(message)
            names = [f"worker:boss:main:w{n}" for n in range(3)]
            answers = [f"{name} done: task: colour {n}" for n, name in enumerate(names)]
            assert crew.answer_to(message) == " | ".join(answers)
            check_links(crew, message, names)

    asyncio.run(asyncio.wait_for(body(), 600))


def check_links(crew: Crew, message: str, names: list[str]) -> None:
    """Both sides name each other, in plain SQL."""
    turn = crew.ledger.sync.inbox.get(message).turn
    rows = crew.sql(
        "SELECT s.label, s.is_subagent, s.parent_session_label, s.parent_turn_id, c.spawned_session_label, c.tool_name"
        " FROM sessions s JOIN tool_calls c ON c.id = s.spawn_tool_call_id ORDER BY s.label"
    )
    assert rows == [(name, 1, "boss:main", turn, name, "spawn") for name in names]


def test_a_process_that_only_sends_serves_the_workers_of_what_it_sends(tmp_path: Path) -> None:
    async def body() -> None:
        async with crew_at(tmp_path / "ledger.db") as crew:
            crew.boss()
            crew.answers(leading)
            message = crew.send("compare colours")
            await crew.broker().wait_for_answer(message, crew.ledger.sync.inbox.get(message).session_id)
            assert crew.answer_to(message).count("done: task") == 3

    asyncio.run(asyncio.wait_for(body(), 600))


def test_a_worker_has_its_spawners_limits_and_the_toolset_that_a_person_chose(tmp_path: Path) -> None:
    """The manager only reads; its workers write, but nothing that the agent, its session or its message is denied, and
    only what the manager leaves them with."""
    offered: dict[str, list[str]] = {}

    def model(asked: Asked) -> Script:
        offered.setdefault(asked.first, asked.tools)
        if asked.first != "go":
            return say("done")
        narrow = {"task": "narrow", "tools": ["read", "write"]}
        calls = (("spawn", {"task": "wide"}), ("spawn", narrow), ("spawn", {"task": "greedy", "tools": ["*"]}))
        return say("all") if len(asked.results) > 3 else call(("await_workers", {})) if asked.results else call(*calls)

    async def body() -> None:
        async with crew_at(tmp_path / "ledger.db") as crew:
            crew.boss(permissions={"tools": {"deny": ["edit"]}})
            crew.answers(model)
            overrides = MessageOverrides(deny=("glob",)).record()
            go = {"content": "go", "context": {"workspace": str(tmp_path)}}
            message = crew.send(go, overrides=overrides)
            await crew.settled(message)
            assert crew.answer_to(message) == "all"
            check_constraints(crew)
            (granted,) = {
                json.dumps(turn.permissions_granted, sort_keys=True) for turn in crew.turns("worker:boss:main:3")
            }
            assert '"glob"' in granted

    asyncio.run(asyncio.wait_for(body(), 600))
    assert {"spawn", "await_workers", "message_worker", "read"} <= set(offered["go"])
    assert not {"write", "shell", "edit", "glob"} & set(offered["go"])
    wide = {"read", "list", "grep", "read_result", "todo", "write", "shell"}
    assert set(offered["wide"]) == set(offered["greedy"]) == wide
    assert set(offered["narrow"]) == {"read", "write"}


def check_constraints(crew: Crew) -> None:
    """The fact that made each worker's session says what it may do at most."""
    ledger = crew.ledger.sync
    facts = [each.event for each in ledger.changes() if isinstance(each.event, SessionCreated)]
    workers = {fact.stream: fact.constraints for fact in facts if fact.spawned_by is not UNSET}
    assert len(workers) == 3
    for constraints in workers.values():
        record = json.loads(b"".join(ledger.read_content(str(constraints))))
        assert record["layers"]
        assert record["toolsets"]


def test_a_manager_that_is_interrupted_stops_its_workers(tmp_path: Path) -> None:
    def model(asked: Asked) -> Script:
        if asked.first == "go":
            return call(("await_workers", {})) if asked.results else call(("spawn", {"task": "endless"}))
        return [HANG]

    async def body() -> None:
        async with crew_at(tmp_path / "ledger.db") as crew:
            crew.boss()
            crew.answers(model)
            message, inbox = crew.send("go"), crew.ledger.sync.inbox
            await crew.until(lambda: bool(crew.sql("SELECT 1 FROM awaiting")) and crew.server.hanging.is_set())
            inbox.interrupt("boss:main")
            await crew.settled(message)
            (worker,) = crew.turns("worker:boss:main:1")
            assert worker.status == "completed"
            assert crew.runs.worker_reply(worker.id).status == "interrupted"
            assert inbox.list(session="boss:main") == []

    asyncio.run(asyncio.wait_for(body(), 600))


def test_a_worker_answers_nobody_but_its_spawner(tmp_path: Path) -> None:
    async def body() -> None:
        async with crew_at(tmp_path / "ledger.db") as crew:
            crew.boss()
            crew.answers(leading)
            await crew.settled(crew.send("compare colours"))
            with pytest.raises(NotApplicable, match="is a worker's"):
                crew.ledger.sync.inbox.admit("hello", session="worker:boss:main:w1")
            crew.ledger.sync.fork("worker:boss:main:w1", label="aside")
            forked = crew.send("task: go on", session="aside")
            await crew.settled(forked)
            assert crew.answer_to(forked) == "done: task: colour 1"
            (turn,) = crew.turns("aside")
            assert turn.effective_config["toolset"] == "worker"

    asyncio.run(asyncio.wait_for(body(), 600))


def test_an_answer_that_does_not_come_in_time_comes_as_a_message(tmp_path: Path) -> None:
    def model(asked: Asked) -> Script:
        if asked.first == "slow":
            return [HOLD, *say("at last")]
        if asked.last.startswith("Worker"):
            return say(f"heard: {asked.last}")
        waiting = ("await_workers", {"timeout_seconds": 0.05})
        return [call(("spawn", {"task": "slow"})), call(waiting), say("never mind")][len(asked.results)]

    async def body() -> None:
        async with crew_at(tmp_path / "ledger.db") as crew:
            crew.boss()
            crew.answers(model)
            message = crew.send("go")
            await crew.until(lambda: crew.ledger.sync.inbox.get(message).state == "answered")
            assert crew.answer_to(message) == "never mind"
            crew.server.released.set()
            await crew.until(lambda: crew.is_quiet() and len(crew.turns("boss:main")) == 2)
            last = crew.turns("boss:main")[-1]
            heard = crew.runs.worker_reply(last.id).text.split("\n")
            assert heard[0].startswith("heard: Worker worker:boss:main:1 answered.")
            assert heard[-2] == "at last"

    asyncio.run(asyncio.wait_for(body(), 600))


def test_workers_that_answer_while_their_spawner_is_being_parked_bring_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call is told once that its workers are at work, when they have answered already."""
    read, looks = Runs.workers, list[str]()

    def outdated(runs: Runs, session: str) -> list[WorkerSession]:
        workers = read(runs, session)
        if not looks and all(worker.is_idle for worker in workers):
            looks.append(session)
            return [replace(worker, is_idle=False, ready=()) for worker in workers]
        return workers

    async def body() -> None:
        async with crew_at(tmp_path / "ledger.db") as crew:
            crew.boss()

            def model(asked: Asked) -> Script:
                """Waits for the workers once all of them have answered."""
                is_waiting = len(asked.results) == 3 and not asked.first.startswith("task:")
                return [HOLD, *leading(asked)] if is_waiting else leading(asked)

            crew.answers(model)
            message = crew.send("compare colours")
            await crew.until(lambda: len(crew.sql("SELECT 1 FROM worker_answer")) == 3)
            monkeypatch.setattr(Runs, "workers", outdated)
            crew.server.released.set()
            await crew.settled(message)
            assert looks
            assert crew.answer_to(message).count("done: task") == 3
            kinds = [one.event for one in crew.ledger.sync.events(crew.ledger.sync.inbox.get(message).turn or "")]
            assert [type(event) for event in kinds if isinstance(event, RunParked | WorkersAnswered)] == [
                RunParked, WorkersAnswered,
            ]  # fmt: skip

    asyncio.run(asyncio.wait_for(body(), 600))


def test_a_managers_newest_message_lists_its_workers_behind_all_that_was_said(tmp_path: Path) -> None:
    requests: list[list[tuple[str, str]]] = []

    def model(asked: Asked) -> Script:
        if asked.first != "go":
            return say(f"done: {asked.first}")
        requests.append([(message["role"], text_of(message)) for message in asked.messages])
        if asked.last != "go" or len(asked.results) > 1:
            return say("all")
        return call(("await_workers", {})) if asked.results else call(("spawn", {"task": "count the colours"}))

    async def body() -> None:
        async with crew_at(tmp_path / "ledger.db") as crew:
            crew.boss()
            crew.answers(model)
            await crew.settled(crew.send("go"))
            again = crew.send("and now?")
            await crew.settled(again)
            first, second = crew.turns("boss:main")
            assert (first.role, second.role) == ("manager", "manager")
            note, query = second.query_messages
            assert query.text == "and now?"
            assert note.source == "event"
            assert note.context["workers"] == [
                {
                    "label": "worker:boss:main:1", "task": "count the colours", "status": "completed",
                    "has_answer": False,
                }
            ]  # fmt: skip

    asyncio.run(asyncio.wait_for(body(), 600))
    before, last = requests[-2], requests[-1]
    assert not any("Your workers" in text for _, text in before)
    assert last[: len(before)] == before  # what was sent before stays as it was
    assert last[-1][1].endswith("and now?")
    newest = "\n".join(text for role, text in last[-2:] if role == "user")
    assert "Your workers:\n- worker:boss:main:1: completed: count the colours" in newest


@pytest.mark.parametrize("role", ["manager", "worker", "unified"])
def test_the_role_of_a_session_can_be_set(tmp_path: Path, role: str) -> None:
    async def body() -> None:
        async with crew_at(tmp_path / "ledger.db") as crew:
            crew.boss()
            crew.answers(lambda asked: say("done"))
            crew.programs.create_session("talk", owner="boss", config={"role": role})
            crew.programs.create_session("plain", model="fast")
            for session in ("talk", "plain"):
                await crew.settled(crew.send("go", session=session))
            assert [turn.role for turn in crew.turns("talk")] == [role]
            with pytest.raises(InvalidConfig, match="role"):
                crew.programs.change("talk", {"role": "chief"})

    asyncio.run(asyncio.wait_for(body(), 600))
