"""The answers that brokers of this process hear, and those of this process who follow sessions.

Followers sleep until their bell is rung: because the answer of their session grew, or because events of their session
were recorded, by whatever process. One thread waits for events, however many follow. Whoever waits in this process for
the answer to a message of theirs listens to that message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from weft.kernel.errors import StoreError
from weft.ledger.api import Runs, TurnSessions
from weft.runtime.inference.replies import ReplyToken
from weft.runtime.streams.live_text import LiveText
from weft.runtime.turns.ledger_port import Crossing

if TYPE_CHECKING:
    from weft.runtime.inference.attempt import OnToken

WATCH_SECONDS = 0.25
"""So long a thread waits for events at a time."""


class Bell:
    """Wakes one follower."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()
        self.ids: set[str] = set()
        """Of the sessions and conversations that it is rung for."""
        self.has_news = True
        """Whether events were recorded since the log was read."""

    def ring(self, *, has_news: bool = False) -> None:
        self.has_news = self.has_news or has_news
        self._rung.set()

    async def wait(self, seconds: float | None) -> None:
        """Until it is rung, or so many seconds have passed."""
        if not self._rung.is_set():
            timer = None if seconds is None else asyncio.get_running_loop().call_later(seconds, self._rung.set)
            try:
                await self._rung.wait()
            finally:
                if timer is not None:
                    timer.cancel()
        self._rung.clear()


class StreamHub:
    """One for each open ledger, shared by its brokers and followers."""

    def __init__(self, crossing: Crossing) -> None:
        self._crossing = crossing
        self._texts: dict[str, LiveText] = {}
        self._bells: dict[str, dict[Bell, None]] = {}
        """By session or conversation, in the order in which they came."""
        self._listeners: dict[str, OnToken] = {}
        """By message of an inbox, whoever sent it and hears its answer piece by piece."""
        self._watching: asyncio.Task[None] | None = None

    # --- for brokers --------------------------------------------------------------------------------------------

    def is_followed(self, session: str, messages: Sequence[str]) -> bool:
        """Whether anybody in this process follows the session, or hears the answer to one of these messages."""
        return session in self._bells or any(message in self._listeners for message in messages)

    def begin_text(self, session: str, text: LiveText) -> None:
        """An answer begins; what was heard of an earlier one of its turn is void."""
        self._texts[text.turn] = text
        self.ring(session)

    def add_text(self, session: str, text: LiveText, token: ReplyToken) -> None:
        """An answer goes on. What a listener raises fails the request that it listens to."""
        text.add(token)
        for bell in self._bells.get(session, ()):
            bell.ring()
        for message in text.messages:
            if (listener := self._listeners.get(message)) is not None:
                listener(token)

    def end_text(self, session: str, text: LiveText) -> None:
        """Nothing more comes of an answer: it is recorded, or void, or nobody hears it any longer."""
        if self._texts.get(text.turn) is text:
            del self._texts[text.turn]
        self.ring(session)

    def ring(self, session: str) -> None:
        """Events of a session were recorded."""
        for bell in self._bells.get(session, ()):
            bell.ring(has_news=True)

    # --- for followers ------------------------------------------------------------------------------------------

    def text(self, turn: str, attempt: int) -> LiveText | None:
        """What is heard in this process of the answer to a request of a turn."""
        text = self._texts.get(turn)
        return text if text is not None and text.attempt == attempt else None

    def newest_text(self, turn: str) -> LiveText | None:
        """What is heard in this process of the answer to the last request of a turn."""
        return self._texts.get(turn)

    @contextmanager
    def listening(self, message: str, listener: OnToken | None) -> Iterator[None]:
        """The sender of a message hears every piece of the answers of its turn, as the model says it."""
        if listener is None:
            yield
            return
        self._listeners[message] = listener
        try:
            yield
        finally:
            del self._listeners[message]

    @contextmanager
    def bell(self, session: str, runs: Runs, newest: int) -> Iterator[Bell]:
        """A bell that is rung for a session or a conversation, by its id, from now on."""
        bell = Bell()
        self.ring_for(bell, {session})
        if self._watching is None or self._watching.done():
            self._watching = asyncio.ensure_future(self._watch(runs, newest))
        try:
            yield bell
        finally:
            self.ring_for(bell, set())

    def ring_for(self, bell: Bell, ids: set[str]) -> None:
        """Ring a bell for these sessions and conversations, and for no others any longer."""
        for id in sorted(ids - bell.ids):
            self._bells.setdefault(id, {})[bell] = None
        for id in bell.ids - ids:
            del self._bells[id][bell]
            if not self._bells[id]:
                del self._bells[id]
        bell.ids = set(ids)

    async def _watch(self, runs: Runs, newest: int) -> None:
        """Ring for what is recorded, by this process or another, as long as anybody follows."""
        turn_sessions = TurnSessions()
        while self._bells:
            try:
                if await asyncio.to_thread(runs.wait_for_news, newest, WATCH_SECONDS):
                    look = partial(runs.sessions_with_news, newest, turn_sessions)
                    newest, sessions = await self._crossing.run(look)
                    for session in sessions:
                        self.ring(session)
            except StoreError:  # the server is away; followers hear of it when they read
                await asyncio.sleep(WATCH_SECONDS)


def hub_of(crossing: Crossing) -> StreamHub:
    """The hub of those who share one open ledger."""
    hub = crossing.shared.get("streams")
    if hub is None:
        hub = crossing.shared["streams"] = StreamHub(crossing)
    assert isinstance(hub, StreamHub)
    return hub
