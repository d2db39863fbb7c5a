"""Working directories as resources: kept as trees in a store of files, restored in place or beside.

A restore beside makes a folder of its own, and notes which one it is: what a crash left is recognised by that and
finished, and nothing that lay there before is ever taken for it. A folder that is restored or removed is where it was
when it was declared: a link that has come in its way is not followed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from msgspec.structs import replace

from weft.kernel.enums import ResourceCapability, ResourceKind, ResourceLiveness
from weft.kernel.errors import InvalidInput, NotApplicable, StoreFailed, quoted
from weft.ledger.api import NewSnapshot, Resource, Snapshot
from weft.runtime.resources.birth_times import birth_time
from weft.runtime.resources.claims import Claim, ClaimKind, Claims, status_of
from weft.runtime.resources.directories import FileStore, FolderRestore, SnapshotLimit
from weft.runtime.resources.directories.git_changes import GitChange
from weft.runtime.resources.directories.git_objects import open_up_folder
from weft.runtime.resources.directories.model import DEFAULT_LIMIT, SkipReason, readable_path
from weft.runtime.resources.directories.scan import open_real_folder
from weft.runtime.resources.drivers import Description, RestoredPlace
from weft.runtime.resources.removed_folders import found_repository, remove_folder
from weft.runtime.sandbox.git_folders import writable_git_folders
from weft.runtime.sandbox.secret_files import SecretFiles

METHOD, REFERENCE = "git_tree", "git"
WHOLE_METHOD = "whole_folder"
"""A snapshot with git's folders and ignored files: what an undo of commands that nobody was asked about gives back."""
MARK = "made"
"""Where the metadata of a folder that Weft made tells which one it is."""
CAPABILITIES = (
    ResourceCapability.FORK,
    ResourceCapability.MIGRATE,
    ResourceCapability.RESTORE,
    ResourceCapability.SHARE,
    ResourceCapability.SNAPSHOT,
)
NEW_MODE = 0o700
"""Of a folder that is made here, until its files are in it."""
MOST_SKIPPED = 100


class DirectoryDriver:
    """Working directories, whose snapshots lie in one store of files."""

    kind = ResourceKind.DIRECTORY
    methods = (METHOD, WHOLE_METHOD)

    def __init__(
        self,
        files: FileStore,
        limit: SnapshotLimit = DEFAULT_LIMIT,
        *,
        machine: str | None = None,
        secrets: SecretFiles | None = None,
    ) -> None:
        """Of files that a folder ignores those of `secrets` are not kept: commands do not see them."""
        self.files, self._limit, self.machine = files, limit, machine
        self._secrets = secrets or SecretFiles()
        self.claims = Claims(files.path / "restoring")

    def describe(self, place: str) -> Description:
        folder = real_folder(place)
        return Description(name=folder.name or "/", place=str(folder), capabilities=CAPABILITIES)

    def probe(self, place: str) -> ResourceLiveness:
        try:
            return ResourceLiveness.ALIVE if Path(place).is_dir() else ResourceLiveness.DEAD
        except OSError:
            return ResourceLiveness.UNKNOWN

    def storing(self) -> AbstractContextManager[None]:
        return self.files.hold()

    def snapshot(self, resource: Resource, key: str) -> NewSnapshot:
        return self.take(standing_folder(resource.place), is_resolved=True)

    def snapshot_by(self, method: str, resource: Resource, key: str) -> NewSnapshot:
        """See `ChoosingDriver`."""
        return self.take(standing_folder(resource.place), is_resolved=True, is_whole=method == WHOLE_METHOD)

    def take_present(self, place: str) -> NewSnapshot:
        """What is about to be overwritten; a folder that is gone counts as an empty one."""
        if os.path.lexists(place):
            return self.take(standing_folder(place), is_resolved=True)
        with TemporaryDirectory(prefix="weft-empty-") as empty:
            return self.take(Path(empty))

    def take(self, folder: Path, *, is_resolved: bool = False, is_whole: bool = False) -> NewSnapshot:
        if is_whole:
            shown = frozenset(self._secrets.shown())

            def is_withheld(path: str) -> bool:
                return self._secrets.is_named(path) and os.path.join(folder, path) not in shown

            taken = self.files.snapshot_whole(
                folder, writable_git_folders, is_withheld, limit=self._limit, is_resolved=is_resolved
            )
        else:
            taken = self.files.snapshot(folder, limit=self._limit, is_resolved=is_resolved)
        skipped: list[dict[str, Any]] = [
            {"path": readable_path(one.path), "why": one.why.value} for one in taken.skipped
        ]
        if len(skipped) > MOST_SKIPPED:
            skipped = [*skipped[:MOST_SKIPPED], {"more": len(skipped) - MOST_SKIPPED}]
        return NewSnapshot(
            method=WHOLE_METHOD if is_whole else METHOD,
            external_kind=REFERENCE,
            external_id=taken.id,
            size_bytes=taken.size_bytes,
            skipped=skipped or None,
        )

    def git_changes(self, snapshot: Snapshot, place: str) -> list[GitChange]:
        """What of git's in a folder is not what it was; nothing where that was not kept, or the folder is gone."""
        if snapshot.method != WHOLE_METHOD or not os.path.isdir(place):
            return []
        return self.files.git_changes(tree_of(snapshot), standing_folder(place), writable_git_folders)

    def open_up(self, place: str) -> None:
        """Have its owner look into a folder that is about to be restored: a command may have made it so that nobody
        can. The restore sets its mode."""
        folder = Path(place)
        with suppress(OSError):  # it is gone, or another's
            above = open_real_folder(folder.parent)
            try:
                open_up_folder(above, folder.name)
            finally:
                os.close(above)

    def restore(self, resource: Resource, snapshot: Snapshot, place: str | None, key: str) -> RestoredPlace:
        tree = tree_of(snapshot)
        if place is None:
            folder = folder_to_restore(resource.place)
            if snapshot.method == WHOLE_METHOD:
                done = self.files.restore_whole(tree, folder, writable_git_folders, limit=self._limit, is_resolved=True)
            else:
                done = self.files.restore(tree, folder, limit=self._limit, is_resolved=True)
            return RestoredPlace(place=resource.place, notes=_notes(done))
        target = new_folder(place)
        claim = self._begin(target, key)
        mark = None if claim.inode is None or claim.born is None else {"inode": claim.inode, "born": claim.born}
        restored = RestoredPlace(place=str(target), is_made=not claim.was_there, mark=mark)
        if claim.is_whole:
            return restored
        done = self.files.restore(tree, target, limit=self._limit, is_resolved=True)
        with raising_store_failed(target):
            self.claims.put(replace(claim, is_whole=True))
        return replace(restored, notes=_notes(done))

    def _begin(self, target: Path, key: str) -> Claim:
        """The folder is noted before it is made, and which one it is before anything is in it: what else lies there is
        somebody's. An empty one that is there is used, and stays its owner's."""
        with raising_store_failed(target):
            claim = self.claims.find(key)
            if claim is None:
                _ensure_empty(target)
                is_there = os.path.lexists(target)
                claim = self.claims.put(Claim(key=key, kind=ClaimKind.RESTORE, place=str(target), was_there=is_there))
            if claim.inode is None:
                _ensure_empty(target)
                try:
                    target.mkdir(NEW_MODE)
                except FileExistsError:  # also by somebody who died before it was noted which one it is
                    claim = replace(claim, was_there=claim.was_there or not _is_newly_made(target))
                claim = self.claims.put(claim.made(target))
            if not claim.is_at(target):
                raise NotApplicable(f"{target} is not what was begun there", "name a new folder")
            return claim

    def undo_restore(self, place: str, key: str) -> str | None:
        claim = self.claims.find(key)
        target = None if claim is None else Path(claim.place)
        if claim is None or target is None or not claim.is_at(target):
            return None
        if claim.was_there:
            return f"the folder {target} was there before: what was begun in it is left"
        try:
            remove_folder(target, claim.inode)
        except OSError as error:
            return f"the unfinished folder {target} could not be removed: {error.strerror}"
        return f"the unfinished folder {target} was removed"

    def remove(self, resource: Resource) -> None:
        if not resource.is_made:
            raise NotApplicable(f"{resource.place} was not made by Weft", "remove it yourself")
        if not os.path.lexists(resource.place):
            return
        folder = standing_folder(resource.place)
        with raising_store_failed(folder):
            remove_folder(folder, _mark_of(resource).get("inode"))

    def why_left(self, resource: Resource) -> str | None:
        place = Path(resource.place)
        status = status_of(place)
        if status is None:
            return None
        mark = _mark_of(resource)
        if not mark:
            return "which folder Weft made there is not known"
        is_same = (mark.get("inode"), mark.get("born")) == (status.st_ino, birth_time(place))
        return None if is_same else "it is another folder than the one that Weft made"

    def why_not_whole(self, resource: Resource, kept: Snapshot) -> str | None:
        """A copy is made without repositories, so one that is there is somebody's. What rules ignore goes."""
        lost = [one for one in kept.skipped or () if one.get("why") not in (SkipReason.SPECIAL, SkipReason.IGNORED)]
        if lost:
            return f"no snapshot has all of it: {lost[0].get('path', 'more')} is not kept"
        repository = found_repository(Path(resource.place))
        return None if repository is None else f"no snapshot has the repository {repository}"

    def forget_snapshot(self, snapshot: Snapshot, is_wanted: Callable[[], bool]) -> None:
        """What other snapshots have too stays. Whether one wants it is asked when nobody takes one any longer."""
        self.files.remove(lambda: set() if is_wanted() else {tree_of(snapshot)})

    def holds(self, snapshot: Snapshot) -> bool:
        return self.files.has(tree_of(snapshot))

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


def folder_to_restore(place: str) -> Path:
    """A folder that is where it was declared, or was, and is made again. Raises NotApplicable where a link leads
    elsewhere now."""
    if os.path.lexists(place):
        return standing_folder(place)
    folder = new_folder(place)
    if str(folder) != place:
        raise NotApplicable(f"{place} leads to {folder} now: it is another folder", "put it back where it was")
    return folder


def _mark_of(resource: Resource) -> dict[str, Any]:
    """What tells which folder Weft made; empty where that is not known."""
    mark = resource.metadata.get(MARK) if isinstance(resource.metadata, dict) else None
    return mark if isinstance(mark, dict) else {}


def _is_newly_made(target: Path) -> bool:
    """Whether a folder looks as one does that was just made here."""
    status = target.lstat()
    return status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) == NEW_MODE


def _ensure_empty(target: Path) -> None:
    status = status_of(target)
    if status is not None and (not stat.S_ISDIR(status.st_mode) or any(target.iterdir())):
        raise NotApplicable(f"{target} exists and is not empty", "name a new folder")


@contextmanager
def raising_store_failed(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreFailed(
            f"{error.filename or place}: {error.strerror}", "mend that, or choose another place"
        ) from None


def _notes(done: FolderRestore) -> tuple[str, ...]:
    return tuple(f"{readable_path(one.path)}: {one.why}" for one in done.left)


def new_folder(place: str) -> Path:
    """Where a folder is to be: the one above it exists."""
    if "\0" in place:
        raise InvalidInput(f"{quoted(place, 200)} is no path", "name a folder")
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
