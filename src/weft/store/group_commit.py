"""Group commit by leader and follower: whoever comes while a commit is under way shares the next one.

There is no writer thread. A caller that finds nobody leading takes what is waiting (its own work among it) and runs it
in one transaction, together with what comes until that is written; then it hands the lead to the next in line and wakes
those it served.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

from weft.kernel.errors import NotApplicable, StoreError, StoreFailed

T = TypeVar("T")

MAX_JOBS = 64
MAX_BYTES = 4 * 1024 * 1024


class CommitJob(Generic[T]):
    """One caller's work, and later its outcome."""

    __slots__ = ("_wake", "batch", "error", "result", "settled", "weight", "work")

    def __init__(self, work: T, weight: int) -> None:
        self.work, self.weight = work, weight
        self.batch: Sequence[CommitJob[T]] = ()
        """Those whom it serves, where it leads."""
        self.result: Any = None
        self.error: BaseException | None = None
        self.settled = False
        self._wake = threading.Lock()
        self._wake.acquire()

    def succeed(self, result: Any) -> None:
        self.result, self.settled = result, True

    def fail(self, error: BaseException) -> None:
        self.error, self.settled = error, True

    def wait(self) -> None:
        self._wake.acquire()

    def wake(self) -> None:
        """Once more does no harm."""
        if self._wake.locked():
            with suppress(RuntimeError):  # somebody else woke it in between
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
                job = waiting[0]
                self.append(job)  # first: whoever is interrupted here still knows whom it has to tell
                waiting.popleft()
                self._weight += job.weight
                joined.append(job)
        return joined

    def _has_room(self, weight: int) -> bool:
        return not self or (len(self) < self._limit and self._weight + weight <= MAX_BYTES)


class GroupCommit(Generic[T]):
    """`commit` gets a batch of jobs, settles each of them, and is never run twice at once.

    An interrupt may strike a caller anywhere, also between any two steps below. So whatever a caller is cut short in,
    `_leave` does the rest of it, and each of its steps may be one that was done before.
    """

    def __init__(self, commit: Callable[[CommitBatch[T]], None]) -> None:
        self._commit = commit
        self._guard = threading.Lock()
        self._idle = threading.Condition(self._guard)
        self._waiting: deque[CommitJob[T]] = deque()
        self._lead: CommitJob[T] | None = None
        """Whose caller runs the commit that is under way, or the next one."""
        self._leader, self._room = 0, MAX_JOBS
        self._is_closed = False

    def submit(self, work: T, weight: int = 0) -> Any:
        self.refuse_inside()
        job = CommitJob(work, weight)
        try:
            self._run(job)
        except BaseException as error:  # whatever it was, nobody may be left waiting for this caller
            try:
                self._leave(job, error)
            finally:  # also where another interrupt struck in there
                self._leave(job, error)
            raise
        if job.error is not None:
            raise job.error
        return job.result

    def refuse_inside(self) -> None:
        """Raises where the caller is itself inside a piece of work that is under way."""
        if self._leader == threading.get_ident():
            raise NotApplicable("a write was begun inside another one", "finish the first, then write again")

    def _run(self, job: CommitJob[T]) -> None:
        with self._guard:
            if self._is_closed:
                raise StoreError("the ledger was closed meanwhile", "open it again")
            self._waiting.append(job)
            if self._lead is None:
                self._lead = job
        if self._lead is not job:
            job.wait()
        if self._lead is job:
            self._run_batch(job)

    def close(self) -> None:
        """Take no more work, and return once nothing is under way."""
        with self._guard:
            self._is_closed = True
            while self._lead is not None and self._leader != threading.get_ident():
                self._idle.wait()

    def _run_batch(self, own: CommitJob[T]) -> None:
        """Whoever leads is the first in line, so its own work is always in its batch."""
        own.batch = batch = CommitBatch(self._waiting, self._guard, self._room)
        self._leader = threading.get_ident()
        batch.join()
        self._commit(batch)
        self._hand_over(own)

    def _leave(self, job: CommitJob[T], error: BaseException) -> None:
        """The caller of this job goes, whatever it was about to do."""
        failure = error if isinstance(error, Exception) else StoreFailed("the commit was interrupted")
        with self._guard:
            for each in (job, *job.batch):
                if each in self._waiting:
                    self._waiting.remove(each)
            for each in job.batch:
                if not each.settled:
                    each.fail(failure)
        self._hand_over(job)

    def _hand_over(self, own: CommitJob[T]) -> None:
        """The next leader is woken first: those who were served prepare other work next, one at a time, and the
        database would have nothing to do meanwhile."""
        if self._leader == threading.get_ident():
            self._leader = 0
            self._room = _room_after(len(own.batch), len(self._waiting))
        with self._guard:
            if self._lead is own:
                self._lead = self._waiting[0] if self._waiting else None
            if self._lead is not None:
                self._lead.wake()
            elif self._is_closed:
                self._idle.notify_all()
        for job in own.batch:
            if job is not own:
                job.wake()
        own.batch = ()  # it has the job itself in it: their works would stay until Python's collector comes


def _room_after(served: int, waiting: int) -> int:
    """How many the next commit takes. Those whom a commit served, if they were several, prepare their next work now:
    half of all callers at a time, and one half is at the database while the other prepares."""
    return MAX_JOBS if served <= 1 else min(MAX_JOBS, (served + waiting + 1) // 2)
