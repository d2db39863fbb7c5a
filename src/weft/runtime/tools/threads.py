"""Runs the short synchronous steps of tools in threads, so that the event loop never waits for a file or a parser.

What is asked for in one pass of the event loop is handed over together, to one thread that does it one after the other.
Where that thread is not done after a moment another one joins it: a slow step holds up no other.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")
JOIN_SECONDS = 0.002
"""After so long another thread joins, again and again until nothing waits."""


class _StepBatch:
    """What was asked for in one pass of an event loop, in the order in which it was asked for."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[tuple[Callable[[], Any], asyncio.Future[Any]]] = deque()
        self._outcomes: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        """What is done and not told yet: quick steps are told together."""
        self._is_slow = False

    def add(self, call: Callable[[], T]) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self._loop.create_future()
        self._waiting.append((call, future))
        return future

    def start(self) -> None:
        self._loop.run_in_executor(None, self._work)
        self._loop.call_later(JOIN_SECONDS, self._join)

    def _join(self) -> None:
        """A moment has passed: what is done is told at once from now on, and what still waits gets another thread."""
        self._is_slow = True
        self._settle_futures()
        if self._waiting:
            self.start()

    def _work(self) -> None:
        while True:
            try:
                call, future = self._waiting.popleft()
            except IndexError:  # another thread took the last
                return
            if not future.cancelled():
                self._outcomes.append((future, *_outcome(call)))
            if self._is_slow or not self._waiting:
                self._loop.call_soon_threadsafe(self._settle_futures)

    def _settle_futures(self) -> None:
        while self._outcomes:
            future, result, error = self._outcomes.popleft()
            if future.cancelled():
                continue
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)


def _outcome(call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return call(), None
    except BaseException as error:  # whatever it is, it is raised where the step is awaited
        return None, error


_batches: WeakKeyDictionary[asyncio.AbstractEventLoop, _StepBatch] = WeakKeyDictionary()
"""The batch of each event loop that is being filled."""


async def in_thread(call: Callable[[], T]) -> T:
    """What a synchronous call gives, from a thread. Where the task that awaits it is cancelled before a thread took
    the call, it is not made."""
    loop = asyncio.get_running_loop()
    batch = _batches.get(loop)
    if batch is None:
        batch = _batches[loop] = _StepBatch(loop)
        loop.call_soon(_hand_over, loop)
    return await batch.add(call)


def _hand_over(loop: asyncio.AbstractEventLoop) -> None:
    _batches.pop(loop).start()
