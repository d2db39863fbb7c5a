"""Threads run again with a scripted model: nothing runs, and the first difference is named."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import weft
import weft.aio
from tests.runtime.replay.scripted_answers import ReplayBench, saying, script_of, stop
from tests.runtime.scripted import HANG, chat, failure, scripted
from weft.kernel.errors import InvalidInput
from weft.kernel.events import ModelRequest
from weft.ledger.api import Runs, SessionStanding
from weft.ledger.model import ImagePart, Part, TextPart, ToolUsePart
from weft.runtime.broker.broker import Broker
from weft.runtime.broker.turn_plans import SenderContext, TurnPlan
from weft.runtime.inference.inference import Inference
from weft.runtime.inference.model_requests import RetryPolicy
from weft.runtime.recorded_threads import DivergenceKind, NamedCall, TextComparison, permissive_spec
from weft.runtime.thread_replay import (
    ReplayChange,
    ReplayOutcome,
    SkipTurn,
    ThreadRange,
    ThreadReplayer,
    UseResult,
    sendable_part,
)
from weft.runtime.tool.tool_contract import FunctionTool, tools_of

Body = Callable[[ReplayBench], Awaitable[None]]
READ_A, READ_B = ("read", {"path": "a"}), ("read", {"path": "b"})


def record(ledger: weft.Ledger) -> list[str]:
    """Three turns of one session: two reads, one edit that failed, one without tools."""
    read = [
        {"name": "read", "id": "c1", "arguments": {"path": "a"}, "result": "alpha"},
        {"name": "read", "id": "c2", "arguments": {"path": "b"}, "result": {"text": "beta"}},
    ]
    edit = [{"name": "edit", "id": "c3", "arguments": {"path": "a", "to": "A"}, "error": "it is read-only"}]
    usage = {"input_tokens": 1000, "output_tokens": 200}
    turns = [
        ledger.record_turn(session="work", system="Be brief", query="Read a and b", response="alpha, beta",
                           tool_calls=read, model="claude-sonnet-4-5", usage=usage),
        ledger.record_turn(session="work", query="Make a large", response="I cannot", tool_calls=edit, model="m-0"),
        ledger.record_turn(session="work", query="Thanks", response="You are welcome", model="m-0"),
    ]  # fmt: skip
    return [turn.id for turn in turns]


def run(address: str | Path, body: Body) -> None:
    async def main() -> None:
        with weft.open(address) as ledger:
            record(ledger)
        inference = Inference(policy=RetryPolicy(attempts=1))
        async with weft.aio.open(address) as mirror, scripted(chat()) as server, inference:
            await body(ReplayBench(mirror, server, inference))
            assert [problem async for problem in mirror.verify()] == []

    asyncio.run(main())


def test_answers_as_recorded_diverge_nowhere_and_change_nothing(address: str | Path) -> None:
    async def body(bench: ReplayBench) -> None:
        sync = bench.ledger.sync
        before = [turn.digest for turn in sync.log()]
        turns, thread = await bench.read("work")
        report = await bench.replay(turns, script_of(thread))
        assert (report.outcome, report.first, report.recorded) == (ReplayOutcome.SAME, None, 3)
        assert report.session is not None
        assert report.session.startswith("replay:")
        assert [turn.digest for turn in sync.log()][3:] == before
        assert sync.session("work").head == turns.last
        calls = [sync.tool_calls(exchange.replayed or "") for exchange in report.exchanges]
        assert [[call.result for call in one] for one in calls] == [["alpha", {"text": "beta"}], [None], []]
        assert calls[1][0].error == "it is read-only"
        first, *_, last = bench.server.received
        assert [message["role"] for message in first.body["messages"]] == ["system", "user"]
        assert len(last.body["messages"]) == 11
        replayed = sync.turn(report.exchanges[0].replayed or "")
        assert replayed.effective_config["replays"] == report.exchanges[0].turn
        assert len(sync.diff("work", report.session).right) == 3

    run(address, body)


def test_replays_of_one_thread_have_sessions_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where another process takes the label between the look at it and the session."""

    async def body(bench: ReplayBench) -> None:
        turns, thread = await bench.read("work")
        sync, stem = bench.ledger.sync, f"replay:{turns.last}"
        first = await bench.replay(turns, script_of(thread))
        create, taken = weft.Ledger.create_session, list[str]()

        def late(ledger: weft.Ledger, label: str, **more: Any) -> Any:
            if not taken:
                taken.append(create(ledger, label).label)
            return create(ledger, label, **more)

        monkeypatch.setattr(weft.Ledger, "create_session", late)
        second = await bench.replay(turns, script_of(thread))
        assert (first.session, taken, second.session) == (f"{stem}:1", [f"{stem}:2"], f"{stem}:3")
        sync.labels.add_alias(f"{stem}:4", "work")
        assert (await bench.replay(turns, script_of(thread))).session == f"{stem}:5"

    run(tmp_path / "ledger.db", body)


def test_tokens_and_cost_stand_side_by_side(tmp_path: Path) -> None:
    async def body(bench: ReplayBench) -> None:
        turns, thread = await bench.read("work")
        report = await bench.replay(turns, script_of(thread))
        recorded, replayed = report.recorded_spending, report.replayed_spending
        assert (recorded.answers, recorded.calls, replayed.answers, replayed.calls) == (5, 3, 5, 3)
        assert (recorded.input_tokens, recorded.output_tokens) == (1000, 200)
        assert recorded.cost == 1000 * 3 + 200 * 15
        assert (replayed.input_tokens, replayed.output_tokens, replayed.unpriced) == (100, 25, 5)
        assert report.recorded_models == ["claude-sonnet-4-5", "m-0"]
        assert report.models == ["m-1"]

    run(tmp_path / "ledger.db", body)


def test_one_changed_text_names_exactly_its_turn(tmp_path: Path) -> None:
    async def body(bench: ReplayBench) -> None:
        turns, thread = await bench.read("work")
        answers = [answer for exchange in thread.exchanges for answer in exchange.answers]
        scripts = script_of(thread)
        for place, turn in enumerate((0, 0, 1, 1, 2)):
            calls = [(call.name, call.arguments) for call in answers[place].calls]
            scripts = [*script_of(thread)]
            scripts[place] = saying("Something else", calls)
            report = await bench.replay(turns, scripts)
            assert report.outcome is ReplayOutcome.DIVERGED
            assert report.first is not None
            assert report.first_call is None
            assert report.first.turn == thread.turns[turn].id
            assert (report.first.kind, report.first.replayed_text) == (DivergenceKind.TEXT, "Something else")
            assert report.first.recorded_text == answers[place].text
            assert sum(len(exchange.divergences) for exchange in report.exchanges) == 1
        ignoring = await bench.replay(turns, scripts, ReplayChange(texts=TextComparison.IGNORE))
        assert ignoring.outcome is ReplayOutcome.SAME

    run(tmp_path / "ledger.db", body)


def test_white_space_counts_only_where_texts_are_compared_exactly(tmp_path: Path) -> None:
    async def body(bench: ReplayBench) -> None:
        turns, thread = await bench.read("work")
        scripts = [*script_of(thread)[:4], saying("  You are\nwelcome ")]
        assert (await bench.replay(turns, scripts)).outcome is ReplayOutcome.SAME
        exact = await bench.replay(turns, scripts, ReplayChange(texts=TextComparison.EXACT))
        assert exact.first is not None
        assert exact.first.turn == turns.last

    run(tmp_path / "ledger.db", body)


def test_a_call_that_is_not_recorded_stops_the_replay_and_runs_nothing(tmp_path: Path) -> None:
    async def body(bench: ReplayBench) -> None:
        turns, _ = await bench.read("work")
        other = ("read", {"path": "c"})
        report = await bench.replay(turns, [saying("", [READ_A, other])])
        assert report.outcome is ReplayOutcome.STOPPED
        (exchange,) = report.exchanges
        assert exchange.missing == NamedCall(name="read", arguments={"path": "c"})
        assert report.first_call is not None
        assert report.first_call.kind is DivergenceKind.CALLS
        assert report.first_call.replayed_calls[1] == exchange.missing
        sync = bench.ledger.sync
        assert sync.tool_calls(exchange.replayed or "") == []
        assert len(bench.server.received) == 1
        *_, answer = sync.messages(exchange.replayed or "")
        assert [part.name for part in answer.content if isinstance(part, ToolUsePart)] == ["read", "read"]

    run(tmp_path / "ledger.db", body)


def test_the_tools_that_the_turn_would_have_are_not_used(tmp_path: Path) -> None:
    async def body(bench: ReplayBench) -> None:
        ran: list[str] = []

        def read(path: str) -> str:
            """Read a file."""
            ran.append(path)
            return "live"

        async def plan(standing: SessionStanding, messages: Any) -> TurnPlan:
            planned = await bench.plan(standing, messages)
            planned.tools = tools_of(FunctionTool(read))
            return planned

        turns, thread = await bench.read("work")
        bench.server.scripts = script_of(thread)
        report = await ThreadReplayer(bench.ledger, plan, ReplayChange(), stop).replay(turns)
        assert (report.outcome, ran) == (ReplayOutcome.SAME, [])
        bench.server.scripts = [saying("", [("read", {"path": "c"})])]
        report = await ThreadReplayer(bench.ledger, plan, ReplayChange(), stop).replay(turns)
        assert (report.outcome, ran) == (ReplayOutcome.STOPPED, [])

    run(tmp_path / "ledger.db", body)


def test_equal_calls_are_given_their_results_in_the_recorded_order(tmp_path: Path) -> None:
    async def body(bench: ReplayBench) -> None:
        sync = bench.ledger.sync
        tick = [{"name": "tick", "id": f"t{n}", "arguments": {"b": 1, "a": 2}, "result": n} for n in range(3)]
        sync.record_turn(session="ticks", query="Tick", response="done", tool_calls=tick)
        turns, _ = await bench.read("ticks")
        again = saying("", [("tick", {"a": 2, "b": 1})])
        report = await bench.replay(turns, [again, again, again, saying("done")])
        assert [call.result for call in sync.tool_calls(report.exchanges[0].replayed or "")] == [0, 1, 2]
        assert report.exchanges[0].missing is None
        report = await bench.replay(turns, [again, again, again, again])
        assert report.exchanges[0].missing == NamedCall(name="tick", arguments={"a": 2, "b": 1})

    run(tmp_path / "ledger.db", body)


def test_a_given_result_is_told_to_the_model(tmp_path: Path) -> None:
    async def body(bench: ReplayBench) -> None:
        async def give(*_: Any) -> UseResult:
            return UseResult("gamma")

        turns, _ = await bench.read("work~2")
        report = await bench.replay(turns, [saying("", [("read", {"path": "c"})]), saying("gamma")], on_missing=give)
        assert report.outcome is ReplayOutcome.DIVERGED
        assert [call.result for call in bench.ledger.sync.tool_calls(report.session or "")] == ["gamma"]

    run(tmp_path / "ledger.db", body)


def test_skipping_goes_on_with_the_recorded_history(tmp_path: Path) -> None:
    async def body(bench: ReplayBench) -> None:
        async def skip(*_: Any) -> SkipTurn:
            return SkipTurn()

        turns, thread = await bench.read("work")
        scripts = [saying("", [("rm", {"path": "/"}), READ_A]), *script_of(thread)[2:]]
        report = await bench.replay(turns, scripts, on_missing=skip)
        outcomes = [exchange.outcome for exchange in report.exchanges]
        assert outcomes == [ReplayOutcome.STOPPED, ReplayOutcome.SAME, ReplayOutcome.SAME]
        second = bench.ledger.sync.turn(report.exchanges[1].replayed or "")
        assert second.parent_id == thread.turns[0].id

    run(tmp_path / "ledger.db", body)


def test_a_turn_that_fails_ends_the_replay_with_a_word_or_is_skipped(tmp_path: Path) -> None:
    async def body(bench: ReplayBench) -> None:
        turns, thread = await bench.read("work")
        report = await bench.replay(turns, [failure(400, "no such model")])
        assert report.outcome is ReplayOutcome.FAILED
        assert "no such model" in (report.exchanges[0].error or "")
        scripts = [failure(400, "no such model"), *script_of(thread)[2:]]
        report = await bench.replay(turns, scripts, ReplayChange(skips_failed=True))
        assert [exchange.outcome for exchange in report.exchanges][1:] == [ReplayOutcome.SAME] * 2

    run(tmp_path / "ledger.db", body)


def test_a_replay_begins_after_any_turn_of_the_thread(tmp_path: Path) -> None:
    async def body(bench: ReplayBench) -> None:
        whole, thread = await bench.read("work")
        turns = ThreadRange(last=whole.last, after=thread.turns[1].id, session="work")
        report = await bench.replay(turns, [saying("You are welcome")])
        assert (report.outcome, report.session) == (ReplayOutcome.SAME, "replay:work:1")
        assert bench.ledger.sync.turn(report.exchanges[0].replayed or "").parent_id == thread.turns[1].id
        with pytest.raises(InvalidInput, match="no turn of the thread"):
            await bench.replay(ThreadRange(last=thread.turns[0].id, after=whole.last), [])

    run(tmp_path / "ledger.db", body)


def test_another_prompt_replaces_the_recorded_one(tmp_path: Path) -> None:
    async def body(bench: ReplayBench) -> None:
        turns, thread = await bench.read("work")
        await bench.replay(turns, script_of(thread), ReplayChange(prompt="Be long"))
        sent = [received.body["messages"][0] for received in bench.server.received]
        assert [(message["role"], message["content"]) for message in sent] == [("system", "Be long")] * 5

    run(tmp_path / "ledger.db", body)


def test_tools_are_offered_as_recorded_or_with_a_schema_that_takes_what_was(tmp_path: Path) -> None:
    async def body(bench: ReplayBench) -> None:
        turns, thread = await bench.read("work")
        report = await bench.replay(turns, script_of(thread))
        offered = {tool["function"]["name"]: tool["function"] for tool in bench.server.received[0].body["tools"]}
        assert set(offered) == {"read", "edit"}
        assert set(offered["edit"]["parameters"]["properties"]) == {"path", "to"}
        again, recorded = await bench.read(report.session or "")
        assert (await bench.replay(again, script_of(recorded))).outcome is ReplayOutcome.SAME
        second = {tool["function"]["name"]: tool["function"] for tool in bench.server.received[0].body["tools"]}
        assert second == offered
        first_turn = report.exchanges[0].replayed or ""
        (request, *_) = [
            one.event for one in bench.ledger.sync.events(first_turn) if isinstance(one.event, ModelRequest)
        ]
        assert isinstance(request.tools_spec, str)
        named = {spec["name"] for spec in Runs(bench.ledger.sync).value(request.tools_spec)}
        assert named == {"read", "edit"}

    run(tmp_path / "ledger.db", body)


def test_no_other_broker_answers_what_a_replay_asks(tmp_path: Path) -> None:
    """Another broker would answer it with tools that run."""

    async def body(bench: ReplayBench) -> None:
        planned: list[str] = []

        async def plan_of_others(standing: SessionStanding, messages: Any) -> TurnPlan:
            planned.append(standing.label)
            return await bench.plan(standing, messages)

        ledger = bench.ledger
        overrides = {"replays": "a turn"}
        waiting = ledger.sync.inbox.admit("Read a", session="replay:x", overrides=overrides)
        other = ledger.sync.inbox.admit("Read a", session="other")
        broker = Broker(ledger.sync, ledger.crossing, plan_of_others)
        serving = asyncio.ensure_future(broker.serve())
        await broker.wait_for_answer(other.message, other.session_id)
        broker.drain()
        await serving
        assert planned == ["other"]
        assert ledger.sync.inbox.get(waiting.message).state == "queued"

    run(tmp_path / "ledger.db", body)


def test_a_replayed_turn_that_was_left_open_fails_with_a_word(tmp_path: Path) -> None:
    async def body(bench: ReplayBench) -> None:
        ledger = bench.ledger
        bench.server.scripts = [[HANG]]
        asked = ledger.sync.inbox.admit("Read a", session="replay:x", overrides={"replays": "a turn"})
        mine = Broker(ledger.sync, ledger.crossing)
        mine.expect(asked.message, SenderContext(planner=bench.plan))
        serving = asyncio.ensure_future(mine.serve())
        await bench.server.hanging.wait()
        mine.drain(0)
        await serving
        other = Broker(ledger.sync, ledger.crossing, bench.plan)
        end = await other.wait_for_answer(asked.message, asked.session_id)
        assert end is not None
        assert "whoever replayed this turn is gone" in str(end.error)

    run(tmp_path / "ledger.db", body)


def test_images_that_were_not_recorded_are_told_in_words() -> None:
    kept: tuple[Part, ...] = (
        ImagePart("https://example.com/a.png"),
        ImagePart("data:image/png;base64,aGk="),
        TextPart("data:"),
    )
    assert tuple(map(sendable_part, kept)) == kept
    for url in ("file-service://x", "data:image/png;base64,a", "data:[cut];base64,aGk="):
        assert isinstance(sendable_part(ImagePart(url)), TextPart)


def test_a_derived_schema_knows_every_recorded_argument_and_requires_none() -> None:
    spec = permissive_spec("grep", [{"pattern": "x"}, {"path": "y", "pattern": 3}])
    assert list(spec.schema["properties"]) == ["pattern", "path"]
    assert spec.schema["additionalProperties"] is True
    assert "required" not in spec.schema
