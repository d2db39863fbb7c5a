"""Locks between processes: files that are locked as long as somebody who has them open lives."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from weft.kernel.clock import Clock
from weft.kernel.errors import InUse
from weft.store.private_files import PRIVATE_FILE

WAIT_SECONDS = 600.0
_LONGEST_PAUSE_SECONDS = 0.1


@contextmanager
def locked(path: Path, clock: Clock, *, shared: bool = False, wait_seconds: float = WAIT_SECONDS) -> Iterator[int]:
    """Hold the lock, alone or with others that share it; its descriptor, for processes that shall hold it too."""
    lock = _open_lock(path)
    try:
        _wait_for(lock, path, fcntl.LOCK_SH if shared else fcntl.LOCK_EX, clock, wait_seconds)
        yield lock
    finally:
        os.close(lock)


def _open_lock(path: Path) -> int:
    """For reading where nothing can be written, such as on a disk that is mounted so."""
    flags = os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, flags | os.O_RDWR | os.O_CREAT, PRIVATE_FILE)
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES):
            raise
        return os.open(path, flags | os.O_RDONLY)


def _wait_for(lock: int, path: Path, operation: int, clock: Clock, wait_seconds: float) -> None:
    deadline, pause = clock.monotonic() + wait_seconds, 0.001
    while True:
        try:
            fcntl.flock(lock, operation | fcntl.LOCK_NB)
        except BlockingIOError:
            if clock.monotonic() >= deadline:
                raise InUse(str(path.parent)) from None
            clock.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        else:
            return
