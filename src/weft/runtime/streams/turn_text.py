"""The text of the turn that a broker runs, for those who follow: at once in this process, now and then elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from weft.kernel.errors import StoreError
from weft.ledger.api import PartialReply, Runs
from weft.runtime.inference.replies import ReplyToken, TokenKind
from weft.runtime.streams.hub import StreamHub
from weft.runtime.streams.live_text import LiveText
from weft.runtime.turns.ledger_port import Crossing

KEEP_SECONDS = 2.0
"""How often what has come of an answer is kept for readers in other processes."""


class TurnText:
    """Publishes what one turn's model says, request by request."""

    def __init__(self, hub: StreamHub, runs: Runs, crossing: Crossing, session: str) -> None:
        self._hub, self._runs, self._crossing, self._session = hub, runs, crossing, session
        self._text: LiveText | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._keeping: asyncio.Task[None] | None = None

    @property
    def is_followed(self) -> bool:
        """Whether anybody in this process hears the answer to the last request."""
        return self._hub.is_followed(self._session, () if self._text is None else self._text.messages)

    def begin(self, turn: str, attempt: int, messages: Sequence[str]) -> None:
        """A request was recorded and is asked; `attempt` counts the requests of the turn, `messages` are those of the
        inbox that it took."""
        self.end()
        self._text = LiveText(turn, attempt, messages)
        self._hub.begin_text(self._session, self._text)

    def add(self, token: ReplyToken) -> None:
        if self._text is None:
            return
        self._hub.add_text(self._session, self._text, token)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(KEEP_SECONDS, self._keep)

    def _keep(self) -> None:
        self._timer, text = None, self._text
        if text is None or (self._keeping is not None and not self._keeping.done()):
            return
        reply = PartialReply(text.attempt, text.whole(TokenKind.TEXT), text.whole(TokenKind.THINKING))
        self._keeping = asyncio.ensure_future(self._kept(text.turn, reply))

    async def _kept(self, turn: str, reply: PartialReply) -> None:
        with suppress(StoreError):  # away or full: the turn's next record says so; nothing recorded is at stake
            await self._crossing.run(partial(self._runs.keep_partial, turn, reply))

    def recorded(self) -> None:
        """Events of the turn were recorded."""
        self._hub.ring(self._session)

    def end(self) -> None:
        """Nothing more comes of the last request."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._text is not None:
            self._hub.end_text(self._session, self._text)
            self._text = None
