"""Why something under way was cut short: each reason has its producer, and the turn goes on or ends as it should."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.runtime.broker.bench import Bench, run, saying
from weft.kernel.clock import FixedClock
from weft.kernel.enums import InterruptionReason
from weft.kernel.errors import ContextTooLong, NotApplicable
from weft.kernel.events import Interruption, ModelRequest, ToolResult
from weft.ledger.api import Ledger
from weft.ledger.model import NewMessage
from weft.runtime.broker.broker import Broker
from weft.runtime.broker.turn_plans import ShortenedContext
from weft.runtime.broker.turn_state import Run
from weft.runtime.tool.tool_contract import FunctionTool, LaterResult, tools_of
from weft.store.replicas import process_owner, was_before_boot


async def serve_until_asked(bench: Bench, broker: Broker) -> asyncio.Task[None]:
    """A broker that waits for an answer which never comes."""
    serving = asyncio.ensure_future(broker.serve())
    await bench.provider.asked.wait()
    bench.provider.asked.clear()
    return serving


async def lose_broker(bench: Bench, owner: str) -> None:
    """A broker of this name asks the model and is gone, without a word."""
    bench.ledger._owner = owner
    broker = bench.broker()
    serving = await serve_until_asked(bench, broker)
    for runner in broker._runners.values():
        writer = runner._writer
        assert writer is not None
        writer.is_over = True  # so that nothing is written as it ends
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    bench.ledger._owner = process_owner()


async def take_over(bench: Bench, clock: FixedClock, message: str) -> None:
    """The lease of the one before is stale once its beat did not move for a while."""
    answering = asyncio.ensure_future(bench.answered(message))
    while not answering.done():
        clock.tick(100)
        await asyncio.sleep(0)
    await answering


def attempts(bench: Bench, message: str) -> list[int]:
    return [one.event.attempt for one in bench.events(message) if isinstance(one.event, ModelRequest)]  # type: ignore[misc]


def other_boot() -> str:
    machine, pid, started = process_owner().rsplit("/", 2)
    return f"00000000-{machine.partition('-')[2]}/{pid}/{started}"


@pytest.mark.parametrize("reason", ["crash", "system_restart"])
def test_a_lost_broker_crashed_or_its_machine_restarted(ledger: Ledger, clock: FixedClock, reason: str) -> None:
    async def body() -> None:
        bench = Bench(ledger, None, saying("Hi"), clock=clock)
        message = bench.admit()
        await lose_broker(bench, "elsewhere.1.other/1/1" if reason == "crash" else other_boot())
        await take_over(bench, clock, message)
        assert bench.interruptions(message) == [reason]
        assert attempts(bench, message) == [1, 2]
        assert bench.state(message) == ("answered", None)
        assert bench.provider.sent(0) == bench.provider.sent(1) == ["hello"]

    run(body())


def test_only_an_owner_on_this_machine_was_there_before_its_last_start() -> None:
    assert was_before_boot(other_boot())
    assert not was_before_boot(process_owner())
    assert not any(map(was_before_boot, ("", "nobody", "elsewhere.1.other/1/1", "a/b/c")))


def test_a_drained_broker_records_what_is_under_way_as_shut_down_and_another_goes_on(ledger: Ledger) -> None:
    async def body() -> None:
        bench = Bench(ledger, None, saying("Hi"))
        message = bench.admit()
        broker = bench.broker()
        serving = await serve_until_asked(bench, broker)
        broker.drain(0)
        await serving
        assert bench.interruptions(message) == ["shutdown"]
        assert bench.state(message) == ("taken", None)
        await bench.answered(message)
        assert bench.interruptions(message) == ["shutdown"]
        assert attempts(bench, message) == [1, 2]
        assert bench.state(message) == ("answered", None)

    run(body())


def test_tools_of_a_drained_broker_run_again_only_where_they_may(ledger: Ledger) -> None:
    async def body() -> None:
        runs: list[str] = []
        under_way = asyncio.Event()

        async def writes() -> str:
            runs.append("writes")
            await asyncio.get_running_loop().create_future()
            return "never"

        async def reads() -> str:
            runs.append("reads")
            if runs.count("reads") == 1:
                under_way.set()
                await asyncio.get_running_loop().create_future()
            return "read"

        bench = Bench(ledger, saying("", "writes", "reads"), saying("Done"))
        bench.options["tools"] = tools_of(FunctionTool(writes), FunctionTool(reads, is_idempotent=True))
        message = bench.admit()
        broker = bench.broker()
        serving = asyncio.ensure_future(broker.serve())
        await under_way.wait()
        broker.drain(0)
        await serving
        await bench.answered(message)
        assert runs == ["writes", "reads", "reads"]
        results = [one.event for one in bench.events(message) if isinstance(one.event, ToolResult)]
        assert [str(result.status) for result in results] == ["interrupted", "ok"]
        assert results[0].error.code == "shutdown"  # type: ignore[union-attr]
        assert bench.state(message) == ("answered", None)
        affected = [one.event.affects for one in bench.events(message) if isinstance(one.event, Interruption)]
        assert affected == [(results[0].call,)]
        turn = ledger.turn("main")
        assert (turn.status, turn.interruption_reason) == ("completed", None)
        assert [call.server for call in ledger.tool_calls("main")] == ["runtime", "runtime"]

    run(body())


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        ("canceled", "canceled"),
        ("approval_denied", "canceled"),
        ("timeout", "timeout"),
        ("crash", "interrupted"),
        ("shutdown", "interrupted"),
        ("context_reset", "interrupted"),
        ("system_restart", "interrupted"),
    ],
)
def test_each_reason_of_a_cut_ends_open_calls_with_one_of_the_statuses(
    ledger: Ledger, reason: str, status: str
) -> None:
    async def body() -> None:
        under_way = asyncio.Event()

        async def looks() -> None:
            under_way.set()
            await asyncio.get_running_loop().create_future()

        bench = Bench(ledger, saying("", "looks"))
        bench.options["tools"] = tools_of(FunctionTool(looks))
        message = bench.admit()
        broker = bench.broker()
        answering = asyncio.ensure_future(bench.answered(message, broker))
        await under_way.wait()
        broker.interrupt(ledger.session("main").id, InterruptionReason(reason))
        assert (await answering).cut == reason
        (call,) = ledger.tool_calls("main")
        assert (call.outcome, call.error_code, call.status) == (status, reason, "failed")
        assert bench.interruptions(message) == [reason]
        assert ledger.turn("main").interruption_reason == reason
        ledger.record_late_result("main", call.call_id, "seen after all")
        assert ledger.tool_calls("main")[0].result == "seen after all"
        assert list(ledger.verify()) == []

    run(body())


def test_a_broker_that_drains_without_an_end_lets_its_turns_end(ledger: Ledger) -> None:
    async def body() -> None:
        bench = Bench(ledger, saying("Hi"))
        message = bench.admit()
        broker = bench.broker()
        serving = await serve_until_asked(bench, broker)
        broker.drain()
        await serving
        assert bench.state(message) == ("answered", None)
        assert bench.interruptions(message) == []

    run(body())


def test_a_turn_that_takes_too_long_is_cut_by_its_deadline(ledger: Ledger, clock: FixedClock) -> None:
    async def body() -> None:
        bench = Bench(ledger, None, clock=clock)
        bench.options["deadline_seconds"] = 0.01
        message = bench.admit()
        answering = asyncio.ensure_future(bench.answered(message))
        await bench.provider.asked.wait()
        clock.tick(10)
        end = await answering
        assert end.cut == "timeout"
        assert bench.interruptions(message) == ["timeout", "timeout"]  # the request, then the turn
        assert ledger.turn(end.turn).status == "completed"

    run(body())


def test_an_interrupting_message_cancels_the_turn_and_takes_the_next(ledger: Ledger) -> None:
    async def body() -> None:
        bench = Bench(ledger, None, saying("Hi"))
        first = bench.admit("first")
        broker = bench.broker()
        answering = asyncio.ensure_future(bench.answered(first, broker))
        await bench.provider.asked.wait()
        second = bench.admit("second", mode="interrupt")
        await bench.answered(second, broker)
        assert (await answering).cut == "canceled"
        assert set(bench.interruptions(first)) == {"canceled"}
        assert bench.provider.sent() == ["first", "second"]

    run(body())


def test_an_interrupting_message_ends_a_parked_turn(ledger: Ledger) -> None:
    async def body() -> None:
        async def asks() -> LaterResult:
            return LaterResult(why="a person is asked")

        bench = Bench(ledger, saying("", "asks"), saying("Hi"))
        bench.options["tools"] = tools_of(FunctionTool(asks))
        first = bench.admit("first")
        broker = bench.broker()
        serving = await serve_until_asked(bench, broker)
        while not ledger.inbox.get(first).turn or not Run("").apply(bench.events(first)).is_parked:
            await asyncio.sleep(0)
        second = bench.admit("second", mode="interrupt")
        broker.wake()
        await bench.provider.asked.wait()
        broker.drain()
        await serving
        assert bench.interruptions(first) == ["canceled"]
        assert (bench.state(first)[0], bench.state(second)[0]) == ("answered", "answered")

    run(body())


def test_a_parked_turn_goes_on_with_the_result_that_comes_from_outside(ledger: Ledger) -> None:
    async def body() -> None:
        async def asks() -> LaterResult:
            return LaterResult(why="a person is asked")

        bench = Bench(ledger, saying("", "asks"), saying("Done"))
        bench.options["tools"] = tools_of(FunctionTool(asks))
        message = bench.admit("first")
        answering = asyncio.ensure_future(bench.answered(message))
        while not ledger.inbox.get(message).turn or not Run("").apply(bench.events(message)).is_parked:
            await asyncio.sleep(0)
        turn = ledger.inbox.get(message).turn or ""
        assert not bench.runs.is_untrusted(turn)
        ledger.record_late_result(turn, "call-asks", {"said": "yes"})
        assert bench.runs.is_untrusted(turn)
        end = await answering
        assert end.reply.text == "Done"
        assert "yes" in bench.provider.sent()[-1]
        with pytest.raises(NotApplicable):
            ledger.record_late_result(turn, "call-asks", {"said": "no"})

    run(body())


def test_parked_calls_are_given_up_each_at_its_own_time(ledger: Ledger, clock: FixedClock) -> None:
    async def body() -> None:
        begun = clock.now_ms()

        async def asks_briefly() -> LaterResult:
            return LaterResult(why="a machine is asked", until_ms=begun + 1000)

        async def asks_long() -> LaterResult:
            return LaterResult(why="a person is asked", until_ms=begun + 60_000)

        bench = Bench(ledger, saying("", "asks_briefly", "asks_long"), saying("Done"), clock=clock)
        bench.options["tools"] = tools_of(FunctionTool(asks_briefly), FunctionTool(asks_long))
        message = bench.admit("first")
        broker = bench.broker()
        serving = asyncio.ensure_future(broker.serve())

        def outcomes() -> list[str]:
            return [one.event.status.value for one in bench.events(message) if isinstance(one.event, ToolResult)]

        while not (ledger.inbox.get(message).turn and outcomes()):
            clock.tick(100)
            broker.wake()
            await asyncio.sleep(0)
        session = ledger.inbox.get(message).session_id
        while not bench.runs.standing(session).is_parked:
            await asyncio.sleep(0)
        assert (outcomes(), bench.runs.standing(session).parked_until) == (["timeout"], begun + 60_000)
        ledger.record_late_result(ledger.inbox.get(message).turn or "", "call-asks_long", {"said": "yes"})
        await settle_with(serving, broker, lambda: bench.state(message)[0] == "answered")
        assert outcomes() == ["timeout", "ok"]
        assert "yes" in " ".join(bench.provider.sent())

    run(body())


async def settle_with(serving: asyncio.Future[None], broker: Broker, is_settled: Callable[[], bool]) -> None:
    """Serve until something is so."""
    while not is_settled():
        broker.wake()
        await asyncio.sleep(0)
        assert not serving.done()
    broker.drain()
    await serving


def test_a_request_that_is_too_long_is_asked_once_more_with_less(ledger: Ledger) -> None:
    async def body() -> None:
        async def shorten(turn: str, messages: Sequence[Any]) -> ShortenedContext:
            return ShortenedContext(messages=(NewMessage(role="user", content="short"),))  # type: ignore[arg-type]

        bench = Bench(ledger, ContextTooLong("too long"), saying("Hi"))
        bench.options["on_overflow"] = shorten
        message = bench.admit("much too long")
        await bench.answered(message)
        assert bench.interruptions(message) == ["context_reset"]
        assert attempts(bench, message) == [1, 2]
        assert [bench.provider.sent(0), bench.provider.sent(1)] == [["much too long"], ["short"]]
        assert bench.state(message) == ("answered", None)

    run(body())


def test_a_request_that_stays_too_long_fails_its_turn(ledger: Ledger) -> None:
    async def body() -> None:
        async def shorten(turn: str, messages: Sequence[Any]) -> ShortenedContext:
            return ShortenedContext(messages=tuple(messages))

        bench = Bench(ledger, ContextTooLong("too long"), ContextTooLong("too long"))
        bench.options["on_overflow"] = shorten
        message = bench.admit()
        end = await bench.answered(message)
        assert isinstance(end.error, ContextTooLong)
        assert bench.state(message)[0] == "dead"

    run(body())
