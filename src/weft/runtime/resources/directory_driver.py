"""Working directories as resources: kept as trees in a store of files, restored in place or beside.

A restore beside makes a folder of its own, and marks it until it is whole: what a crash left is recognised by the mark
and made again, and nothing that lay there before is ever taken for it.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from weft.kernel.enums import ResourceCapability, ResourceKind, ResourceLiveness
from weft.kernel.errors import InvalidInput, NotApplicable, StoreFailed
from weft.ledger.api import NewSnapshot, Resource, Snapshot
from weft.runtime.resources.directories import FileStore, SnapshotLimit
from weft.runtime.resources.directories.model import DEFAULT_LIMIT
from weft.runtime.resources.drivers import Description, RestoredPlace

METHOD, REFERENCE = "git_tree", "git"
CAPABILITIES = (
    ResourceCapability.FORK,
    ResourceCapability.MIGRATE,
    ResourceCapability.RESTORE,
    ResourceCapability.SHARE,
    ResourceCapability.SNAPSHOT,
)
_MARK = ".weft-restoring"
MOST_SKIPPED = 100


class DirectoryDriver:
    """Working directories, whose snapshots lie in one store of files."""

    kind = ResourceKind.DIRECTORY

    def __init__(self, files: FileStore, limit: SnapshotLimit = DEFAULT_LIMIT) -> None:
        self.files, self._limit = files, limit

    def describe(self, place: str) -> Description:
        folder = real_folder(place)
        return Description(name=folder.name or "/", place=str(folder), capabilities=CAPABILITIES)

    def probe(self, place: str) -> ResourceLiveness:
        try:
            return ResourceLiveness.ALIVE if Path(place).is_dir() else ResourceLiveness.DEAD
        except OSError:
            return ResourceLiveness.UNKNOWN

    def snapshot(self, resource: Resource, key: str) -> NewSnapshot:
        return self.take(Path(resource.place))

    def take(self, folder: Path) -> NewSnapshot:
        taken = self.files.snapshot(folder, limit=self._limit)
        skipped: list[dict[str, Any]] = [{"path": one.path, "why": one.why.value} for one in taken.skipped]
        if len(skipped) > MOST_SKIPPED:
            skipped = [*skipped[:MOST_SKIPPED], {"more": len(skipped) - MOST_SKIPPED}]
        return NewSnapshot(
            method=METHOD,
            external_kind=REFERENCE,
            external_id=taken.id,
            size_bytes=taken.size_bytes,
            skipped=skipped or None,
        )

    def restore(self, resource: Resource, snapshot: Snapshot, place: str | None, key: str) -> RestoredPlace:
        tree = tree_of(snapshot)
        if place is None:
            done = self.files.restore(tree, real_folder(resource.place), limit=self._limit)
            notes = tuple(f"{one.path}: {one.why}" for one in done.left)
            return RestoredPlace(place=resource.place, is_new=False, notes=notes)
        target = new_folder(place)
        mark = target.with_name(f"{target.name}{_MARK}-{key[-8:]}")
        self._begin(target, mark)
        done = self.files.restore(tree, target, limit=self._limit)
        mark.unlink(missing_ok=True)
        notes = tuple(f"{one.path}: {one.why}" for one in done.left)
        return RestoredPlace(place=str(target), is_new=True, notes=notes)

    def _begin(self, target: Path, mark: Path) -> None:
        """The mark stands beside the folder before the folder is there, so that a folder without one is another's."""
        try:
            if target.exists() and not mark.exists() and any(target.iterdir()):
                raise NotApplicable(f"{target} exists and is not empty", "name a new folder")
            mark.touch(mode=0o600)
        except OSError as error:
            raise StoreFailed(f"{target}: {error.strerror}", "choose another folder") from None

    def undo_restore(self, place: str, key: str) -> str | None:
        target = Path(place).absolute()
        mark = target.with_name(f"{target.name}{_MARK}-{key[-8:]}")
        if not mark.exists():
            return None
        shutil.rmtree(target, ignore_errors=True)
        mark.unlink(missing_ok=True)
        return f"the unfinished folder {target} was removed"

    def remove(self, resource: Resource) -> None:
        if not resource.is_made:
            raise NotApplicable(f"{resource.place} was not made by Weft", "remove it yourself")
        shutil.rmtree(resource.place, ignore_errors=True)

    def forget_snapshot(self, snapshot: Snapshot) -> None:
        """What other snapshots need stays: `prune` removes what none refers to."""

    def new_place(self, resource: Resource, label: str) -> str:
        """Beside the folder, with the session's label."""
        folder = Path(resource.place)
        return str(free_folder(folder.with_name(f"{folder.name}-{_word(label)}")))


def tree_of(snapshot: Snapshot) -> str:
    """The id under which a store of files has a snapshot. Raises NotApplicable where it is of another kind."""
    if snapshot.external_kind != REFERENCE or snapshot.external_id is None:
        raise NotApplicable(f"snapshot {snapshot.id} holds no files", "name one of a directory")
    return snapshot.external_id


def real_folder(place: str) -> Path:
    try:
        folder = Path(place).resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise InvalidInput(f"{place} cannot be opened: {error}", "name a folder that exists") from None
    if not folder.is_dir():
        raise InvalidInput(f"{place} is not a folder", "name a folder")
    return folder


def new_folder(place: str) -> Path:
    """Where a folder is to be: the one above it exists."""
    target = Path(os.path.abspath(place))
    return real_folder(str(target.parent)) / target.name


def free_folder(wanted: Path) -> Path:
    """This folder, or the next of its name with a number that nobody has."""
    folder, number = wanted, 1
    while os.path.lexists(folder):
        number += 1
        folder = wanted.with_name(f"{wanted.name}-{number}")
    return folder


def _word(label: str) -> str:
    """A label as a part of a name of a folder."""
    kept = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in label)
    return kept.strip(".-")[:64] or "fork"
