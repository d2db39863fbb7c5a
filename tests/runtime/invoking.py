"""A workshop over an open ledger and a scripted server, for tests that invoke programs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import weft
from tests.runtime.inference.asking import CANARY
from tests.runtime.scripted import Script, Scripted, scripted
from tests.sandbox import UNPROTECTED
from weft.aio.crossing import Pool
from weft.aio.ledger import AsyncLedger
from weft.kernel.authority import Principal, PrincipalKind
from weft.programs import Programs
from weft.runtime.egress.credentials import Keyring
from weft.runtime.egress.execution_context import ExecutionContext, context_for
from weft.runtime.inference.inference import Inference
from weft.runtime.inference.model_requests import RetryPolicy
from weft.runtime.invoke.handlers import invoke
from weft.runtime.invoke.invocation import Invocation, InvocationContext, InvocationResult
from weft.runtime.replies import ReplyToken
from weft.runtime.sandbox.command_runner import CommandRunner

VARIABLES = {"THERE_KEY": CANARY, "THERE_HOST": "127.0.0.1"}


class Bench:
    """Programs that ask a scripted server, and whoever invokes them."""

    def __init__(self, shop: InvocationContext, programs: Programs, server: Scripted) -> None:
        self.shop, self.programs, self.server = shop, programs, server
        self.tokens: list[ReplyToken] = []
        self.shown: list[tuple[str, str]] = []
        shop.show = lambda name, text: self.shown.append((name, text))

    async def invoke(self, name: str, message: Any = None, **given: Any) -> InvocationResult:
        return await invoke(self.shop, name, Invocation(message=message, **given))

    def sent(self, number: int = -1) -> list[tuple[str, str]]:
        return [(item["role"], item["content"]) for item in self.server.received[number].body["messages"]]

    async def said(self, turn: str) -> list[tuple[str, str]]:
        thread = await self.shop.ledger.thread(turn)  # type: ignore[attr-defined]
        return [(message.role, message.text) async for message in thread.messages]


Body = Callable[[Bench], Awaitable[None]]


def as_tester(**variables: str) -> ExecutionContext:
    keyring = Keyring((), {**VARIABLES, **variables}.get)
    return context_for(Principal(PrincipalKind.HUMAN, "tester"), keyring=keyring)


def stock(programs: Programs, url: str) -> None:
    """A provider with a key in a variable, and two models."""
    config = {"providerType": "openai-compatible", "baseUrl": url, "apiKey": "${THERE_KEY}", "readSeconds": 5}
    programs.create("provider", "there", config)
    situations = {"coding": {"temperature": 0, "maxTokens": 90}}
    first = {"modelId": "m-1", "provider": "there", "temperature": 0.5, "maxTokens": 50, "situations": situations}
    programs.create("model", "fast", first)
    programs.create("model", "other", {"modelId": "m-2", "provider": "@(there)"})


def run(address: str | Path, body: Body, *scripts: Script, context: ExecutionContext | None = None) -> None:
    async def main() -> None:
        ledger, pool = weft.open(address), Pool()
        try:
            async with scripted(*scripts) as server, Inference(policy=RetryPolicy(attempts=1)) as inference:
                programs = Programs(ledger)
                await pool.run(lambda: stock(programs, server.url))
                shop = InvocationContext(
                    AsyncLedger(ledger, pool),
                    programs,
                    pool,
                    inference,
                    variable=VARIABLES.get,
                    runner=CommandRunner(UNPROTECTED),
                    context=context or as_tester(),
                )
                await body(Bench(shop, programs, server))
                assert list(ledger.verify()) == []
        finally:
            await pool.close(ledger.close)

    asyncio.run(main())
