"""Snapshots of working directories in an object store of their own, and what is done with them."""

from weft.runtime.resources.directories.model import (
    ChangedPath,
    ChangeStatus,
    EntryKind,
    FolderMerge,
    FolderRestore,
    FolderSnapshot,
    LeftPath,
    MergeConflict,
    SkippedPath,
    SnapshotLimit,
    readable_path,
)
from weft.runtime.resources.directories.store import FileStore

__all__ = [
    "ChangeStatus",
    "ChangedPath",
    "EntryKind",
    "FileStore",
    "FolderMerge",
    "FolderRestore",
    "FolderSnapshot",
    "LeftPath",
    "MergeConflict",
    "SkippedPath",
    "SnapshotLimit",
    "readable_path",
]
