"""Files and folders beneath one folder, opened and removed so that no path leads out of it.

Each is told from another of the same name by when it came to be.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Iterator, Sequence
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
                way.append((inner, _folder_identity(descriptor)))
                descriptor = _step_to(descriptor, inner)
            elif way:
                name, identity = way.pop()
                descriptor = _step_to(descriptor, "..")
                if _folder_identity(descriptor) != identity:
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


def _folder_identity(folder: int) -> Identity:
    status = os.fstat(folder)
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
