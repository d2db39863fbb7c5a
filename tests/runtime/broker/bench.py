"""One broker over one ledger in memory, with a provider that does what a test says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from tests.runtime.inference.asking import PERSON, model
from weft.kernel.clock import Clock
from weft.kernel.events import Interruption
from weft.ledger.api import Ledger, RecordedEvent, RunConfig, Runs, SessionStanding
from weft.ledger.model import Part, TextPart, ToolUsePart
from weft.runtime.broker.broker import Broker
from weft.runtime.broker.turn_plans import TurnPlan
from weft.runtime.egress.execution_context import context_for
from weft.runtime.inference.model_requests import InferenceRequest, ModelSettings, TokenCount
from weft.runtime.replies import FinishReason, Reply

T = TypeVar("T")
Answer = Callable[[InferenceRequest], Awaitable[Reply]]


class InlineCrossing:
    """Calls the ledger in the loop's own thread."""

    def __init__(self) -> None:
        self.shared: dict[Any, Any] = {}
        self.calls = 0

    async def run(self, call: Callable[[], T]) -> T:
        self.calls += 1
        await asyncio.sleep(0)
        return call()


def saying(text: str, *tools: str) -> Reply:
    parts: tuple[Part, ...] = (TextPart(text),) if text else ()
    parts += tuple(ToolUsePart(f"call-{name}", name, {}) for name in tools)
    finish = FinishReason.TOOL_CALL if tools else FinishReason.STOP
    return Reply(parts=parts, finish=finish, model_id="m", model="m-1", provider="there")


async def never(_seconds: float) -> None:
    """Sleeps on. A broker that sleeps so does nothing because time passed, however slow the machine is."""
    await asyncio.get_running_loop().create_future()


class PlayedProvider:
    """Gives one prepared answer after another: a reply, an error, or None for none at all."""

    def __init__(self, *answers: Reply | BaseException | None) -> None:
        self._answers = list(answers)
        self.requests: list[InferenceRequest] = []
        self.asked = asyncio.Event()

    async def count(self, request: InferenceRequest, **_: Any) -> TokenCount:
        return TokenCount(tokens=1)

    def sendable(self, model: ModelSettings, parameters: Any) -> Any:
        return parameters

    async def infer(self, request: InferenceRequest, **_: Any) -> Reply:
        self.requests.append(request)
        self.asked.set()
        answer = self._answers.pop(0)
        if answer is None:
            await asyncio.get_running_loop().create_future()
        if isinstance(answer, BaseException):
            raise answer
        assert answer is not None
        return answer

    def sent(self, number: int = -1) -> list[str]:
        return [text_of(message) for message in self.requests[number].messages]


def text_of(message: Any) -> str:
    content = message.content
    if isinstance(content, str):
        return content
    return " ".join(str(getattr(part, "text", getattr(part, "output", ""))) for part in content)


class Bench:
    """A ledger with a message, and brokers that answer it."""

    def __init__(self, ledger: Ledger, *answers: Reply | BaseException | None, clock: Clock | None = None) -> None:
        self.ledger, self.runs, self.clock = ledger, Runs(ledger), clock
        self.provider = PlayedProvider(*answers)
        self.crossing = InlineCrossing()
        self.sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
        self.options: dict[str, Any] = {}

    async def plan(self, standing: SessionStanding, messages: Sequence[Any]) -> TurnPlan:
        plan: dict[str, Any] = {"model": model("http://127.0.0.1:9"), "inference": self.provider}
        return TurnPlan(**{**plan, "acting": context_for(PERSON), "setting": RunConfig(), **self.options})

    def broker(self, planner: Any = None) -> Broker:
        return Broker(self.ledger, self.crossing, planner or self.plan, clock=self.clock, sleep=self.sleep)

    def admit(self, text: str = "hello", session: str = "main", **more: Any) -> str:
        return self.ledger.inbox.admit(text, session=session, **more).message

    async def answered(self, message: str, broker: Broker | None = None) -> Any:
        session = self.ledger.inbox.get(message).session_id
        return await (broker or self.broker()).wait_for_answer(message, session)

    def events(self, message: str) -> list[RecordedEvent]:
        return self.runs.events(self.ledger.inbox.get(message).turn or "")

    def interruptions(self, message: str) -> list[str]:
        return [one.event.reason.value for one in self.events(message) if isinstance(one.event, Interruption)]

    def state(self, message: str) -> tuple[str, str | None]:
        inbox = self.ledger.inbox.get(message)
        return inbox.state, inbox.error


PATIENCE_SECONDS = 600
"""After so long something hangs, also where many others use the machine."""


def run(body: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(body, PATIENCE_SECONDS))
