"""Goes down into folders by descriptors, name by name.

A path is followed anew each time it is used: whoever may write to a folder on its way, such as a command in another
sandbox, can put a link there meanwhile. The system also takes no path of more than 4,096 bytes, and folders may be
nested deeper. Here each folder is opened from the one above it, and a link is never followed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

Identity = tuple[int, int]
"""The numbers of a file's device and of itself."""
FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_HELD = 64
"""So many folders on the way down stay open. To those below them the way back up is taken."""


def open_inner(folder: int, name: str) -> int:
    return os.open(name, FOLDER_FLAGS, dir_fd=folder)


OpenInner = Callable[[int, str], int]


def open_beneath(folder: int, path: str, opens: OpenInner = open_inner) -> int:
    """A folder beneath another one, which stays open. Raises OSError."""
    descriptor = os.dup(folder)
    for name in path.split("/"):
        if name in ("", "."):
            continue
        try:
            inner = opens(descriptor, name) if name != ".." else _refuse(path)
        finally:
            os.close(descriptor)
        descriptor = inner
    return descriptor


def _refuse(path: str) -> int:
    raise FileNotFoundError(path)


@contextmanager
def opened_beneath(folder: int, path: str, opens: OpenInner = open_inner) -> Iterator[int]:
    descriptor = open_beneath(folder, path, opens)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def opened_identity(descriptor: int) -> Identity:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


class VisitedFolder:
    """A folder that is walked through, open until the next one is asked for."""

    def __init__(self, descriptor: int, path: str) -> None:
        self.descriptor, self.path = descriptor, path
        self.inner: list[str] = []
        """The names of the folders to go down to, which whoever walks fills in. The last one is the next."""


class _Level:
    """A folder on the way down."""

    def __init__(self, descriptor: int, name: str) -> None:
        self.descriptor, self.name = descriptor, name
        self.identity = opened_identity(descriptor)
        self.waiting: list[str] = []


class Descent:
    """A way down that is gone further, back up and down again, name by name. Few folders on it stay open."""

    def __init__(self, top: int, opens: OpenInner = open_inner) -> None:
        """`top` stays the caller's."""
        self._opens = opens
        self.levels = [_Level(os.dup(top), "")]
        self.names: list[str] = []

    @property
    def descriptor(self) -> int:
        """Of the folder that was come to."""
        return self.levels[-1].descriptor

    def enter(self, name: str) -> None:
        """Raises OSError, and stays where it is."""
        self.levels.append(_Level(self._opens(self.descriptor, name), name))
        self.names.append(name)
        if len(self.levels) > _MOST_HELD:
            above = self.levels[-2]
            os.close(above.descriptor)
            above.descriptor = -1

    def leave(self) -> None:
        """Back to the folder above, unless it is the top. Raises OSError where another one is met there, since somebody
        moved what was left: it is then at the next one that is still open."""
        left = self.levels.pop()
        try:
            if not self.levels or self.levels[-1].descriptor >= 0:
                return
            above = self.levels[-1]
            above.descriptor = os.open("..", FOLDER_FLAGS, dir_fd=left.descriptor)
            if opened_identity(above.descriptor) != above.identity:
                os.close(above.descriptor)
                above.descriptor = -1
                raise FileNotFoundError("it was moved")
        except OSError:
            while self.levels[-1].descriptor < 0:
                self.levels.pop()
            raise
        finally:
            os.close(left.descriptor)
            del self.names[max(len(self.levels) - 1, 0) :]

    def go_to(self, path: str) -> int:
        """The descriptor of a folder beneath the top. Raises OSError, and is then at one on the way."""
        names = [name for name in path.split("/") if name not in ("", ".")]
        if ".." in names:
            raise FileNotFoundError(path)
        same = 0
        while same < min(len(names), len(self.names)) and names[same] == self.names[same]:
            same += 1
        while len(self.names) > same:
            with suppress(OSError):  # it is gone down again then
                self.leave()
        for name in names[len(self.names) :]:
            self.enter(name)
        return self.descriptor

    def close(self) -> None:
        while self.levels:
            level = self.levels.pop()
            if level.descriptor >= 0:
                os.close(level.descriptor)


def visit_folders(
    top: int, failed: Callable[[str, OSError], None], opens: OpenInner = open_inner
) -> Iterator[VisitedFolder]:
    """A folder and those beneath it. `failed` is called with the path of each that could not be opened, or not gone on
    with where somebody moved what lies in it meanwhile, and may raise. No depth ends the walk."""
    descent = Descent(top, opens)
    try:
        visited = VisitedFolder(descent.descriptor, "")
        yield visited
        descent.levels[-1].waiting = visited.inner
        while descent.levels:
            level = descent.levels[-1]
            if not level.waiting:
                path = "/".join(descent.names[:-1])
                try:
                    descent.leave()
                except OSError as error:
                    failed(path, error)
                continue
            name = level.waiting.pop()
            try:
                descent.enter(name)
            except OSError as error:
                failed("/".join((*descent.names, name)), error)
                continue
            visited = VisitedFolder(descent.descriptor, "/".join(descent.names))
            yield visited
            descent.levels[-1].waiting = visited.inner
    finally:
        descent.close()


def open_closed(folder: int, name: str) -> int:
    """Also what is closed to its owner: it is opened to them. Raises OSError."""
    try:
        descriptor = open_inner(folder, name)
    except PermissionError:
        change_mode(folder, name, added=stat.S_IRWXU)
        descriptor = open_inner(folder, name)
    try:
        open_to_owner(descriptor)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def open_to_owner(folder: int) -> None:
    """Where a command took its owner the right to write, nothing could be taken away."""
    status = os.fstat(folder)
    if status.st_uid == os.geteuid() and status.st_mode & stat.S_IRWXU != stat.S_IRWXU:
        os.fchmod(folder, stat.S_IMODE(status.st_mode) | stat.S_IRWXU)


def change_mode(folder: int, name: str, added: int = 0, removed: int = 0) -> None:
    """Of exactly this entry, whatever its name becomes meanwhile."""
    descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        path = f"/proc/self/fd/{descriptor}"
        os.chmod(path, stat.S_IMODE(os.stat(path).st_mode) & ~removed | added)
    finally:
        os.close(descriptor)
