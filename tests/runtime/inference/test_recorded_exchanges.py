"""Every recorded exchange, played by a strict server: what is recorded of each answer, and that the next request is
accepted."""

from __future__ import annotations

import asyncio
import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET

import weft.aio
from tests.runtime.inference.asking import person, provider
from tests.runtime.inference.recordings import (
    RecordedAnswer,
    RecordedFacts,
    dialect_of,
    facts_of_answer,
    recorded_answers,
    recording_names,
)
from tests.runtime.inference.strict_providers import StrictServer
from tests.runtime.scripted import CHAT, GOOGLE, MESSAGE, RESPONSES, Script, Scripted, scripted
from tests.sizes import share
from weft.kernel.errors import OutsideError
from weft.kernel.events import ModelResponse, Usage
from weft.ledger.model import Message, ReasoningPart, TextPart, ToolUsePart
from weft.runtime.broker.broker import OutgoingMessage, send
from weft.runtime.inference.inference import Inference
from weft.runtime.inference.model_requests import (
    Dialect,
    ModelParameters,
    ModelSettings,
    OpenAIApi,
    ProviderKind,
    RetryPolicy,
    ToolSpec,
)

PLAIN = {
    Dialect.ANTHROPIC: MESSAGE,
    Dialect.OPENAI_CHAT: CHAT,
    Dialect.OPENAI_RESPONSES: RESPONSES,
    Dialect.GOOGLE: GOOGLE,
}
"""What is answered where the recording has ended."""
KINDS = {
    Dialect.ANTHROPIC: (ProviderKind.ANTHROPIC, None),
    Dialect.OPENAI_CHAT: (ProviderKind.OPENAI, OpenAIApi.CHAT),
    Dialect.OPENAI_RESPONSES: (ProviderKind.OPENAI, OpenAIApi.RESPONSES),
    Dialect.GOOGLE: (ProviderKind.GOOGLE, None),
}


class RecordedTool:
    """A tool that was called in a recording. It takes anything."""

    is_idempotent = is_read_only = True
    is_repeatable = False

    def __init__(self, name: str) -> None:
        self.spec = ToolSpec(name=name, schema={"type": "object", "properties": {}})

    async def invoke(self, arguments: Any, context: Any) -> Any:
        return {"tool": self.spec.name, "given": arguments}


class Exchange:
    """A recording that is played: a strict server for each provider, and the answers in their order."""

    def __init__(self, answers: tuple[RecordedAnswer, ...]) -> None:
        self.left = list(answers)
        self.facts: list[RecordedFacts] = []
        self.servers = {dialect: StrictServer(dialect) for dialect in Dialect}
        self.http: Scripted | None = None
        self.tools = {
            name: RecordedTool(name)
            for answer in answers
            if answer.status == 200
            for name, _ in facts_of_answer(answer.dialect, answer.whole).calls
        }

    def script(self, body: Any) -> Script:
        assert self.http is not None
        path = self.http.received[-1].path
        dialect = dialect_of(path)
        assert dialect is not None, path
        server = self.servers[dialect]
        status, whole = 200, PLAIN[dialect]
        if self.left and self.left[0].dialect is dialect:
            status, whole = self.left[0].status, self.left[0].whole
        server.answers = [(status, whole)]
        script = server.script(body, is_streamed=bool(body.get("stream")) or ":stream" in path)
        if not server.answers:  # it was not refused
            if whole is not PLAIN[dialect]:
                self.left.pop(0)
            if status == 200:
                self.facts.append(facts_of_answer(dialect, whole))
        return script


def model_of(url: str, answer: RecordedAnswer) -> ModelSettings:
    kind, api = KINDS[answer.dialect]
    thinking = UNSET if answer.thinking is None else answer.thinking
    return ModelSettings(
        id="m",
        name=answer.model,
        provider=provider(url, kind, id=str(kind), api=api),
        parameters=ModelParameters(max_tokens=16_000, thinking=thinking),
    )


async def play(path: Path, exchange: Exchange, answers: tuple[RecordedAnswer, ...], *, streamed: bool) -> None:
    async with weft.aio.open(path) as ledger, scripted() as http, Inference(policy=RetryPolicy(attempts=1)) as asking:
        exchange.http, http.script_of = http, exchange.script
        turns = []

        async def ask(answer: RecordedAnswer) -> None:
            question = OutgoingMessage(message="Go on", model=model_of(http.url, answer), tools=dict(exchange.tools))
            on_token = (lambda _: None) if streamed else None
            reply = await send(ledger, asking, "main", question, context=person(http.url), on_token=on_token)
            turns.append(reply.turn.id)

        while exchange.left:
            answer, before = exchange.left[0], len(exchange.left)
            if answer.status == 200 or "of type 'reasoning'" in str(answer.whole):  # asked once more without seals
                await ask(answer)
            else:
                with pytest.raises(OutsideError) as raised:
                    await ask(answer)
                assert raised.value.status == answer.status
            assert len(exchange.left) < before, [server.refused for server in exchange.servers.values()]
        await ask(next(answer for answer in reversed(answers) if answer.status == 200 or answer is answers[0]))
        assert [server.refused for server in exchange.servers.values() if server.refused] == []
        said: list[Message] = []
        events: list[ModelResponse] = []
        for turn in turns:
            said += [message for message in await ledger.messages(turn) if message.role == "assistant"]
            events += [one.event for one in await ledger.events(turn) if isinstance(one.event, ModelResponse)]
        recorded = [recorded_facts(message, event) for message, event in zip(said, events, strict=True)]
        for ours, theirs in zip(recorded, exchange.facts, strict=True):
            assert ours == with_our_ids(theirs, ours)
        assert [problem async for problem in ledger.verify()] == []


def recorded_facts(message: Message, event: ModelResponse) -> RecordedFacts:
    sealed = (message.metadata or {}).get("sealed") or {"items": []}
    fields = [item["fields"] for item in sealed["items"]]
    calls = [part for part in message.content if isinstance(part, ToolUsePart)]
    usage = event.usage if isinstance(event.usage, Usage) else Usage()
    counts = (
        usage.input_tokens, usage.output_tokens, usage.cached_input_tokens, usage.cache_write_tokens,
        usage.reasoning_tokens,
    )  # fmt: skip
    names = ("signature", "redacted", "encrypted", "thought_signature")
    return RecordedFacts(
        text="".join(str(part.text) for part in message.content if isinstance(part, TextPart)),
        thinking="".join(str(part.text) for part in message.content if isinstance(part, ReasoningPart)),
        sealed=tuple(each[name] for each in fields for name in names if name in each),
        calls=tuple((call.name, call.input) for call in calls),
        call_ids=tuple(call.id for call in calls),
        usage=tuple(0 if count is UNSET or count is None else count for count in counts),  # type: ignore[arg-type]
        finish=str(event.finish_reason),
    )


def with_our_ids(theirs: RecordedFacts, ours: RecordedFacts) -> RecordedFacts:
    """A server that gives calls no ids is answered under ids of ours."""
    if len(theirs.call_ids) == len(theirs.calls):
        return theirs
    return RecordedFacts(
        **{**{name: getattr(theirs, name) for name in theirs.__struct_fields__}, "call_ids": ours.call_ids}
    )


PLAYED = [name for name in recording_names() if recorded_answers(name)]


@pytest.mark.parametrize(("name", "streamed"), share(list(product(PLAYED, (False, True))), test=18))
def test_a_recorded_exchange_is_recorded_exactly_and_goes_on(path: Path, name: str, streamed: bool) -> None:
    answers = recorded_answers(name)
    exchange = Exchange(answers)
    asyncio.run(play(path, exchange, answers, streamed=streamed))
    for dialect, server in exchange.servers.items():
        if server.bodies:
            assert left_behind(dialect, server) == []


def left_behind(dialect: Dialect, server: StrictServer) -> list[str]:
    """What the provider sealed, and was not sent back with the last request."""
    last = json.dumps(server.bodies[-1]).replace("-", "+").replace("_", "/")
    seals = [seal for answered in server.served[:-1] for seal in seals_of(dialect, answered)]
    return [seal for seal in seals if seal.replace("-", "+").replace("_", "/") not in last]


def seals_of(dialect: Dialect, answered: Any) -> tuple[str, ...]:
    if dialect is Dialect.GOOGLE:
        return tuple(part["thoughtSignature"] for part in answered["parts"] if "thoughtSignature" in part)
    return facts_of_answer(dialect, answered).sealed


def test_only_recordings_of_token_counts_have_no_answer() -> None:
    unplayed = set(recording_names()) - set(PLAYED)
    assert all("count_tokens" in name or "usage_limit" in name for name in unplayed)
    assert len(recording_names()) == 141
