"""An event loop in a thread of its own, so that blocking code can wait for asynchronous work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from threading import Thread, current_thread
from typing import Any, TypeVar

from weft.kernel.errors import InvalidInput

T = TypeVar("T")


class LoopThread:
    """Runs coroutines for any number of threads at once, until it is closed."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Wait for the coroutine that `work` makes. A caller that is interrupted cancels it and waits for its end."""
        if current_thread() is self._thread:
            raise InvalidInput(
                "a blocking call was made inside of an invocation", "make it from another thread, or use weft.aio"
            )
        outcome: Future[T] = Future()
        tasks: list[asyncio.Task[T]] = []
        try:
            self._loop.call_soon_threadsafe(self._begin, work, tasks, outcome)
            return outcome.result()
        except BaseException:  # also an interrupted caller leaves no work behind
            if not outcome.done():
                self._loop.call_soon_threadsafe(_stop, tasks, outcome)
                wait([outcome])
            raise

    def _begin(
        self, work: Callable[[], Coroutine[Any, Any, T]], tasks: list[asyncio.Task[T]], outcome: Future[T]
    ) -> None:
        task = self._loop.create_task(work())
        tasks.append(task)
        task.add_done_callback(lambda ended: _hand_over(ended, outcome))

    def close(self) -> None:
        """End the loop and its thread; what still runs is cancelled."""
        if not self._thread.is_alive():
            return
        self.run(self._cancel_rest)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _cancel_rest(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._loop.shutdown_asyncgens()


def _stop(tasks: list[asyncio.Task[T]], outcome: Future[T]) -> None:
    """Called after `_begin`, or where the caller was interrupted before that, instead of it."""
    if not tasks:
        outcome.set_exception(asyncio.CancelledError())
    for task in tasks:
        task.cancel()


def _hand_over(task: asyncio.Task[T], outcome: Future[T]) -> None:
    if task.cancelled():
        outcome.set_exception(asyncio.CancelledError())
        return
    error = task.exception()
    if error is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(task.result())
