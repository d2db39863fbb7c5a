"""The folder that tools work in: its files are read and written beneath it, and nothing else is.

Only regular files are opened; a device, a pipe or a socket is refused before and after it was opened. A file is
replaced by one that was written and synced beside it, so a reader finds the old bytes or the new ones, also after a
crash. The ledger's own folder is neither read, written nor listed.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from msgspec import Struct

from weft.kernel.errors import InvalidInput
from weft.kernel.foreign_input import MIB, ReadBudget, ReadLimits
from weft.runtime.sandbox.protected_places import BESIDE_LEDGERS, ledger_files
from weft.runtime.sandbox.workspace_search import LEDGER_FOLDER
from weft.runtime.tools import beneath
from weft.runtime.tools.beneath import (
    READ_FLAGS,
    READ_FOLDER_FLAGS,
    BeneathPath,
    Identity,
    Resolution,
    Withheld,
    open_beneath,
    open_folder,
)
from weft.runtime.tools.calls import ToolFailure

FILE_LIMITS = ReadLimits(held_bytes=32 * MIB, entries=200_000, seconds=20, advice="work on it in parts, with a command")
_CHUNK_BYTES, _SMALL_CHUNK_BYTES = 1 * MIB, 16 * 1024
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE_MODE = 0o666
"""Less what the umask takes away."""
_PERMISSIONS = 0o777
"""The bits of a mode that a replaced file keeps: setuid, setgid and sticky bits are not among them."""
_NO_HARD_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class FileBytes(Struct, frozen=True):
    """All of a file, as it was when it was read."""

    data: bytes
    mode: int
    owner: tuple[int, int]

    @property
    def digest(self) -> str:
        return digest_of(self.data)


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _own_and_beside(path: Path) -> Iterator[Path]:
    """A file or folder with all that a ledger has beside it now, and what it may have later."""
    yield from (path.with_name(path.name + ending) for ending in ("", *BESIDE_LEDGERS))
    yield from ledger_files(path)


class WorkspaceFolder:
    """One folder. `withheld` are files and folders in it that are not for tools, with what a database keeps beside
    them, and so is every folder `.weft`."""

    def __init__(self, root: Path, *, withheld: Sequence[Path] = (), limits: ReadLimits = FILE_LIMITS) -> None:
        if not root.is_dir():
            raise InvalidInput(f"the workspace {root} is not a folder", "make it first")
        self.root, self.limits = root.resolve(), limits
        self._identity = _identity_of(self.root)
        places = [path for own in withheld for path in _own_and_beside(own.parent.resolve() / own.name)]
        identities = frozenset(_identity_of(path) for path in (*places, self.root / LEDGER_FOLDER) if path.exists())
        paths = frozenset(path.relative_to(self.root).parts for path in places if self.root in path.parents)
        self.withheld = Withheld(frozenset([LEDGER_FOLDER.casefold()]), identities, paths)

    def _opened(self, path: str) -> _OpenedFolder:
        """The folder's descriptor; what the system refuses inside is a failure of the call that names the path."""
        self.withheld.ensure_parts(parts_of(path))
        return _OpenedFolder(self.root, self._identity, path)

    def resolve(self, path: str) -> BeneathPath:
        """Where a path leads, without links. Raises ToolFailure where it leads out, or to what is withheld."""
        with self._opened(path) as root, Resolution(root, str(self.root), self.withheld, path) as resolution:
            resolved = resolution.run()
            self.withheld.ensure_parts(resolved.parts)
            return resolved

    def read(self, path: str) -> FileBytes:
        """All of the file at a resolved path."""
        with self._opened(path) as root:
            return self._read_all(open_beneath(root, parts_of(path), READ_FLAGS), path)

    def read_if_there(self, path: str) -> FileBytes | None:
        with self._opened(path) as root:
            try:
                descriptor = open_beneath(root, parts_of(path), READ_FLAGS)
            except FileNotFoundError:
                return None
            return self._read_all(descriptor, path)

    def _read_all(self, descriptor: int, path: str) -> FileBytes:
        with open(descriptor, "rb", buffering=0) as file:
            status = os.fstat(descriptor)
            _ensure_regular(status, path)
            self.withheld.ensure(status, path)
            budget = ReadBudget(self.limits)
            what = f"the bytes of {path!r}"
            budget.check_held(status.st_size, what)
            chunks: list[bytes] = []
            size = 0
            while chunk := file.read(min(_CHUNK_BYTES, max(status.st_size - size, _SMALL_CHUNK_BYTES))):
                size += len(chunk)
                budget.check_held(size, what)
                chunks.append(chunk)
            return FileBytes(b"".join(chunks), status.st_mode, (status.st_uid, status.st_gid))

    @contextmanager
    def folder(self, path: str) -> Iterator[int]:
        """The descriptor of the folder at a resolved path, to be listed."""
        with self._opened(path) as root:
            descriptor = open_beneath(root, parts_of(path), READ_FOLDER_FLAGS)
            try:
                self.withheld.ensure(os.fstat(descriptor), path)
                yield descriptor
            finally:
                os.close(descriptor)

    def replace(self, path: str, data: bytes, *, before: str | None, token: str) -> None:
        """Give the file at a resolved path new bytes. `before` is the digest of those it has now, None where there is
        no file; nothing is written where it has others, or has the new ones already.

        `token` names the file beside it that is written first: a repeated call removes what a crash left there."""
        ReadBudget(self.limits).check_held(len(data), f"the bytes of {path!r}")
        *parents, name = parts_of(path)
        aside = f".weft-{digest_of(token.encode())[:16]}.partial"
        with self._opened(path) as root:
            folder = open_folder(root, parents, make=before is None)
            try:
                _remove(folder, aside)
                present = self._present(folder, name, path)
                if present is not None and present.digest == digest_of(data):
                    return
                _ensure_unchanged(present, before, path)
                self._put(folder, name, aside, data, present)
            finally:
                os.close(folder)

    def _present(self, folder: int, name: str, path: str) -> FileBytes | None:
        try:
            descriptor = os.open(name, READ_FLAGS, dir_fd=folder)
        except FileNotFoundError:
            return None
        return self._read_all(descriptor, path)

    def _put(self, folder: int, name: str, aside: str, data: bytes, present: FileBytes | None) -> None:
        try:
            self._write_aside(folder, aside, data, present)
            if present is None:
                _publish_new(folder, aside, name)
            else:
                self._publish(folder, aside, name, present.digest)
            _sync_folder(folder)
        finally:
            _remove(folder, aside)

    def _publish(self, folder: int, aside: str, name: str, before: str) -> None:
        """Give a written file its name. What had the name is looked at afterwards, and put back if it was not what was
        planned: so no change of another program's is lost. Where names cannot be exchanged it is looked at before."""
        _ensure_unchanged(self._present(folder, name, name), before, name)
        if not beneath.exchange_names(folder, aside, name):
            os.rename(aside, name, src_dir_fd=folder, dst_dir_fd=folder)
            return
        try:
            _ensure_unchanged(self._present(folder, aside, name), before, name)
        except BaseException:  # whatever it is now, its name is its own again
            beneath.exchange_names(folder, aside, name)
            raise

    def _write_aside(self, folder: int, aside: str, data: bytes, present: FileBytes | None) -> None:
        descriptor = os.open(aside, _NEW_FILE, _NEW_FILE_MODE if present is None else 0o600, dir_fd=folder)
        with open(descriptor, "wb") as file:
            if present is not None:
                status = os.fstat(descriptor)
                if (status.st_uid, status.st_gid) != present.owner:
                    os.fchown(descriptor, *present.owner)
                os.fchmod(descriptor, present.mode & _PERMISSIONS)
            file.write(data)
            file.flush()
            os.fsync(descriptor)


class _OpenedFolder:
    """A folder's descriptor while it is open. What the system refuses meanwhile is told as the failure of a call."""

    __slots__ = ("_descriptor", "_identity", "_path", "_root")

    def __init__(self, root: Path, identity: Identity, path: str) -> None:
        self._root, self._identity, self._path = root, identity, path

    def __enter__(self) -> int:
        try:
            self._descriptor = os.open(self._root, READ_FOLDER_FLAGS)
        except OSError as error:
            raise _failure(self._path, error) from error
        status = os.fstat(self._descriptor)
        if (status.st_dev, status.st_ino) != self._identity:
            os.close(self._descriptor)
            raise ToolFailure("changed", "another folder has taken the workspace's place")
        return self._descriptor

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        os.close(self._descriptor)
        if isinstance(error, OSError):
            raise _failure(self._path, error) from error


def parts_of(path: str) -> tuple[str, ...]:
    """The parts of a resolved path."""
    return () if path == "." else tuple(path.split("/"))


def _identity_of(path: Path) -> Identity:
    status = path.stat()
    return status.st_dev, status.st_ino


def _ensure_regular(status: os.stat_result, path: str) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise ToolFailure("is_folder", f"{path!r} is a folder")
    if not stat.S_ISREG(status.st_mode):
        raise ToolFailure("not_a_file", f"{path!r} is a device, a pipe or a socket")


def _ensure_unchanged(present: FileBytes | None, before: str | None, path: str) -> None:
    if (None if present is None else present.digest) != before:
        raise ToolFailure("changed", f"{path!r} has changed since this call was planned: read it again")


def _publish_new(folder: int, aside: str, name: str) -> None:
    """Give a written file its name, unless somebody else took the name in between."""
    try:
        os.link(aside, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:
        raise ToolFailure("changed", f"{name!r} has appeared since this call was planned: read it first") from None
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        os.rename(aside, name, src_dir_fd=folder, dst_dir_fd=folder)  # a file system without hard links


def _remove(folder: int, name: str) -> None:
    with suppress(FileNotFoundError):  # it is gone where it took its own name
        os.unlink(name, dir_fd=folder)


def _sync_folder(folder: int) -> None:
    descriptor = os.open(".", READ_FOLDER_FLAGS, dir_fd=folder)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_CODES = {
    errno.ENOENT: ("not_found", "is not there"),
    errno.ENOTDIR: ("changed", "has a file or a link on its way, where there was a folder"),
    errno.ELOOP: ("changed", "has become a link, or has one on its way"),
    errno.EXDEV: ("outside", "leads out of the workspace"),
    errno.EISDIR: ("is_folder", "is a folder"),
    errno.ENXIO: ("not_a_file", "is a device, a pipe or a socket"),
    errno.EACCES: ("not_permitted", "may not be opened by the user that Weft runs as"),
    errno.EPERM: ("not_permitted", "may not be changed by the user that Weft runs as"),
    errno.ENAMETOOLONG: ("invalid_path", "has a name that is too long"),
    errno.ENOSPC: ("no_space", "does not fit on the disk"),
}


def _failure(path: str, error: OSError) -> ToolFailure:
    """What the system refuses, as the failure that the model is told."""
    code, what = _CODES.get(error.errno or 0, ("system", f"cannot be used: {error.strerror}"))
    return ToolFailure(code, f"{path!r} {what}")
