"""Commands of one workspace start one after the other, and know whether another one runs that could move files there.

A workspace that lies in another one shares its files with it. So whoever starts a command holds the lock of its
workspace alone, and the locks of all folders above it together with others: two workspaces side by side do not wait for
one another. Locks are taken from the uppermost folder down, so that no two wait for each other.

A command that may write is noted by further locks as long as it runs: at its workspace, and at each folder above it.
All lie beside the person's other state, under the numbers of the folders: a folder that gets another name keeps its
locks, and no command can hold one.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from weft.kernel.errors import StoreFailed
from weft.store.private_files import PRIVATE_FILE, make_folder

LONGEST_WAIT_SECONDS = 120.0
"""A look through the largest workspace takes some seconds; a process that was stopped holds its lock for ever."""
_PAUSE_SECONDS = 0.01
_OPEN_LOCK = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_STARTING, _RUNNING, _RUNNING_BELOW = "starting", "running", "below"
_REGISTER = "register"


class WorkspaceTurn:
    """The turn of one command. `workspace` has no links on its way. Close it when the command has ended."""

    def __init__(self, folder: Path, workspace: Path, *, can_write: bool) -> None:
        """Raises OSError where nothing can be locked."""
        self._folder, self._workspace, self._can_write = folder / "locks", workspace, can_write
        make_folder(self._folder)
        self._names = [_lock_name(place) for place in (*folders_above(workspace), workspace)]
        self._start_locks: list[int] = []
        self._run_locks: list[int] = []
        self.is_alone = False
        """Whether no other command runs that can write here, in a workspace above or in one below."""

    def begin(self) -> None:
        """Waits until no other command is being started in this workspace, above or below it. Raises StoreFailed where
        that takes too long."""
        deadline = time.monotonic() + LONGEST_WAIT_SECONDS
        for name in self._names:
            descriptor = self._open(name, _STARTING)
            self._start_locks.append(descriptor)
            kind = fcntl.LOCK_EX if name == self._names[-1] else fcntl.LOCK_SH
            while not _try_lock(descriptor, kind):
                if time.monotonic() > deadline:
                    self.close()
                    raise StoreFailed(
                        f"another command has been starting in {self._workspace}, above or below it for "
                        f"{LONGEST_WAIT_SECONDS:g} seconds",
                        "end the process of weft that was stopped there, and try again",
                    )
                _pause()
        with self._register():
            self.is_alone = self._nobody_runs()
            if self._can_write:
                *above, own = self._names
                for name, activity in (*((name, _RUNNING_BELOW) for name in above), (own, _RUNNING)):
                    self._run_locks.append(self._open(name, activity))
                    fcntl.flock(self._run_locks[-1], fcntl.LOCK_SH)

    def end_start(self) -> None:
        """The command is about to run: others may start."""
        _close_all(self._start_locks)

    def close(self) -> None:
        _close_all(self._run_locks)
        _close_all(self._start_locks)

    def _nobody_runs(self) -> bool:
        *above, own = self._names
        return all(
            self._is_free(name, kind)
            for name, kind in (*((name, _RUNNING) for name in above), (own, _RUNNING), (own, _RUNNING_BELOW))
        )

    def _is_free(self, name: str, kind: str) -> bool:
        descriptor = self._open(name, kind)
        try:
            return _try_lock(descriptor, fcntl.LOCK_EX)
        finally:
            os.close(descriptor)

    @contextmanager
    def _register(self) -> Iterator[None]:
        """One at a time asks and notes who runs: asking takes a lock for a moment, which is nobody's command."""
        descriptor = self._open("all", _REGISTER)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _open(self, name: str, kind: str) -> int:
        try:
            return os.open(self._folder / f"{name}.{kind}", _OPEN_LOCK, PRIVATE_FILE)
        except OSError as error:
            raise StoreFailed(
                f"no command can wait for its turn in {self._workspace}: {self._folder}: {error.strerror}",
                "make it a folder that you can write, or close some files",
            ) from None


def folders_above(workspace: Path) -> list[Path]:
    """The uppermost first, without the root, which is no workspace."""
    return [folder for folder in reversed(workspace.parents) if folder != Path("/")]


def _lock_name(folder: Path) -> str:
    status = os.stat(folder)
    return f"{status.st_dev:x}-{status.st_ino:x}"


def _try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _pause() -> None:
    time.sleep(_PAUSE_SECONDS)


def _close_all(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())
