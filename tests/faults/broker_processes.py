"""Brokers, senders and readers: what each does, and what it writes into a log of its own."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

import weft
import weft.aio
from tests.faults.histories import REFUSED, Said, ToldTurn, Written
from tests.faults.processes import Say
from tests.sizes import chance
from weft.kernel.authority import Principal, PrincipalKind
from weft.kernel.clock import SystemClock
from weft.kernel.errors import InboxFull, LeaseLost, StoreError
from weft.ledger.api import (
    AnswerEnded,
    AttemptReset,
    Ledger,
    MessageAdded,
    QueueLimits,
    RunConfig,
    Runs,
    RunWriter,
    SessionStanding,
    StreamItem,
    StreamPosition,
    TextAdded,
    TurnEnded,
    TurnStarted,
)
from weft.ledger.model import Message, NewMessage, TextPart, ToolUsePart
from weft.runtime.broker import broker as broker_module
from weft.runtime.broker.broker import Broker
from weft.runtime.broker.turn_plans import TurnPlan
from weft.runtime.egress.execution_context import context_for
from weft.runtime.inference.model_requests import (
    InferenceRequest,
    ModelSettings,
    ProviderKind,
    ProviderSettings,
    TokenCount,
)
from weft.runtime.replies import FinishReason, Reply
from weft.runtime.tool.tool_contract import FunctionTool, tools_of

MODEL = ModelSettings(
    id="m",
    name="m-1",
    provider=ProviderSettings(id="there", kind=ProviderKind.OPENAI_COMPATIBLE, base_url="http://127.0.0.1:9"),
)
OPENING_TRIES = 600


class EchoProvider:
    """Asks for a tool at first, then answers with the last thing that a person said."""

    async def count(self, request: InferenceRequest, **_: Any) -> TokenCount:
        return TokenCount(tokens=1)

    def sendable(self, model: ModelSettings, parameters: Any) -> Any:
        return parameters

    async def infer(self, request: InferenceRequest, **_: Any) -> Reply:
        await asyncio.sleep(0.01)
        last = request.messages[-1]
        is_told = str(last.role) == "tool"
        question = next(one for one in reversed(request.messages) if str(one.role) == "user")
        words = question.text if isinstance(question, Message) else text_of(question)
        parts = (TextPart(f"re: {words}"),) if is_told else (ToolUsePart("call-1", "look", {}),)
        finish = FinishReason.STOP if is_told else FinishReason.TOOL_CALL
        return Reply(parts=parts, finish=finish, model_id="m", model="m-1", provider="there")


def text_of(message: NewMessage) -> str:
    parts = message.content if isinstance(message.content, tuple) else ()
    return "".join(str(part.text) for part in parts if isinstance(part, TextPart))


class Log:
    """Lines in a file, each of which is there once it was written, whatever happens to the process."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def add(self, line: Struct) -> None:
        os.write(self._file, msgspec.json.encode(line) + b"\n")


def serve(say: Say, address: str, lease_seconds: float, log: str) -> None:
    """A broker process, until it is killed."""
    broker_module.RENEW_SECONDS = lease_seconds / 4
    _log_writes(Log(log))
    say("serving")
    while True:
        try:
            asyncio.run(_serve(address, lease_seconds))
        except StoreError:  # the server is away as the ledger is opened
            time.sleep(0.1)


def _log_writes(log: Log) -> None:
    """Write down every write to a session that was made, and every one that was refused for its lease was lost."""
    record, begin = RunWriter.record, Runs.begin

    def written(writer: RunWriter, n: int) -> None:
        lease = writer._lease
        log.add(Written(lease.key, f"{lease.owner} {os.getpid()}", lease.epoch, n))

    def logged_record(writer: RunWriter, entries: Any, then: Any = None) -> Any:
        try:
            result = record(writer, entries, then)
        except LeaseLost:
            written(writer, REFUSED)
            raise
        written(writer, result.n)
        return result

    def logged_begin(runs: Runs, *args: Any, **options: Any) -> Any:
        writer, result = begin(runs, *args, **options)
        written(writer, result.n)
        return writer, result

    RunWriter.record = logged_record  # type: ignore[method-assign, assignment]
    Runs.begin = logged_begin  # type: ignore[method-assign, assignment]


async def _serve(address: str, lease_seconds: float) -> None:
    def look() -> str:
        """Looks."""
        return "seen"

    async def plan(standing: SessionStanding, messages: Sequence[Any]) -> TurnPlan:
        return TurnPlan(
            model=MODEL,
            inference=EchoProvider(),  # type: ignore[arg-type]
            acting=context_for(Principal(PrincipalKind.HUMAN, "tester")),
            setting=RunConfig(),
            tools=tools_of(FunctionTool(look, is_read_only=True)),
        )

    async with weft.aio.open(address, lease_ttl=lease_seconds) as ledger:
        await Broker(ledger.sync, ledger.crossing, plan, clock=SystemClock()).serve()


def send(say: Say, address: str, sender: str, sessions: Sequence[str], count: int, log: str) -> None:
    """Admits messages one after the other, and writes down of each what it intends and what it heard. What it did not
    hear the outcome of it tries again with the same key; now and then it gives up. Some want an empty inbox."""
    dice, lines = chance(sender), Log(log)
    ledger: Ledger | None = None

    def said(kind: str) -> None:
        lines.add(Said(kind, session, text, time.monotonic_ns()))

    for number in range(count):
        text, session = f"{sender} {number}", dice.choice(sessions)
        limits = QueueLimits(session=1) if dice.random() < 0.1 else QueueLimits()
        said("invoke")
        for _ in range(OPENING_TRIES):
            try:
                ledger = ledger or weft.open(address)
                ledger.inbox.admit(text, session=session, key=text, limits=limits)
            except InboxFull:
                said("fail")
            except StoreError:
                said("unknown")
                ledger = None
                time.sleep(0.05)
                if dice.random() < 0.8:
                    continue
            else:
                said("ok")
            break


class Reader(threading.Thread):
    """Follows sessions, in a thread of its own, and keeps each turn that it is told of. Where its connection breaks it
    goes on behind the last thing that it was told."""

    def __init__(self, address: str, sessions: Sequence[str]) -> None:
        super().__init__(daemon=True)
        self._address, self._sessions = address, sessions
        self._is_over = threading.Event()
        self.turns: list[ToldTurn] = []

    def run(self) -> None:
        positions: dict[str, StreamPosition | str] = dict.fromkeys(self._sessions, "0")
        screens = {session: Screen(session) for session in self._sessions}
        while not self._is_over.is_set():
            try:
                asyncio.run(self._read(positions, screens))
            except StoreError:  # the server is away as the ledger is opened
                time.sleep(0.1)

    def end(self) -> list[ToldTurn]:
        self._is_over.set()
        self.join()
        return self.turns

    async def _read(self, positions: dict[str, StreamPosition | str], screens: dict[str, Screen]) -> None:
        async with weft.aio.open(self._address) as ledger:
            tasks = [asyncio.ensure_future(self._follow(ledger, positions, screens[one])) for one in self._sessions]
            while not self._is_over.is_set():
                await asyncio.sleep(0.05)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(
        self, ledger: weft.aio.AsyncLedger, positions: dict[str, StreamPosition | str], screen: Screen
    ) -> None:
        while True:
            try:
                async for item in ledger.follow(screen.session, after=positions[screen.session]):
                    positions[screen.session] = item.position
                    if (turn := screen.shown(item)) is not None:
                        self.turns.append(turn)
            except StoreError:
                await asyncio.sleep(0.1)


class Screen:
    """What somebody sees of a session."""

    def __init__(self, session: str) -> None:
        self.session = session
        self._likely_questions: list[str] = []
        self._text = self._answer = ""

    def shown(self, item: StreamItem) -> ToldTurn | None:
        """The turn, where this is its end."""
        match item:
            case TurnStarted():
                self._likely_questions, self._text, self._answer = [], "", ""
            case MessageAdded(admitted=True):
                self._likely_questions.append(item.text)
            case TextAdded(kind="text"):
                self._text += item.text
            case AnswerEnded():
                self._text, self._answer = "", self._text
            case AttemptReset():
                self._text = ""
            case TurnEnded():
                return ToldTurn(self.session, item.position.n, item.exit, tuple(self._likely_questions), self._answer)
        return None
