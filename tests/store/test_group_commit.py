"""Callers that come while a commit is under way share the next one, and nobody is left waiting."""

import gc
import linecache
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any

import pytest

from weft.kernel.errors import NotApplicable, StoreFailed
from weft.store.sql_store import MAX_BYTES, MAX_JOBS, CommitBatch, CommitJob, GroupCommit

Batches = list[list[str]]


class Committer:
    """Keeps every batch; the first one waits until it is let go."""

    def __init__(self, fails: Callable[[str], Exception | None] = lambda work: None) -> None:
        self.batches: Batches = []
        self.begun, self.let_go = threading.Event(), threading.Event()
        self._fails = fails

    def __call__(self, jobs: Sequence[CommitJob[str]]) -> None:
        self.batches.append([job.work for job in jobs])
        if len(self.batches) == 1:
            self.begun.set()
            self.let_go.wait()
        for job in jobs:
            error = self._fails(job.work)
            job.succeed(job.work.upper()) if error is None else job.fail(error)


class Caller(threading.Thread):
    """One thread with one piece of work."""

    def __init__(self, group: GroupCommit[str], work: str, weight: int = 0) -> None:
        super().__init__(daemon=True)
        self._group, self._work, self._weight = group, work, weight
        self.result: object = None
        self.start()

    def run(self) -> None:
        try:
            self.result = self._group.submit(self._work, self._weight)
        except BaseException as error:
            self.result = error


def wait_until_queued(thread: threading.Thread) -> None:
    """Until the thread stands in the queue, asleep."""
    until = time.monotonic() + 60
    while not is_queued(thread):
        assert time.monotonic() < until, "it never came to the queue"


def is_queued(thread: threading.Thread) -> bool:
    frame = sys._current_frames().get(thread.ident or 0)
    return frame is not None and frame.f_code.co_name == "wait" and "sql_store" in frame.f_code.co_filename


def lead_and_queue(
    committer: Committer, works: Sequence[str], weight: int = 0, group: GroupCommit[str] | None = None
) -> list[Caller]:
    """A first caller whose commit is under way, and others who came meanwhile, in this order."""
    group = group or GroupCommit(committer)
    callers = [Caller(group, "first")]
    committer.begun.wait()
    for work in works:
        callers.append(Caller(group, work, weight))
        wait_until_queued(callers[-1])
    return callers


def finish(committer: Committer, callers: Sequence[Caller]) -> list[object]:
    committer.let_go.set()
    for caller in callers:
        caller.join()
    return [caller.result for caller in callers]


def test_a_lone_caller_commits_at_once() -> None:
    committer = Committer()
    committer.let_go.set()
    group = GroupCommit(committer)
    assert [group.submit("a"), group.submit("b")] == ["A", "B"]
    assert committer.batches == [["a"], ["b"]]


def test_those_who_come_during_a_commit_share_the_next_one_in_order() -> None:
    committer = Committer()
    callers = lead_and_queue(committer, ["a", "b", "c"])
    assert finish(committer, callers) == ["FIRST", "A", "B", "C"]
    assert committer.batches == [["first"], ["a", "b", "c"]]


def test_the_next_leader_is_woken_before_those_who_were_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever was served prepares other work next; the database would wait for all of them."""
    woken: list[str] = []
    wake = CommitJob.wake

    def noted(job: CommitJob[str]) -> None:
        woken.append(job.work)
        wake(job)

    monkeypatch.setattr(CommitJob, "wake", noted)
    committer = Committer()
    group = GroupCommit(committer)
    callers = lead_and_queue(committer, ["a", "b"], group=group)
    callers.append(Caller(group, "large", MAX_BYTES + 1))
    wait_until_queued(callers[-1])
    assert finish(committer, callers) == ["FIRST", "A", "B", "LARGE"]
    assert committer.batches == [["first"], ["a", "b"], ["large"]]
    assert woken == ["a", "large", "b"]


def test_those_who_come_before_a_batch_is_written_still_join_it() -> None:
    def commit(jobs: CommitBatch[str]) -> None:
        if not committer.batches:
            committer(jobs[:])
            assert [job.work for job in jobs.join()] == ["a", "b"]
        for job in jobs:
            job.succeed(job.work.upper())
        committed.append([job.work for job in jobs])

    committer, committed = Committer(), list[list[str]]()
    callers = lead_and_queue(committer, ["a", "b"], group=GroupCommit(commit))
    assert finish(committer, callers) == ["FIRST", "A", "B"]
    assert committed == [["first", "a", "b"]]


def test_many_callers_take_turns_in_halves_so_that_one_half_prepares_meanwhile() -> None:
    def commit(jobs: CommitBatch[str]) -> None:
        committer(jobs)
        if len(committer.batches) == 2:
            others.extend(Caller(group, work) for work in "cdefgh")
            for other in others:
                wait_until_queued(other)

    committer, others = Committer(), list[Caller]()
    group = GroupCommit(commit)
    callers = lead_and_queue(committer, ["a", "b"], group=group)
    finish(committer, callers)
    finish(committer, others)
    assert [len(batch) for batch in committer.batches] == [1, 2, 4, 2]


def test_a_failing_piece_of_work_fails_its_caller_alone() -> None:
    error = ValueError("b")
    committer = Committer(lambda work: error if work == "b" else None)
    callers = lead_and_queue(committer, ["a", "b", "c"])
    assert finish(committer, callers) == ["FIRST", "A", error, "C"]


def test_a_commit_that_breaks_down_fails_all_it_served_and_the_next_goes_on() -> None:
    def commit(jobs: Sequence[CommitJob[str]]) -> None:
        committer(jobs)
        if len(committer.batches) == 2:
            raise SystemError("broken")

    committer = Committer()
    committer.let_go.set()
    group = GroupCommit(commit)
    assert group.submit("a") == "A"
    with pytest.raises(SystemError):
        group.submit("b")
    assert group.submit("c") == "C"


def test_a_batch_is_bounded_in_number() -> None:
    committer = Committer()
    callers = lead_and_queue(committer, [f"{k}" for k in range(MAX_JOBS + 6)])
    finish(committer, callers)
    assert [len(batch) for batch in committer.batches] == [1, MAX_JOBS, 6]


def test_a_batch_is_bounded_in_weight() -> None:
    committer = Committer()
    callers = lead_and_queue(committer, ["a", "b", "c", "d", "e"], weight=MAX_BYTES // 2)
    finish(committer, callers)
    assert committer.batches == [["first"], ["a", "b"], ["c", "d"], ["e"]]


def test_work_that_is_too_heavy_for_any_batch_goes_alone() -> None:
    committer = Committer()
    callers = lead_and_queue(committer, ["a", "b"], weight=MAX_BYTES + 1)
    assert finish(committer, callers) == ["FIRST", "A", "B"]
    assert committer.batches == [["first"], ["a"], ["b"]]


def test_a_write_inside_a_write_is_refused_since_it_would_wait_for_itself() -> None:
    def commit(jobs: Sequence[CommitJob[str]]) -> None:
        for job in jobs:
            job.succeed(group.submit("inner"))

    group = GroupCommit(commit)
    with pytest.raises(NotApplicable):
        group.submit("outer")


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, whatever the test runner made of it, the first time alone."""
    raised = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal raised
        if not raised:
            raised = True
            signal.default_int_handler(number, frame)

    before = signal.signal(signal.SIGINT, interrupt)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_a_caller_interrupted_in_the_queue_leaves_it_and_nobody_waits_for_it() -> None:
    committer = Committer()
    group = GroupCommit(committer)
    first = Caller(group, "first")
    committer.begun.wait()
    threading.Thread(target=interrupt_once_queued, args=(threading.current_thread(),), daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        group.submit("interrupted")
    last = Caller(group, "last")
    wait_until_queued(last)
    assert finish(committer, [first, last]) == ["FIRST", "LAST"]
    assert committer.batches == [["first"], ["last"]]


def interrupt_once_queued(thread: threading.Thread) -> None:
    """Again where nobody noticed: a signal that comes just before a thread goes to sleep does not wake it."""
    wait_until_queued(thread)
    while is_queued(thread):
        signal.pthread_kill(thread.ident or 0, signal.SIGINT)
        time.sleep(0.02)


class InterruptedAt:
    """While it is entered, the k-th line of the module that this thread comes to is interrupted. Where a block ends
    that holds a lock, Python takes no signals, so no such end is counted."""

    def __init__(self, k: int) -> None:
        self.left, self.is_over = k, False

    def __enter__(self) -> "InterruptedAt":
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.endswith("store/sql_store.py"):
            return None
        source = linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip()
        is_end = source.startswith("with self._guard") and frame.f_locals["self"]._guard.locked()
        if event == "line" and not self.is_over and not is_end:
            self.left -= 1
            if self.left < 0:
                self.is_over = True
                raise KeyboardInterrupt
        return self._trace


def test_a_piece_of_work_is_gone_once_its_caller_has_its_answer() -> None:
    class Work(str):
        """One that can be watched."""

    def commit(jobs: CommitBatch[str]) -> None:
        for job in jobs:
            job.succeed(None)

    work, group = Work("a"), GroupCommit[str](commit)
    watched = weakref.ref(work)
    gc.disable()
    try:
        group.submit(work)
        del work
        assert watched() is None
    finally:
        gc.enable()


def test_an_interrupt_at_any_line_of_a_leader_leaves_nobody_waiting() -> None:
    """Two share its commit, and one comes meanwhile."""
    for k in range(1_000):
        group: GroupCommit[str] = GroupCommit(lambda jobs: commit(jobs))  # noqa: PLW0108
        callers: list[Caller] = []

        def commit(jobs: CommitBatch[str], group: GroupCommit[str] = group, callers: list[Caller] = callers) -> None:
            if not callers:
                for work in ("a", "b"):
                    callers.append(Caller(group, work))
                    wait_until_queued(callers[-1])
                jobs.join()
                callers.append(Caller(group, "c"))
                wait_until_queued(callers[-1])
            for job in jobs:
                job.succeed(job.work.upper())

        interrupt, result = InterruptedAt(k), None
        with suppress(KeyboardInterrupt), interrupt:
            result = group.submit("own")
        assert group.submit("later") == "LATER"
        for caller in callers:
            caller.join()
            assert caller.result == caller._work.upper() or isinstance(caller.result, StoreFailed)
        group.close()
        assert not group._waiting
        if not interrupt.is_over:
            assert result == "OWN"
            break
    assert 30 < k < 999


def test_an_interrupt_at_any_line_of_a_follower_leaves_nobody_waiting() -> None:
    for k in range(1_000):
        committer = Committer()
        group = GroupCommit(committer)
        first = Caller(group, "first")
        committer.begun.wait()
        follower = InterruptedCaller(group, k, committer)
        follower.join()
        committer.let_go.set()
        first.join()
        assert first.result == "FIRST"
        assert group.submit("later") == "LATER"
        group.close()
        assert not group._waiting
        if not follower.interrupt.is_over:
            assert follower.result == "OWN"
            break
    assert 10 < k < 999


class InterruptedCaller(Caller):
    """One that lets the first commit end while it waits, and is interrupted at its k-th line."""

    def __init__(self, group: GroupCommit[str], k: int, committer: Committer) -> None:
        self.interrupt, self._committer = InterruptedAt(k), committer
        super().__init__(group, "own")

    def run(self) -> None:
        threading.Thread(target=self._let_go, daemon=True).start()
        with self.interrupt:
            super().run()

    def _let_go(self) -> None:
        while self.is_alive() and not is_queued(self):
            pass
        self._committer.let_go.set()
