"""What a provider caches of an agent's prompts is read again: in every step, by every broker, after a restart."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET

import weft.aio
from benchmarks.caching_provider import CachingProvider, anthropic_blocks
from tests.runtime.broker.test_gated_calls import Gated
from tests.runtime.inference.asking import model, person, provider
from tests.runtime.scripted import GOOGLE, MESSAGE, RESPONSES, Script, Scripted, answer, chat_saying, failure, scripted
from tests.sizes import share
from weft.kernel.clock import FixedClock
from weft.kernel.enums import Decision
from weft.kernel.events import ModelRequest, ModelResponse
from weft.ledger.api import Ledger
from weft.ledger.model import ImagePart
from weft.runtime.broker.broker import OutgoingMessage, send
from weft.runtime.inference.inference import Inference
from weft.runtime.inference.model_requests import (
    Dialect,
    ModelSettings,
    OpenAIApi,
    PromptCache,
    ProviderKind,
    RetryPolicy,
)
from weft.runtime.tool.tool_contract import FunctionTool, ToolOutput, tools_of

LEAST_SHARE = 0.95
CUT_WINDOW = 9_000
SYSTEM = "You mend what is broken, one step after the other. " * 300
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(600)).decode()
Calls = Sequence[tuple[str, dict[str, Any]]]
STEP: Calls = [("looks", {"where": "here", "deep": 1.5, "by": {"z": None, "a": [1]}})]
PARALLEL: Calls = [*STEP, ("fails", {"why": "it does"}), ("looks", {"where": "there"})]
MANY: Calls = [("looks", {"where": f"place {number}"}) for number in range(24)]
PICTURE: Calls = [("paints", {})]
TOLD = (Dialect.ANTHROPIC, Dialect.OPENAI_RESPONSES, Dialect.OPENAI_CHAT)
"""Those whose servers are told what to cache; Google's caches unasked what begins alike."""
DIALECTS = (*TOLD, Dialect.GOOGLE)


async def looks(where: str, deep: float = 0, by: Any = None) -> dict[str, Any]:
    return {"seen": [where, deep, 2.0, None, "naïve"], "at": {"b": 1, "a": by}, "lines": "a line of a file\n" * 20}


async def fails(why: str) -> str:
    raise ValueError(why)


async def paints() -> ToolOutput:
    return ToolOutput(result={"path": "dot.png"}, images=(ImagePart(f"data:image/png;base64,{PNG}"),))


class CachedAgent:
    """A scripted agent at a provider that caches. What it does in each step is put in before."""

    def __init__(self, dialect: Dialect, server: Scripted) -> None:
        self.dialect, self.server, self.caches = dialect, server, CachingProvider(dialect)
        self.steps: list[Calls] = []
        self.failures = 0
        """So many requests are refused first, each as if the provider were busy."""
        self._number = 0
        server.script_of = self._script

    def model(self, **more: Any) -> ModelSettings:
        if self.dialect is Dialect.ANTHROPIC:
            return model(self.server.url, provider=provider(self.server.url, ProviderKind.ANTHROPIC), **more)
        if self.dialect is Dialect.GOOGLE:
            google = provider(self.server.url, ProviderKind.GOOGLE)
            return model(self.server.url, **{"provider": google, "name": "gemini-2.5-flash", **more})
        api = OpenAIApi.CHAT if self.dialect is Dialect.OPENAI_CHAT else OpenAIApi.RESPONSES
        openai = provider(self.server.url, ProviderKind.OPENAI, api=api)
        return model(self.server.url, **{"provider": openai, **more})

    def _script(self, body: Any) -> Script:
        if self.failures:
            self.failures -= 1
            return failure(529)
        usage = self.caches.usage(body, 40)
        calls = self.steps.pop(0) if self.steps else ()
        self._number += 1
        named = [(f"call_{self._number}_{place}", name, given) for place, (name, given) in enumerate(calls)]
        return self._answer(named, usage)

    def _answer(self, calls: Sequence[tuple[str, str, dict[str, Any]]], usage: Any) -> Script:
        text = f"Step {self._number} is done, and the next one follows."
        if self.dialect is Dialect.ANTHROPIC:
            uses = [{"type": "tool_use", "id": id, "name": name, "input": given} for id, name, given in calls]
            reason = "tool_use" if calls else "end_turn"
            content = [{"type": "text", "text": text}, *uses]
            return answer(200, {**MESSAGE, "content": content, "stop_reason": reason, "usage": usage})
        if self.dialect is Dialect.OPENAI_CHAT:
            asked = [
                {"id": id, "type": "function", "function": {"name": name, "arguments": json.dumps(given)}}
                for id, name, given in calls
            ]
            message = {"content": text, **({"tool_calls": asked} if asked else {})}
            return chat_saying(message, "tool_calls" if calls else "stop", usage=usage)
        if self.dialect is Dialect.GOOGLE:
            named = [{"functionCall": {"id": id, "name": name, "args": given}} for id, name, given in calls]
            said_by_model = {"role": "model", "parts": [{"text": text}, *named]}
            candidate = {"content": said_by_model, "finishReason": "STOP", "index": 0}
            return answer(200, {**GOOGLE, "candidates": [candidate], "usageMetadata": usage})
        (said,) = RESPONSES["output"]
        items = [{**said, "content": [{**said["content"][0], "text": text}]}]
        items += [
            {"type": "function_call", "id": f"fc_{id}", "call_id": id, "name": name, "arguments": json.dumps(given)}
            for id, name, given in calls
        ]
        return answer(200, {**RESPONSES, "output": items, "usage": usage})

    def kept_tokens(self, number: int) -> int:
        """How many tokens the tools and the system prompt of a request are."""
        body = self.server.received[number].body
        counted = CachingProvider(self.dialect)
        if self.dialect is Dialect.ANTHROPIC:
            sizes = [len(block) for block, _ in anthropic_blocks({**body, "messages": []})]
            return sum(sizes) // 4
        if self.dialect is Dialect.GOOGLE:
            return counted.count({**body, "contents": []}).tokens
        field = "input" if self.dialect is Dialect.OPENAI_RESPONSES else "messages"
        return counted.count({**body, field: body[field][:1]}).tokens


class Office:
    """One process: a ledger that it opened, and what it keeps between requests."""

    def __init__(self, agent: CachedAgent, ledger: weft.aio.AsyncLedger, inference: Inference) -> None:
        self.agent, self.ledger, self.inference = agent, ledger, inference

    async def send(self, *steps: Calls, session: str = "main", **more: Any) -> str:
        """A message, which takes these steps and an answer. Returns the turn."""
        self.agent.steps = list(steps)
        functions: list[Callable[..., Any]] = [looks, fails, paints]
        tools = tools_of(*map(FunctionTool, functions))
        question = OutgoingMessage(message="Go on", model=self.agent.model(**more), system=SYSTEM, tools=tools)
        sent = await send(self.ledger, self.inference, session, question, context=person(self.agent.server.url))
        return sent.turn.id


@asynccontextmanager
async def office(agent: CachedAgent, path: Path) -> AsyncIterator[Office]:
    async with weft.aio.open(path) as ledger, Inference(policy=RetryPolicy(attempts=3, first_wait=0.001)) as inference:
        yield Office(agent, ledger, inference)


def run(dialect: Dialect, body: Callable[[CachedAgent], Awaitable[None]]) -> None:
    async def main() -> None:
        async with scripted() as server:
            await body(CachedAgent(dialect, server))

    asyncio.run(asyncio.wait_for(main(), 600))


def low_shares(agent: CachedAgent) -> list[tuple[int, float]]:
    """The requests that read less than they should of the prompt before them."""
    shares = agent.caches.shares_read()
    return [(number, share) for number, share in enumerate(shares, 1) if share < LEAST_SHARE]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_forty_steps_are_read_from_the_cache_across_a_restart_and_a_second_broker(path: Path, dialect: Dialect) -> None:
    async def body(agent: CachedAgent) -> None:
        async with office(agent, path) as first:
            await first.send(*[STEP] * 4, PARALLEL, *[STEP] * 2, PICTURE, *[STEP] * 2)
        async with office(agent, path) as restarted, office(agent, path) as second:
            await restarted.send(*[STEP] * 8)
            await second.send(*[STEP] * 3, PICTURE, MANY, *[STEP] * 3)
            await restarted.send(*[STEP] * 4, PARALLEL, *[STEP] * 5)
            assert [problem async for problem in second.ledger.verify()] == []
        assert len(agent.caches.counts) == 40
        assert low_shares(agent) == []
        total = sum(counted.tokens for counted in agent.caches.counts)
        assert sum(counted.read for counted in agent.caches.counts) > 0.9 * total

    run(dialect, body)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_fork_reads_what_its_parent_wrote(path: Path, dialect: Dialect) -> None:
    async def body(agent: CachedAgent) -> None:
        async with office(agent, path) as desk:
            turn = await desk.send(STEP, PARALLEL)
            await desk.ledger.fork(turn, label="fork")
            await desk.send(STEP, session="fork")
            await desk.send(STEP)
        assert low_shares(agent)[1:] == []
        assert len(set(agent.caches.keys)) <= 1
        assert None not in agent.caches.keys

    run(dialect, body)


FORKED: dict[str, list[Calls]] = {
    "plain turns": [],
    "parallel calls": [STEP, PARALLEL, MANY],
    "images": [PICTURE, STEP, PICTURE],
}


def ensure_fork_is_read(agent: CachedAgent, forked: int, parents: int) -> None:
    """The fork's first request, by its number, begins as the parent's request at that place does, and read it."""
    fork, parent = (agent.caches.counts[number] for number in (forked, parents))
    bodies = [without_markers(agent.server.received[number].body) for number in (forked, parents)]
    field = {Dialect.OPENAI_RESPONSES: "input", Dialect.GOOGLE: "contents"}.get(agent.dialect, "messages")
    said = [body.pop(field) for body in bodies]
    assert bodies[0] == bodies[1], "tools and system"
    assert said[0][: len(said[1])] == said[1]
    assert fork.read >= LEAST_SHARE * parent.tokens


@pytest.mark.parametrize(
    ("steps", "dialect", "is_restarted"), share(list(product(FORKED, DIALECTS, (False, True))), test=8)
)
def test_a_fork_begins_with_its_parents_prompt_also_behind_a_restart(
    path: Path, dialect: Dialect, is_restarted: bool, steps: str
) -> None:
    async def body(agent: CachedAgent) -> None:
        async with office(agent, path) as desk:
            await desk.send()
            turn = await desk.send(*FORKED[steps])
            parents = len(agent.caches.counts) - 1
            await desk.ledger.fork(turn, label="fork")
            if not is_restarted:
                await desk.send(session="fork")
        if is_restarted:
            async with office(agent, path) as other:
                await other.send(session="fork")
        ensure_fork_is_read(agent, -1, parents)

    run(dialect, body)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_fork_behind_a_compaction_begins_with_the_compacted_prompt(path: Path, dialect: Dialect) -> None:
    async def body(agent: CachedAgent) -> None:
        async with office(agent, path) as desk:
            await desk.send(*[STEP] * 3)
            await desk.ledger.compactions.record(session="main", summary="All of it was looked at. " * 300)
            turn = await desk.send(STEP)
            parents = len(agent.caches.counts) - 1
            await desk.ledger.fork(turn, label="fork")
            await desk.send(session="fork")
        assert agent.caches.counts[parents].tokens < agent.caches.counts[3].tokens * 2
        ensure_fork_is_read(agent, -1, parents)

    run(dialect, body)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_fork_inside_a_turn_begins_with_what_that_step_was_sent(path: Path, dialect: Dialect) -> None:
    async def body(agent: CachedAgent) -> None:
        async with office(agent, path) as desk:
            turn = await desk.send(*[STEP] * 4)
            answers = [one.id for one in await desk.ledger.events(turn) if isinstance(one.event, ModelResponse)]
            await desk.ledger.fork(answers[1], label="fork")
            await desk.send(session="fork")
        ensure_fork_is_read(agent, -1, 1)

    run(dialect, body)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_fork_of_a_cut_context_is_cut_at_the_same_place(path: Path, dialect: Dialect) -> None:
    limits: dict[str, Any] = {"context_window": CUT_WINDOW}

    async def body(agent: CachedAgent) -> None:
        async with office(agent, path) as desk:
            turn = await desk.send(*[STEP] * 9, **limits)
            for _ in range(3):
                turn = await desk.send(*[STEP] * 9, **limits)
            parents = len(agent.caches.counts) - 1
            *_, asked = [one.event for one in await desk.ledger.events(turn) if isinstance(one.event, ModelRequest)]
            params = b"".join([piece async for piece in desk.ledger.read_content(str(asked.params))])
            assert b'"cut"' in params
            await desk.ledger.fork(turn, label="fork")
            await desk.send(session="fork", **limits)
        ensure_fork_is_read(agent, -1, parents)

    run(dialect, body)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_a_compaction_leaves_is_read(path: Path, dialect: Dialect) -> None:
    async def body(agent: CachedAgent) -> None:
        async with office(agent, path) as desk:
            await desk.send(*[STEP] * 3)
            await desk.ledger.compactions.record(session="main", summary="All of it was looked at.")
            await desk.send(*[STEP] * 3)
        behind = agent.caches.counts[4]
        assert behind.read >= LEAST_SHARE * agent.kept_tokens(4)
        assert behind.tokens < agent.caches.counts[3].tokens
        assert [number for number, _ in low_shares(agent)] == ([] if behind.read > 0.95 * behind.tokens else [4])

    run(dialect, body)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_retry_sends_the_same_bytes(path: Path, dialect: Dialect) -> None:
    async def body(agent: CachedAgent) -> None:
        agent.failures = 2
        async with office(agent, path) as desk:
            await desk.send(STEP)
        first, second, third, _ = agent.server.received
        assert json.dumps(first.body) == json.dumps(second.body) == json.dumps(third.body)

    run(dialect, body)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_turn_that_waited_for_approvals_goes_on_from_the_cache(
    ledger: Ledger, clock: FixedClock, dialect: Dialect
) -> None:
    async def body(agent: CachedAgent) -> None:
        agent.steps = [[("light", {}), ("door", {})], [("light", {})]]
        gated = Gated(ledger, clock, Decision.ASK)
        gated.looks = 1_000_000
        acting = person(agent.server.url)
        message = gated.bench.admit()
        for waiting in (2, 1, 0):  # each time another broker goes on
            async with Inference(policy=RetryPolicy(attempts=1)) as inference:
                gated.bench.options |= {"model": agent.model(), "inference": inference, "acting": acting}
                gated.bench.options |= {"system": SYSTEM}
                await gated.serve(message)
            asked = ledger.approvals.list()
            assert len(asked) == waiting
            for approval in asked:
                ledger.approvals.grant(approval.id)
        assert len(agent.caches.counts) == 3
        assert low_shares(agent) == []

    run(dialect, body)


@pytest.mark.parametrize(("cache", "ttl"), [(PromptCache.FIVE_MINUTES, {}), (PromptCache.ONE_HOUR, {"ttl": "1h"})])
def test_a_model_says_for_how_long_anthropic_keeps_its_prompts(
    path: Path, cache: PromptCache, ttl: dict[str, str]
) -> None:
    async def body(agent: CachedAgent) -> None:
        async with office(agent, path) as desk:
            turn = await desk.send(STEP, prompt_cache=cache)
            usage = (await desk.ledger.turn(turn)).usage
        marker = {"type": "ephemeral", **ttl}
        sent = agent.server.received[1].body
        marked = [sent["tools"][-1], sent["system"][-1]]
        marked += [message["content"][-1] for message in sent["messages"] if message["role"] == "user"]
        assert [block.get("cache_control") for block in marked] == [marker] * 4
        written = sum(counted.written for counted in agent.caches.counts)
        assert usage is not None
        assert usage.cache_write_tokens == written
        assert usage.cache_write_1h_tokens == (written if ttl else UNSET)

    run(Dialect.ANTHROPIC, body)


@pytest.mark.parametrize("dialect", TOLD)
def test_a_model_may_be_asked_without_a_word_of_caches(path: Path, dialect: Dialect) -> None:
    async def body(agent: CachedAgent) -> None:
        async with office(agent, path) as desk:
            await desk.send(STEP, prompt_cache=PromptCache.OFF)
        sent = agent.server.received[1].body
        assert sent == without_markers(sent)
        assert "prompt_cache_key" not in sent
        assert sum(counted.read for counted in agent.caches.counts) == 0

    run(dialect, body)


def test_a_server_that_speaks_as_openai_does_gets_a_key_where_its_model_says_so(path: Path) -> None:
    async def body(agent: CachedAgent) -> None:
        there: dict[str, Any] = {"provider": provider(agent.server.url)}
        async with office(agent, path) as desk:
            await desk.send(**there)
            await desk.send(**there, prompt_cache=PromptCache.KEY)
        assert [key is not None for key in agent.caches.keys] == [False, True]

    run(Dialect.OPENAI_CHAT, body)


def without_markers(body: Any) -> Any:
    if isinstance(body, list):
        return [without_markers(item) for item in body]
    if not isinstance(body, dict):
        return body
    return {name: without_markers(value) for name, value in body.items() if name != "cache_control"}
