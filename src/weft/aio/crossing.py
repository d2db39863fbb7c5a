"""Where asynchronous code crosses over to the synchronous ledger: a bounded pool of threads, and nothing else.

A call that was begun is finished, whatever becomes of the task that awaits it: cancelling never leaves half a commit,
and never takes back one that was acknowledged. Waiting (for a busy session, for news) is done in the event loop, so
that those who wait take no thread from those they wait for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any, Generic, TypeVar

from weft.kernel.errors import SessionBusy, StoreError, WeftError
from weft.ledger.arguments import checked_count, checked_seconds
from weft.ledger.write.turn_writer import TurnWriter

T = TypeVar("T")
R = TypeVar("R")
THREADS = 8
POLL_SECONDS = 0.02
TOGETHER, TOGETHER_SECONDS = 64, 0.005
"""So many items of an iterator, or so long, are fetched in one crossing."""


class Pool:
    """The threads of one open ledger, and what is under way in them."""

    def __init__(self, threads: int = THREADS) -> None:
        self._threads = ThreadPoolExecutor(checked_count(threads, "threads") or 1, "weft-aio")
        self._under_way: set[asyncio.Future[Any]] = set()
        self._closed = False
        self.shared: dict[Any, Any] = {}
        """What those share who use these threads."""

    def start(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Begin a call. It goes on to its end, also if nobody waits for it any longer. It runs with the context
        variables of whoever begins it, so in their execution context."""
        if self._closed:
            raise StoreError("the ledger is closed", "open it again")
        future = asyncio.ensure_future(asyncio.wrap_future(self._threads.submit(copy_context().run, call)))
        self._under_way.add(future)
        future.add_done_callback(self._note_done)
        return future

    def _note_done(self, ended: asyncio.Future[Any]) -> None:
        self._under_way.discard(ended)
        if not ended.cancelled():
            ended.exception()  # whoever was cancelled does not hear of it, and nobody else must

    async def run(self, call: Callable[[], T]) -> T:
        return await asyncio.shield(self.start(call))

    async def rest(self) -> None:
        """Return once nothing is under way."""
        while self._under_way:
            await asyncio.wait(set(self._under_way))

    async def close(self, last: Callable[[], None]) -> None:
        """Let everything end that was begun, then do the last thing and let the threads go. Also a cancelled task
        waits for that: a ledger is closed or it is not."""
        if self._closed:
            return
        ending = asyncio.ensure_future(self._run_last(last))
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            await asyncio.wait({ending})
            raise

    async def _run_last(self, last: Callable[[], None]) -> None:
        await self.rest()
        try:
            await self.run(last)
        finally:
            self._closed = True
            self._threads.shutdown()  # they have nothing to do any more, and end at once


class Mirror(Generic[T]):
    """The asynchronous side of one synchronous object."""

    def __init__(self, sync: T, pool: Pool) -> None:
        self._sync, self._pool = sync, pool

    async def _run(self, call: Callable[[], R]) -> R:
        return await self._pool.run(call)

    def _each(self, make: Callable[[], Iterator[R]]) -> AsyncIterator[R]:
        return each(self._pool, make)


async def each(pool: Pool, make: Callable[[], Iterator[T]]) -> AsyncGenerator[T, None]:
    """The items of an iterator, some at a time. It is closed when nobody wants more of it."""
    iterator = await pool.run(make)
    try:
        while True:
            step = pool.start(partial(_take_some, iterator))
            try:
                items, is_end = await asyncio.shield(step)
            finally:
                if not step.done():  # cancelled: an iterator cannot be closed while it runs
                    await asyncio.wait({step})
            for item in items:
                yield item
            if is_end:
                return
    finally:
        if hasattr(iterator, "close"):
            await pool.run(iterator.close)


def _take_some(items: Iterator[T]) -> tuple[list[T], bool]:
    found: list[T] = []
    until = time.monotonic() + TOGETHER_SECONDS
    for item in items:
        found.append(item)
        if len(found) == TOGETHER or time.monotonic() >= until:
            return found, False
    return found, True


async def patiently(pool: Pool, wait: float, attempt: Callable[[], T]) -> T:
    """Try again until nobody holds the session any longer, or so many seconds have passed."""
    until = asyncio.get_running_loop().time() + checked_seconds(wait, "wait")
    while True:
        try:
            return await pool.run(attempt)
        except SessionBusy:
            if asyncio.get_running_loop().time() >= until:
                raise
        await asyncio.sleep(POLL_SECONDS)


async def begun(pool: Pool, wait: float, begin: Callable[[], TurnWriter]) -> TurnWriter:
    """The same for a turn; one that is begun after its task was cancelled is failed at once, so that it holds no
    session."""
    writers: list[TurnWriter] = []
    given_up = False

    def attempt() -> TurnWriter:
        writer = begin()
        writers.append(writer)
        if given_up:
            _fail_writer(writer)
        return writer

    try:
        return await patiently(pool, wait, attempt)
    except asyncio.CancelledError:
        given_up = True
        for writer in writers:
            pool.start(partial(_fail_writer, writer))
        raise


def _fail_writer(writer: TurnWriter) -> None:
    try:
        writer.fail("cancelled before its first step")
    except WeftError:  # it has ended already; nothing holds the session
        return


async def held(pool: Pool, take: Callable[[], T], give_back: Callable[[T], None]) -> T:
    """What is taken for a task that was cancelled meanwhile is given back, so that nobody waits for it."""
    taking = pool.start(take)

    def undo(future: asyncio.Future[T]) -> None:
        if not future.cancelled() and future.exception() is None:
            pool.start(partial(give_back, future.result()))

    try:
        return await asyncio.shield(taking)
    except asyncio.CancelledError:
        taking.add_done_callback(undo)
        raise


class News:
    """Whether there are new events. However many wait for them, one looks at a time."""

    def __init__(self, pool: Pool, newest: Callable[[], int]) -> None:
        self._pool, self._newest = pool, newest
        self._look: asyncio.Future[int] | None = None

    async def beyond(self, after: int, seconds: float) -> bool:
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while True:
            if self._look is None or self._look.done():
                self._look = self._pool.start(self._newest)
            if await asyncio.shield(self._look) > after:
                return True
            if loop.time() >= until:
                return False
            await asyncio.sleep(min(POLL_SECONDS, max(0.0, until - loop.time())))


def behind(other: Any) -> Any:
    """The synchronous ledger behind another one; what is none is for that to refuse."""
    return getattr(other, "_sync", other)


def in_event_loop(progress: Any) -> Any:
    """A progress report that is called in the event loop, though the work is done elsewhere."""
    if progress is None:
        return None
    loop = asyncio.get_running_loop()
    return lambda *step: loop.call_soon_threadsafe(progress, *step)


async def alone(call: Callable[[], T]) -> T:
    """One call in a thread of its own."""
    pool = Pool(1)
    try:
        return await pool.run(call)
    finally:
        await pool.close(lambda: None)


async def each_alone(make: Callable[[], Iterator[T]]) -> AsyncIterator[T]:
    """The items of an iterator, from a thread of its own."""
    pool = Pool(1)
    items = each(pool, make)
    try:
        async for item in items:
            yield item
    finally:
        await items.aclose()
        await pool.close(lambda: None)
