"""A broker compacts a session by itself: before a turn where that is due, and once where a request was too long."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.inference.strict_providers import StrictServer
from tests.runtime.inference.test_recorded_exchanges import KINDS, PLAIN
from tests.runtime.invoking import Bench, run
from tests.runtime.scripted import Script, chat, failure
from weft.kernel.errors import ContextTooLong
from weft.kernel.events import Interruption
from weft.runtime.inference.model_requests import Dialect


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


def openai_refusal(message: str) -> dict[str, Any]:
    fields = {"type": "invalid_request_error", "param": "messages", "code": "context_length_exceeded"}
    return {"error": {"message": message, **fields}}


TOO_LONG: dict[Dialect, dict[str, Any]] = {
    Dialect.ANTHROPIC: {
        "type": "error",
        "error": {
            "type": "invalid_request_error",
            "message": "prompt is too long: 210000 tokens > 200000 maximum",
        },
    },
    Dialect.OPENAI_CHAT: openai_refusal(
        "This model's maximum context length is 128000 tokens. However, your messages resulted in 130000 tokens."
    ),
    Dialect.OPENAI_RESPONSES: openai_refusal(
        "Your input exceeds the context window of this model. Please adjust your input and try again."
    ),
    Dialect.GOOGLE: {
        "error": {
            "code": 400,
            "message": "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
            "status": "INVALID_ARGUMENT",
        }
    },
}
"""As each provider writes it, with status 400."""


def words_of(refusal: dict[str, Any]) -> str:
    return str(refusal["error"]["message"])


class RefusingSession:
    """A session at the strict server of one form."""

    def __init__(self, bench: Bench, dialect: Dialect, *, streamed: bool) -> None:
        self.bench, self.dialect, self.server = bench, dialect, StrictServer(dialect)
        bench.shop.on_token = bench.tokens.append if streamed else None

    async def begin(self) -> None:
        kind, api = KINDS[self.dialect]
        config = {"providerType": str(kind), "baseUrl": self.bench.server.url, "apiKey": "${THERE_KEY}"}
        programs = self.bench.programs

        def create() -> None:
            programs.create("provider", "real", config | ({"api": str(api)} if api else {}))
            programs.create("model", "named", {"modelId": "m-1", "provider": "@(real)", "maxTokens": 2000})
            programs.create_session("talk", model="named")
            compaction = {"strategy": "sliding_window", "keep": 0}
            programs.configure("talk", {"defaultModel": "@(named)", "compaction": compaction})

        await self.bench.shop.across(create)
        self.bench.server.script_of = self._script

    def _script(self, body: Any) -> Script:
        path = self.bench.server.received[-1].path
        return self.server.script(body, is_streamed=bool(body.get("stream")) or ":stream" in path)

    async def say(self, text: str, *refusals: dict[str, Any]) -> str:
        """What is answered after so many refusals."""
        self.server.answers = [*((400, refusal) for refusal in refusals), (200, PLAIN[self.dialect])]
        try:
            return str((await self.bench.invoke("talk", text)).text)
        finally:
            assert self.server.refused == []


@pytest.mark.parametrize(("dialect", "streamed"), list(product(Dialect, (False, True))))
def test_in_each_form_a_context_that_is_too_long_is_compacted_once(
    path: Path, dialect: Dialect, streamed: bool
) -> None:
    async def body(bench: Bench) -> None:
        talk = RefusingSession(bench, dialect, streamed=streamed)
        await talk.begin()
        await talk.say("first")
        assert await talk.say("second", TOO_LONG[dialect]) == "Hello there"
        assert ["first" in str(sent) for sent in talk.server.bodies] == [True, True, False]
        with pytest.raises(ContextTooLong) as raised:
            await talk.say("third", TOO_LONG[dialect], TOO_LONG[dialect])
        assert words_of(TOO_LONG[dialect]).rstrip(".") in str(raised.value)
        assert "it was sent less already, once in this turn" in str(raised.value)
        assert len(talk.server.bodies) == 5
        assert await talk.say("fourth") == "Hello there"

    run(path, body)
