"""Brokers and senders as processes of their own: what each does, and what it says of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import weft
import weft.aio
from tests.faults.processes import Say
from weft.kernel.authority import Principal, PrincipalKind
from weft.kernel.clock import SystemClock
from weft.kernel.errors import StoreError
from weft.ledger.api import SessionStanding, Setting
from weft.ledger.model import Message, NewMessage, TextPart, ToolUsePart
from weft.runtime.broker import broker as broker_module
from weft.runtime.broker.broker import Broker
from weft.runtime.broker.plans import TurnPlan
from weft.runtime.broker.tools import FunctionTool, tools_of
from weft.runtime.context import context_for
from weft.runtime.inference.replies import Finish, Reply
from weft.runtime.inference.settings import InferenceRequest, ModelSettings, ProviderKind, ProviderSettings

MODEL = ModelSettings(
    id="m",
    name="m-1",
    provider=ProviderSettings(id="there", kind=ProviderKind.OPENAI_COMPATIBLE, base_url="http://127.0.0.1:9"),
)
OPENING_TRIES = 600


class EchoProvider:
    """Asks for a tool at first, then answers with the last thing that a person said."""

    def sendable(self, model: ModelSettings, parameters: Any) -> Any:
        return parameters

    async def infer(self, request: InferenceRequest, **_: Any) -> Reply:
        await asyncio.sleep(0.01)
        last = request.messages[-1]
        is_told = str(last.role) == "tool"
        question = next(one for one in reversed(request.messages) if str(one.role) == "user")
        words = question.text if isinstance(question, Message) else text_of(question)
        parts = (TextPart(f"re: {words}"),) if is_told else (ToolUsePart("call-1", "look", {}),)
        finish = Finish.STOP if is_told else Finish.TOOL_CALL
        return Reply(parts=parts, finish=finish, model_id="m", model="m-1", provider="there")


def text_of(message: NewMessage) -> str:
    parts = message.content if isinstance(message.content, tuple) else ()
    return "".join(str(part.text) for part in parts if isinstance(part, TextPart))


def serve(say: Say, address: str, lease_seconds: float) -> None:
    """A broker process, until it is killed."""
    broker_module.RENEW_SECONDS = lease_seconds / 4
    say("serving")
    while True:
        try:
            asyncio.run(_serve(address, lease_seconds))
        except StoreError:  # the server is away as the ledger is opened
            time.sleep(0.1)


async def _serve(address: str, lease_seconds: float) -> None:
    def look() -> str:
        """Looks."""
        return "seen"

    async def plan(standing: SessionStanding, messages: Sequence[Any]) -> TurnPlan:
        return TurnPlan(
            model=MODEL,
            inference=EchoProvider(),  # type: ignore[arg-type]
            acting=context_for(Principal(PrincipalKind.HUMAN, "tester")),
            setting=Setting(),
            tools=tools_of(FunctionTool(look, is_read_only=True)),
        )

    async with weft.aio.open(address, lease_ttl=lease_seconds) as ledger:
        await Broker(ledger.sync, ledger.crossing, plan, clock=SystemClock()).serve()


def send(say: Say, address: str, sender: str, sessions: Sequence[str], count: int) -> None:
    """Admits messages one after the other, and says of each what it intends and what it heard. Whatever it did not hear
    the outcome of it tries again, with the same key."""
    for number in range(count):
        text, session = f"{sender} {number}", sessions[number % len(sessions)]
        say(("invoke", session, text))
        for _ in range(OPENING_TRIES):
            try:
                with weft.open(address) as ledger:
                    ledger.inbox.admit(text, session=session, key=text)
            except StoreError:
                say(("unknown", session, text))
                time.sleep(0.05)
                continue
            say(("ok", session, text))
            break
        else:
            say(("fail", session, text))
