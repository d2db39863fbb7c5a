"""Finds the links in one of git's folders through which a person's git would write: to whatever they lead.

The folder is gone through by descriptors, so that no path leads elsewhere meanwhile, and without recursion, so that no
depth ends the look. What is closed to its owner is opened.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress

from msgspec import Struct

from weft.kernel.clock import system_random
from weft.runtime.sandbox.folder_descent import FOLDER_FLAGS, open_beneath, open_closed, visit_folders
from weft.runtime.sandbox.git_index import is_index_name
from weft.runtime.sandbox.git_settings import CONFIG_BYTES

FileState = tuple[int, int, int]
"""The numbers of its device and of itself, and when it changed."""
_OLD_HEAD = re.compile(r"refs/heads/[\w-]+")
"""Where a `HEAD` leads that is a link, as git made it long ago."""
_LEVELS = {
    **dict.fromkeys(("", "objects", "objects/pack", "objects/info"), 0),
    **dict.fromkeys(("logs", "refs", "rr-cache", "rebase-merge", "rebase-apply", "sequencer"), None),
}
"""The folders that are looked at, and how deep; None is to the end. Git replaces objects, and does not write them. Of
the others it writes files where they are: the last four are how conflicts were solved, and what is not finished."""


class WatchedPlace(Struct, frozen=True):
    """What something was mounted on: a descriptor of it, its name, and the folder from which it has that name."""

    folder: int | None
    name: str
    descriptor: int

    def is_same(self) -> bool:
        try:
            now = os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)
        except OSError:
            return False
        return os.path.samestat(now, os.fstat(self.descriptor))

    def still_says(self, data: bytes) -> bool:
        """Whether it is the file that it was, and says what it said."""
        if not self.is_same():
            return False
        try:
            with open(f"/proc/self/fd/{self.descriptor}", "rb") as file:
                return file.read(len(data) + 1) == data
        except OSError:
            return False


class FolderLinks:
    """The links in one of git's folders, as they are found."""

    def __init__(self, folder: int) -> None:
        self._folder = folder
        self.failures: list[str] = []
        """Paths beneath the folder that could not be looked at."""

    def find(self) -> Iterator[tuple[int, str, str]]:
        """Of each the folder that it lies in, the path of that, and its name."""
        for place, levels in _LEVELS.items():
            try:
                folder = open_beneath(self._folder, place, open_closed)
            except (FileNotFoundError, NotADirectoryError):  # a link is met in the folder above
                continue
            except OSError:
                self.failures.append(place)
                continue
            try:
                yield from self._find_beneath(folder, place, levels)
            finally:
                os.close(folder)

    def _find_beneath(self, folder: int, place: str, levels: int | None) -> Iterator[tuple[int, str, str]]:
        def note_failure(path: str, _: OSError) -> None:
            self.failures.append(os.path.normpath(f"{place}/{path}").lstrip("/"))

        for visited in visit_folders(folder, note_failure, open_closed):
            path = os.path.normpath(f"{place}/{visited.path}").strip("/")
            try:
                links, folders = _entries(visited.descriptor)
            except OSError as error:
                note_failure(visited.path, error)
                continue
            for name in links:
                yield visited.descriptor, "" if path == "." else path, name
            visited.inner = [] if levels == 0 else folders


def noted_files(place: str) -> Iterator[FileState]:
    """The links and the indexes in one of git's folders, as they are."""
    with suppress(OSError):
        folder = os.open(place, FOLDER_FLAGS)
        try:
            for name in filter(is_index_name, os.listdir(folder)):
                yield state_at(folder, name)
            for inside, _, name in FolderLinks(folder).find():
                yield state_at(inside, name)
        finally:
            os.close(folder)


def is_old_head(folder: int, name: str) -> bool:
    """Whether a link is one that git makes itself."""
    return _OLD_HEAD.fullmatch(os.readlink(name, dir_fd=folder)) is not None


def state_at(folder: int, name: str) -> FileState:
    status = os.lstat(name, dir_fd=folder)
    return status.st_dev, status.st_ino, status.st_ctime_ns


def _entries(folder: int) -> tuple[list[str], list[str]]:
    """The links and the folders in one."""
    links, folders = [], []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink():
                links.append(entry.name)
            elif entry.is_dir(follow_symlinks=False):
                folders.append(entry.name)
    return sorted(links), sorted(folders)


def is_at(path: str, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.lstat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def publish_file(place: str, data: bytes) -> None:
    """Whole or not at all: git would not start with half of it. Raises FileExistsError where something is there."""
    aside = f"{place}.{system_random(8).hex()}"
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o444)
    try:
        os.write(descriptor, data)
        os.link(aside, place)
    finally:
        os.close(descriptor)
        os.unlink(aside)


def separate_file(place: str) -> None:
    """A file of several names becomes one of its own: through another name a command could write it."""
    with open(os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_nlink < 2 or status.st_size > CONFIG_BYTES:
            return
        data = file.read()
    aside = f"{place}.{system_random(8).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(aside, flags, stat.S_IMODE(status.st_mode)), "wb") as file:
        file.write(data)
    os.rename(aside, place)
