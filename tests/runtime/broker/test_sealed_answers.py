"""What a provider sealed with an answer stays with the session: across vendors, forks, edits, imports and restarts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from msgspec import UNSET

import weft
import weft.aio
from tests.exchange.fixtures.claude_code.lines import Lines, thinking, use
from tests.exchange.fixtures.codex import rollouts
from tests.runtime.inference.asking import HI, person
from tests.runtime.inference.recordings import RecordedAnswer, recorded_answers
from tests.runtime.inference.strict_providers import StrictServer
from tests.runtime.inference.test_recorded_exchanges import Exchange, model_of, seals_of
from tests.runtime.scripted import scripted
from weft.exchange.importers.port import load_importers
from weft.exchange.importing.run import ImportRun
from weft.kernel.clock import FixedClock
from weft.kernel.enums import MessageRole
from weft.kernel.events import ModelRequest
from weft.ledger.api import Runs
from weft.ledger.model import (
    ANTHROPIC,
    OPENAI,
    Message,
    NewMessage,
    ReasoningPart,
    SealedItem,
    TextPart,
    sealed_items,
    sealed_metadata,
)
from weft.runtime.broker.broker import OutgoingMessage, send
from weft.runtime.inference.dialects.model_clients import conversation_in
from weft.runtime.inference.inference import Inference
from weft.runtime.inference.model_requests import Dialect, RetryPolicy

CLAUDE = recorded_answers("anthropic/test_anthropic_tool_with_thinking.yaml")
REDACTED = recorded_answers("anthropic/test_anthropic_model_thinking_part_redacted.yaml")
GPT = recorded_answers("openai-responses/test_openai_responses_thinking_with_tool_calls.yaml")
GEMINI = recorded_answers("google/test_google_streaming_tool_call_thought_signature.yaml")


class SealedBench:
    """A session at strict servers, which serve these answers one after the other."""

    def __init__(self, ledger: weft.aio.AsyncLedger, exchange: Exchange, url: str, inference: Inference) -> None:
        self.ledger, self.exchange = ledger, exchange
        self._url, self._inference = url, inference

    async def send(self, session: str = "main", refusals: int = 0) -> str:
        """One message, which as many answers of the recording are given to as it takes. Returns the turn."""
        answer = self.exchange.left[0]
        question = OutgoingMessage(message="Go on", model=model_of(self._url, answer), tools=dict(self.exchange.tools))
        reply = await send(self.ledger, self._inference, session, question, context=person(self._url))
        assert len(self.refused()) == refusals, self.refused()
        return reply.turn.id

    def forget(self) -> None:
        """The next message is answered by a broker that kept nothing."""
        self.ledger.crossing.shared.clear()

    def server(self, dialect: Dialect) -> StrictServer:
        return self.exchange.servers[dialect]

    def refused(self) -> list[str]:
        return [why for server in self.exchange.servers.values() for why in server.refused]

    def sealed_in_last(self, dialect: Dialect) -> list[str]:
        """Which of all seals that were served the last request to a vendor holds."""
        last = plain(json.dumps(self.server(dialect).bodies[-1]))
        return [seal for seal in self.seals() if plain(seal) in last]

    def seals(self, *dialects: Dialect) -> list[str]:
        return [
            seal
            for dialect in dialects or Dialect
            for answered in self.server(dialect).served
            for seal in seals_of(dialect, answered)
        ]


def plain(text: str) -> str:
    return text.replace("-", "+").replace("_", "/")


def run(path: Path, body: Callable[[SealedBench], Awaitable[None]], *answers: RecordedAnswer) -> None:
    async def main() -> None:
        inference = Inference(policy=RetryPolicy(attempts=1))
        async with weft.aio.open(path) as ledger, scripted() as http, inference:
            exchange = Exchange(answers)
            exchange.http, http.script_of = http, exchange.script
            await body(SealedBench(ledger, exchange, http.url, inference))
            assert [problem async for problem in ledger.verify()] == []

    asyncio.run(main())


def test_a_session_goes_to_other_vendors_and_comes_back_and_nobody_gets_the_seals_of_others(path: Path) -> None:
    async def body(bench: SealedBench) -> None:
        for dialect in (Dialect.ANTHROPIC, Dialect.OPENAI_RESPONSES, Dialect.GOOGLE, Dialect.ANTHROPIC):
            before = bench.seals(dialect)
            await bench.send()
            assert bench.sealed_in_last(dialect) == (before or bench.seals(dialect))
            bench.forget()
        await bench.send()
        assert bench.sealed_in_last(Dialect.ANTHROPIC) == bench.seals(Dialect.ANTHROPIC)[:-1]
        assert len(bench.seals()) == 5

    run(path, body, *CLAUDE, *GPT, *GEMINI, *REDACTED)


def test_a_fork_has_the_seals_and_a_substituted_answer_has_none(path: Path) -> None:
    async def body(bench: SealedBench) -> None:
        first = await bench.send()
        seals = bench.seals()
        await bench.ledger.fork(first, label="fork")
        await bench.ledger.substitute(first, "It is a small town.", reason="wrong")
        await bench.send("fork")
        assert bench.sealed_in_last(Dialect.ANTHROPIC) == []
        assert "small town" in json.dumps(bench.server(Dialect.ANTHROPIC).bodies[-1])
        substituted = (await bench.ledger.messages(first))[-1].substituted
        assert substituted is not UNSET
        await bench.ledger.substitute(first, with_event=substituted.original)
        bench.forget()
        await bench.send("fork")
        assert bench.sealed_in_last(Dialect.ANTHROPIC)[:1] == seals

    run(path, body, *REDACTED, REDACTED[0])


def test_a_broker_that_goes_on_with_a_turn_sends_its_seals(path: Path) -> None:
    async def body(bench: SealedBench) -> None:
        turn = await bench.send()
        sent = Runs(bench.ledger.sync).sent(turn)
        assert [len(sealed_items(message, ANTHROPIC)) for message in sent if message.role == "assistant"] == [1]

    run(path, body, *CLAUDE)


def test_a_turn_goes_on_without_seals_that_its_provider_no_longer_opens(path: Path) -> None:
    async def body(bench: SealedBench) -> None:
        await bench.send()
        bench.server(Dialect.ANTHROPIC).served.clear()
        turn = await bench.send(refusals=1)
        assert bench.sealed_in_last(Dialect.ANTHROPIC) == []
        requests = [one.event for one in await bench.ledger.events(turn) if isinstance(one.event, ModelRequest)]
        assert [request.attempt for request in requests] == [1, 2]

    run(path, body, *REDACTED)


@pytest.mark.parametrize("shown", ["Let me look.", ""], ids=["shown", "hidden"])
def test_an_imported_session_of_claude_code_goes_on_with_its_signatures(path: Path, shown: str) -> None:
    (block,) = (block for block in CLAUDE[0].whole["content"] if block["type"] == "thinking")
    thought = thinking(shown and block["thinking"], block["signature"])
    lines = Lines().user("u1", "Look").answer("a1", thought, id="m1").answer("a2", use("t1"), id="m1")
    file = path.parent / "5e55.jsonl"
    file.write_bytes(lines.result("r1", "t1").answer("a3", "Done", id="m2").end("e1").bytes())
    with weft.open(path) as ledger:
        ImportRun(ledger, load_importers(), FixedClock(10**13)).run([file])
        (session,) = ledger.sessions()
        messages = ledger.context(session=session.id).messages
    conversation = conversation_in(Dialect.ANTHROPIC, images=True, vendor=ANTHROPIC)
    conversation.extend([*messages, *HI])
    sent = conversation.wire_messages().messages
    assert sent[1]["content"][0] == {**thought, "thinking": shown and block["thinking"]}
    assert [block["type"] for block in sent[1]["content"]] == ["thinking", "tool_use"]
    elsewhere = conversation_in(Dialect.ANTHROPIC, images=True, vendor="https://elsewhere.example")
    elsewhere.extend([*messages, *HI])
    assert "thinking" not in json.dumps(elsewhere.wire_messages().messages)


def test_an_imported_session_of_codex_goes_on_with_what_it_thought(path: Path) -> None:
    turn = rollouts.turn_id(1)
    lines = [
        rollouts.meta(),
        rollouts.started(turn),
        rollouts.context(turn),
        rollouts.user("Look"),
        rollouts.told("Look"),
        rollouts.thought("Hm.", id="rs_1", encrypted_content="gAAA"),
        rollouts.call("call_1"),
        rollouts.output("call_1"),
        rollouts.thought("So.", encrypted_content="gBBB"),
        rollouts.said("Done"),
        rollouts.complete(turn),
    ]
    file = path.parent / f"rollout-2026-01-02T03-04-05-{rollouts.SESSION}.jsonl"
    file.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    with weft.open(path) as ledger:
        ImportRun(ledger, load_importers(), FixedClock(10**13)).run([file])
        (session,) = ledger.sessions()
        messages = ledger.context(session=session.id).messages
    conversation = conversation_in(Dialect.OPENAI_RESPONSES, images=True, vendor=OPENAI)
    conversation.extend([*messages, *HI])
    items = [item for item in conversation.wire_messages().messages if item.get("role") != "user"]
    summary = [{"type": "summary_text", "text": "Hm."}]
    first = {"type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": "gAAA"}
    assert items[0] == first
    assert [item.get("type") for item in items[1:3]] == ["function_call", "function_call_output"]
    assert items[3] == {"type": "reasoning", "summary": [{**summary[0], "text": "So."}], "encrypted_content": "gBBB"}
    assert items[4] == {"role": "assistant", "content": "Done"}


THOUGHT = (ReasoningPart("Hm."), TextPart("Yes"))
SEALED: Any = sealed_metadata("v", [SealedItem(0, 1, {"signature": "s"})])
WRONG = [
    {"sealed": 1},
    {"sealed": {"vendor": "v", "items": [{"at": 0, "parts": 9, "fields": {}}]}},
    {"sealed": {"vendor": "v", "items": [{"at": 0, "parts": -1, "fields": {}}]}},
    {"sealed": {"vendor": "v", "items": [{"at": 1, "parts": 1, "fields": {}}, {"at": 0, "parts": 1, "fields": {}}]}},
    {"signatures": ["a", "b"]},
    {"signatures": "a"},
]


def test_seals_that_do_not_fit_the_answer_are_none() -> None:
    def seals(metadata: Any, role: MessageRole = MessageRole.ASSISTANT, vendor: str = "v") -> int:
        message = NewMessage(role=role, content=THOUGHT, metadata=metadata, model="claude-x")
        return len(sealed_items(message, vendor))

    assert seals(SEALED) == 1
    assert seals(SEALED, MessageRole.USER) == 0
    assert seals(SEALED, vendor="w") == 0
    assert [seals(wrong, vendor=vendor) for wrong in WRONG for vendor in ("v", ANTHROPIC)] == [0] * 12
    assert seals({"signatures": ["a"]}, vendor=ANTHROPIC) == 1
    edited = weft.AppliedSubstitution(original="a", replacement="b", by="c", at=1)
    message = Message("m", "assistant", THOUGHT, 0, 0, metadata=SEALED, substituted=edited)
    assert sealed_items(message, "v") == ()
