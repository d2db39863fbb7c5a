"""Merges two snapshots that came from one: the files by git's three-way merge, what git does not keep by the manifests.

Nothing is written to any folder. Where both sides changed the same thing, the conflicts are listed and there is no
merged snapshot.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from typing import TypeVar

from weft.kernel.errors import StoreFailed
from weft.runtime.resources.directories.comparing import NOTHING, Comparison, StoredEntry, StoredFolder
from weft.runtime.resources.directories.manifest import Manifest, ancestors, usual_mode
from weft.runtime.resources.directories.model import FolderMerge, MergeConflict, SnapshotLimit
from weft.runtime.resources.directories.objects import TREE, ObjectReader, ObjectWriter
from weft.runtime.resources.directories.taking import write_snapshot
from weft.runtime.resources.directories.trees import LINK_MODE, PROGRAM_MODE, folder_name
from weft.runtime.sandbox.git_program import Git

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
    merged = _Merge(*(_entries(reader, one, limit) for one in (tree, base, ours, theirs)))
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
    return (b"" if tree == empty else tree), _conflicts(rest) if code else ()


def _conflicts(answer: bytes) -> tuple[MergeConflict, ...]:
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


def _entries(reader: ObjectReader, folder: StoredFolder, limit: SnapshotLimit) -> Entries:
    differences = Comparison(reader, NOTHING, folder, limit).differences()
    return {one.path: one.new for one in differences if one.new is not None}


class _Merge:
    """The modes and the folders of merged files."""

    def __init__(self, merged: Entries, base: Entries, ours: Entries, theirs: Entries) -> None:
        self._merged, self._base, self._ours, self._theirs = merged, base, ours, theirs
        self.conflicts: list[MergeConflict] = []

    def manifest(self, base: Manifest, ours: Manifest, theirs: Manifest) -> Manifest:
        empty = self._empty_folders()
        files = {
            path: self._mode(path, entry)
            for path, entry in self._merged.items()
            if not entry.is_folder and entry.tree_mode != LINK_MODE
        }
        folders = {path: self._mode(path, None) for path in (*empty, *self._folders())}
        top = _three_way(base.folder_mode(b""), ours.folder_mode(b""), theirs.folder_mode(b""))
        repositories = {
            path
            for path in base.repositories | ours.repositories | theirs.repositories
            if _three_way(path in base.repositories, path in ours.repositories, path in theirs.repositories)
        }
        return _listed(files, folders, ours.folder_mode(b"") if top is None else top, empty, repositories)

    def _folders(self) -> list[bytes]:
        return [path for path, entry in self._merged.items() if entry.is_folder]

    def _empty_folders(self) -> frozenset[bytes]:
        """Folders that neither side removed, or one made, and that hold no file now."""
        candidates = {
            path for side in (self._ours, self._theirs) for path, entry in side.items() if entry.is_folder
        } - set(self._folders())
        kept = set()
        for path in candidates:
            sides = (bool((entry := side.get(path)) and entry.is_folder) for side in self._sides())
            if not _three_way(*sides):
                continue
            if any(place in self._merged and not self._merged[place].is_folder for place in (path, *ancestors(path))):
                self.conflicts.append(MergeConflict(os.fsdecode(path), "a folder here, and a file there"))
            else:
                kept.add(path)
        for path in list(kept):
            kept.update(above for above in ancestors(path) if above not in self._merged)
        return frozenset(kept)

    def _sides(self) -> tuple[Entries, Entries, Entries]:
        return self._base, self._ours, self._theirs

    def _mode(self, path: bytes, merged: StoredEntry | None) -> int:
        """Of a file, or of a folder where there is none; whether a file is a program is what git says of it."""
        base, ours, theirs = (_permissions(side.get(path), of_folder=merged is None) for side in self._sides())
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


def _permissions(entry: StoredEntry | None, *, of_folder: bool) -> int | None:
    if entry is None or entry.is_folder != of_folder or entry.tree_mode == LINK_MODE:
        return None
    return entry.permissions


def _three_way(base: T, ours: T, theirs: T) -> T | None:
    """None where both sides changed it, and not to the same."""
    if theirs in (ours, base):
        return ours
    return theirs if ours == base else None


def _listed(
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
