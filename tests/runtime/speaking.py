"""A model that says what a test tells it to, piece by piece, and a broker that asks it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import weft.aio
from tests.runtime.inference.asking import model, person
from weft.kernel.errors import ProviderFailed
from weft.ledger.api import (
    AttemptReset,
    InboxMessage,
    RunConfig,
    SessionStanding,
    StreamItem,
    StreamPosition,
    TextAdded,
)
from weft.ledger.model import Part, ReasoningPart, TextPart, ToolUsePart
from weft.runtime.broker.broker import Broker
from weft.runtime.broker.turn_plans import TurnPlan
from weft.runtime.inference.inference import Inference
from weft.runtime.inference.model_requests import NO_PARAMETERS, InferenceRequest
from weft.runtime.replies import FinishReason, Reply, ReplyToken, TokenKind
from weft.runtime.tool.tool_contract import FunctionTool, tools_of

URL = "http://127.0.0.1:9"
AGAIN, END, CALL, BREAK = "again", "end", "call", "break"
"""What a model is told beside words: begin the answer anew, end it, end it with a tool call, fail."""
Word = ReplyToken | str


def said(text: str) -> ReplyToken:
    return ReplyToken(text)


def thought(text: str) -> ReplyToken:
    return ReplyToken(text, TokenKind.THINKING)


class Speaker(Inference):
    """Answers every request with the words that a test puts in, one at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.words: asyncio.Queue[Word] = asyncio.Queue()
        self.requests = 0

    def say(self, *words: Word) -> None:
        for word in words:
            self.words.put_nowait(word)

    async def infer(self, request: InferenceRequest, *, on_token: Any = None, before: Any = None, **_: Any) -> Reply:
        attempt, tokens = 1, list[ReplyToken]()
        self.requests += 1
        while True:
            word = await self.words.get()
            if isinstance(word, ReplyToken):
                tokens.append(word)
                if on_token is not None:
                    on_token(word)
            elif word == AGAIN:
                attempt, tokens = attempt + 1, []
                await before(request.model, NO_PARAMETERS, attempt)
            elif word == BREAK:
                raise ProviderFailed("it broke")
            else:
                return self._reply(tokens, has_call=word == CALL)

    def _reply(self, tokens: Sequence[ReplyToken], *, has_call: bool) -> Reply:
        def joined(kind: TokenKind) -> str:
            return "".join(token.text for token in tokens if token.kind is kind)

        parts: list[Part] = [ReasoningPart(joined(TokenKind.THINKING)), TextPart(joined(TokenKind.TEXT))]
        parts = [part for part in parts if part.text]  # type: ignore[union-attr]
        if has_call:
            parts.append(ToolUsePart(f"call-{self.requests}", "double", {"number": 4}))
        finish = FinishReason.TOOL_CALL if has_call else FinishReason.STOP
        return Reply(parts=tuple(parts), finish=finish, model_id="m", model="m-1", provider="there")


def double(number: int) -> int:
    """Twice a number."""
    return 2 * number


@asynccontextmanager
async def brokered(ledger: weft.aio.AsyncLedger, speaker: Speaker) -> AsyncIterator[Broker]:
    """A broker of a ledger while it serves; afterwards it is gone, and what it did not finish is left as it is."""

    async def plan(_: SessionStanding, __: Sequence[InboxMessage]) -> TurnPlan:
        tools = tools_of(FunctionTool(double))
        acting = person(URL)
        return TurnPlan(model=model(URL), inference=speaker, acting=acting, setting=RunConfig(), tools=tools)

    broker = Broker(ledger.sync, ledger.crossing, plan, is_streamed=True)
    serving = asyncio.ensure_future(broker.serve())
    try:
        yield broker
    finally:
        serving.cancel()
        with suppress(asyncio.CancelledError):
            await serving


class Screen:
    """What somebody who follows has on their screen: events once each, and the text of answers that counts."""

    def __init__(self) -> None:
        self.items: list[StreamItem] = []
        self.lines: list[Any] = []
        self._text = {"thinking": "", "text": ""}
        self.resets = 0
        self.pieces = 0

    @property
    def position(self) -> StreamPosition | None:
        return self.items[-1].position if self.items else None

    def show(self, item: StreamItem) -> None:
        self.items.append(item)
        if isinstance(item, TextAdded):
            self.pieces += 1
            self._text[item.kind] += item.text
            return
        if isinstance(item, AttemptReset):
            self.resets += 1
            self._text = {"thinking": "", "text": ""}
        if any(self._text.values()):
            self.lines.append(self._text)
            self._text = {"thinking": "", "text": ""}
        self.lines.append((type(item).__name__, item.position.n))

    @property
    def text(self) -> str:
        """The answer that is being written."""
        return self._text["text"]
