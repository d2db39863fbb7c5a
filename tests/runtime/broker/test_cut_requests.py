"""Requests that do not fit are cut by the broker; the cut stands with the request, and everybody applies the same."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from tests.runtime.broker.bench import Bench, run, saying, text_of
from tests.runtime.compaction.threads import unpaired
from tests.runtime.inference.asking import model
from weft.kernel.errors import ContextTooLong
from weft.ledger.api import Ledger
from weft.runtime.broker import turn_plans
from weft.runtime.broker.broker import Broker
from weft.runtime.inference.model_requests import estimated_tokens
from weft.runtime.tool.tool_contract import FunctionTool, tools_of

LONG = "x" * 6_000


async def looks() -> str:
    return LONG


def bench_for(ledger: Ledger, turns: int, window: int = 6_000) -> Bench:
    """Every turn calls a tool once, whose result is a third of the window."""
    bench = Bench(ledger, *[reply for i in range(turns) for reply in (saying("", "looks"), saying(f"answer {i}"))])
    bench.options |= {"tools": tools_of(FunctionTool(looks)), "model": small_model(window)}
    return bench


def small_model(window: int) -> Any:
    return model("http://127.0.0.1:9", context_window=window)


def lengths(texts: Iterable[str]) -> list[int]:
    return [len(text) for text in texts if "xxx" in text]


def texts(messages: Iterable[Any]) -> list[str]:
    return [text_of(message) for message in messages]


async def talk(bench: Bench, turns: int, broker: Broker | None = None) -> list[str]:
    """The turns' ids; each is answered by this broker, or by one of its own."""
    ids = []
    for i in range(turns):
        end = await bench.answered(bench.admit(f"question {i}"), broker)
        ids.append(end.turn)
    return ids


def cut_of(bench: Bench, turn: str) -> dict[str, Any]:
    record: dict[str, Any] = bench.runs.cut(turn).record()
    return record


def test_results_of_earlier_turns_are_shortened_before_the_request_that_would_not_fit(ledger: Ledger) -> None:
    async def body() -> None:
        bench = bench_for(ledger, 4)
        turns = await talk(bench, 4, bench.broker())
        shown = [lengths(bench.provider.sent(number)) for number in range(8)]
        assert shown[:5] == [[], [6_000], [6_000], [6_000, 6_000], [6_000, 6_000]]
        first, second, newest = shown[5]
        assert (first, newest) == (second, 6_000)
        assert first < 1_000
        assert shown[6] == [first, second, 6_000], "a cut is kept"
        assert [cut_of(bench, turn) != {} for turn in turns] == [False, False, True, True]
        for turn, number in zip(turns, (1, 3, 5, 7), strict=True):
            assert texts(bench.runs.sent(turn)) == bench.provider.sent(number), "as the request is told again"
        for turn, number in zip(turns, (0, 2, 4, 6), strict=True):
            assert texts(ledger.context(turn).messages) == bench.provider.sent(number)
        assert ledger.context(turns[-1]).cut == ledger.context(session="main").cut

    run(body())


def test_a_broker_that_kept_nothing_sends_the_same(ledger: Ledger) -> None:
    async def body() -> None:
        bench = bench_for(ledger, 12)
        for session, is_shared in (("one", True), ("many", False)):
            shared = bench.broker()
            for i in range(6):
                message = bench.admit(f"question {i}", session)
                await bench.answered(message, shared if is_shared else bench.broker())
        requests = [texts(request.messages) for request in bench.provider.requests]
        one, many = [[text.replace("answer", "") for text in request] for request in requests[:12]], requests[12:]
        assert [lengths(request) for request in one] == [lengths(request) for request in many]
        assert any(length < 1_000 for request in one for length in lengths(request))
        for request in bench.provider.requests:
            assert not set(unpaired(request.messages)) - {"call-looks"}  # type: ignore[arg-type]

    run(body())


def test_turns_are_left_out_where_that_is_not_enough_and_stay_left_out(ledger: Ledger) -> None:
    async def body() -> None:
        bench = Bench(ledger, *[saying(f"answer {i} " + "y" * 3_000) for i in range(7)])
        bench.options["model"] = small_model(4_000)
        turns = await talk(bench, 5, bench.broker())
        shown = [[text for text in bench.provider.sent(number) if text.startswith("quest")] for number in range(5)]
        assert shown[3] == [f"question {i}" for i in range(4)]
        assert shown[4] == ["question 2", "question 3", "question 4"]
        assert cut_of(bench, turns[4]) == {"left_out_through": turns[1]}
        assert texts(ledger.context(turns[4]).messages) == bench.provider.sent(4)
        await talk(bench, 1)
        assert bench.provider.sent(5)[: len(bench.provider.sent(4))] == bench.provider.sent(4)
        bench.options["model"] = small_model(40_000)
        await talk(bench, 1)
        assert bench.provider.sent(6)[: len(bench.provider.sent(5))] == bench.provider.sent(5), "by no larger model"

    run(body())


def test_whoever_goes_on_with_a_turn_sends_what_was_cut_and_cuts_what_was_not(ledger: Ledger) -> None:
    async def body() -> None:
        bench = bench_for(ledger, 2)
        await talk(bench, 2, bench.broker())
        bench.provider._answers += [saying("", "looks"), None, saying("", "looks"), None, saying("answer 2")]
        message = bench.admit("question 2")
        await left_alone(bench, requests=6)
        await left_alone(bench, requests=8)
        await bench.answered(message)
        sent = [bench.provider.sent(number) for number in range(5, 9)]
        assert lengths(sent[0]) == lengths(sent[1])
        assert sent[0] == sent[1], "asked once more with the same"
        assert sent[2] == sent[3] == texts(bench.runs.sent(ledger.inbox.get(message).turn or ""))
        assert sent[2][: len(sent[1])] == sent[1]

    run(body())


async def left_alone(bench: Bench, requests: int) -> None:
    """A broker works until the provider has so many requests, and is stopped then."""
    serving = asyncio.ensure_future(bench.broker().serve())
    while len(bench.provider.requests) < requests:
        await asyncio.sleep(0)
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)


def test_a_request_that_cannot_be_compacted_is_cut_to_half_the_window_and_asked_once_more(ledger: Ledger) -> None:
    async def body() -> None:
        async def nothing(turn: str, messages: Any) -> None:
            return None

        bench = bench_for(ledger, 2, window=8_000)
        bench.options["on_overflow"] = nothing
        broker = bench.broker()
        await talk(bench, 2, broker)
        bench.provider._answers += [ContextTooLong("too long"), saying("fits"), ContextTooLong("too long")]
        message = bench.admit("question 2")
        end = await bench.answered(message, broker)
        assert end.reply.text == "fits"
        assert bench.interruptions(message) == ["context_reset"]
        assert lengths(bench.provider.sent(4)) == [6_000, 6_000]
        assert max(lengths(bench.provider.sent(5))) <= 6_000
        assert lengths(bench.provider.sent(5))[0] < 1_000
        bench.options["model"] = small_model(100_000)
        failed = await bench.answered(bench.admit("question 3"))
        assert isinstance(failed.error, ContextTooLong), "nothing more can be cut"

    run(body())


def test_a_turn_of_a_long_thread_measures_only_what_is_new(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[int] = []

    def counting(messages: Iterable[Any]) -> int:
        told = list(messages)
        measured.append(len(told))
        return estimated_tokens(told)

    monkeypatch.setattr(turn_plans, "estimated_tokens", counting)

    async def body() -> None:
        bench = bench_for(ledger, 12, window=100_000)
        broker = bench.broker()
        costs = []
        for _ in range(12):
            measured.clear()
            await talk(bench, 1, broker)
            costs.append(sum(measured))
        assert costs[1:] == costs[1:2] * 11
        assert costs[1] <= 6

    run(body())
