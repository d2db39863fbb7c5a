"""Files and folders beneath one folder, opened, walked through and removed so that no path leads out of it.

Each is told from another of the same name by when it came to be.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from struct import unpack_from
from typing import Any

# --- Files and folders beneath one folder, opened so that no path leads out of it.

_PATH_ONLY = getattr(os, "O_PATH", os.O_RDONLY)
FOLDER_FLAGS = _PATH_ONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
READ_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
READ_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY
_OPENAT2 = 437
"""The number of the system call, the same on every processor."""
_RESOLVE = 0x08 | 0x04 | 0x02
"""RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS and RESOLVE_NO_MAGICLINKS."""
_OPENAT2_TRIES = 16
_RENAME_EXCHANGE = 2
Identity = tuple[int, int]
"""The device and the number of a file, whatever its names are."""


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


@cache
def has_openat2() -> bool:
    """Whether this kernel opens beneath a folder by itself; tried once."""
    if not sys.platform.startswith("linux"):
        return False
    root = os.open("/", FOLDER_FLAGS)
    try:
        os.close(_openat2(root, ".", FOLDER_FLAGS))
    except OSError:
        return False
    finally:
        os.close(root)
    return True


@cache
def _c_library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _openat2(folder: int, path: str, flags: int) -> int:
    """The kernel refuses a path that a rename elsewhere makes doubtful with EAGAIN; it is asked again."""
    how, number = _OpenHow(flags, 0, _RESOLVE), errno.EAGAIN
    for _ in range(_OPENAT2_TRIES):
        size = ctypes.sizeof(how)
        descriptor = int(_c_library().syscall(_OPENAT2, folder, os.fsencode(path), ctypes.byref(how), size))
        if descriptor >= 0:
            return descriptor
        number = ctypes.get_errno()
        if number not in (errno.EAGAIN, errno.EINTR):
            break
    raise OSError(number, os.strerror(number), path)


def open_beneath(root: int, parts: Sequence[str], flags: int) -> int:
    """The descriptor of what lies at a resolved path. Raises OSError where a link is on the way, or nothing there."""
    if not parts:
        return os.open(".", flags, dir_fd=root)
    if has_openat2():
        return _openat2(root, "/".join(parts), flags)
    return _open_by_parts(root, parts, flags)


def _open_by_parts(root: int, parts: Sequence[str], flags: int) -> int:
    folder = open_folder(root, parts[:-1])
    try:
        return os.open(parts[-1], flags | os.O_NOFOLLOW, dir_fd=folder)
    finally:
        os.close(folder)


def open_folder(root: int, parts: Sequence[str], *, make: bool = False) -> int:
    """The descriptor of a folder at a resolved path, part by part; with `make`, folders that are missing are made."""
    folder = os.dup(root)
    for part in parts:
        try:
            if make:
                _make_missing(part, folder)
            inner = os.open(part, FOLDER_FLAGS, dir_fd=folder)
        finally:
            os.close(folder)
        folder = inner
    return folder


def _make_missing(name: str, folder: int) -> None:
    try:
        os.mkdir(name, dir_fd=folder)
    except FileExistsError:
        return


def exchange_names(folder: int, one: str, other: str) -> bool:
    """Each of two files in a folder takes the other's name, in one step. False where the system cannot do that."""
    rename = getattr(_c_library(), "renameat2", None)
    if rename is None:
        return False
    if rename(folder, os.fsencode(one), folder, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
        return False
    raise OSError(number, os.strerror(number), other)


# --- The links on the way to a path.

_MOST_LINKS = 40


def links_on_way(path: str) -> Iterator[str]:
    """Where each of them lies, with no link on the way there, in the order in which the system goes through them."""
    place, names, passed = "/", _names_of(path), 0
    while names and passed <= _MOST_LINKS:
        name = names.pop(0)
        inner = os.path.dirname(place) if name == ".." else os.path.join(place, name)
        if name == ".." or not os.path.islink(inner):
            place = inner
            continue
        yield inner
        passed += 1
        target = os.readlink(inner)
        place, names = "/" if target.startswith("/") else place, [*_names_of(target), *names]


def _names_of(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")]


# --- Removes a folder with all that is in it, by descriptors of folders that were opened without following any link.

_OPEN_TO_OWNER = 0o700


def remove_folder(folder: Path, inode: int | None) -> None:
    """Also what its owner may not write to, as snapshots restore it. Raises OSError where it cannot be removed, or is
    not the folder with this number."""
    above = os.open(folder.parent, READ_FOLDER_FLAGS)
    try:
        descriptor = _opened_folder(above, folder.name)
        if os.fstat(descriptor).st_ino != inode:
            os.close(descriptor)
            raise OSError(errno.ESTALE, "it is another folder than the one that Weft made", str(folder))
        _clear_folder(descriptor)
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


def _clear_folder(descriptor: int) -> None:
    """Remove all that is in an opened folder, and close it. However deep it is, one folder is open at a time: the way
    back up is compared with the way down."""
    way: list[tuple[str, Identity]] = []
    try:
        while True:
            inner = _remove_files(descriptor)
            if inner is not None:
                way.append((inner, opened_identity(descriptor)))
                descriptor = _step_to(descriptor, inner)
            elif way:
                name, identity = way.pop()
                descriptor = _step_to(descriptor, "..")
                if opened_identity(descriptor) != identity:
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


def _step_to(folder: int, name: str) -> int:
    """A folder beside or above this one, which is closed."""
    descriptor = os.open(name, READ_FOLDER_FLAGS, dir_fd=folder) if name == ".." else _opened_folder(folder, name)
    os.close(folder)
    return descriptor


def _opened_folder(above: int, name: str) -> int:
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


def opened_identity(descriptor: int) -> Identity:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


# --- When a file or folder came to be, as its file system tells: what tells one from another that came to its place.

_AT_FDCWD, _NO_FOLLOW, _BORN, _BYTES = -100, 0x100, 0x800, 256
_MASK_AT, _BORN_AT = 0, 80
"""Where the answer of `statx` says which of its fields are filled, and where the time of birth stands."""


def birth_time(path: Path) -> int | None:
    """In nanoseconds, without following a link; None where the file system does not tell. Raises OSError where nothing
    is there."""
    statx = _statx_call()
    if statx is None:
        birth_seconds: float | None = getattr(os.lstat(path), "st_birthtime", None)  # not on Linux
        return None if birth_seconds is None else int(birth_seconds * 1_000_000_000)
    answer = ctypes.create_string_buffer(_BYTES)
    if statx(_AT_FDCWD, os.fsencode(path), _NO_FOLLOW, _BORN, answer) != 0:
        os.lstat(path)  # it says why, where nothing is there
        return None
    (filled,) = unpack_from("=I", answer, _MASK_AT)
    seconds, nanoseconds = unpack_from("=qI", answer, _BORN_AT)
    return seconds * 1_000_000_000 + nanoseconds if filled & _BORN else None


@cache
def _statx_call() -> Any:
    """The system's own call; None where it has none."""
    found = getattr(ctypes.CDLL(None), "statx", None)
    if found is not None:
        found.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_char_p)
    return found


# --- Down into folders by descriptors, name by name. A path is followed anew each time it is used: whoever may write to
# a folder on its way, such as a command in another sandbox, can put a link there meanwhile. The system also takes no
# path of more than 4,096 bytes, and folders may be nested deeper. Here each folder is opened from the one above it, and
# a link is never followed.

_MOST_HELD = 64
"""So many folders on the way down stay open. To those below them the way back up is taken."""


def open_inner(folder: int, name: str) -> int:
    return os.open(name, READ_FOLDER_FLAGS, dir_fd=folder)


OpenInner = Callable[[int, str], int]


def descend_to(folder: int, path: str, opens: OpenInner = open_inner) -> int:
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
    descriptor = descend_to(folder, path, opens)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


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
            above.descriptor = os.open("..", READ_FOLDER_FLAGS, dir_fd=left.descriptor)
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
