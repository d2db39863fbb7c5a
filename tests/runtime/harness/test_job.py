"""The broker's job: work that nobody waits for, of several agents, in the name of whoever gave it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

import weft
from tests.runtime.broker.crash_driver import Doom
from tests.runtime.harness.work_driver import serve_until_over
from tests.runtime.scripted import Scripted, chat_saying, failure, scripted
from tests.sandbox import UNPROTECTED
from weft.aio.crossing import Pool
from weft.aio.ledger import AsyncLedger
from weft.kernel.clock import Clock, SystemClock
from weft.kernel.errors import StoreFailed
from weft.ledger.api import Ledger, Runs
from weft.programs import Programs
from weft.programs.kind_table import AGENT
from weft.programs.tasks import WorkspaceObservations
from weft.runtime import agent_harness as job_module
from weft.runtime.agent_harness import resume_work
from weft.runtime.agent_work import NO_LIMITS, AwaitAnswer, Say, WorkFacts, WorkReader, turn_limits
from weft.runtime.broker import broker as broker_module
from weft.runtime.sandbox.command_runner import CommandRunner

Body = Callable[[Ledger, Programs, Scripted], Coroutine[Any, Any, None]]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_module, "NEWS_SECONDS", 0.02)


class MovedClock(SystemClock):
    """The time of the machine, and somewhat more."""

    def __init__(self) -> None:
        self.more_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.more_ms


def run(path: Path, body: Body, clock: Clock | None = None) -> None:
    async def main() -> None:
        async with scripted(chat_saying({"content": "Hello there"})) as server:
            with weft.open(path, clock=clock or SystemClock()) as ledger:
                programs = Programs(ledger)
                programs.create("provider", "there", {"providerType": "openai-compatible", "baseUrl": server.url})
                programs.create("model", "fast", {"modelId": "m-1", "provider": "there"})
                await body(ledger, programs, server)
                assert list(ledger.verify()) == []

    asyncio.run(asyncio.wait_for(main(), 600))


def hire(programs: Programs, name: str, *criteria: dict[str, Any], harness: dict[str, Any] | None = None) -> None:
    """An agent, and a task of its own that it has not got yet."""
    programs.create("agent", name, {"defaultModel": "fast", "harness": harness or {}})
    programs.create("task", f"{name}-task", {"title": "Greet", "spec": {"successCriteria": list(criteria)}})


def are_over(*tasks: str) -> Callable[[Programs], bool]:
    return lambda programs: all(programs.get(task).state in ("completed", "failed") for task in tasks)


def test_assigned_work_is_done_where_a_broker_runs_in_the_name_of_whoever_gave_it(path: Path) -> None:
    async def body(ledger: Ledger, programs: Programs, server: Scripted) -> None:
        programs.create("human", "bob", {"permissions": ["assign"]})
        hire(programs, "ada", {"type": "contains", "text": "there"})
        hire(programs, "eve", {"type": "file_exists", "path": "x"})
        programs.acting_as("bob").assign("ada", "ada-task")
        session = programs.get("ada").current_session or ""
        programs.assign("eve", "eve-task")  # its criteria cannot be checked: it has no workspace
        await serve_until_over(
            ledger, server.url, Doom(), lambda p: are_over("ada-task")(p) and p.get("eve").state == "error"
        )
        assert (programs.get("ada-task").state, programs.get("ada-task").result) == ("completed", "Hello there")
        (message,) = ledger.inbox.list(session=session, states=["answered"])
        assert (programs.get(message.sender).name, message.metadata) == (
            "bob",
            {"work": "brief", "task": programs.get("ada-task").id},
        )
        assert message.turn is not None
        chain = ledger.turn(message.turn).effective_config["chain"]
        assert chain[-1] == "agent:ada"
        assert programs.get("eve-task").state == "active"

    run(path, body)


def test_of_many_brokers_one_performs_each_move(path: Path) -> None:
    async def body(ledger: Ledger, programs: Programs, server: Scripted) -> None:
        names = ["ada", "eve", "joe"]
        for name in names:
            hire(programs, name, {"type": "contains", "text": "there"})
            programs.assign(name, f"{name}-task")
        sessions = [programs.get(name).current_session or "" for name in names]
        over = are_over(*(f"{name}-task" for name in names))
        with weft.open(path) as other:
            other._owner = "elsewhere/1/1"  # nobody here can tell that it is dead
            await asyncio.gather(
                serve_until_over(ledger, server.url, Doom(), over), serve_until_over(other, server.url, Doom(), over)
            )
        assert len(server.received) == len(names)
        for name, session in zip(names, sessions, strict=True):
            assert len(ledger.inbox.list(session=session, states=["answered"])) == 1
            kinds = [change.kind for change in reversed(programs.history(name))][1:]
            assert kinds == ["agent_task_assigned", "agent_thinking", "agent_executing", "agent_completed"]
            assert len(programs.checks(f"{name}-task")) == 1

    run(path, body)


def test_a_paused_agent_goes_on_when_it_is_resumed_and_a_spent_budget_ends_the_work(path: Path) -> None:
    async def body(ledger: Ledger, programs: Programs, server: Scripted) -> None:
        hire(programs, "ada", {"type": "contains", "text": "there"})
        hire(programs, "eve", {"type": "contains", "text": "milk"}, harness={"reflectOnFailure": True, "maxTokens": 1})
        programs.assign("ada", "ada-task")
        programs.step_agent("ada", "pause")
        programs.assign("eve", "eve-task")
        await serve_until_over(ledger, server.url, Doom(), are_over("eve-task"))
        assert (programs.get("ada").state, programs.get("ada").turn_count) == ("paused", 0)
        assert (programs.get("eve").state, programs.get("eve-task").state) == ("error", "failed")
        failed = programs.history("eve-task")[0]
        assert (failed.kind, (failed.reason or "")[:8]) == ("task_failed", "budget: ")
        assert len(server.received) == 1
        programs.step_agent("ada", "resume")
        await serve_until_over(ledger, server.url, Doom(), are_over("ada-task"))
        assert programs.get("ada-task").state == "completed"

    run(path, body)


def test_what_the_harness_leaves_is_the_limit_of_the_next_turn(path: Path) -> None:
    async def body(ledger: Ledger, programs: Programs, server: Scripted) -> None:
        hire(programs, "ada", harness={"maxSeconds": 100, "maxCost": 2})
        hire(programs, "eve")
        for name in ("ada", "eve"):
            programs.assign(name, f"{name}-task")
        runs, crossing = Runs(ledger), Pool()
        agents = [programs.get(name) for name in ("ada", "eve")]
        standings = [runs.standing(ledger.session(agent.current_session or "").id) for agent in agents]
        limits = turn_limits(programs, crossing, agents[0], standings[0])
        assert (limits.seconds, limits.budget and limits.budget.money) == (100, 2_000_000)
        assert turn_limits(programs, crossing, agents[1], standings[1]) == NO_LIMITS
        assert turn_limits(programs, crossing, agents[0], standings[1]) == NO_LIMITS  # not the session of its work
        assert turn_limits(programs, crossing, None, standings[0]) == NO_LIMITS
        facts = WorkReader(programs).facts("ada")
        assert facts is not None
        assert (facts.rounds, facts.assignment.by, facts.spent.total) == ((), ("local",), 0)

    run(path, body)


def test_a_checkpoint_is_saved_where_a_turn_waits_for_a_person(path: Path, tmp_path: Path) -> None:
    async def body(ledger: Ledger, programs: Programs, server: Scripted) -> None:
        use = {"name": "write", "arguments": '{"path": "a.txt", "content": "x"}'}
        calls = [{"id": "call-1", "type": "function", "function": use}]
        server.scripts = [chat_saying({"content": None, "tool_calls": calls}, "tool_calls")]
        harness = {"checkpointEvery": 5}
        programs.create("agent", "ada", {"defaultModel": "fast", "toolset": "worker", "harness": harness})
        programs.create("task", "ada-task", {"title": "Write", "workspace": str(tmp_path)})
        programs.assign("ada", "ada-task")
        await serve_until_over(
            ledger, server.url, Doom(), lambda p: p.get("ada").last_checkpoint == 1, does_grant=False
        )
        saved = programs.load_checkpoint("ada")
        arguments = {"path": "a.txt", "content": "x"}
        assert saved["pendingCalls"] == [{"id": "call-1", "tool": "write", "arguments": arguments}]
        assert saved["next"] is None
        assert [one.tool for one in ledger.approvals.list(states=("open",))] == ["write"]

    run(path, body)


def test_a_message_that_steers_a_turn_of_the_work_does_not_change_what_the_turn_is(path: Path, tmp_path: Path) -> None:
    async def body(ledger: Ledger, programs: Programs, server: Scripted) -> None:
        use = {"name": "write", "arguments": '{"path": "a.txt", "content": "x"}'}
        calls = [{"id": "call-1", "type": "function", "function": use}]
        asks = chat_saying({"content": None, "tool_calls": calls}, "tool_calls")
        server.scripts = [asks, chat_saying({"content": "Hello there"}), asks, chat_saying({"content": "milk"})]
        spec = {"successCriteria": [{"type": "contains", "text": "milk"}]}
        programs.create(
            "agent", "ada", {"defaultModel": "fast", "toolset": "worker", "harness": {"reflectOnFailure": True}}
        )
        programs.create("task", "ada-task", {"title": "Greet", "spec": spec, "workspace": str(tmp_path)})
        programs.assign("ada", "ada-task")
        session = programs.get("ada").current_session or ""

        def is_over(watched: Programs) -> bool:
            for request in ledger.approvals.list(states=("open",)):
                ledger.inbox.admit("Be quick", session=session, mode="steer")  # the turn is parked: it enters that
                ledger.approvals.grant(request.id, plan_digest=request.plan_digest)
            return are_over("ada-task")(watched)

        await serve_until_over(ledger, server.url, Doom(), is_over, does_grant=False)
        messages = ledger.inbox.list(session=session, states=["answered"])
        kinds = [message.metadata and message.metadata["work"] for message in messages]
        assert kinds == ["brief", None, "reflection", None]
        turns = [message.turn for message in messages]
        assert (turns[0], turns[2]) == (turns[1], turns[3])
        thoughts = [one.reason for one in reversed(programs.history("ada")) if one.kind == "agent_thinking"]
        assert [(reason or "")[:18] for reason in thoughts] == ["", "reflection 1 of 3:"]
        assert programs.get("ada-task").state == "completed"

    run(path, body)


def test_a_verdict_is_that_on_the_turn_that_was_judged_whatever_came_meanwhile(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(ledger: Ledger, programs: Programs, server: Scripted) -> None:
        server.scripts = [chat_saying({"content": "Hello there"}), chat_saying({"content": "milk"})]
        hire(programs, "ada", {"type": "contains", "text": "milk"}, harness={"reflectOnFailure": True})
        programs.assign("ada", "ada-task")
        session = programs.get("ada").current_session or ""
        read_text, admitted = WorkspaceObservations.read_text, list[str]()

        def read_while_somebody_writes(workspace: WorkspaceObservations, name: str | None) -> str | None:
            if not admitted:
                admitted.append(ledger.inbox.admit("By the way", session=session).message)
            return read_text(workspace, name)

        monkeypatch.setattr(WorkspaceObservations, "read_text", read_while_somebody_writes)
        await serve_until_over(ledger, server.url, Doom(), are_over("ada-task"))
        messages = ledger.inbox.list(session=session, states=["answered"])
        assert [message.metadata is None for message in messages] == [False, True]
        checks = programs.checks("ada-task")
        assert [(check.turn, check.passed) for check in checks] == [
            (messages[0].turn, False),
            (messages[1].turn, True),
        ]
        assert programs.get("ada-task").result == "milk"

    run(path, body)


def test_an_agent_whose_work_stands_still_waits_and_goes_on_where_somebody_asks(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(ledger: Ledger, programs: Programs, server: Scripted) -> None:
        server.scripts = [chat_saying({"content": "Hello there"}), failure(400, "no"), chat_saying({"content": "milk"})]
        hire(programs, "ada", {"type": "contains", "text": "milk"})
        programs.assign("ada", "ada-task")
        session = programs.get("ada").current_session or ""
        read_text, admitted = WorkspaceObservations.read_text, list[str]()

        def read_while_somebody_writes(workspace: WorkspaceObservations, name: str | None) -> str | None:
            if not admitted:  # its turn fails, while the agent is executing
                admitted.append(ledger.inbox.admit("By the way", session=session).message)
            return read_text(workspace, name)

        monkeypatch.setattr(WorkspaceObservations, "read_text", read_while_somebody_writes)
        await serve_until_over(ledger, server.url, Doom(), lambda p: p.get("ada").state == "waiting")
        steps = [change.kind for change in reversed(programs.history("ada"))]
        assert steps[-3:] == ["agent_thinking", "agent_executing", "agent_waiting"]
        pool = Pool()
        resume = partial(
            resume_work, AsyncLedger(ledger, pool), programs, CommandRunner(UNPROTECTED), programs.get("ada")
        )
        assert isinstance(await resume(), Say)
        assert isinstance(await resume(), AwaitAnswer)
        await pool.close(lambda: None)
        await serve_until_over(ledger, server.url, Doom(), are_over("ada-task"))
        assert programs.get("ada-task").state == "completed"

    run(path, body)


def test_time_in_which_a_turn_waits_for_a_person_is_not_spent(path: Path, tmp_path: Path) -> None:
    clock = MovedClock()

    async def body(ledger: Ledger, programs: Programs, server: Scripted) -> None:
        use = {"name": "write", "arguments": '{"path": "a.txt", "content": "x"}'}
        calls = [{"id": "call-1", "type": "function", "function": use}]
        asks = chat_saying({"content": None, "tool_calls": calls}, "tool_calls")
        server.scripts = [asks, chat_saying({"content": "Hello there"}), chat_saying({"content": "milk"})]
        harness = {"reflectOnFailure": True, "maxSeconds": 600}
        spec = {"successCriteria": [{"type": "contains", "text": "milk"}]}
        programs.create("agent", "ada", {"defaultModel": "fast", "toolset": "worker", "harness": harness})
        programs.create("task", "ada-task", {"title": "Greet", "spec": spec, "workspace": str(tmp_path)})
        programs.assign("ada", "ada-task")
        session = ledger.session(programs.get("ada").current_session or "").id
        seconds = list[float]()

        def is_over(watched: Programs) -> bool:
            for request in ledger.approvals.list(states=("open",)):
                if Runs(ledger).standing(session).is_parked:
                    clock.more_ms = 3_600_000
                    ledger.approvals.grant(request.id, plan_digest=request.plan_digest)
            facts = WorkReader(watched).facts("ada")
            if facts is not None:
                seconds.append(facts.seconds)
            return are_over("ada-task")(watched)

        await serve_until_over(ledger, server.url, Doom(), is_over, does_grant=False)
        assert programs.get("ada-task").state == "completed", programs.history("ada-task")[0].reason
        assert 0 < max(seconds) < 600

    run(path, body, clock)


@pytest.mark.parametrize(
    ("error", "state"),
    [(None, "error"), (StoreFailed("disk I/O error"), "idle"), (ZeroDivisionError("a defect"), "error")],
)
def test_what_goes_wrong_with_one_agent_is_told_and_stops_no_other(
    path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception | None, state: str
) -> None:
    monkeypatch.setattr(job_module, "FIRST_PAUSE_MS", 1)

    async def body(ledger: Ledger, programs: Programs, server: Scripted) -> None:
        with pytest.MonkeyPatch.context() as elsewhere:  # a configuration that was taken over is not checked here
            elsewhere.setitem(cast(Any, AGENT.fields), "harness", lambda path, value: value)
            hire(programs, "eve", harness={"maxTurns": "many"} if error is None else {})
        hire(programs, "ada", {"type": "contains", "text": "there"})
        for name in ("eve", "ada"):
            programs.assign(name, f"{name}-task")
        eve, read, told = programs.get("eve").id, WorkReader.facts, list[tuple[str, str]]()

        def facts(reader: WorkReader, agent: str) -> WorkFacts | None:
            if agent == eve and error is not None:
                raise error
            return read(reader, agent)

        def is_over(watched: Programs) -> bool:
            return are_over("ada-task")(watched) and watched.get("eve").state == state and bool(told)

        monkeypatch.setattr(WorkReader, "facts", facts)
        await serve_until_over(
            ledger, server.url, Doom(), is_over, on_error=lambda name, error: told.append((name, str(error)))
        )
        assert len(told) == 1
        assert told[0][0] == "the work of agent eve"
        words = "config.harness.maxTurns" if error is None else str(error)
        assert words in told[0][1]
        if state == "error":
            assert words in (programs.history("eve")[0].reason or "")

    run(path, body)
