"""Files that are complete or absent, and private: made beside their place, synced, and renamed;
and the database file of a ledger: which file it is, where it lies, and how files beside it are
opened.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import BinaryIO
from weakref import WeakSet

from weft.kernel.errors import LedgerMoved, NotALedger, SeveralNames, StoreError, Unsupported

# --- Files that are there whole or not at all: made beside their place, synced, and renamed.

BUFFER = 1024 * 1024
PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700


def aside_of(path: Path) -> Path:
    """Where a file lies while it is made; if its maker dies, that is what is left."""
    return path.with_name(f"{path.name}.partial")


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """To be written. Once the caller is through, it is in its place, instead of whatever was there; if the caller
    fails, nothing has changed."""
    aside = aside_of(path)
    try:
        with open_aside(aside) as file:
            yield file
        put_in_place(aside, path)
    except BaseException:  # also an interrupt from the keyboard leaves nothing half-made
        with suppress(OSError):
            aside.unlink()
        raise


def open_aside(aside: Path) -> BinaryIO:
    """A new private file to be written and then put in its place; what a dead process left there is removed."""
    return open(_open_anew(aside), "wb", buffering=BUFFER)


def create_private(path: Path) -> None:
    """An empty private file, for an engine that opens it by name; what a dead process left there is removed."""
    os.close(_open_anew(path))


def _open_anew(path: Path) -> int:
    while True:
        path.unlink(missing_ok=True)
        with suppress(FileExistsError):  # somebody makes the same file at this moment; the last one counts
            return open_private(path)


def open_private(path: Path) -> int:
    """A file that was not there before, for its owner alone. Its descriptor reads and writes."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, PRIVATE_FILE)
    os.fchmod(descriptor, PRIVATE_FILE)  # the umask may have taken more away
    return descriptor


def open_to_append(path: Path) -> BinaryIO:
    """At its end, what lies there already stays. Never through a link; a file that was not there is private."""
    return open(path, "ab", opener=_open_for_owner)


def _open_for_owner(name: str, flags: int) -> int:
    return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, PRIVATE_FILE)


def make_folder(path: Path) -> None:
    """The folder, and those above it that are missing, each for its owner alone. One that is there stays as it is."""
    if path.is_dir():
        return
    make_folder(path.parent)
    try:
        path.mkdir(PRIVATE_FOLDER)
    except FileExistsError:
        if not path.is_dir():
            raise
    else:
        path.chmod(PRIVATE_FOLDER)


def put_in_place(aside: Path, target: Path) -> None:
    sync(aside)
    aside.rename(target)
    sync(target.parent)


def sync(path: Path) -> None:
    """What is written to a file, or which names a folder holds, outlasts a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- The database file: which file it is, where it lies, and how files beside it are opened.

NETWORK_FILE_SYSTEMS = frozenset(
    {
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "afs",
        "ncpfs",
        "9p",
        "fuse.sshfs",
        "fuse.s3fs",
        "glusterfs",
        "ceph",
        "lustre",
    }
)


class LedgerFile:
    """The one file that a ledger is. `name` is its real, absolute path: lock, head and log are named after it."""

    __slots__ = ("__weakref__", "device", "inode", "name", "path")

    def __init__(self, path: Path) -> None:
        self.path = real_path(path).absolute()
        self.name = str(self.path)
        self.inode = self.device = 0

    def create(self) -> None:
        """An empty private file, if there is none. The caller holds the writers' lock, so nobody has it open."""
        try:
            descriptor = open_private(self.path)
        except FileExistsError:
            return
        made = os.fstat(descriptor)
        _inherited.discard((made.st_dev, made.st_ino))  # the number was another file's, which is gone
        os.close(descriptor)

    def identify(self) -> None:
        """Remember which file it is, before it is opened. Raises where it is no regular file, has several names, or was
        open when this process was forked."""
        found = os.lstat(self.name)
        if not stat.S_ISREG(found.st_mode):
            raise NotALedger(self.name, "it is not a regular file")
        if found.st_nlink > 1:
            raise SeveralNames(self.name, found.st_nlink)
        if (found.st_dev, found.st_ino) in _inherited:
            raise Unsupported(f"{self.name} was open when this process was forked from another one", AFTER_FORK)
        self.inode, self.device = found.st_ino, found.st_dev
        with _changing:
            _opened.add(self)

    def release(self) -> None:
        """No connection leads to it any longer."""
        key = (self.device, self.inode)
        with _changing:
            _opened.discard(self)
            if key in _readable and all((file.device, file.inode) != key for file in _opened):
                os.close(_readable.pop(key))

    def descriptor(self) -> int:
        """To read the file with, past SQLite. It stays open as long as anybody in this process has the ledger open:
        closing any descriptor of a file takes all locks of the process on that file away."""
        key = (self.device, self.inode)
        with _changing:
            if key not in _readable:
                _readable[key] = descriptor = os.open(self.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                found = os.fstat(descriptor)
                if (found.st_dev, found.st_ino) != key:
                    os.close(_readable.pop(key))
                    raise LedgerMoved(self.name, "was replaced by another file")
            return _readable[key]

    def ensure_in_place(self) -> None:
        """The name still leads to the file that was identified, and no other name does."""
        try:
            found = os.lstat(self.name)
        except OSError as error:
            raise LedgerMoved(self.name, "was moved or deleted") from error
        if found.st_ino != self.inode or found.st_dev != self.device:
            raise LedgerMoved(self.name, "was replaced by another file")
        if found.st_nlink != 1:
            raise SeveralNames(self.name, found.st_nlink)


AFTER_FORK = "fork before the ledger is opened, or start the process anew (multiprocessing: spawn)"
_changing = Lock()
_opened: WeakSet[LedgerFile] = WeakSet()
_readable: dict[tuple[int, int], int] = {}
"""By device and number, a descriptor of an open ledger's file that is not SQLite's."""
_inherited: set[tuple[int, int]] = set()
"""Device and number of the files that were open in a process when this one was forked from it."""


def _inherit() -> None:
    """In a child. The lock was taken before the fork, so that no other thread of the parent was in the midst."""
    _inherited.update((file.device, file.inode) for file in _opened)
    _opened.clear()
    while _readable:
        os.close(_readable.popitem()[1])
    _changing.release()


os.register_at_fork(before=_changing.acquire, after_in_parent=_changing.release, after_in_child=_inherit)


def real_path(path: Path) -> Path:
    """The path itself, or where it is a link what that leads to, which must be there."""
    if not path.is_symlink():
        return path
    real = path.resolve()
    if not real.exists():
        raise StoreError(f"{path} is a link to {real}, which is not there", "remove the link, or make a ledger there")
    return real


def open_beside(path: Path, flags: int) -> int:
    """A descriptor of a file that lies beside a ledger and that Weft alone writes."""
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise StoreError(f"{path} is a link", "remove it; Weft makes a file of its own there") from error
    try:
        _refuse_foreign(path, os.fstat(descriptor))
    except BaseException:  # whatever it was, nothing stays open
        os.close(descriptor)
        raise
    return descriptor


def open_or_create_beside(path: Path) -> int:
    """The same for reading and writing; where there is no such file, a private one is made."""
    while True:
        try:
            return open_beside(path, os.O_RDWR)
        except FileNotFoundError:
            try:
                return open_private(path)
            except FileExistsError:  # somebody was quicker
                continue


def _refuse_foreign(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise StoreError(f"{path} is not a regular file", "remove it; Weft makes a file of its own there")
    if found.st_nlink > 1:
        raise StoreError(f"{path} is one of several names of a file", "remove it; Weft makes a file of its own there")
    if found.st_uid not in (os.geteuid(), os.stat(path.parent).st_uid):
        raise StoreError(
            f"{path} belongs to user {found.st_uid}, who owns neither this program nor the folder",
            "remove it; Weft makes a file of its own there",
        )


def refuse_unsafe_place(path: Path) -> None:
    """SQLite's locks and shared memory are not safe everywhere; such places are refused before anything is written."""
    if not sys.platform.startswith(("linux", "darwin")):
        raise Unsupported(
            f"weft runs on Linux and macOS, not on {sys.platform}",
            "use one of them, or a ledger in PostgreSQL from there",
        )
    kind = file_system_of(path)
    if kind in NETWORK_FILE_SYSTEMS:
        raise Unsupported(
            f"{path} lies on a network file system ({kind}), where SQLite can lose data",
            "put the ledger on a local disk and copy backups there",
        )


def file_system_of(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """The type of the file system that holds `path`, or an empty string where the system does not tell."""
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return ""
    real, best, kind = str(path.resolve()), "", ""
    for line in lines:
        fields = line.split(" ")
        point = fields[4].replace("\\040", " ")
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, fields[fields.index("-") + 1]
    return kind
