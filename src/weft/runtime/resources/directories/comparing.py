"""Reads stored snapshots, and finds what differs between two of them.

Trees with the same id hold the same, and are not read. A snapshot may come from a stranger: how many entries are read,
how long a path may be and which names there are is limited, so that a small store cannot stand for an endless folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from msgspec import Struct

from weft.kernel.errors import Damaged, LimitExceeded
from weft.runtime.resources.directories.manifest import Manifest, ancestors, parse_manifest
from weft.runtime.resources.directories.model import ChangedPath, ChangeStatus, EntryKind, SnapshotLimit
from weft.runtime.resources.directories.objects import BLOB, TREE, ObjectReader
from weft.runtime.resources.directories.taking import BESIDE, FILES, MANIFEST
from weft.runtime.resources.directories.trees import (
    FILE_MODE,
    FOLDER_MODE,
    LINK_MODE,
    LONGEST_PATH_BYTES,
    PROGRAM_MODE,
    TreeEntry,
    joined,
    parse_tree,
)

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


class Comparison:
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
            trees = self._trees(level)
            deeper = []
            for path, old, new in level:
                olds = next(trees) if old else {}
                news = olds if new == old else next(trees) if new else {}
                for name in olds.keys() | news.keys():
                    one, two = olds.get(name), news.get(name)
                    if one == two and not self._is_full:
                        continue
                    inner = self._note(joined(path, name), one, two)
                    old_tree, new_tree = (entry.id if entry and entry.is_folder else b"" for entry in (one, two))
                    if old_tree or new_tree:
                        deeper.append((inner, old_tree, new_tree))
            level = deeper

    def _note(self, path: bytes, old: TreeEntry | None, new: TreeEntry | None) -> bytes:
        if len(path) > LONGEST_PATH_BYTES:
            raise LimitExceeded("the bytes of a path in the snapshot", len(path), LONGEST_PATH_BYTES)
        self._found[path] = EntryDifference(
            path, self._old.entry(path, old) if old else None, self._new.entry(path, new) if new else None
        )
        return path

    def _trees(self, level: list[tuple[bytes, bytes, bytes]]) -> Iterator[dict[bytes, TreeEntry]]:
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
                raise _contradiction(path)
            difference.old = self._old.empty_folder(path)
        for path in self._new.manifest.empty:
            difference = self._found.get(path)
            if difference is None:
                difference = self._found[path] = EntryDifference(path)
            if difference.new is not None:
                raise _contradiction(path)
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


def _contradiction(path: bytes) -> Damaged:
    return Damaged(
        f"the snapshot says of {os.fsdecode(path)!r} that it is empty, and holds something in its place",
        "do not use this snapshot",
    )


def changed_path(difference: EntryDifference) -> ChangedPath:
    """A difference as it is told; folders and links have no content of their own to compare, but a kind and a mode."""
    old, new = difference.old, difference.new
    return ChangedPath(
        path=os.fsdecode(difference.path),
        status=_status(old, new),
        old_kind=old.kind if old else None,
        new_kind=new.kind if new else None,
        old_mode=old.permissions if old else None,
        new_mode=new.permissions if new else None,
        old_content=old.id.hex() or None if old else None,
        new_content=new.id.hex() or None if new else None,
    )


def _status(old: StoredEntry | None, new: StoredEntry | None) -> ChangeStatus:
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
