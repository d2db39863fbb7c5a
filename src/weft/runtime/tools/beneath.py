"""Files and folders beneath one folder, opened so that no path leads out of it.

A path is resolved first: each part is looked at from the descriptor of the folder before it, `..` goes back to that
folder, and a link is followed only where it stays beneath. What comes out has no links and no `..`. It is opened by a
call that follows no link at all, so whatever is put in its place in between is refused, not followed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import sys
from collections.abc import Sequence
from functools import cache

from msgspec import Struct

from weft.runtime.tools.calls import ToolFailure

MOST_LINKS = 40
LONGEST_PATH_BYTES = 4096
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


class BeneathPath(Struct, frozen=True):
    """A path without links, `.` and `..`, as its parts, from the folder that it lies beneath."""

    parts: tuple[str, ...]
    exists: bool

    @property
    def text(self) -> str:
        return "/".join(self.parts) or "."


class Withheld(Struct, frozen=True):
    """What is neither opened nor listed: folders of these names at any depth, and these files and folders, under any
    name, and whatever takes their names."""

    names: frozenset[str] = frozenset()
    identities: frozenset[Identity] = frozenset()
    paths: frozenset[tuple[str, ...]] = frozenset()
    """The parts of their paths in the workspace."""

    def ensure_name(self, name: str) -> None:
        if self.has_name(name):
            raise ToolFailure("withheld", f"{name!r} holds a ledger, which tools neither read nor write")

    def has_name(self, name: str) -> bool:
        return name.casefold() in self.names

    def ensure(self, status: os.stat_result, path: str) -> None:
        if (status.st_dev, status.st_ino) in self.identities:
            raise ToolFailure("withheld", f"{path!r} is not for tools to read or write")

    def ensure_parts(self, parts: tuple[str, ...]) -> None:
        if any(parts[:count] in self.paths for count in range(1, len(parts) + 1)):
            raise ToolFailure("withheld", f"{'/'.join(parts)!r} is not for tools to read or write")


def checked_text(path: str) -> str:
    """Raises ToolFailure for a text that is the path of no file."""
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        raise ToolFailure("invalid_path", "a path is Unicode text without lone surrogates") from None
    if not path or "\0" in path or size > LONGEST_PATH_BYTES:
        raise ToolFailure("invalid_path", f"a path has 1 to {LONGEST_PATH_BYTES} bytes, none of them 0")
    return path


def outside(path: str) -> ToolFailure:
    return ToolFailure("outside", f"{path!r} leads out of the workspace")


class Resolution:
    """One path on its way: the folders that were gone through, held open, and the parts that are still to come."""

    def __init__(self, root: int, place: str, withheld: Withheld, path: str) -> None:
        self._place, self._withheld, self._path = place, withheld, checked_text(path)
        self._folders = [os.dup(root)]
        self._names: list[str] = []
        self._links = 0
        self._pending: list[str] = []

    def __enter__(self) -> Resolution:
        return self

    def __exit__(self, *_: object) -> None:
        while self._folders:
            os.close(self._folders.pop())

    def run(self) -> BeneathPath:
        self._push(self._path)
        while self._pending:
            name = self._pending.pop()
            if name in ("", "."):
                continue
            if name == "..":
                self._go_back()
                continue
            self._withheld.ensure_name(name)
            try:
                status = os.stat(name, dir_fd=self._folders[-1], follow_symlinks=False)
            except FileNotFoundError:
                return self._missing(name)
            if stat.S_ISLNK(status.st_mode):
                self._follow(name)
            elif stat.S_ISDIR(status.st_mode):
                self._enter(name)
            else:
                return self._file(name, status)
        return BeneathPath(tuple(self._names), True)

    def _push(self, path: str) -> None:
        """An absolute path is meant where it begins with the workspace's own; it goes on from there."""
        if path.startswith("/"):
            prefix = self._place.rstrip("/")
            if path != prefix and not path.startswith(prefix + "/"):
                raise outside(self._path)
            path = path[len(prefix) :]
            while len(self._folders) > 1:
                self._go_back()
        self._pending.extend(reversed(path.split("/")))

    def _go_back(self) -> None:
        if len(self._folders) == 1:
            raise outside(self._path)
        os.close(self._folders.pop())
        self._names.pop()

    def _follow(self, name: str) -> None:
        try:
            target = os.readlink(name, dir_fd=self._folders[-1])
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            raise ToolFailure("changed", f"{self._path!r} changes while it is looked at") from None
        self._links += 1
        if self._links > MOST_LINKS:
            raise ToolFailure("invalid_path", f"{self._path!r} leads through more than {MOST_LINKS} links")
        self._push(checked_text(target))

    def _enter(self, name: str) -> None:
        folder = os.open(name, FOLDER_FLAGS, dir_fd=self._folders[-1])
        self._folders.append(folder)
        self._names.append(name)
        self._withheld.ensure(os.fstat(folder), self._path)

    def _missing(self, name: str) -> BeneathPath:
        rest = [part for part in reversed(self._pending) if part not in ("", ".")]
        if ".." in rest:
            raise ToolFailure("not_found", f"{self._path!r} goes back from {name!r}, which is not there")
        for part in rest:
            self._withheld.ensure_name(part)
        return BeneathPath((*self._names, name, *rest), False)

    def _file(self, name: str, status: os.stat_result) -> BeneathPath:
        if any(part not in ("", ".") for part in self._pending):
            raise ToolFailure("not_found", f"{self._path!r} goes through {name!r}, which is no folder")
        self._withheld.ensure(status, self._path)
        return BeneathPath((*self._names, name), True)


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
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _openat2(folder: int, path: str, flags: int) -> int:
    """The kernel refuses a path that a rename elsewhere makes doubtful with EAGAIN; it is asked again."""
    how, number = _OpenHow(flags, 0, _RESOLVE), errno.EAGAIN
    for _ in range(_OPENAT2_TRIES):
        size = ctypes.sizeof(how)
        descriptor = int(_library().syscall(_OPENAT2, folder, os.fsencode(path), ctypes.byref(how), size))
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
    rename = getattr(_library(), "renameat2", None)
    if rename is None:
        return False
    if rename(folder, os.fsencode(one), folder, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
        return False
    raise OSError(number, os.strerror(number), other)
