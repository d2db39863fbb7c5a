"""What tells a watch that something has changed: the kernel's notices, as far as they reach.

A notice is a hint and nothing more. What it says is looked at, and a sweep finds what no notice told: a folder that was
full before it was watched, a network share, a kernel that has run out of watches.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from weft.kernel.clock import Clock

TICK_MS, STEP_MS, GATHER_MS = 250, 50, 200


class Waiting(Protocol):
    """How a watch waits."""

    is_blind: bool
    """Nothing is told: only sweeps find changes."""

    def wait(self, seconds: float) -> set[str]:
        """Until something has changed, or so long: the paths, of files and of folders."""

    def close(self) -> None: ...


class Sleeping:
    """Waits, and is told nothing."""

    is_blind = True

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def wait(self, seconds: float) -> set[str]:
        self._clock.sleep(seconds)
        return set()

    def close(self) -> None:
        """Nothing is held."""


class KernelNotices:
    """Changes below some folders, from inotify or its like."""

    is_blind = False

    def __init__(self, folders: Iterable[Path], clock: Clock) -> None:
        """Raises OSError or RuntimeError where the kernel has no watches left. From here on nothing is missed."""
        from watchfiles import watch

        self._clock = clock
        self._notices = watch(
            *folders,
            watch_filter=None,
            debounce=GATHER_MS,
            step=STEP_MS,
            rust_timeout=TICK_MS,
            yield_on_timeout=True,
            raise_interrupt=True,
            ignore_permission_denied=True,
        )
        self._first: set[str] = {path for _, path in next(self._notices)}

    def wait(self, seconds: float) -> set[str]:
        until = self._clock.monotonic() + seconds
        found, self._first = self._first, set()
        while not found and self._clock.monotonic() < until:
            try:
                found = {path for _, path in next(self._notices)}
            except (OSError, RuntimeError, StopIteration):  # sweeps go on, and the next new place is another try
                self.is_blind = True
                self._clock.sleep(max(0.0, until - self._clock.monotonic()))
        return found

    def close(self) -> None:
        self._notices.close()


def listening(folders: Iterable[Path], clock: Clock) -> Waiting:
    """The kernel's notices where there are any; else nothing but time."""
    folders = [folder for folder in folders if folder.is_dir()]
    if not folders:
        return Sleeping(clock)
    try:
        return KernelNotices(folders, clock)
    except (OSError, ImportError, RuntimeError, StopIteration):
        return Sleeping(clock)
