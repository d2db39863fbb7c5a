"""The database file: which file it is, where it lies, and how files beside it are opened.

SQLite finds a database's log by the database's name, and Weft its lock and head. So a link is resolved first, a file
with a second name is refused, and whoever commits looks whether the name still leads to the file that was opened. Files
beside it are never opened through a link, and only if they belong to the user or to the owner of their folder.

SQLite remembers the locks that a process has on a file. A forked process has that memory, but not the locks: what it
opened anew would be read and written without any, and another program would delete the log under it. So a file that was
open when a process was forked cannot be opened there.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from pathlib import Path
from threading import Lock
from weakref import WeakSet

from weft.kernel.errors import LedgerMoved, NotALedger, SeveralNames, StoreError, Unsupported
from weft.store.atomic_files import open_private

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
