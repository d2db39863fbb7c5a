"""`python -m benchmarks.caching`: what forty steps of one agent cost, by whoever sends them.

The same script is played to each: a system prompt, one tool, and a model that calls it in every step but the last. The
server caches as the real ones do (`caching_provider.py`) and counts; OpenAI's also for whoever gives no key, since a
single agent's requests mostly reach the same machine there. Prices are the list prices of the models named.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import weft.aio
from benchmarks.caching_provider import CachingProvider
from weft.kernel.authority import Principal, PrincipalKind
from weft.ledger.api import shipped_prices
from weft.runtime.broker.broker import OutgoingMessage, send
from weft.runtime.egress.execution_context import context_for
from weft.runtime.inference.inference import Inference
from weft.runtime.inference.model_requests import (
    Dialect,
    ModelParameters,
    ModelSettings,
    PromptCache,
    ProviderKind,
    ProviderSettings,
)
from weft.runtime.tool.tool_contract import FunctionTool, tools_of

STEPS = 40
ANSWER_TOKENS = 60
MOST_TOKENS = 4096
SYSTEM = "You mend what is broken in this folder, one step after the other, and say what you did. " * 100
QUESTION = "Mend the tests."
PAGE = "def shown(value): return str(value)  # a line of a file that was read\n" * 40
MODELS = {Dialect.ANTHROPIC: "claude-sonnet-4-5", Dialect.OPENAI_RESPONSES: "gpt-5"}
MILLION = 1_000_000
Play = Callable[[str, Dialect], Awaitable[None]]


async def read_page(path: str) -> str:
    """Read a file of the folder."""
    return f"{path}\n{PAGE}"


class AgentServer:
    """Answers with a call of the tool, and in the last step with a text."""

    def __init__(self, dialect: Dialect) -> None:
        self.caches = CachingProvider(dialect, needs_key=False)
        self.bytes = 0
        self._dialect = dialect

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                lines = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
                body = await reader.readexactly(int(lines["content-length"]))
                self.bytes += len(body)
                answer = json.dumps(self._answer(json.loads(body))).encode()
                opening = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(answer)}\r\n\r\n"
                writer.write(opening.encode() + answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):  # the client is done
            return
        finally:
            writer.close()

    def _answer(self, body: dict[str, Any]) -> dict[str, Any]:
        usage, number = self.caches.usage(body, ANSWER_TOKENS), len(self.caches.counts)
        tool = body["tools"][0]["name"]
        given, is_last = {"path": f"src/part_{number}.py"}, number == STEPS
        text = f"Step {number} is done, and the next file is read."
        if self._dialect is Dialect.ANTHROPIC:
            use = {"type": "tool_use", "id": f"toolu_{number}", "name": tool, "input": given}
            content = [{"type": "text", "text": text}, *([] if is_last else [use])]
            made = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": body["model"]}
            reason = "end_turn" if is_last else "tool_use"
            return {**made, "content": content, "stop_reason": reason, "stop_sequence": None, "usage": usage}
        said: dict[str, Any] = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
        message = {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed"}
        call = {"type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}", "status": "completed"}
        call |= {"name": tool, "arguments": json.dumps(given)}
        made = {"id": f"resp_{number}", "object": "response", "created_at": 1_700_000_000, "status": "completed"}
        more = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "model": body["model"]}
        items = [{**message, "content": [said]}, *([] if is_last else [call])]
        return {**made, **more, "output": items, "usage": usage}

    def cost(self) -> int:
        """Micro-dollars at the list prices."""
        total = 0
        for counted in self.caches.counts:
            price = shipped_prices().price(MODELS[self._dialect], None, counted.tokens)
            assert price is not None
            for tokens, kind in (
                (counted.uncached, "input"),
                (counted.read, "cached"),
                (counted.written - counted.for_hour, "cache_write"),
                (counted.for_hour, "cache_write_1h"),
                (ANSWER_TOKENS, "output"),
            ):
                total += tokens * (price.of(kind) or 0)
        return total // MILLION


def by_weft(cache: PromptCache | None) -> Play:
    async def play(url: str, dialect: Dialect) -> None:
        kind = ProviderKind.ANTHROPIC if dialect is Dialect.ANTHROPIC else ProviderKind.OPENAI
        provider = ProviderSettings(id="there", kind=kind, base_url=url)
        parameters = ModelParameters(max_tokens=MOST_TOKENS)
        model = ModelSettings(
            id="m", name=MODELS[dialect], provider=provider, prompt_cache=cache, parameters=parameters
        )
        tools = tools_of(FunctionTool(read_page))
        question = OutgoingMessage(message=QUESTION, model=model, system=SYSTEM, tools=tools)
        with tempfile.TemporaryDirectory() as folder:
            async with weft.aio.open(Path(folder) / "ledger.db") as ledger, Inference() as inference:
                person = context_for(Principal(PrincipalKind.HUMAN, "bench"))
                await send(ledger, inference, "main", question, context=person)

    return play


def by_pydantic(*, is_cached: bool) -> Play:
    """Its own agent. It caches with Anthropic where that is asked for."""

    async def play(url: str, dialect: Dialect) -> None:
        from anthropic import AsyncAnthropic
        from openai import AsyncOpenAI
        from pydantic_ai import Agent
        from pydantic_ai.models.anthropic import AnthropicModel, AnthropicModelSettings
        from pydantic_ai.models.openai import OpenAIResponsesModel
        from pydantic_ai.providers.anthropic import AnthropicProvider
        from pydantic_ai.providers.openai import OpenAIProvider
        from pydantic_ai.usage import UsageLimits

        settings: Any = {"max_tokens": MOST_TOKENS}
        model: Any
        if dialect is Dialect.ANTHROPIC:
            anthropic = AsyncAnthropic(api_key="none", base_url=url)
            model = AnthropicModel(MODELS[dialect], provider=AnthropicProvider(anthropic_client=anthropic))
            if is_cached:
                settings = AnthropicModelSettings(
                    max_tokens=MOST_TOKENS,
                    anthropic_cache_instructions=True,
                    anthropic_cache_tool_definitions=True,
                    anthropic_cache_messages=True,
                )
        else:
            openai = AsyncOpenAI(api_key="none", base_url=url)
            model = OpenAIResponsesModel(MODELS[dialect], provider=OpenAIProvider(openai_client=openai))
        agent: Any = Agent(model, instructions=SYSTEM, tools=[read_page], model_settings=settings)
        await agent.run(QUESTION, usage_limits=UsageLimits(request_limit=STEPS + 1))

    return play


async def by_agents_sdk(url: str, dialect: Dialect) -> None:
    from agents import Agent, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
    from openai import AsyncOpenAI

    set_tracing_disabled(True)
    client = AsyncOpenAI(api_key="none", base_url=url)
    model = OpenAIResponsesModel(model=MODELS[dialect], openai_client=client)
    agent: Any = Agent(name="mender", instructions=SYSTEM, tools=[function_tool(read_page)], model=model)
    await Runner.run(agent, QUESTION, max_turns=STEPS + 1)


ROWS: tuple[tuple[str, Dialect, Play], ...] = (
    ("Weft, `promptCache` off", Dialect.ANTHROPIC, by_weft(PromptCache.OFF)),
    ("Weft", Dialect.ANTHROPIC, by_weft(None)),
    ("Weft, `promptCache` 1h", Dialect.ANTHROPIC, by_weft(PromptCache.ONE_HOUR)),
    ("pydantic-ai's agent", Dialect.ANTHROPIC, by_pydantic(is_cached=False)),
    ("pydantic-ai's agent, its caching switched on", Dialect.ANTHROPIC, by_pydantic(is_cached=True)),
    ("Weft, `promptCache` off", Dialect.OPENAI_RESPONSES, by_weft(PromptCache.OFF)),
    ("Weft", Dialect.OPENAI_RESPONSES, by_weft(None)),
    ("pydantic-ai's agent", Dialect.OPENAI_RESPONSES, by_pydantic(is_cached=False)),
    ("OpenAI Agents SDK", Dialect.OPENAI_RESPONSES, by_agents_sdk),
)


async def measure(dialect: Dialect, play: Play) -> AgentServer:
    played = AgentServer(dialect)
    server = await asyncio.start_server(played.serve, "127.0.0.1", 0, limit=2**24)
    try:
        await play(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", dialect)
    finally:
        server.close()
    assert len(played.caches.counts) == STEPS, f"{len(played.caches.counts)} requests in place of {STEPS}"
    return played


def table() -> list[str]:
    lines = [
        f"| {STEPS} steps, by whom | model | bytes sent | tokens sent | read from caches | written | dollars |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for name, dialect, play in ROWS:
        try:
            played = asyncio.run(measure(dialect, play))
        except ModuleNotFoundError as error:
            print(f"not measured: {name}: there is no package {error.name}", file=sys.stderr)
            continue
        counts = played.caches.counts
        tokens, read, written = (sum(getattr(one, key) for one in counts) for key in ("tokens", "read", "written"))
        shares = f"{read:,} ({read / tokens:.0%}) | {written:,}"
        dollars = f"{played.cost() / MILLION:.3f}"
        lines.append(f"| {name} | {MODELS[dialect]} | {played.bytes:,} | {tokens:,} | {shares} | {dollars} |")
    return lines


if __name__ == "__main__":
    print("\n".join(table()))
