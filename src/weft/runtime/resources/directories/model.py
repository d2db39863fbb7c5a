"""What a file store is asked for and answers: snapshots, changes between them, what a restore did, what a merge gave.

Paths are relative to the folder, with `/` between their parts. Bytes of a name that are not UTF-8 stand in it as lone
surrogates, as the functions of `os` give and take them; `readable_path` gives text that can be recorded and shown.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

MIB = 1024 * 1024
GIB = 1024 * MIB


def readable_path(path: str) -> str:
    """A path as text that every JSON can hold: bytes that are not UTF-8 stand in it as `\\xff`."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


class SnapshotLimit(Struct, frozen=True, kw_only=True):
    """How much of a folder is kept. A file that is larger is left out and listed; a folder that has more is refused."""

    file_bytes: int = 64 * MIB
    total_bytes: int = 8 * GIB
    files: int = 1_000_000
    """Files, links and folders, together."""


DEFAULT_LIMIT = SnapshotLimit()


class SkipReason(StrEnum):
    """Why something in a folder is in no snapshot, though no rule ignores it."""

    TOO_LARGE = "too_large"
    UNREADABLE = "unreadable"
    SPECIAL = "special"
    """A socket, a pipe or a device."""
    PATH_TOO_LONG = "path_too_long"
    IGNORED = "ignored"
    """The folder ignores it, and it is too large to be kept beside the rest."""


class SkippedPath(Struct, frozen=True):
    """Something in a folder that is in no snapshot of it."""

    path: str
    why: SkipReason


class FolderSnapshot(Struct, frozen=True, kw_only=True):
    """The state of a folder at one moment. The id stands for everything in it: the same state has the same id."""

    id: str
    files: int
    """Files and links."""
    size_bytes: int
    skipped: tuple[SkippedPath, ...] = ()


class CopiedSnapshots(Struct, frozen=True, kw_only=True):
    """What one store took over from another."""

    copied: int = 0
    damaged: tuple[str, ...] = ()
    """Those that were left out, since they are not whole."""


class EntryKind(StrEnum):
    """A file, a program (a file that its owner may execute), a link or a folder."""

    FILE = "file"
    PROGRAM = "program"
    """A file that its owner may execute."""
    LINK = "link"
    FOLDER = "folder"


class ChangeStatus(StrEnum):
    """Added, deleted, other bytes, another mode, or another kind."""

    ADDED = "added"
    DELETED = "deleted"
    MODIFIED = "modified"
    """Other bytes, and perhaps another mode."""
    MODE = "mode"
    """The same bytes with another mode."""
    KIND = "kind"
    """A file became a link, a folder or a program, or the other way round."""


class ChangedPath(Struct, frozen=True, kw_only=True):
    """One path that differs between two snapshots. Folders are listed where they hold no files, or changed modes."""

    path: str
    status: ChangeStatus
    old_kind: EntryKind | None = None
    new_kind: EntryKind | None = None
    old_mode: int | None = None
    new_mode: int | None = None
    old_content: str | None = None
    """The id of the old bytes."""
    new_content: str | None = None


class LeftPath(Struct, frozen=True):
    """A path that a restore did not make equal to the snapshot, and why."""

    path: str
    why: str


class FolderRestore(Struct, frozen=True, kw_only=True):
    """What a restore did. `before` is the snapshot of the folder as it was: restoring that one takes it back."""

    before: str
    written: int
    deleted: int
    left: tuple[LeftPath, ...] = ()


class MergeConflict(Struct, frozen=True):
    """A path that both sides changed, and how."""

    path: str
    why: str


class FolderMerge(Struct, frozen=True, kw_only=True):
    """The merged snapshot, or what stands in the way of one."""

    id: str | None
    conflicts: tuple[MergeConflict, ...] = ()
