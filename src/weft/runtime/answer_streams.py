"""The text of answers while they are written, and those who follow it.

Who follows a session is given every event once and in order. The text of a turn is there at once in
this process, and now and then in others.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

from weft.kernel.errors import StoreError
from weft.ledger.api import (
    PARTIAL_POLL_SECONDS,
    PartialReply,
    Runs,
    SessionStream,
    StreamItem,
    StreamPosition,
    TurnSessions,
    store_of,
)
from weft.ledger.arguments import checked_seconds
from weft.runtime.ledger_port import Executor, RuntimeLedger
from weft.runtime.replies import ReplyToken, TokenKind

if TYPE_CHECKING:
    from weft.runtime.replies import OnToken


# --- The answer to one request to a model, as far as it has come.


class LiveText:
    """`attempt` counts the requests of the turn; `messages` are those of the inbox that it answers."""

    def __init__(self, turn: str, attempt: int, messages: Sequence[str] = ()) -> None:
        self.turn, self.attempt, self.messages = turn, attempt, tuple(messages)
        self._pieces: list[tuple[TokenKind, int, str]] = []
        """Each piece with its kind and where it begins in the text of that kind."""
        self._starts: dict[TokenKind, list[int]] = {kind: [] for kind in TokenKind}
        self._places: dict[TokenKind, list[int]] = {kind: [] for kind in TokenKind}
        """By kind where each of its pieces begins, and where it stands among all pieces."""
        self._lengths: dict[TokenKind, int] = dict.fromkeys(TokenKind, 0)

    def add(self, token: ReplyToken) -> None:
        kind, start = token.kind, self._lengths[token.kind]
        self._starts[kind].append(start)
        self._places[kind].append(len(self._pieces))
        self._pieces.append((kind, start, token.text))
        self._lengths[kind] = start + len(token.text)

    def whole(self, kind: TokenKind) -> str:
        return "".join(self._pieces[place][2] for place in self._places[kind])

    def beyond(self, delta: int, thinking: int) -> list[tuple[TokenKind, str]]:
        """What lies beyond so many characters of text and of thinking, in the order in which it came; neighbours of
        one kind are one piece."""
        skipped = {TokenKind.TEXT: delta, TokenKind.THINKING: thinking}
        first = min((self._piece_place(kind, count) for kind, count in skipped.items()), default=0)
        rests = ((kind, text[max(0, skipped[kind] - start) :]) for kind, start, text in self._pieces[first:])
        groups = groupby((rest for rest in rests if rest[1]), lambda rest: rest[0])
        return [(kind, "".join(text for _, text in group)) for kind, group in groups]

    def _piece_place(self, kind: TokenKind, count: int) -> int:
        """The place of the piece that goes beyond so many characters."""
        if count >= self._lengths[kind]:
            return len(self._pieces)
        return self._places[kind][bisect_right(self._starts[kind], count) - 1]


# --- The answers that brokers of this process hear, and those of this process who follow sessions.

WATCH_SECONDS = 0.25
"""So long a thread waits for events at a time."""


EVERY_SESSION = "*"
"""In place of the id of a session: whoever follows all of the ledger."""


class WakeSignal:
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

    def __init__(self, crossing: Executor) -> None:
        self._crossing = crossing
        self._texts: dict[str, LiveText] = {}
        self._bells: dict[str, dict[WakeSignal, None]] = {}
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
    def bell(self, session: str, runs: Runs, newest: int) -> Iterator[WakeSignal]:
        """A bell that is rung for a session or a conversation, by its id, from now on."""
        bell = WakeSignal()
        self.ring_for(bell, {session})
        if self._watching is None or self._watching.done():
            self._watching = asyncio.ensure_future(self._watch_log(runs, newest))
        try:
            yield bell
        finally:
            self.ring_for(bell, set())

    def ring_for(self, bell: WakeSignal, ids: set[str]) -> None:
        """Ring a bell for these sessions and conversations, and for no others any longer."""
        for id in sorted(ids - bell.ids):
            self._bells.setdefault(id, {})[bell] = None
        for id in bell.ids - ids:
            del self._bells[id][bell]
            if not self._bells[id]:
                del self._bells[id]
        bell.ids = set(ids)

    async def _watch_log(self, runs: Runs, newest: int) -> None:
        """Ring for what is recorded, by this process or another, as long as anybody follows."""
        turn_sessions = TurnSessions()
        while self._bells:
            try:
                if await asyncio.to_thread(runs.wait_for_news, newest, WATCH_SECONDS):
                    look = partial(runs.sessions_with_news, newest, turn_sessions)
                    newest, sessions = await self._crossing.run(look)
                    for session in (*sessions, EVERY_SESSION):
                        self.ring(session)
            except StoreError:  # the server is away; followers hear of it when they read
                await asyncio.sleep(WATCH_SECONDS)


def hub_of(crossing: Executor) -> StreamHub:
    """The hub of those who share one open ledger."""
    hub = crossing.shared.get("streams")
    if hub is None:
        hub = crossing.shared["streams"] = StreamHub(crossing)
    assert isinstance(hub, StreamHub)
    return hub


# --- The text of the turn that a broker runs, for those who follow: at once in this process, now and then elsewhere.

KEEP_SECONDS = 2.0
"""How often what has come of an answer is kept for readers in other processes."""


class TurnText:
    """Publishes what one turn's model says, request by request."""

    def __init__(self, hub: StreamHub, runs: Runs, crossing: Executor, session: str) -> None:
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
            self._timer = asyncio.get_running_loop().call_later(KEEP_SECONDS, self._start_keeping)

    def _start_keeping(self) -> None:
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


# --- Following a session: every event once and in order, and the text of answers while they are written.

HELD_SECONDS = 0.25
"""Items that were read so long ago are handed out only where nothing was erased since."""


async def follow(
    ledger: RuntimeLedger, session: str, *, after: StreamPosition | str | None = None, wait: float | None = None
) -> AsyncGenerator[StreamItem, None]:
    """What happens in a session behind a position, as `Ledger.follow` says."""
    seconds = None if wait is None else checked_seconds(wait, "wait")
    crossing, hub = ledger.crossing, hub_of(ledger.crossing)
    stream = await crossing.run(partial(SessionStream, store_of(ledger.sync), session, after))
    with hub.bell(stream.cursor.session, Runs(ledger.sync), stream.newest) as bell:
        follower = _Follower(crossing, hub, stream, bell)
        until = _deadline_after(seconds)
        while True:
            before = stream.cursor.position
            async for item in follower.items():
                yield item
            if stream.cursor.position != before:
                until = _deadline_after(seconds)
            left = None if until is None else until - asyncio.get_running_loop().time()
            if left is not None and left <= 0:
                return
            await follower.sleep(left)


def _deadline_after(seconds: float | None) -> float | None:
    return None if seconds is None else asyncio.get_running_loop().time() + seconds


class _Follower:
    """One subscriber in this process."""

    def __init__(self, crossing: Executor, hub: StreamHub, stream: SessionStream, bell: WakeSignal) -> None:
        self._crossing, self._hub, self._stream, self._bell = crossing, hub, stream, bell

    async def items(self) -> AsyncGenerator[StreamItem, None]:
        """What there is to be told now."""
        while self._bell.has_news:
            self._bell.has_news = False
            async for item in self._event_items():
                yield item
        cursor = self._stream.cursor
        if not cursor.is_open:
            return
        if self._hub.text(cursor.turn, cursor.attempt) is not None:
            for item in self._live_items():
                yield item
        else:
            for item in await self._crossing.run(self._stream.read_partial):
                yield item

    async def _event_items(self) -> AsyncGenerator[StreamItem, None]:
        """Of events, as the ledger has them now: what was erased while somebody took items slowly is not handed out."""
        last_position, clock = self._stream.cursor.position, asyncio.get_running_loop().time
        while (items := await self._crossing.run(self._stream.read)) is not None:
            read_at = clock()
            for item in items:
                is_held = clock() - read_at >= HELD_SECONDS
                if is_held and await self._crossing.run(partial(self._stream.is_outdated, last_position)):
                    break
                yield item
                last_position = item.position

    def _live_items(self) -> Iterator[StreamItem]:
        """Whoever takes items slowly finds more than there was at first."""
        cursor = self._stream.cursor
        text = self._hub.text(cursor.turn, cursor.attempt)
        for kind, piece in () if text is None else text.beyond(cursor.delta, cursor.thinking):
            yield cursor.next_text_item(kind.value, piece)

    async def sleep(self, seconds: float | None) -> None:
        """Until there is something new; what other processes keep of an answer is looked at now and then."""
        cursor = self._stream.cursor
        if cursor.is_open and self._hub.text(cursor.turn, cursor.attempt) is None:
            seconds = PARTIAL_POLL_SECONDS if seconds is None else min(seconds, PARTIAL_POLL_SECONDS)
        await self._bell.wait(seconds)
