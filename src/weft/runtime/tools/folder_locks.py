"""Keeps tool calls apart that work in one folder: one that a person approved has the folder for itself.

A lock of the kernel on the folder, shared by calls that may change something in it, and exclusive for an approved one.
It counts for every process of Weft on this machine, whatever ledger it serves, and is gone with the process that has
it. It keeps out calls of Weft alone: any other program may write there, or ask for the same lock and keep it. A call
that waits holds up nothing but itself, and fails at last.

Some file systems have no such lock for folders (NFS): there nobody is kept out.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from weft.runtime.tools.calls import ToolFailure

POLL_SECONDS = 0.05
LONGEST_WAIT_SECONDS = 900.0
"""Longer than any command may take."""
_WITHOUT_LOCKS = frozenset((errno.EBADF, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL))


@asynccontextmanager
async def hold_folder(folder: Path, *, alone: bool) -> AsyncIterator[None]:
    """Have it until the end: `alone`, or beside others that do not want it alone. Raises ToolFailure where somebody has
    it for too long."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ToolFailure("not_found", f"the workspace cannot be opened: {error.strerror}") from None
    try:
        for _ in range(round(LONGEST_WAIT_SECONDS / POLL_SECONDS)):
            if _is_locked(descriptor, fcntl.LOCK_EX if alone else fcntl.LOCK_SH):
                break
            await asyncio.sleep(POLL_SECONDS)
        else:
            raise ToolFailure("busy", "other calls have not left the workspace to this one: call it again later")
        yield
    finally:
        os.close(descriptor)  # and the lock is gone


def _is_locked(descriptor: int, kind: int) -> bool:
    """Whether the lock was got, or there is none to be had."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _WITHOUT_LOCKS:
            raise
    return True
