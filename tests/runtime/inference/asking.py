"""Small words for tests that ask a scripted server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.runtime.scripted import Script, Scripted, scripted
from weft.kernel.authority import Principal, PrincipalKind
from weft.kernel.clock import FixedClock
from weft.kernel.enums import MessageRole
from weft.ledger.model import NewMessage
from weft.runtime.egress.credentials import ConnectionRules, Credential, Keyring
from weft.runtime.egress.execution_context import ExecutionContext, context_for
from weft.runtime.inference.inference import Inference
from weft.runtime.inference.model_requests import (
    InferenceRequest,
    ModelParameters,
    ModelSettings,
    ProviderKind,
    ProviderSettings,
    RetryPolicy,
)
from weft.runtime.replies import Reply, ReplyToken

CANARY = "sk-canary-0123456789abcdef"
PERSON = Principal(PrincipalKind.HUMAN, "tester")
HI = (NewMessage(role=MessageRole.USER, content="Say hello"),)
QUICK = ConnectionRules(connect_seconds=2, read_seconds=0.25)


def provider(url: str, kind: ProviderKind = ProviderKind.OPENAI_COMPATIBLE, **more: Any) -> ProviderSettings:
    return ProviderSettings(
        **{"id": "there", "kind": kind, "base_url": url, "credential": "key", "rules": QUICK, **more}
    )


def model(url: str, **more: Any) -> ModelSettings:
    given = {"id": "m", "name": "m-1", "parameters": ModelParameters(max_tokens=50), **more}
    return ModelSettings(**{"provider": provider(url), **given})


def person(url: str, key: str = CANARY) -> ExecutionContext:
    known = [Credential(id=name, origin=url, env="KEY") for name in ("key", "gateway")]
    return context_for(PERSON, keyring=Keyring(known, {"KEY": key}.get))


@dataclass
class Asked:
    """What became of a question: the reply, its tokens, and how long was waited between tries."""

    server: Scripted
    reply: Reply | None = None
    error: Exception | None = None
    tokens: list[ReplyToken] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    retries: list[tuple[str, str, bool]] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(token.text for token in self.tokens)


def ask(
    *scripts: Script,
    make: Callable[[str], ModelSettings] = model,
    stream: bool = False,
    attempts: int = 1,
    infer: Callable[..., Coroutine[Any, Any, Reply]] | None = None,
    **request: Any,
) -> Asked:
    """Put one question to a server that follows these scripts. Waiting moves a clock that stands still otherwise."""

    async def put() -> Asked:
        clock = FixedClock(1_700_000_000_000)
        async with scripted(*scripts) as server:
            asked = Asked(server)

            async def sleep(seconds: float) -> None:
                asked.waits.append(seconds)
                clock.sleep(seconds)

            options = {name: request.pop(name) for name in ("budget", "context") if name in request}
            options.setdefault("context", person(server.url))
            tries = RetryPolicy(attempts=attempts)
            async with Inference(
                policy=tries,
                clock=clock,
                sleep=sleep,
                random_bytes=lambda n: b"\xff" * n,
                on_retry=lambda error, model, wait: asked.retries.append((error.code, model, wait > 0)),
            ) as inference:
                put = InferenceRequest(**{"model": make(server.url), "messages": HI, **request})
                try:
                    asked.reply = await inference.infer(
                        put, on_token=asked.tokens.append if stream else None, **options
                    )
                except Exception as error:  # the test looks at it
                    asked.error = error
            return asked

    return asyncio.run(put())


def texts_of(error: BaseException | None) -> Iterator[str]:
    """Everything that an error and those behind it say."""
    while error is not None:
        yield str(error)
        yield repr(error)
        yield str(getattr(error, "hint", ""))
        error = error.__cause__ or error.__context__
