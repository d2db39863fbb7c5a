"""Looks through a workspace for what a program made there: how much it takes, and what must not stay.

Files count as the program's when they changed after it started, by the time of change that no program can set. Links
are not followed. Folders may be nested deeper than a path is long, and may be closed to their owner.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress

from msgspec import Struct

_CLOCK_SECONDS = 1.0
"""The clock of a file system may be so far behind ours."""
_PATH_CHARACTERS = 1000
"""So much of a path is opened at once; the system takes 4096 bytes."""
_REPOSITORY = ".git"
_SPECIAL_BITS = stat.S_ISUID | stat.S_ISGID
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


class ChangedSize(Struct, frozen=True):
    """What files take that changed: bytes on disk, how many there are, whether some are in folders closed to us."""

    bytes: int
    files: int
    is_partly_hidden: bool


class ChangedFiles:
    """The files of a workspace that changed since a run started."""

    def __init__(self, workspace: str, started: float) -> None:
        self._workspace, self._since = workspace, started - _CLOCK_SECONDS

    def size(self) -> ChangedSize:
        """A file of several names counts once."""
        blocks: dict[tuple[int, int], int] = {}
        closed: list[str] = []
        for _, _, _, status in self._walk(closed):
            blocks[status.st_dev, status.st_ino] = status.st_blocks
        return ChangedSize(512 * sum(blocks.values()), len(blocks), bool(closed))

    def remove_privileges(self) -> frozenset[str]:
        """Take the setuid and setgid bits from files and remove device nodes; what is closed is opened for that. The
        paths of each `.git` that changed, or in which something did."""
        repositories = set()
        for folder, path, name, status in self._walk(None):
            if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
                os.unlink(name, dir_fd=folder)
            elif stat.S_ISREG(status.st_mode) and status.st_mode & _SPECIAL_BITS:
                _change_mode(folder, name, removed=_SPECIAL_BITS)
            parts = f"{path}/{name}".split("/")[1:]
            if _REPOSITORY in parts:
                repositories.add("/".join(parts[: parts.index(_REPOSITORY) + 1]))
        return frozenset(repositories)

    def _walk(self, closed: list[str] | None) -> Iterator[tuple[int, str, str, os.stat_result]]:
        """Folder, its path, name and status of what changed. Folders that are closed are listed in `closed`, else
        opened."""
        pending = [""]
        while pending:
            path = pending.pop()
            with suppress(FileNotFoundError):
                folder = self._open(path)
                try:
                    for name, status in _entries(folder):
                        is_changed = status.st_ctime >= self._since
                        if stat.S_ISDIR(status.st_mode):
                            if _is_enterable(folder, name, status, is_changed and closed is None):
                                pending.append(f"{path}/{name}")
                            elif is_changed and closed is not None:
                                closed.append(f"{path}/{name}")
                        if is_changed:
                            yield folder, path, name, status
                finally:
                    os.close(folder)

    def _open(self, path: str) -> int:
        folder = os.open(self._workspace, os.O_RDONLY | os.O_DIRECTORY)
        rest = path.lstrip("/")
        while rest:
            cut = rest.rfind("/", 0, _PATH_CHARACTERS) if len(rest) > _PATH_CHARACTERS else len(rest)
            piece, rest = rest[:cut], rest[cut + 1 :]
            try:
                inner = os.open(piece, _OPEN_FOLDER, dir_fd=folder)
            finally:
                os.close(folder)
            folder = inner
        return folder


def _entries(folder: int) -> list[tuple[str, os.stat_result]]:
    entries = []
    with os.scandir(folder) as names:
        for entry in names:
            with suppress(FileNotFoundError):
                entries.append((entry.name, entry.stat(follow_symlinks=False)))
    return entries


def _is_enterable(folder: int, name: str, status: os.stat_result, may_open: bool) -> bool:
    if os.access(name, os.R_OK | os.X_OK, dir_fd=folder):
        return True
    if may_open and status.st_uid == os.geteuid():
        _change_mode(folder, name, added=stat.S_IRWXU)
        return True
    return False


def _change_mode(folder: int, name: str, added: int = 0, removed: int = 0) -> None:
    """Of exactly this entry, whatever its name becomes meanwhile."""
    descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=folder)
    try:
        path = f"/proc/self/fd/{descriptor}"
        os.chmod(path, stat.S_IMODE(os.stat(path).st_mode) & ~removed | added)
    finally:
        os.close(descriptor)
