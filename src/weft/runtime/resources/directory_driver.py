"""Working directories as resources: kept as trees in a store of files, restored in place or beside.

A restore beside makes a folder of its own, and notes which one it is: what a crash left is recognised by that and
finished, and nothing that lay there before is ever taken for it. A folder that is restored or removed is where it was
when it was declared: a link that has come in its way is not followed.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from weft.kernel.enums import ResourceCapability, ResourceKind, ResourceLiveness
from weft.kernel.errors import InvalidInput, NotApplicable, StoreFailed
from weft.ledger.api import NewSnapshot, Resource, Snapshot
from weft.runtime.resources.claims import Claim, ClaimKind, Claims, status_of
from weft.runtime.resources.directories import FileStore, FolderRestore, SnapshotLimit
from weft.runtime.resources.directories.model import DEFAULT_LIMIT, readable_path
from weft.runtime.resources.drivers import Description, RestoredPlace

METHOD, REFERENCE = "git_tree", "git"
CAPABILITIES = (
    ResourceCapability.FORK,
    ResourceCapability.MIGRATE,
    ResourceCapability.RESTORE,
    ResourceCapability.SHARE,
    ResourceCapability.SNAPSHOT,
)
MOST_SKIPPED = 100


class DirectoryDriver:
    """Working directories, whose snapshots lie in one store of files."""

    kind = ResourceKind.DIRECTORY

    def __init__(self, files: FileStore, limit: SnapshotLimit = DEFAULT_LIMIT) -> None:
        self.files, self._limit = files, limit
        self.claims = Claims(files.path / "restoring")

    def describe(self, place: str) -> Description:
        folder = real_folder(place)
        return Description(name=folder.name or "/", place=str(folder), capabilities=CAPABILITIES)

    def probe(self, place: str) -> ResourceLiveness:
        try:
            return ResourceLiveness.ALIVE if Path(place).is_dir() else ResourceLiveness.DEAD
        except OSError:
            return ResourceLiveness.UNKNOWN

    def snapshot(self, resource: Resource, key: str) -> NewSnapshot:
        return self.take(standing_folder(resource.place))

    def take(self, folder: Path) -> NewSnapshot:
        taken = self.files.snapshot(folder, limit=self._limit)
        skipped: list[dict[str, Any]] = [
            {"path": readable_path(one.path), "why": one.why.value} for one in taken.skipped
        ]
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
            done = self.files.restore(tree, standing_folder(resource.place), limit=self._limit)
            return RestoredPlace(place=resource.place, notes=_notes(done))
        target = new_folder(place)
        claim = self._begin(target, key)
        if claim.is_whole:
            return RestoredPlace(place=str(target))
        done = self.files.restore(tree, target, limit=self._limit, is_new=True)
        with told(target):
            self.claims.put(replace(claim, is_whole=True))
        return RestoredPlace(place=str(target), notes=_notes(done))

    def _begin(self, target: Path, key: str) -> Claim:
        """The folder is noted before it is made, and which one it is before anything is in it: what else lies there is
        somebody's."""
        with told(target):
            claim = self.claims.find(key)
            if claim is None:
                _ensure_empty(target)
                claim = self.claims.put(Claim(key=key, kind=ClaimKind.RESTORE, place=str(target)))
            if claim.inode is None:
                _ensure_empty(target)
                target.mkdir(0o700, exist_ok=True)
                claim = self.claims.put(claim.made(target.lstat()))
            status = status_of(target)
            if status is None or not claim.is_of(status):
                raise NotApplicable(f"{target} is not what was begun there", "name a new folder")
            return claim

    def undo_restore(self, place: str, key: str) -> str | None:
        claim = self.claims.find(key)
        target = None if claim is None else Path(claim.place)
        status = None if target is None else status_of(target)
        if claim is None or target is None or status is None or not claim.is_of(status):
            return None
        try:
            _remove_tree(target)
        except OSError as error:
            return f"the unfinished folder {target} could not be removed: {error.strerror}"
        return f"the unfinished folder {target} was removed"

    def remove(self, resource: Resource) -> None:
        if not resource.is_made:
            raise NotApplicable(f"{resource.place} was not made by Weft", "remove it yourself")
        if not os.path.lexists(resource.place):
            return
        folder = standing_folder(resource.place)
        with told(folder):
            _remove_tree(folder)

    def forget_snapshot(self, snapshot: Snapshot) -> None:
        """What other snapshots have too stays."""
        self.files.remove(lambda: {tree_of(snapshot)})

    def new_place(self, resource: Resource, label: str) -> str:
        """Beside the folder, with the session's label."""
        folder = Path(resource.place)
        return str(free_folder(folder.with_name(f"{folder.name}-{label_word(label)}")))


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


def standing_folder(place: str) -> Path:
    """A folder that is still where it was declared. Raises NotApplicable where a link leads elsewhere now."""
    folder = real_folder(place)
    if str(folder) != place:
        raise NotApplicable(f"{place} leads to {folder} now: it is another folder", "put it back where it was")
    return folder


def _ensure_empty(target: Path) -> None:
    status = status_of(target)
    if status is not None and (not stat.S_ISDIR(status.st_mode) or any(target.iterdir())):
        raise NotApplicable(f"{target} exists and is not empty", "name a new folder")


@contextmanager
def told(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreFailed(
            f"{error.filename or place}: {error.strerror}", "mend that, or choose another place"
        ) from None


def _notes(done: FolderRestore) -> tuple[str, ...]:
    return tuple(f"{readable_path(one.path)}: {one.why}" for one in done.left)


def _remove_tree(folder: Path) -> None:
    """Also what its owner may not write to, as snapshots restore it."""

    def open_up(act: Callable[..., Any], path: str, _: object) -> None:
        for one in (os.path.dirname(path), path):
            if not os.path.islink(one) and os.path.isdir(one):
                os.chmod(one, 0o700)
        if os.path.lexists(path):
            shutil.rmtree(path) if act in (os.open, os.scandir) else act(path)

    shutil.rmtree(folder, onerror=open_up)


def new_folder(place: str) -> Path:
    """Where a folder is to be: the one above it exists."""
    if "\0" in place:
        raise InvalidInput(f"{place!r:.200} is no path", "name a folder")
    target = Path(os.path.abspath(place))
    return real_folder(str(target.parent)) / target.name


def free_folder(wanted: Path) -> Path:
    """This folder, or the next of its name with a number that nobody has."""
    folder, number = wanted, 1
    while os.path.lexists(folder):
        number += 1
        folder = wanted.with_name(f"{wanted.name}-{number}")
    return folder


def label_word(label: str) -> str:
    """A label as a part of a name of a file, of 64 bytes at most."""
    kept = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in label)
    return kept.encode()[:64].decode(errors="ignore").strip(".-") or "fork"
