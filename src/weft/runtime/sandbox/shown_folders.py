"""Looks for ledgers of projects in folders that commands are shown and cannot write: toolchains, and what a person
chose to show.

An interpreter alone has thousands of folders, is looked through at each start, and hardly ever changes. What a folder
held is remembered in this process for as long as the system says that nothing came to it or left it: no program can
set that time back. A folder that changed within the clock's last tick is not remembered: it could change once more
without another time.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from weft.kernel.clock import SystemClock
from weft.runtime.sandbox.workspace_search import FETCHED_FOLDERS, is_ledger_folder, is_real_folder

MOST_FOLDERS = 5000
"""Of one that is shown, the uppermost first."""
MOST_REMEMBERED = 50_000
_SETTLED_NS = 2_000_000_000
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
Stamp = tuple[int, int, int]


class _HeldFolders(Struct, frozen=True):
    """The folders in a folder, by name."""

    stamp: Stamp
    ledgers: tuple[str, ...]
    others: tuple[str, ...]


_remembered: dict[str, _HeldFolders] = {}


def ledger_folders(folder: Path) -> Iterator[str]:
    """Those in a folder that has no link on its way: their paths in it. One that cannot be listed counts as one."""
    top = os.open(folder, _OPEN_FOLDER)
    try:
        waiting = deque([""])
        for _ in range(MOST_FOLDERS):
            if not waiting:
                return
            path = waiting.popleft()
            try:
                held = _held_folders(top, path, os.path.join(folder, path))
            except OSError as error:
                if error.errno not in _GONE:
                    yield path
                continue
            yield from (os.path.join(path, name) for name in held.ledgers)
            waiting.extend(os.path.join(path, name) for name in held.others)
    finally:
        os.close(top)


def _held_folders(top: int, path: str, place: str) -> _HeldFolders:
    known = _remembered.get(place)
    if known is not None and known.stamp == _stamp(os.stat(path or ".", dir_fd=top, follow_symlinks=False)):
        return known
    descriptor = os.open(path or ".", _OPEN_FOLDER, dir_fd=top)
    try:
        stamp = _stamp(os.fstat(descriptor))  # before it is listed: what comes meanwhile has another
        with os.scandir(descriptor) as listed:
            folders = [entry for entry in listed if is_real_folder(entry)]
            ledgers = tuple(entry.name for entry in folders if is_ledger_folder(entry))
    finally:
        os.close(descriptor)
    left_out = FETCHED_FOLDERS.union(ledgers)
    held = _HeldFolders(stamp, ledgers, tuple(entry.name for entry in folders if entry.name not in left_out))
    if SystemClock().now_ms() * 1_000_000 - stamp[2] > _SETTLED_NS:
        if len(_remembered) >= MOST_REMEMBERED:
            _remembered.clear()
        _remembered[place] = held
    return held


def _stamp(status: os.stat_result) -> Stamp:
    return status.st_dev, status.st_ino, status.st_ctime_ns
