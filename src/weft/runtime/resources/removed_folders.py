"""Removes a folder with all that is in it, by descriptors of folders that were opened without following any link.

Somebody may still work in it. What is put into the place of one of its folders meanwhile, such as a link that leads
elsewhere, is removed as what it is and never followed; a folder that is moved away stops the removal.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from weft.runtime.tools.beneath import FOLDER_FLAGS, READ_FOLDER_FLAGS, Identity

_OPEN_TO_OWNER = 0o700


def remove_folder(folder: Path, inode: int | None) -> None:
    """Also what its owner may not write to, as snapshots restore it. Raises OSError where it cannot be removed, or is
    not the folder with this number."""
    above = os.open(folder.parent, READ_FOLDER_FLAGS)
    try:
        descriptor = _opened(above, folder.name)
        if os.fstat(descriptor).st_ino != inode:
            os.close(descriptor)
            raise OSError(errno.ESTALE, "it is another folder than the one that Weft made", str(folder))
        _clear(descriptor)
        os.rmdir(folder.name, dir_fd=above)
    finally:
        os.close(above)


def found_repository(folder: Path) -> Path | None:
    """A repository in a folder, at any depth; no link is followed, and what cannot be listed is passed over."""
    waiting = [folder]
    while waiting:
        place = waiting.pop()
        try:
            with os.scandir(place) as entries:
                inner = [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError:
            continue
        for one in inner:
            if one.name == ".git":
                return one
        waiting += inner
    return None


def _clear(descriptor: int) -> None:
    """Remove all that is in an opened folder, and close it. However deep it is, one folder is open at a time: the way
    back up is compared with the way down."""
    way: list[tuple[str, Identity]] = []
    try:
        while True:
            inner = _remove_files(descriptor)
            if inner is not None:
                way.append((inner, _identity(descriptor)))
                descriptor = _step(descriptor, inner)
            elif way:
                name, identity = way.pop()
                descriptor = _step(descriptor, "..")
                if _identity(descriptor) != identity:
                    raise OSError(errno.ESTALE, "it was moved while it was removed", name)
                os.rmdir(name, dir_fd=descriptor)
            else:
                return
    finally:
        os.close(descriptor)


def _remove_files(folder: int) -> str | None:
    """Remove what is no folder; the name of a folder in it, if there is one."""
    inner = None
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.name, dir_fd=folder)
            elif inner is None:
                inner = entry.name
    return inner


def _step(folder: int, name: str) -> int:
    """A folder beside or above this one, which is closed."""
    descriptor = os.open(name, READ_FOLDER_FLAGS, dir_fd=folder) if name == ".." else _opened(folder, name)
    os.close(folder)
    return descriptor


def _opened(above: int, name: str) -> int:
    """A folder that its owner may read and write from now on."""
    status = os.stat(name, dir_fd=above, follow_symlinks=False)
    if status.st_uid == os.geteuid() and status.st_mode & _OPEN_TO_OWNER != _OPEN_TO_OWNER:
        _open_up(above, name)
    return os.open(name, READ_FOLDER_FLAGS, dir_fd=above)


def _open_up(above: int, name: str) -> None:
    if os.chmod in os.supports_follow_symlinks:
        os.chmod(name, _OPEN_TO_OWNER, dir_fd=above, follow_symlinks=False)
        return
    descriptor = os.open(name, FOLDER_FLAGS, dir_fd=above)
    try:
        os.chmod(f"/proc/self/fd/{descriptor}", _OPEN_TO_OWNER)
    finally:
        os.close(descriptor)


def _identity(folder: int) -> Identity:
    status = os.fstat(folder)
    return status.st_dev, status.st_ino
