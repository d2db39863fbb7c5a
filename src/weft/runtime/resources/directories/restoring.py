"""Makes a folder equal to a snapshot, changing only what differs, and nothing that is in no snapshot.

The folder was looked through a moment before. What a step replaces or removes must still be what was seen then: else it
is left and told. Files are made beside their place and put there by one rename, never through a link, by descriptors of
folders that were opened without following any. A restore that is cut short leaves some paths as they were and some as
they shall be; doing it again finishes it, and files that were half made are found by their name and removed.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress

from weft.kernel.clock import RandomBytes
from weft.kernel.errors import StoreFailed
from weft.runtime.resources.directories.comparing import EntryDifference, StoredEntry
from weft.runtime.resources.directories.known_files import (
    FileRecord,
    FolderRecord,
    Stamp,
    Table,
    decode_files,
    stamp_of,
)
from weft.runtime.resources.directories.manifest import PERMISSIONS, ancestors
from weft.runtime.resources.directories.objects import BLOB, ObjectReader
from weft.runtime.resources.directories.scan import LEFTOVER, open_folder_at
from weft.runtime.resources.directories.trees import LINK_MODE, joined, stored_name
from weft.runtime.resources.held_work import ensure_held
from weft.runtime.tools.beneath import READ_FLAGS, exchange_names

_FATAL = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_IN_THE_WAY = "something that no snapshot holds is in its place"
_CHANGED = "it changed while the folder was restored"
_SPECIAL_BITS = 0o7000
_OPEN_TO_OWNER = 0o700
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class FolderRestoring:
    """One restore. `root` is the folder, opened; `folders` and `table` are what was seen in it."""

    def __init__(
        self, root: int, reader: ObjectReader, folders: dict[bytes, FolderRecord], table: Table, random: RandomBytes
    ) -> None:
        self._root, self._reader, self._random = root, reader, random
        self._folders, self._table = folders, table
        self._known: dict[bytes, dict[bytes, FileRecord]] = {}
        self._modes: dict[bytes, int] = {}
        """Folders whose mode is set once everything is in them."""
        self._at: tuple[bytes, int] | None = None
        self.written = self.deleted = 0
        self.left: dict[bytes, str] = {}

    def run(self, differences: Iterable[EntryDifference]) -> None:
        """Raises StoreFailed where the disk is full or fails: what is done until then stays."""
        steps = list(differences)
        try:
            for folder in self._folders.values():
                for name in folder.leftovers:
                    self._attempt(joined(folder.path, name), self._remove_leftover)
            for step in reversed(steps):
                if step.old is not None and (step.new is None or step.old.is_folder != step.new.is_folder):
                    self._attempt(step.path, self._remove_folder if step.old.is_folder else self._remove_file)
            for step in steps:
                if step.new is not None and step.new.is_folder and (step.old is None or not step.old.is_folder):
                    self._attempt(step.path, self._make_folder)
            self._write_files([step for step in steps if step.new is not None and not step.new.is_folder])
            for step in steps:
                if step.new is not None and step.new.is_folder and step.path not in self.left:
                    self._modes[step.path] = step.new.permissions
            for path in sorted(self._modes, key=lambda one: one.count(b"/"), reverse=True):
                self._attempt(path, self._set_folder_mode)
        finally:
            self._leave()

    def set_top_mode(self, mode: int) -> None:
        """Give the folder itself a mode, where it may be changed."""
        self._modes[b""] = mode
        try:
            self._attempt(b"", self._set_folder_mode)
        finally:
            self._leave()
        if b"" in self.left:
            self.left[b"."] = self.left.pop(b"")

    def _attempt(self, path: bytes, action: Callable[[bytes], None]) -> None:
        """Do it; where the folder may not be written by its owner, make it so until the end. What fails is told."""
        ensure_held()
        try:
            try:
                action(path)
            except PermissionError:
                if not self._open_up(path.rpartition(b"/")[0]):
                    raise
                action(path)
        except OSError as error:
            if error.errno in _FATAL:
                raise StoreFailed(
                    f"the folder is not restored: {os.fsdecode(path)!r}: {error.strerror}",
                    "free space, and restore it again: that finishes what was begun",
                ) from None
            self.left[path] = error.strerror or "it cannot be changed"

    def _folder(self, path: bytes) -> int:
        """Opened without following any link; it stays open until another one is asked for."""
        if self._at is None or self._at[0] != path:
            self._leave()
            self._at = path, open_folder_at(self._root, path)
        return self._at[1]

    def _leave(self) -> None:
        if self._at is not None:
            os.close(self._at[1])
            self._at = None

    def _open_up(self, path: bytes) -> bool:
        status = os.fstat(self._folder(path))
        if status.st_uid != os.geteuid() or status.st_mode & _OPEN_TO_OWNER == _OPEN_TO_OWNER:
            return False
        self._modes.setdefault(path, status.st_mode & PERMISSIONS)
        os.fchmod(self._folder(path), status.st_mode | _OPEN_TO_OWNER)
        return True

    def _place(self, path: bytes) -> tuple[int, bytes]:
        above, _, name = path.rpartition(b"/")
        return self._folder(above), name

    def _seen(self, path: bytes) -> Stamp | None:
        above, _, name = path.rpartition(b"/")
        if above not in self._known:
            self._known = {above: decode_files(self._table.get(above))}
        record = self._known[above].get(name)
        return None if record is None else record.stamp

    def _remove_leftover(self, path: bytes) -> None:
        folder, name = self._place(path)
        os.unlink(name, dir_fd=folder)

    def _remove_file(self, path: bytes) -> None:
        try:
            folder, name = self._place(path)
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return
        if stamp_of(status) != self._seen(path):
            self.left[path] = _CHANGED
            return
        os.unlink(name, dir_fd=folder)
        self.deleted += 1

    def _remove_folder(self, path: bytes) -> None:
        """Where something is left in it that no snapshot holds, it stays."""
        try:
            folder, name = self._place(path)
            os.rmdir(name, dir_fd=folder)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                raise

    def _make_folder(self, path: bytes) -> None:
        folder, name = self._place(path)
        self._ensure_name(folder, name)
        try:
            os.mkdir(name, _OPEN_TO_OWNER, dir_fd=folder)
        except FileExistsError:
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if not stat.S_ISDIR(status.st_mode):
                self.left[path] = _IN_THE_WAY

    def _write_files(self, steps: list[EntryDifference]) -> None:
        entries = [step.new for step in steps if step.new is not None]
        contents = self._reader.read_all(BLOB, [entry.id for entry in entries])
        for step, entry, data in zip(steps, entries, contents, strict=True):
            self._attempt(step.path, lambda path, e=entry, d=data: self._write_file(path, e, d))  # type: ignore[misc]

    def _write_file(self, path: bytes, entry: StoredEntry, data: bytes) -> None:
        folder, name = self._place(path)
        with suppress(FileExistsError):
            self._ensure_name(folder, name)
            _make(folder, name, entry, data)
            self.written += 1
            return
        seen, status = self._seen(path), os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stamp_of(status) == seen:
            self._replace(path, entry, data, status)
        elif seen is not None:
            self.left[path] = _CHANGED
        elif not _is_equal(folder, name, status, entry, data):
            self.left[path] = _IN_THE_WAY

    def _replace(self, path: bytes, entry: StoredEntry, data: bytes, seen: os.stat_result) -> None:
        """Both names are exchanged in one step, so that a change at the last moment is found under the other one."""
        folder, name = self._place(path)
        aside = LEFTOVER + self._random(8).hex().encode()
        _make(folder, aside, entry, data)
        try:
            if not exchange_names(folder, os.fsdecode(aside), os.fsdecode(name)):
                os.rename(aside, name, src_dir_fd=folder, dst_dir_fd=folder)
            elif _identity(os.stat(aside, dir_fd=folder, follow_symlinks=False)) != _identity(seen):
                exchange_names(folder, os.fsdecode(aside), os.fsdecode(name))
                self.left[path] = _CHANGED
                return
            self.written += 1
        finally:
            with suppress(FileNotFoundError):
                os.unlink(aside, dir_fd=folder)

    def _set_folder_mode(self, path: bytes) -> None:
        folder = self._folder(path)
        status = os.fstat(folder)
        mode = status.st_mode & _SPECIAL_BITS | self._modes[path]
        if stat.S_IMODE(status.st_mode) != mode:
            os.fchmod(folder, mode)

    def _ensure_name(self, folder: int, name: bytes) -> None:
        """`.GIT` is another name than `.git` only where the file system tells small letters from large ones."""
        if stored_name(name) != name and self._folds_case(folder):
            raise OSError(errno.EINVAL, "its name cannot be told from that of a repository here")

    def _folds_case(self, folder: int) -> bool:
        probe = LEFTOVER + self._random(8).hex().encode() + b"a"
        os.close(os.open(probe, _NEW_FILE, 0o600, dir_fd=folder))
        try:
            os.stat(probe.upper(), dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return False
        else:
            return True
        finally:
            os.unlink(probe, dir_fd=folder)


def _make(folder: int, name: bytes, entry: StoredEntry, data: bytes) -> None:
    """A new file or link. Nothing is left of one that could not be written whole."""
    if entry.tree_mode == LINK_MODE:
        if not data or b"\0" in data:
            raise OSError(errno.EINVAL, "a link to a path that cannot be one")
        os.symlink(data, name, dir_fd=folder)
        return
    descriptor = os.open(name, _NEW_FILE, 0o600, dir_fd=folder)
    try:
        unwritten = memoryview(data)
        while unwritten:
            unwritten = unwritten[os.write(descriptor, unwritten) :]
        os.fchmod(descriptor, entry.permissions)
    except OSError:
        os.unlink(name, dir_fd=folder)
        raise
    finally:
        os.close(descriptor)


def _identity(status: os.stat_result) -> tuple[int, int, int, int]:
    """All but the time that a rename sets."""
    return status.st_mode, status.st_size, status.st_ino, status.st_mtime_ns


def _is_equal(folder: int, name: bytes, status: os.stat_result, entry: StoredEntry, data: bytes) -> bool:
    """Whether what no snapshot holds is what the snapshot has in its place."""
    if entry.tree_mode == LINK_MODE:
        return stat.S_ISLNK(status.st_mode) and os.readlink(name, dir_fd=folder) == data
    if not stat.S_ISREG(status.st_mode) or status.st_size != len(data):
        return False
    descriptor = os.open(name, READ_FLAGS, dir_fd=folder)
    with open(descriptor, "rb") as file:
        return stat.S_ISREG(os.fstat(descriptor).st_mode) and file.read(len(data) + 1) == data


def chosen(differences: Iterable[EntryDifference], only: Collection[bytes] | None) -> list[EntryDifference]:
    """Those at or below one of the paths, with the folders that they lie in."""
    if only is None:
        return list(differences)
    prefixes = tuple(path + b"/" for path in only)
    above = {folder for path in only for folder in ancestors(path)}
    return [
        one
        for one in differences
        if one.path in only
        or one.path.startswith(prefixes)
        or (one.path in above and one.new is not None and one.new.is_folder)
    ]
