"""Other processes that work on a ledger, and the ways they end.

They are forked from a small server that has loaded weft once, so that one costs milliseconds and none inherits the
threads of the test run. A process says what it has done so far; what it said before it died is still heard.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sized
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from multiprocessing.synchronize import Barrier
from typing import Any, TypeVar

from tests.faults.tripwires import Steps
from tests.sizes import PROVING
from tests.turn_paths import watch

Say = Callable[[Any], None]
T = TypeVar("T")

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    [
        "weft.surfaces.opening",
        "tests.turn_paths",
        "tests.faults.tripwires",
        "tests.faults.scenarios",
        "tests.faults.trigger_processes",
    ]
)

KILLED = -signal.SIGKILL
DIFFERENT_STEPS = 5
"""By so many, two runs of one work may differ."""


class Process:
    """One other process, running `work(say, *args)`."""

    def __init__(self, work: Callable[..., None], *args: Any) -> None:
        self.heard: Connection[Any, Any]
        self.heard, says = _context.Pipe(duplex=False)
        self._process: ForkServerProcess = _context.Process(target=_run, args=(work, says, args))
        self._process.start()
        says.close()

    def hear(self) -> Any:
        """The next thing it says; waits for it. EOFError when it has ended."""
        return self.heard.recv()

    def hear_all(self) -> Iterator[Any]:
        """Everything it still says until its end."""
        while True:
            try:
                yield self.heard.recv()
            except EOFError:
                return

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def stop(self) -> None:
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._process.pid is not None and self._process.exitcode is None:
            os.kill(self._process.pid, number)

    def end(self) -> int:
        """Wait for its end; returns its exit code, the negative signal if one ended it."""
        self._process.join()
        self.heard.close()
        code = self._process.exitcode
        self._process.close()
        assert code is not None
        return code


def _run(work: Callable[..., None], says: Connection[Any, Any], args: tuple[Any, ...]) -> None:
    watch()  # its turns are counted with those of the test
    work(says.send, *args)


def run(work: Callable[..., None], *args: Any) -> tuple[int, list[Any]]:
    """Run a process to its end: how it ended, and all it said."""
    process = Process(work, *args)
    said = list(process.hear_all())
    return process.end(), said


def run_well(work: Callable[..., None], *args: Any) -> list[Any]:
    """Run a process that must end by itself, without an error."""
    code, said = run(work, *args)
    assert code == 0, f"{work.__name__} ended with {code}"
    return said


def count_steps(work: Callable[..., None], *args: Any) -> tuple[int, list[Any]]:
    """At how many steps a process could be killed, and all else it said: it is run to its end by work whose tripwire
    kills nobody. What holds of work that nobody kills is to be asserted of this run."""
    *said, steps = run_well(work, *args)
    assert isinstance(steps, Steps)
    return steps.n, said


def was_killed(code: int) -> bool:
    """Or it ended well: two runs of one work may differ by a few steps. `assert_swept` says how often that may be."""
    assert code in (KILLED, 0)
    return code == KILLED


def assert_swept(kills: int, taken: Sized, *, different: int = DIFFERENT_STEPS) -> None:
    """Of the points of a sweep nearly all were kills: at others a tripwire failed, or the steps were counted too high.
    A share of the points may lie among the steps that a run does not have."""
    assert kills >= max(len(taken) - different if PROVING else 0, 1), f"{kills} kills at {len(taken)} points"


def barrier(parties: int) -> Barrier:
    """Where so many processes wait for each other, to begin at once."""
    return _context.Barrier(parties)
