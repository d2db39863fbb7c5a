"""Work that a broker does beside answering messages, on occasions that the ledger and the clock give.

Each job has a loop of its own: it runs where something was written to the ledger or its due time has come, one run at
a time. A job that fails is told of and run again later; neither another job nor a turn waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from weft.kernel.clock import Clock, SystemClock

LONGEST_WAIT_SECONDS = 30.0
"""A due time is a time of the wall clock, which can be set: it is looked at at least so often."""
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0
"""After a failure a job rests for the first pause; for twice as long after each further one in a row."""

OnJobError = Callable[[str, Exception], None]
"""Called with the name of a job and what its run raised. It does not wait."""


class BackgroundJob(Protocol):
    """One kind of work. Several brokers run it at once over one ledger; it sees to it that each thing is done once."""

    @property
    def name(self) -> str:
        """What it does, for people."""

    async def run_due(self, now_ms: int) -> int | None:
        """Do what is due, and return at which Unix milliseconds it is to be run again at the latest; None where
        only news in the ledger can make something due. It can be cancelled anywhere, and run again after that."""


class BackgroundJobs:
    """The jobs of one broker, and the tasks that run them."""

    def __init__(
        self, jobs: Sequence[BackgroundJob] = (), *, clock: Clock | None = None, on_error: OnJobError | None = None
    ) -> None:
        self._clock, self._on_error = clock or SystemClock(), on_error
        self._loops = [_JobLoop(job, self) for job in jobs]
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Run every job now, and from now on when it is due."""
        self._tasks = [asyncio.ensure_future(loop.run()) for loop in self._loops]

    def wake(self) -> None:
        """Something was written to the ledger: every job runs, once more where it is running."""
        for loop in self._loops:
            loop.wake()

    def drain(self) -> list[asyncio.Task[None]]:
        """Begin no more runs. Returns what is under way: each ends with its present run, or where it is cancelled."""
        for loop in self._loops:
            loop.stop()
        self._tasks = [task for task in self._tasks if not task.done()]
        return list(self._tasks)

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def report_error(self, job: BackgroundJob, error: Exception) -> None:
        if self._on_error is not None:
            self._on_error(job.name, error)


class _JobLoop:
    """One job, run again and again."""

    def __init__(self, job: BackgroundJob, jobs: BackgroundJobs) -> None:
        self._job, self._jobs = job, jobs
        self._news, self._stopped = asyncio.Event(), asyncio.Event()
        self._pause_seconds, self._last_error = 0.0, ""

    def wake(self) -> None:
        self._news.set()

    def stop(self) -> None:
        self._stopped.set()
        self._news.set()

    async def run(self) -> None:
        while not self._stopped.is_set():
            self._news.clear()
            due_ms = await self._run_once()
            if self._pause_seconds:
                await _wait(self._stopped, self._pause_seconds)
            elif not self._stopped.is_set():
                await _wait(self._news, self._seconds_until(due_ms))

    async def _run_once(self) -> int | None:
        try:
            due_ms = await self._job.run_due(self._jobs.now_ms())
        except Exception as error:  # whatever it is, the other jobs and the turns go on
            self._pause_seconds = min(max(FIRST_PAUSE_SECONDS, 2 * self._pause_seconds), LONGEST_PAUSE_SECONDS)
            words = f"{type(error).__name__}: {error}"
            if words != self._last_error:
                self._jobs.report_error(self._job, error)
            self._last_error = words
            return None
        self._pause_seconds, self._last_error = 0.0, ""
        return due_ms

    def _seconds_until(self, due_ms: int | None) -> float:
        if due_ms is None:
            return LONGEST_WAIT_SECONDS
        return min(max(0.0, (due_ms - self._jobs.now_ms()) / 1000), LONGEST_WAIT_SECONDS)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):  # `wait_for` may lose the cancelling of this task
            await event.wait()
