"""Following a session: every event once and in order, and the text of answers while they are written.

Events are read from the log. The text of an answer comes from the hub where its turn runs in this process, else from
what its broker keeps for readers elsewhere; what neither had is read from the recorded answer. All three are one text,
and a position is a place in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from functools import partial

from weft.ledger.api import PARTIAL_POLL_SECONDS, Runs, SessionStream, StreamItem, StreamPosition, store_of
from weft.ledger.arguments import checked_seconds
from weft.runtime.streams.hub import Bell, StreamHub, hub_of
from weft.runtime.turns.ledger_port import Crossing, RuntimeLedger

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
        until = _deadline(seconds)
        while True:
            before = stream.cursor.position
            async for item in follower.items():
                yield item
            if stream.cursor.position != before:
                until = _deadline(seconds)
            left = None if until is None else until - asyncio.get_running_loop().time()
            if left is not None and left <= 0:
                return
            await follower.sleep(left)


def _deadline(seconds: float | None) -> float | None:
    return None if seconds is None else asyncio.get_running_loop().time() + seconds


class _Follower:
    """One subscriber in this process."""

    def __init__(self, crossing: Crossing, hub: StreamHub, stream: SessionStream, bell: Bell) -> None:
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
