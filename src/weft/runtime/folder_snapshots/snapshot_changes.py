"""Stored snapshots read, compared, merged and brought back.

A folder is made equal to a snapshot by changing only what differs. Two snapshots that came from one
are merged by git's three-way merge, and by their manifests.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TypeVar

from msgspec import Struct

from weft.kernel.clock import RandomBytes
from weft.kernel.errors import Damaged, LimitExceeded, StoreFailed
from weft.runtime.folder_snapshots.folder_scan import BESIDE, FILES, LEFTOVER, MANIFEST, open_folder_at, write_snapshot
from weft.runtime.folder_snapshots.known_files import FileRecord, FolderRecord, Stamp, Table, decode_files, stamp_of
from weft.runtime.folder_snapshots.snapshot_objects import (
    BLOB,
    FILE_MODE,
    FOLDER_MODE,
    LINK_MODE,
    LONGEST_PATH_BYTES,
    PERMISSIONS,
    PROGRAM_MODE,
    TREE,
    ChangedPath,
    ChangeStatus,
    EntryKind,
    FolderMerge,
    Manifest,
    MergeConflict,
    ObjectReader,
    ObjectWriter,
    SnapshotLimit,
    TreeEntry,
    ancestors,
    folder_name,
    joined,
    parse_manifest,
    parse_tree,
    stored_name,
    usual_mode,
)
from weft.runtime.ledger_port import ensure_held
from weft.runtime.opened_folders import READ_FLAGS, exchange_names
from weft.runtime.sandbox.own_git import Git

# --- Reads stored snapshots, and finds what differs between two of them.

_MOST_TREE_BYTES = 256 * 1024 * 1024
_MOST_MANIFEST_BYTES = 256 * 1024 * 1024
_KINDS = {
    FILE_MODE: EntryKind.FILE,
    PROGRAM_MODE: EntryKind.PROGRAM,
    LINK_MODE: EntryKind.LINK,
    FOLDER_MODE: EntryKind.FOLDER,
}


class StoredEntry(Struct, frozen=True):
    """A file, a link or a folder in a snapshot."""

    tree_mode: int
    permissions: int
    """0 for a link, which has none."""
    id: bytes
    """Of a folder, empty: what is in it is compared by itself."""

    @property
    def kind(self) -> EntryKind:
        return _KINDS[self.tree_mode]

    @property
    def is_folder(self) -> bool:
        return self.tree_mode == FOLDER_MODE


class EntryDifference(Struct):
    """One path of two snapshots: what is there in each of them."""

    path: bytes
    old: StoredEntry | None = None
    new: StoredEntry | None = None


class StoredFolder(Struct, frozen=True, kw_only=True):
    """A snapshot, of which the trees are read as they are needed."""

    id: str
    files: bytes
    """The id of the tree; empty where there is no file."""
    manifest: Manifest
    beside: bytes = b""
    """Of a whole snapshot the id of the tree of what it has beside."""

    def entry(self, path: bytes, entry: TreeEntry) -> StoredEntry:
        if entry.mode == FOLDER_MODE:
            return StoredEntry(FOLDER_MODE, self.manifest.folder_mode(path), b"")
        if entry.mode == LINK_MODE:
            return StoredEntry(LINK_MODE, 0, entry.id)
        mode = self.manifest.file_mode(path, is_program=entry.mode == PROGRAM_MODE)
        return StoredEntry(entry.mode, mode, entry.id)

    def empty_folder(self, path: bytes) -> StoredEntry:
        return StoredEntry(FOLDER_MODE, self.manifest.folder_mode(path), b"")


NOTHING = StoredFolder(id="", files=b"", manifest=Manifest())
"""A folder without anything in it."""


def load_snapshot(reader: ObjectReader, snapshot: str) -> StoredFolder:
    """Raises NotFound where the store does not have it, Damaged where it is not a snapshot."""
    entries = {entry.name: entry for entry in parse_tree(reader.read(TREE, bytes.fromhex(snapshot)), snapshot)}
    manifest, files, beside = entries.get(MANIFEST), entries.get(FILES), entries.get(BESIDE)
    is_whole = manifest is not None and manifest.mode == FILE_MODE
    is_whole &= all(folder is None or folder.is_folder for folder in (files, beside))
    if manifest is None or not is_whole or entries.keys() - {FILES, MANIFEST, BESIDE}:
        raise Damaged(f"{snapshot} is no snapshot of a folder", "name the id that a snapshot has")
    data = reader.read(BLOB, manifest.id, _MOST_MANIFEST_BYTES)
    return StoredFolder(
        id=snapshot,
        files=files.id if files else b"",
        manifest=parse_manifest(data, snapshot),
        beside=beside.id if beside else b"",
    )


class SnapshotComparison:
    """Finds the differences between two snapshots."""

    def __init__(self, reader: ObjectReader, old: StoredFolder, new: StoredFolder, limit: SnapshotLimit) -> None:
        self._reader, self._old, self._new = reader, old, new
        self._most_entries = limit.files
        self._entries = 0
        self._found: dict[bytes, EntryDifference] = {}
        one, two = old.manifest, new.manifest
        self._is_full = (one.usual_file, one.usual_program, one.usual_folder) != (
            two.usual_file,
            two.usual_program,
            two.usual_folder,
        )

    def differences(self) -> list[EntryDifference]:
        """Sorted by path: a folder comes before what is in it."""
        if self._is_full or self._old.files != self._new.files:
            self._compare_trees()
        self._add_empty()
        if not self._is_full:
            self._add_modes()
        different = [one for one in self._found.values() if one.old != one.new]
        return sorted(different, key=lambda one: one.path.split(b"/"))

    def _compare_trees(self) -> None:
        """All folders of one depth at once: their trees are asked for together."""
        level = [(b"", self._old.files, self._new.files)]
        while level:
            trees = self._tree_entries(level)
            deeper = []
            for path, old, new in level:
                olds = next(trees) if old else {}
                news = olds if new == old else next(trees) if new else {}
                for name in olds.keys() | news.keys():
                    one, two = olds.get(name), news.get(name)
                    if one == two and not self._is_full:
                        continue
                    inner = self._note_difference(joined(path, name), one, two)
                    old_tree, new_tree = (entry.id if entry and entry.is_folder else b"" for entry in (one, two))
                    if old_tree or new_tree:
                        deeper.append((inner, old_tree, new_tree))
            level = deeper

    def _note_difference(self, path: bytes, old: TreeEntry | None, new: TreeEntry | None) -> bytes:
        if len(path) > LONGEST_PATH_BYTES:
            raise LimitExceeded("the bytes of a path in the snapshot", len(path), LONGEST_PATH_BYTES)
        self._found[path] = EntryDifference(
            path, self._old.entry(path, old) if old else None, self._new.entry(path, new) if new else None
        )
        return path

    def _tree_entries(self, level: list[tuple[bytes, bytes, bytes]]) -> Iterator[dict[bytes, TreeEntry]]:
        wanted = [(path, tree) for path, old, new in level for tree in dict.fromkeys((old, new)) if tree]
        contents = self._reader.read_all(TREE, (tree for _, tree in wanted), _MOST_TREE_BYTES)
        for (path, _), data in zip(wanted, contents, strict=True):
            entries = {entry.name: entry for entry in parse_tree(data, os.fsdecode(path) or "itself")}
            if not entries:
                raise Damaged("a folder without files is stored as a tree", "do not use this snapshot")
            self._entries += len(entries)
            if self._entries > self._most_entries:
                raise LimitExceeded("the entries of the snapshot", self._entries, self._most_entries)
            yield entries

    def _add_empty(self) -> None:
        for path in self._old.manifest.empty:
            difference = self._found.get(path)
            if difference is None:
                difference = self._found[path] = EntryDifference(path)
            if difference.old is not None:
                raise _contradiction_error(path)
            difference.old = self._old.empty_folder(path)
        for path in self._new.manifest.empty:
            difference = self._found.get(path)
            if difference is None:
                difference = self._found[path] = EntryDifference(path)
            if difference.new is not None:
                raise _contradiction_error(path)
            difference.new = self._new.empty_folder(path)

    def _add_modes(self) -> None:
        """Modes that differ where the trees do not."""
        one, two = self._old.manifest, self._new.manifest
        changed = {path for path, _ in one.files.items() ^ two.files.items()}
        changed |= {path for path, _ in one.folders.items() ^ two.folders.items()}
        for path in changed - self._found.keys() - {b""}:
            entry = entry_at(self._reader, self._new.files, path)
            if entry is not None:
                self._found[path] = EntryDifference(path, self._old.entry(path, entry), self._new.entry(path, entry))


def entry_at(reader: ObjectReader, tree: bytes, path: bytes) -> TreeEntry | None:
    """What a stored folder has at a path."""
    entry: TreeEntry | None = None
    for name in path.split(b"/"):
        if not tree:
            return None
        entries = parse_tree(reader.read(TREE, tree, _MOST_TREE_BYTES), os.fsdecode(path))
        entry = next((one for one in entries if one.name == name), None)
        tree = entry.id if entry and entry.is_folder else b""
    return entry


def _contradiction_error(path: bytes) -> Damaged:
    return Damaged(
        f"the snapshot says of {os.fsdecode(path)!r} that it is empty, and holds something in its place",
        "do not use this snapshot",
    )


def changed_path(difference: EntryDifference) -> ChangedPath:
    """A difference as it is told; folders and links have no content of their own to compare, but a kind and a mode."""
    old, new = difference.old, difference.new
    return ChangedPath(
        path=os.fsdecode(difference.path),
        status=_change_status(old, new),
        old_kind=old.kind if old else None,
        new_kind=new.kind if new else None,
        old_mode=old.permissions if old else None,
        new_mode=new.permissions if new else None,
        old_content=old.id.hex() or None if old else None,
        new_content=new.id.hex() or None if new else None,
    )


def _change_status(old: StoredEntry | None, new: StoredEntry | None) -> ChangeStatus:
    if old is None or new is None:
        return ChangeStatus.ADDED if old is None else ChangeStatus.DELETED
    if old.kind is not new.kind and (old.is_folder or new.is_folder or LINK_MODE in (old.tree_mode, new.tree_mode)):
        return ChangeStatus.KIND
    return ChangeStatus.MODE if old.id == new.id else ChangeStatus.MODIFIED


def changed_paths(differences: list[EntryDifference]) -> Iterator[ChangedPath]:
    """Without folders that come and go with the files in them."""
    filled = {above for one in differences for above in ancestors(one.path)}
    for one in differences:
        old, new = one.old, one.new
        is_passage = (old is None or old.is_folder) and (new is None or new.is_folder) and (old is None or new is None)
        if not (is_passage and one.path in filled):
            yield changed_path(one)


# --- Merges two snapshots that came from one: the files by git's three-way merge, what git does not keep by the
# manifests.

_EXECUTABLE = 0o111
T = TypeVar("T")
Entries = Mapping[bytes, StoredEntry]


def merge_snapshots(
    git: Git,
    reader: ObjectReader,
    writer: ObjectWriter,
    base: StoredFolder,
    ours: StoredFolder,
    theirs: StoredFolder,
    limit: SnapshotLimit,
) -> FolderMerge:
    """The writer must be finished before the merged snapshot is in the store."""
    files, conflicts = _merged_files(git, writer, base, ours, theirs)
    if conflicts:
        return FolderMerge(id=None, conflicts=conflicts)
    tree = StoredFolder(id="", files=files, manifest=Manifest())
    merged = _Merge(*(_all_entries(reader, one, limit) for one in (tree, base, ours, theirs)))
    manifest = merged.manifest(base.manifest, ours.manifest, theirs.manifest)
    if merged.conflicts:
        return FolderMerge(id=None, conflicts=tuple(merged.conflicts))
    return FolderMerge(id=write_snapshot(writer, files, manifest))


def _merged_files(
    git: Git, writer: ObjectWriter, base: StoredFolder, ours: StoredFolder, theirs: StoredFolder
) -> tuple[bytes, tuple[MergeConflict, ...]]:
    """The id of the merged tree, empty where it holds nothing, or the conflicts."""
    empty = writer.add(TREE, b"")
    writer.finish()
    commits: list[str] = []
    for side in (base, ours, theirs):
        parent = ["-p", commits[0]] if commits else []
        words = ("commit-tree", (side.files or empty).hex(), *parent, "-m", "side")
        commits.append(git.run(*words).decode().strip())
    words = ("merge-tree", "--write-tree", "-z", "--name-only", "--messages", *commits[1:])
    code, answer = git.run_with_code(*words, good=(0, 1))
    head, _, rest = answer.partition(b"\0")
    tree = bytes.fromhex(head.decode())
    return (b"" if tree == empty else tree), _merge_conflicts(rest) if code else ()


def _merge_conflicts(answer: bytes) -> tuple[MergeConflict, ...]:
    """From the names of the files in conflict, an empty one, and messages: each a number, so many paths, kind, text."""
    names, _, messages = answer.partition(b"\0\0")
    reasons: dict[bytes, str] = {}
    fields = iter(messages.split(b"\0")[:-1])
    for count in fields:
        paths = [next(fields) for _ in range(int(count))]
        kind, _ = next(fields), next(fields)
        if kind.startswith(b"CONFLICT"):
            reasons.update((path, kind.decode().removeprefix("CONFLICT (").removesuffix(")")) for path in paths)
    conflicts = [
        MergeConflict(_folder_path(path), reasons.get(path, "both sides changed it"))
        for path in dict.fromkeys([*names.split(b"\0"), *reasons])
        if path
    ]
    if not conflicts:
        raise StoreFailed("git found conflicts and names none", "merge by hand")
    return tuple(sorted(conflicts, key=lambda one: one.path))


def _folder_path(stored: bytes) -> str:
    return os.fsdecode(b"/".join(map(folder_name, stored.split(b"/"))))


def _all_entries(reader: ObjectReader, folder: StoredFolder, limit: SnapshotLimit) -> Entries:
    differences = SnapshotComparison(reader, NOTHING, folder, limit).differences()
    return {one.path: one.new for one in differences if one.new is not None}


class _Merge:
    """The modes and the folders of merged files."""

    def __init__(self, merged: Entries, base: Entries, ours: Entries, theirs: Entries) -> None:
        self._merged, self._base, self._ours, self._theirs = merged, base, ours, theirs
        self.conflicts: list[MergeConflict] = []

    def manifest(self, base: Manifest, ours: Manifest, theirs: Manifest) -> Manifest:
        empty = self._empty_folders()
        files = {
            path: self._merged_mode(path, entry)
            for path, entry in self._merged.items()
            if not entry.is_folder and entry.tree_mode != LINK_MODE
        }
        folders = {path: self._merged_mode(path, None) for path in (*empty, *self._merged_folders())}
        top = _three_way(base.folder_mode(b""), ours.folder_mode(b""), theirs.folder_mode(b""))
        repositories = {
            path
            for path in base.repositories | ours.repositories | theirs.repositories
            if _three_way(path in base.repositories, path in ours.repositories, path in theirs.repositories)
        }
        return _merge_manifest(files, folders, ours.folder_mode(b"") if top is None else top, empty, repositories)

    def _merged_folders(self) -> list[bytes]:
        return [path for path, entry in self._merged.items() if entry.is_folder]

    def _empty_folders(self) -> frozenset[bytes]:
        """Folders that neither side removed, or one made, and that hold no file now."""
        candidates = {
            path for side in (self._ours, self._theirs) for path, entry in side.items() if entry.is_folder
        } - set(self._merged_folders())
        kept = set()
        for path in candidates:
            sides = (bool((entry := side.get(path)) and entry.is_folder) for side in self._three_sides())
            if not _three_way(*sides):
                continue
            if any(place in self._merged and not self._merged[place].is_folder for place in (path, *ancestors(path))):
                self.conflicts.append(MergeConflict(os.fsdecode(path), "a folder here, and a file there"))
            else:
                kept.add(path)
        for path in list(kept):
            kept.update(above for above in ancestors(path) if above not in self._merged)
        return frozenset(kept)

    def _three_sides(self) -> tuple[Entries, Entries, Entries]:
        return self._base, self._ours, self._theirs

    def _merged_mode(self, path: bytes, merged: StoredEntry | None) -> int:
        """Of a file, or of a folder where there is none; whether a file is a program is what git says of it."""
        base, ours, theirs = (
            _entry_permissions(side.get(path), of_folder=merged is None) for side in self._three_sides()
        )
        if ours is not None and theirs is not None:
            mode = _three_way(base, ours, theirs)
            if mode is None:
                self.conflicts.append(MergeConflict(os.fsdecode(path), f"mode {ours:o} here, {theirs:o} there"))
        else:
            mode = theirs if ours is None else ours
        if merged is None:
            return 0o755 if mode is None else mode
        is_program = merged.tree_mode == PROGRAM_MODE
        if mode is None:
            return 0o755 if is_program else 0o644
        if bool(mode & 0o100) == is_program:
            return mode
        return mode | 0o100 if is_program else mode & ~_EXECUTABLE


def _entry_permissions(entry: StoredEntry | None, *, of_folder: bool) -> int | None:
    if entry is None or entry.is_folder != of_folder or entry.tree_mode == LINK_MODE:
        return None
    return entry.permissions


def _three_way(base: T, ours: T, theirs: T) -> T | None:
    """None where both sides changed it, and not to the same."""
    if theirs in (ours, base):
        return ours
    return theirs if ours == base else None


def _merge_manifest(
    files: dict[bytes, int], folders: dict[bytes, int], top: int, empty: frozenset[bytes], repositories: set[bytes]
) -> Manifest:
    plain = Counter(mode for mode in files.values() if not mode & 0o100)
    programs = Counter(mode for mode in files.values() if mode & 0o100)
    manifest = Manifest(
        usual_file=usual_mode(plain, 0o644),
        usual_program=usual_mode(programs, 0o755),
        usual_folder=usual_mode(Counter(folders.values()), 0o755),
        empty=empty,
        repositories=frozenset(repositories),
    )
    usual = {manifest.usual_file, manifest.usual_program}
    manifest.files.update((path, mode) for path, mode in files.items() if mode not in usual)
    manifest.folders.update((path, mode) for path, mode in folders.items() if mode != manifest.usual_folder)
    if top != manifest.usual_folder:
        manifest.folders[b""] = top
    return manifest


# --- Makes a folder equal to a snapshot, changing only what differs, and nothing that is in no snapshot.

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
        self._merged_folders, self._table = folders, table
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
            for folder in self._merged_folders.values():
                for name in folder.leftovers:
                    self._attempt_action(joined(folder.path, name), self._remove_leftover)
            for step in reversed(steps):
                if step.old is not None and (step.new is None or step.old.is_folder != step.new.is_folder):
                    self._attempt_action(step.path, self._remove_folder if step.old.is_folder else self._remove_file)
            for step in steps:
                if step.new is not None and step.new.is_folder and (step.old is None or not step.old.is_folder):
                    self._attempt_action(step.path, self._make_folder)
            self._write_files([step for step in steps if step.new is not None and not step.new.is_folder])
            for step in steps:
                if step.new is not None and step.new.is_folder and step.path not in self.left:
                    self._modes[step.path] = step.new.permissions
            for path in sorted(self._modes, key=lambda one: one.count(b"/"), reverse=True):
                self._attempt_action(path, self._set_folder_mode)
        finally:
            self._leave_folder()

    def set_top_mode(self, mode: int) -> None:
        """Give the folder itself a mode, where it may be changed."""
        self._modes[b""] = mode
        try:
            self._attempt_action(b"", self._set_folder_mode)
        finally:
            self._leave_folder()
        if b"" in self.left:
            self.left[b"."] = self.left.pop(b"")

    def _attempt_action(self, path: bytes, action: Callable[[bytes], None]) -> None:
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

    def _opened_folder(self, path: bytes) -> int:
        """Opened without following any link; it stays open until another one is asked for."""
        if self._at is None or self._at[0] != path:
            self._leave_folder()
            self._at = path, open_folder_at(self._root, path)
        return self._at[1]

    def _leave_folder(self) -> None:
        if self._at is not None:
            os.close(self._at[1])
            self._at = None

    def _open_up(self, path: bytes) -> bool:
        status = os.fstat(self._opened_folder(path))
        if status.st_uid != os.geteuid() or status.st_mode & _OPEN_TO_OWNER == _OPEN_TO_OWNER:
            return False
        self._modes.setdefault(path, status.st_mode & PERMISSIONS)
        os.fchmod(self._opened_folder(path), status.st_mode | _OPEN_TO_OWNER)
        return True

    def _folder_and_name(self, path: bytes) -> tuple[int, bytes]:
        above, _, name = path.rpartition(b"/")
        return self._opened_folder(above), name

    def _seen_stamp(self, path: bytes) -> Stamp | None:
        above, _, name = path.rpartition(b"/")
        if above not in self._known:
            self._known = {above: decode_files(self._table.get(above))}
        record = self._known[above].get(name)
        return None if record is None else record.stamp

    def _remove_leftover(self, path: bytes) -> None:
        folder, name = self._folder_and_name(path)
        os.unlink(name, dir_fd=folder)

    def _remove_file(self, path: bytes) -> None:
        try:
            folder, name = self._folder_and_name(path)
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return
        if stamp_of(status) != self._seen_stamp(path):
            self.left[path] = _CHANGED
            return
        os.unlink(name, dir_fd=folder)
        self.deleted += 1

    def _remove_folder(self, path: bytes) -> None:
        """Where something is left in it that no snapshot holds, it stays."""
        try:
            folder, name = self._folder_and_name(path)
            os.rmdir(name, dir_fd=folder)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                raise

    def _make_folder(self, path: bytes) -> None:
        folder, name = self._folder_and_name(path)
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
            self._attempt_action(step.path, lambda path, e=entry, d=data: self._write_file(path, e, d))  # type: ignore[misc]

    def _write_file(self, path: bytes, entry: StoredEntry, data: bytes) -> None:
        folder, name = self._folder_and_name(path)
        with suppress(FileExistsError):
            self._ensure_name(folder, name)
            _make_entry(folder, name, entry, data)
            self.written += 1
            return
        seen, status = self._seen_stamp(path), os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stamp_of(status) == seen:
            self._replace_entry(path, entry, data, status)
        elif seen is not None:
            self.left[path] = _CHANGED
        elif not _is_equal(folder, name, status, entry, data):
            self.left[path] = _IN_THE_WAY

    def _replace_entry(self, path: bytes, entry: StoredEntry, data: bytes, seen: os.stat_result) -> None:
        """Both names are exchanged in one step, so that a change at the last moment is found under the other one."""
        folder, name = self._folder_and_name(path)
        aside = LEFTOVER + self._random(8).hex().encode()
        _make_entry(folder, aside, entry, data)
        try:
            if not exchange_names(folder, os.fsdecode(aside), os.fsdecode(name)):
                os.rename(aside, name, src_dir_fd=folder, dst_dir_fd=folder)
            elif _content_identity(os.stat(aside, dir_fd=folder, follow_symlinks=False)) != _content_identity(seen):
                exchange_names(folder, os.fsdecode(aside), os.fsdecode(name))
                self.left[path] = _CHANGED
                return
            self.written += 1
        finally:
            with suppress(FileNotFoundError):
                os.unlink(aside, dir_fd=folder)

    def _set_folder_mode(self, path: bytes) -> None:
        folder = self._opened_folder(path)
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


def _make_entry(folder: int, name: bytes, entry: StoredEntry, data: bytes) -> None:
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


def _content_identity(status: os.stat_result) -> tuple[int, int, int, int]:
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
