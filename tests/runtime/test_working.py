"""Agents and tasks of a ledger, invoked, on every backend."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.invoking import Bench, run
from tests.runtime.scripted import HANG, chat, chat_saying, failure
from weft.kernel.enums import InboxState, ProgramKind
from weft.kernel.errors import AgentBusy, InvalidInput, NotApplicable, ProviderFailed, StoreFailed
from weft.ledger.api import Runs
from weft.ledger.views.rows import Lease
from weft.programs import Programs
from weft.runtime import agent_harness, agent_work
from weft.runtime.agent_work import WorkFacts, resumed_brief, task_brief
from weft.runtime.broker import broker
from weft.runtime.invoke.handlers import HANDLERS, invoke_agent
from weft.runtime.invoke.invocation import Invocation
from weft.runtime.sandbox.bubblewrap import Sandbox
from weft.surfaces.wire.hints import phrase

SHORT = {"type": "word_count", "max": 3}
KEYWORD = {"type": "contains", "text": "there"}


def test_every_kind_can_be_invoked() -> None:
    assert set(HANDLERS) == set(ProgramKind)


async def hire(bench: Bench, *criteria: dict[str, Any], harness: dict[str, Any] | None = None, **task: Any) -> None:
    """An agent, and a task that is its own."""

    def make() -> None:
        config = {"systemPrompt": "You research.", "defaultModel": "fast", "harness": harness or {}}
        bench.programs.create("agent", "ada", config)
        spec = {"successCriteria": list(criteria)}
        bench.programs.create("task", "greet", {"title": "Greet", "assignee": "ada", "spec": spec, **task})

    await bench.shop.across(make)


def steps(bench: Bench) -> list[str]:
    return [one.kind for one in reversed(bench.programs.history("ada"))][1:]


def test_an_agent_answers_a_message_in_its_own_session(address: str | Path) -> None:
    async def body(bench: Bench) -> None:
        await hire(bench)
        found = await bench.invoke("ada", "Who are you?")
        assert found.result["session"] == "ada:main"
        assert bench.sent() == [("system", "You research."), ("user", "Who are you?")]
        assert steps(bench) == ["agent_thinking", "agent_completed"]
        assert bench.programs.get("ada").state == "idle"
        again = await bench.invoke("ada", "And now?", model="other")
        assert bench.server.received[-1].body["model"] == "m-2"
        assert len(await bench.said(again.result["turn"])) == 5

    run(address, body, chat())


def test_a_task_runs_its_assignee_and_returns_the_report(address: str | Path) -> None:
    async def body(bench: Bench) -> None:
        await hire(bench, SHORT, KEYWORD)
        found = await bench.invoke("greet")
        assert found.result == {
            "task": "greet",
            "state": "completed",
            "assignee": "ada",
            "session": found.result["session"],
            "turns": 1,
            "answer": "Hello there",
            "criteria": [
                {
                    "criterion": 0,
                    "type": "word_count",
                    "passed": True,
                    "observed": 2,
                    "words": "word_count: the final answer has 2 words, wanted: at most 3",
                },
                {
                    "criterion": 1,
                    "type": "contains",
                    "passed": True,
                    "observed": True,
                    "words": "contains: the final answer contains 'there'",
                },
            ],
        }
        assert bench.sent()[1][1].startswith("Task: Greet\n\nIt is done when:\n- the answer has at most 3 words")
        assert steps(bench) == ["agent_task_assigned", "agent_thinking", "agent_executing", "agent_completed"]
        assert bench.programs.get("greet").result == "Hello there"
        agent = bench.programs.get("ada")
        assert (agent.state, agent.current_task) == ("idle", None)
        with pytest.raises(NotApplicable, match="is completed"):
            await bench.invoke("greet")

    run(address, body, chat())


def test_an_agent_that_reflects_is_told_what_does_not_hold(path: Path) -> None:
    async def body(bench: Bench) -> None:
        await hire(bench, SHORT, harness={"reflectOnFailure": True, "checkpointEvery": 1})
        found = await bench.invoke("ada", task="greet")
        assert (found.result["state"], found.result["turns"]) == ("completed", 2)
        assert "has 5 words, wanted: at most 3" in bench.sent()[-1][1]
        assert "agent_checkpoint" in steps(bench)
        assert len({item.body["model"] for item in bench.server.received}) == 1

    run(path, body, chat_saying({"content": "this is much too long"}), chat())


def test_without_reflection_the_first_unmet_criterion_ends_it(path: Path) -> None:
    async def body(bench: Bench) -> None:
        await hire(bench, {"type": "word_count", "min": 9})
        found = await bench.invoke("greet")
        assert found.result["state"] == "failed"
        assert found.result["criteria"][0]["observed"] == 2
        assert (bench.programs.get("ada").state, bench.programs.get("greet").state) == ("error", "failed")
        with pytest.raises(NotApplicable, match="is error") as refused:
            await bench.invoke("ada", "hello")
        assert "weft agent reset ada" in phrase(refused.value.advice)

    run(path, body, chat())


def test_the_harness_bounds_the_turns(path: Path) -> None:
    async def body(bench: Bench) -> None:
        await hire(bench, {"type": "word_count", "min": 9}, harness={"maxTurns": 3, "reflectOnFailure": True})
        found = await bench.invoke("greet")
        assert (found.result["state"], found.result["turns"]) == ("failed", 3)
        assert "3 turns were not enough" in found.result["reason"]
        assert len(bench.server.received) == 3

    run(path, body, chat())


def test_a_turn_that_a_provider_broke_off_is_reflected_on(address: str | Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_work, "FIRST_PAUSE_MS", 0)

    async def body(bench: Bench) -> None:
        await hire(bench, SHORT, harness={"reflectOnFailure": True})
        found = await bench.invoke("greet")
        assert (found.result["state"], found.result["turns"]) == ("completed", 3)
        failed, last = bench.sent(1)[-1][1], bench.sent()[-1][1]
        assert "has 5 words, wanted: at most 3" in failed
        assert last.startswith(failed)
        assert "An earlier try of this ended with an error: " in last
        reasons = [change.reason for change in bench.programs.history("ada") if change.kind == "agent_thinking"]
        assert [str(reason)[:18] for reason in reversed(reasons[:-1])] == ["reflection 1 of 3:", "reflection 2 of 3:"]

    run(address, body, chat_saying({"content": "this is much too long"}), failure(500), chat())


def test_reflections_that_bring_nothing_new_are_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_work, "FIRST_PAUSE_MS", 0)

    async def body(bench: Bench) -> None:
        await hire(bench, SHORT, harness={"reflectOnFailure": True, "maxReflections": 2})
        found = await bench.invoke("greet")
        assert (found.result["state"], found.result["turns"]) == ("failed", 3)
        assert found.result["reason"].startswith("2 reflections in a row brought nothing new: ")
        assert bench.programs.get("ada").state == "error"

    run(path, body, chat_saying({"content": "this is much too long"}), failure(500))


def test_without_reflection_a_failed_turn_leaves_the_work_until_it_is_asked_for_again(address: str | Path) -> None:
    async def body(bench: Bench) -> None:
        await hire(bench, SHORT)
        with pytest.raises(ProviderFailed):
            await bench.invoke("greet")
        agent = bench.programs.get("ada")
        assert (agent.state, agent.current_task) == ("waiting", "greet")
        failed = bench.sent()[-1]
        found = await bench.invoke("greet")
        assert bench.sent()[-1] == failed
        assert (found.result["session"], found.result["state"]) == (agent.current_session, "completed")

    run(address, body, failure(500), chat())


def test_work_that_a_provider_broke_off_goes_on_by_its_checkpoint(address: str | Path) -> None:
    async def body(bench: Bench) -> None:
        await hire(bench, SHORT, harness={"reflectOnFailure": True, "checkpointEvery": 1})
        resting = asyncio.Event()

        def progress(facts: WorkFacts, move: object) -> None:
            if isinstance(move, agent_work.Rest):
                resting.set()

        bench.shop.on_progress = progress
        working = asyncio.create_task(bench.invoke("greet"))
        await resting.wait()
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        agent = bench.programs.get("ada")
        assert (agent.state, agent.current_task, agent.last_checkpoint) == ("waiting", "greet", 1)
        failed = bench.sent()[-1]
        found = await bench.invoke("greet")
        assert bench.sent()[-1] == failed
        assert (found.result["session"], found.result["state"]) == (agent.current_session, "completed")

    run(address, body, chat_saying({"content": "this is much too long"}), failure(500), chat())


def test_work_that_was_interrupted_goes_on_where_the_session_stands(path: Path) -> None:
    async def body(bench: Bench) -> None:
        await hire(bench, SHORT, harness={"reflectOnFailure": True})
        working = asyncio.create_task(bench.invoke("greet"))
        await bench.server.hanging.wait()
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        assert bench.programs.get("ada").state == "waiting"
        await bench.invoke("greet")
        assert bench.sent()[-1] == ("user", resumed_brief(bench.programs.get("greet")))

    run(path, body, chat_saying({"content": "this is much too long"}), [HANG], chat())


def test_an_agent_left_behind_by_its_task_is_free_again(path: Path) -> None:
    async def body(bench: Bench) -> None:
        await hire(bench)

        def leave() -> None:
            bench.programs.start_task("greet")
            bench.programs.assign("ada", "greet")
            bench.programs.acting_as("ada").step_agent("ada", "think")
            bench.programs.complete_task("greet", answer="Hello")

        await bench.shop.across(leave)
        with pytest.raises(NotApplicable, match="is completed"):
            await bench.invoke("greet")
        agent = bench.programs.get("ada")
        assert (agent.state, agent.current_task) == ("idle", None)

    run(path, body, chat())


def test_work_that_is_cancelled_leaves_the_agent_waiting(path: Path) -> None:
    async def body(bench: Bench) -> None:
        await hire(bench)
        working = asyncio.create_task(bench.invoke("greet"))
        await bench.server.hanging.wait()
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        assert bench.programs.get("ada").state == "waiting"
        assert (await bench.invoke("greet")).result["state"] == "completed"

    run(path, body, [HANG], chat())


def test_a_command_decides_in_the_sandbox_whether_a_task_is_done(path: Path, sandbox: Sandbox) -> None:
    folder = path.parent / "work"
    folder.mkdir()
    (folder / "notes.md").write_text("all of it")

    async def body(bench: Bench) -> None:
        criterion = {"type": "command", "command": "test -s notes.md && echo fine", "stdout": "fine"}
        await hire(bench, criterion, workspace=str(folder))
        (check,) = (await bench.invoke("greet")).result["criteria"]
        assert (check["passed"], check["observed"]["exitCode"]) == (True, 0)

    run(path, body, chat())


def test_criteria_that_cannot_be_checked_are_an_error_and_no_verdict(path: Path) -> None:
    async def body(bench: Bench) -> None:
        await hire(bench, {"type": "file_exists", "path": "notes.md"})
        with pytest.raises(InvalidInput, match="no workspace"):
            await bench.invoke("greet")
        assert (bench.programs.get("ada").state, bench.programs.get("greet").state) == ("error", "active")

    run(path, body, chat())


def test_a_task_that_nobody_can_work_on_says_why(path: Path) -> None:
    async def body(bench: Bench) -> None:
        await hire(bench, dependencies=[])

        def make() -> None:
            bench.programs.create("human", "bln", {})
            bench.programs.create("agent", "idle-hands", {})
            bench.programs.create("task", "nobodys", {"title": "x"})
            bench.programs.create("task", "his", {"title": "Look at it", "assignee": "bln"})
            bench.programs.create("task", "later", {"title": "x", "assignee": "ada", "dependencies": ["greet"]})
            bench.programs.create("task", "modelless", {"title": "x", "assignee": "idle-hands"})

        await bench.shop.across(make)
        with pytest.raises(NotApplicable, match="is nobody's"):
            await bench.invoke("nobodys")
        with pytest.raises(NotApplicable, match="is blocked"):
            await bench.invoke("later")
        with pytest.raises(NotApplicable, match="has no model"):
            await bench.invoke("modelless")
        told = await bench.invoke("his")
        assert (told.result["assignee"], told.result["status"]) == ("bln", "told")
        assert bench.shown == [("bln", task_brief(bench.programs.get("his")))]
        assert bench.server.received == []
        assert bench.programs.get("ada").state == "idle"

    run(path, body, chat())


def test_only_one_at_a_time_runs_an_agent(address: str | Path) -> None:
    async def body(bench: Bench) -> None:
        await hire(bench, KEYWORD)
        first = asyncio.create_task(bench.invoke("greet"))
        await bench.server.hanging.wait()
        before = steps(bench)
        for work in (bench.invoke("greet"), bench.invoke("ada", "Who are you?")):
            with pytest.raises(AgentBusy, match="at work"):
                await work
        assert steps(bench) == before == ["agent_task_assigned", "agent_thinking"]
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        assert (await bench.invoke("greet")).result["state"] == "completed"

    run(address, body, [HANG], chat())


def test_an_agent_that_is_reset_while_its_model_is_asked_stops_at_once(
    address: str | Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease is renewed meanwhile, by which it is noticed."""
    monkeypatch.setattr(broker, "RENEW_SECONDS", 0.01)

    async def body(bench: Bench) -> None:
        await hire(bench, KEYWORD)
        renew, renewals = bench.programs.renew_agent, asyncio.Semaphore(0)
        loop = asyncio.get_running_loop()

        def counted(programs: Programs, hold: Lease) -> None:
            renew(hold)
            loop.call_soon_threadsafe(renewals.release)

        monkeypatch.setattr(Programs, "renew_agent", counted)
        working = asyncio.create_task(bench.invoke("greet"))
        await bench.server.hanging.wait()
        for _ in range(3):
            await renewals.acquire()
        await bench.shop.across(lambda: bench.programs.step_agent("ada", "reset"))
        with pytest.raises(AgentBusy, match="meanwhile"):
            await working
        assert bench.programs.get("ada").state == "idle"
        (turn,) = bench.programs.ledger.log()
        assert turn.interruption_reason == "canceled"

    run(address, body, [HANG])


def test_whoever_lost_an_agent_by_a_reset_changes_nothing_any_more(address: str | Path) -> None:
    async def body(bench: Bench) -> None:
        await hire(bench)
        hold = await bench.shop.across(lambda: bench.programs.hold_agent("ada"))
        own = bench.programs.acting_as("ada", hold)
        await bench.shop.across(lambda: own.step_agent("ada", "think"))
        with pytest.raises(AgentBusy):
            await bench.shop.across(lambda: bench.programs.hold_agent("ada"))
        await bench.shop.across(lambda: bench.programs.step_agent("ada", "reset"))
        before = len(bench.programs.history("ada"))
        again = await bench.shop.across(lambda: bench.programs.hold_agent("ada"))
        refused: list[Callable[[], object]] = [
            lambda: own.step_agent("ada", "think"),
            lambda: own.fail_agent("ada", "x"),
            lambda: own.start_task("greet"),
            lambda: own.complete_task("greet", answer="x"),
            lambda: own.save_checkpoint("ada", {}),
            lambda: own.release_agent(hold),
        ]
        for work in refused:
            with pytest.raises(AgentBusy, match="meanwhile"):
                await bench.shop.across(work)
        assert len(bench.programs.history("ada")) == before
        await bench.shop.across(lambda: bench.programs.release_agent(again))

    run(address, body, chat())


def test_an_agent_is_free_again_after_a_task_that_was_cancelled_while_it_took_it_up(path: Path) -> None:
    async def body(bench: Bench) -> None:
        await hire(bench)
        across = bench.shop.across
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def slowly(call: Callable[[], Any]) -> Any:
            made = await across(call)
            begun.set()
            await go_on.wait()
            return made

        agent = await bench.shop.get("ada")
        bench.shop.across = slowly  # type: ignore[method-assign]
        task = asyncio.ensure_future(invoke_agent(bench.shop, agent, Invocation(message="hello")))
        await begun.wait()
        task.cancel()
        bench.shop.across = across  # type: ignore[method-assign]
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await bench.invoke("ada", "hello")).result["text"] == "Hello there"

    run(path, body, chat())


def test_work_whose_message_waits_in_another_ledger_says_so_and_does_not_try_for_ever(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(bench: Bench) -> None:
        await hire(bench)
        monkeypatch.setattr(Runs, "message_state", lambda runs, message: (InboxState.QUEUED, True))
        with pytest.raises(NotApplicable, match="waits in another ledger"):
            await bench.invoke("greet")
        assert bench.server.received == []

    run(path, body, chat())


def test_a_ledger_that_cannot_be_written_is_no_failure_of_the_work(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(bench: Bench) -> None:
        await hire(bench)

        async def fail(*arguments: Any, **options: Any) -> None:
            raise StoreFailed("disk I/O error")

        monkeypatch.setattr(agent_harness, "answer_admitted", fail)
        with pytest.raises(StoreFailed):
            await bench.invoke("greet")
        assert bench.programs.get("ada").state == "thinking"

    run(path, body, chat())
