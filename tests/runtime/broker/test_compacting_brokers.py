"""A broker compacts a session by itself: before a turn where that is due, and once where a request was too long."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.runtime.invoking import Bench, run
from tests.runtime.scripted import chat, failure
from weft.kernel.events import Interruption


def sent(bench: Bench, number: int) -> list[str]:
    return [str(item["content"]) for item in bench.server.received[number].body["messages"]]


async def session(bench: Bench, **compaction: Any) -> None:
    def create() -> None:
        bench.programs.create_session("talk", model="fast")
        bench.programs.configure("talk", {"defaultModel": "@(fast)", "compaction": compaction})

    await bench.shop.across(create)


def test_a_session_is_compacted_before_the_turn_that_makes_it_due(path: Path) -> None:
    async def body(bench: Bench) -> None:
        await session(bench, strategy="sliding_window", everyTurns=2, keep=1)
        for text in ("first", "second", "third"):
            await bench.invoke("talk", text)
        assert [item for item in sent(bench, 1) if item in ("first", "second")] == ["first", "second"]
        assert [item for item in sent(bench, 2) if item in ("first", "second", "third")] == ["second", "third"]

        def look() -> None:
            ledger = bench.programs.ledger
            (compaction,) = ledger.compactions.of_thread("talk")
            assert (compaction.trigger, compaction.compaction_type) == ("periodic", "sliding_window")
            assert list(ledger.verify()) == []

        await bench.shop.across(look)

    run(path, body, chat())


def test_a_request_that_was_too_long_is_asked_once_more_behind_a_compaction(path: Path) -> None:
    async def body(bench: Bench) -> None:
        await session(bench, strategy="sliding_window", keep=0)
        await bench.invoke("talk", "first")
        result = await bench.invoke("talk", "second")
        assert result.text == "Hello there"
        assert "first" in sent(bench, 1)
        assert "first" not in sent(bench, 2)

        def look() -> None:
            ledger = bench.programs.ledger
            turn = ledger.turn("talk")
            (cut,) = [one.event for one in ledger.events(turn.id) if isinstance(one.event, Interruption)]
            assert cut.reason == "context_reset"
            (compaction,) = ledger.compactions.of_thread("talk")
            assert compaction.trigger == "overflow_recovery"
            assert (turn.status, turn.reason, turn.permissions_used) == ("completed", "user", [])
            assert list(ledger.verify()) == []

        await bench.shop.across(look)

    too_long = failure(400, "This model's maximum context length is 8192 tokens; reduce the length of the messages")
    run(path, body, chat(), too_long, chat())
