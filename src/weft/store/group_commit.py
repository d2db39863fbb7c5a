"""Group commit by leader and follower: whoever comes while a commit is under way shares the next one.

There is no writer thread. A caller that finds nobody leading takes what is waiting (its own work among it) and runs it
in one transaction, together with what comes until that is written; then it hands the lead to the next in line and wakes
those it served.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from weft.kernel.errors import NotApplicable

T = TypeVar("T")

MAX_JOBS = 64
MAX_BYTES = 4 * 1024 * 1024


class CommitJob(Generic[T]):
    """One caller's work, and later its outcome."""

    __slots__ = ("_wake", "error", "leads", "result", "settled", "weight", "work")

    def __init__(self, work: T, weight: int) -> None:
        self.work, self.weight = work, weight
        self.result: Any = None
        self.error: BaseException | None = None
        self.settled = self.leads = False
        self._wake = threading.Lock()
        self._wake.acquire()

    def succeed(self, result: Any) -> None:
        self.result, self.settled = result, True

    def fail(self, error: BaseException) -> None:
        self.error, self.settled = error, True

    def wait(self) -> None:
        self._wake.acquire()

    def wake(self) -> None:
        self._wake.release()


class CommitBatch(list[CommitJob[T]]):
    """The jobs of one commit. Until it is written, those who come meanwhile can still join."""

    def __init__(self, waiting: deque[CommitJob[T]], guard: threading.Lock, limit: int) -> None:
        super().__init__()
        self._waiting, self._guard, self._limit, self._weight = waiting, guard, limit, 0

    def join(self) -> list[CommitJob[T]]:
        """Those who wait, as far as there is room for them; a first one always has."""
        waiting = self._waiting
        joined: list[CommitJob[T]] = []
        if not waiting:
            return joined
        with self._guard:
            while waiting and self._has_room(waiting[0].weight):
                job = waiting.popleft()
                self._weight += job.weight
                self.append(job)
                joined.append(job)
        return joined

    def _has_room(self, weight: int) -> bool:
        return not self or (len(self) < self._limit and self._weight + weight <= MAX_BYTES)


class GroupCommit(Generic[T]):
    """`commit` gets a batch of jobs, settles each of them, and is never run twice at once."""

    def __init__(self, commit: Callable[[CommitBatch[T]], None]) -> None:
        self._commit = commit
        self._guard = threading.Lock()
        self._idle = threading.Condition(self._guard)
        self._waiting: deque[CommitJob[T]] = deque()
        self._led = False
        self._leader, self._room = 0, MAX_JOBS

    def submit(self, work: T, weight: int = 0) -> Any:
        if self._leader == threading.get_ident():
            raise NotApplicable("a write was begun inside another one", "finish the first, then write again")
        job = CommitJob(work, weight)
        with self._guard:
            self._waiting.append(job)
            job.leads = not self._led
            self._led = True
        if not job.leads:
            self._follow(job)
        if job.leads:
            self._lead(job)
        if job.error is not None:
            raise job.error
        return job.result

    def _follow(self, job: CommitJob[T]) -> None:
        try:
            job.wait()
        except BaseException:  # an interrupted caller leaves the queue, and the lead to the next in line
            with self._guard:
                if job in self._waiting:
                    self._waiting.remove(job)
                if job.leads:
                    self._appoint()
            raise

    def rest(self) -> None:
        """Return once nothing is under way; the caller has seen to it that nothing new comes."""
        with self._guard:
            while self._led and self._leader != threading.get_ident():
                self._idle.wait()

    def _lead(self, own: CommitJob[T]) -> None:
        """Whoever leads is the first in line, so its own work is always in its batch."""
        batch = CommitBatch(self._waiting, self._guard, self._room)
        self._leader = threading.get_ident()
        try:
            batch.join()
            self._commit(batch)
        except BaseException as error:  # a leader that dies must not leave its followers waiting for ever
            for job in batch:
                if not job.settled:
                    job.fail(error)
            raise
        finally:
            self._hand_over(batch, own)

    def _hand_over(self, batch: Sequence[CommitJob[T]], own: CommitJob[T]) -> None:
        """The next leader is woken first: those who were served prepare other work next, one at a time, and the
        database would have nothing to do meanwhile."""
        self._leader = 0
        self._room = _room_after(len(batch), len(self._waiting))
        with self._guard:
            self._appoint()
        for job in batch:
            if job is not own:
                job.wake()

    def _appoint(self) -> None:
        """The first in line leads from now on. The guard is held."""
        self._led = bool(self._waiting)
        if self._led:
            self._waiting[0].leads = True
            self._waiting[0].wake()
        else:
            self._idle.notify_all()


def _room_after(served: int, waiting: int) -> int:
    """How many the next commit takes. Those whom a commit served, if they were several, prepare their next work now:
    half of all callers at a time, and one half is at the database while the other prepares."""
    return MAX_JOBS if served <= 1 else min(MAX_JOBS, (served + waiting + 1) // 2)
