"""Working directories, single files and addresses as resources.

Directories are kept as trees in a store of files, files as copies named by their digest; addresses
are looked at.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from msgspec.structs import replace

from weft.kernel.enums import ResourceCapability, ResourceKind, ResourceLiveness
from weft.kernel.errors import (
    Damaged,
    InvalidInput,
    LimitExceeded,
    NotApplicable,
    OutsideError,
    StoreFailed,
    Unsupported,
    quoted,
)
from weft.ledger.api import NewSnapshot, Resource, Snapshot
from weft.runtime.folder_snapshots.file_store import FileStore
from weft.runtime.folder_snapshots.folder_scan import open_real_folder
from weft.runtime.folder_snapshots.git_objects import open_up_folder
from weft.runtime.folder_snapshots.snapshot_objects import (
    DEFAULT_LIMIT,
    FolderRestore,
    SkipReason,
    SnapshotLimit,
    readable_path,
)
from weft.runtime.folder_snapshots.whole_folders import GitChange
from weft.runtime.ledger_port import ensure_held
from weft.runtime.opened_folders import birth_time, found_repository, remove_folder
from weft.runtime.resources.drivers import (
    ClaimKind,
    PlaceClaim,
    PlaceClaims,
    PlaceDescription,
    RestoredPlace,
    status_of,
)
from weft.runtime.sandbox.git_view import writable_git_folders
from weft.runtime.sandbox.hidden_places import SecretFiles
from weft.store.private_files import make_folder, open_aside, put_in_place, sync

# --- Working directories as resources: kept as trees in a store of files, restored in place or beside.

TREE_METHOD, TREE_REFERENCE = "git_tree", "git"
WHOLE_METHOD = "whole_folder"
"""A snapshot with git's folders and ignored files: what an undo of commands that nobody was asked about gives back."""
MARK = "made"
"""Where the metadata of a folder that Weft made tells which one it is."""
DIRECTORY_CAPABILITIES = (
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
    methods = (TREE_METHOD, WHOLE_METHOD)

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
        self.claims = PlaceClaims(files.path / "restoring")

    def describe(self, place: str) -> PlaceDescription:
        folder = real_folder(place)
        return PlaceDescription(name=folder.name or "/", place=str(folder), capabilities=DIRECTORY_CAPABILITIES)

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
            taken = self.files.snapshot_whole(
                folder, writable_git_folders, self._withheld_in(folder), limit=self._limit, is_resolved=is_resolved
            )
        else:
            taken = self.files.snapshot(folder, limit=self._limit, is_resolved=is_resolved)
        skipped: list[dict[str, Any]] = [
            {"path": readable_path(one.path), "why": one.why.value} for one in taken.skipped
        ]
        if len(skipped) > MOST_SKIPPED:
            skipped = [*skipped[:MOST_SKIPPED], {"more": len(skipped) - MOST_SKIPPED}]
        return NewSnapshot(
            method=WHOLE_METHOD if is_whole else TREE_METHOD,
            external_kind=TREE_REFERENCE,
            external_id=taken.id,
            size_bytes=taken.size_bytes,
            skipped=skipped or None,
        )

    def git_changes(self, snapshot: Snapshot, place: str) -> list[GitChange]:
        """What of git's in a folder is not what it was; nothing where that was not kept, or the folder is gone."""
        if snapshot.method != WHOLE_METHOD or not os.path.isdir(place):
            return []
        return self.files.git_changes(tree_of(snapshot), standing_folder(place), writable_git_folders)

    def changed_programs(self, snapshot: Snapshot, place: str) -> list[str]:
        """The files of a folder that some program runs by itself and that are not what they were, ignored ones
        included; nothing where that was not kept, or the folder is gone."""
        if snapshot.method != WHOLE_METHOD or not os.path.isdir(place):
            return []
        folder = standing_folder(place)
        return self.files.changed_programs(tree_of(snapshot), folder, self._withheld_in(folder))

    def _withheld_in(self, folder: Path) -> Callable[[str], bool]:
        """Whether a file of a folder is one of secrets that is not shown, by its path from there on."""
        shown = frozenset(self._secrets.shown())
        return lambda path: self._secrets.is_named(path) and os.path.join(folder, path) not in shown

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
            return RestoredPlace(place=resource.place, notes=_restore_notes(done))
        target = new_folder(place)
        claim = self._claim_target(target, key)
        mark = None if claim.inode is None or claim.born is None else {"inode": claim.inode, "born": claim.born}
        restored = RestoredPlace(place=str(target), is_made=not claim.was_there, mark=mark)
        if claim.is_whole:
            return restored
        done = self.files.restore(tree, target, limit=self._limit, is_resolved=True)
        with raising_store_failed(target):
            self.claims.put(replace(claim, is_whole=True))
        return replace(restored, notes=_restore_notes(done))

    def _claim_target(self, target: Path, key: str) -> PlaceClaim:
        """The folder is noted before it is made, and which one it is before anything is in it: what else lies there is
        somebody's. An empty one that is there is used, and stays its owner's."""
        with raising_store_failed(target):
            claim = self.claims.find(key)
            if claim is None:
                _ensure_empty(target)
                is_there = os.path.lexists(target)
                claim = self.claims.put(
                    PlaceClaim(key=key, kind=ClaimKind.RESTORE, place=str(target), was_there=is_there)
                )
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
    if snapshot.external_kind != TREE_REFERENCE or snapshot.external_id is None:
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


def _restore_notes(done: FolderRestore) -> tuple[str, ...]:
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


# --- Single files as resources: copies in a folder of Weft's own, named by the digest of their bytes and their mode.

COPY_METHOD, COPY_REFERENCE = "fs_copy", "file"
FILE_CAPABILITIES = (
    ResourceCapability.FORK,
    ResourceCapability.MIGRATE,
    ResourceCapability.RESTORE,
    ResourceCapability.SHARE,
    ResourceCapability.SNAPSHOT,
)
MOST_BYTES = 1024**3
_CHUNK = 1024 * 1024


class FileDriver:
    """Files, whose copies lie in one folder. Each reference has a copy of its own, so that it can be thrown away."""

    kind = ResourceKind.FILE

    def __init__(self, copies: Path, *, most_bytes: int = MOST_BYTES) -> None:
        self._copies, self._most = copies, most_bytes
        self.claims = PlaceClaims(copies / "restoring")

    def describe(self, place: str) -> PlaceDescription:
        path = new_folder(place)
        status = _file_status(path)
        if not stat.S_ISREG(status.st_mode):
            raise InvalidInput(f"{place} is not a file", "name a file; a link or a folder is not one")
        return PlaceDescription(
            name=path.name,
            place=str(path),
            capabilities=FILE_CAPABILITIES,
            metadata={"mode": stat.S_IMODE(status.st_mode)},
        )

    def probe(self, place: str) -> ResourceLiveness:
        try:
            return ResourceLiveness.ALIVE if stat.S_ISREG(os.lstat(place).st_mode) else ResourceLiveness.DEAD
        except FileNotFoundError:
            return ResourceLiveness.DEAD
        except OSError:
            return ResourceLiveness.UNKNOWN

    def snapshot(self, resource: Resource, key: str) -> NewSnapshot:
        """The reference is the digest of the bytes, and the mode."""
        path, aside = _standing_file(resource.place), self._copies / f"{key}.partial"
        try:
            make_folder(self._copies)
            digest, size, mode = self._copy_hashed(path, aside)
            put_in_place(aside, self._place_of(digest, mode))
        except OSError as error:
            raise StoreFailed(f"{error.filename or resource.place}: {error.strerror}") from None
        finally:
            with suppress(OSError):  # an error that is on its way says more; the next attempt removes it
                aside.unlink()
        return NewSnapshot(
            method=COPY_METHOD, external_kind=COPY_REFERENCE, external_id=f"{digest}:{mode:o}", size_bytes=size
        )

    def _copy_hashed(self, path: Path, aside: Path) -> tuple[str, int, int]:
        hashed, size = hashlib.sha256(), 0
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as source, aside.open("wb") as copy:
            status = os.fstat(source.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise InvalidInput(f"{path} is not a file", "name a file")
            while chunk := source.read(_CHUNK):
                size += len(chunk)
                if size > self._most:
                    raise LimitExceeded(f"bytes of {path}", size, self._most, "keep it outside of the ledger")
                hashed.update(chunk)
                copy.write(chunk)
            copy.flush()
            os.fsync(copy.fileno())
        return hashed.hexdigest(), size, stat.S_IMODE(status.st_mode)

    def restore(self, resource: Resource, snapshot: Snapshot, place: str | None, key: str) -> RestoredPlace:
        digest, mode = _file_reference(snapshot)
        target = _standing_file(resource.place) if place is None else new_folder(place)
        aside = target.with_name(f".weft-{key}.partial")
        try:
            if place is None:
                self._write_copy(self._place_of(digest, mode), aside, digest, mode)
                ensure_held()
                aside.replace(target)
            elif not self._is_ours(target, key):
                self._write_copy(self._place_of(digest, mode), aside, digest, mode)
                self._put_at_new_place(aside, target, key)
            sync(target.parent)
        except OSError as error:
            raise StoreFailed(f"{error.filename or target}: {error.strerror}") from None
        finally:
            with suppress(OSError):  # an error that is on its way says more; the next attempt removes it
                aside.unlink()
        return RestoredPlace(place=str(target))

    def _is_ours(self, target: Path, key: str) -> bool:
        """Whether an attempt before a crash has put it there. Raises NotApplicable where something else is."""
        if status_of(target) is None:
            return False
        claim = self.claims.find(key)
        if claim is None or not claim.is_at(target):
            raise NotApplicable(f"{target} exists", "name a place where nothing is")
        return True

    def _put_at_new_place(self, aside: Path, target: Path, key: str) -> None:
        """By a second name, which is never put over another file; which file it is, is noted before."""
        claim = PlaceClaim(key=key, kind=ClaimKind.RESTORE, place=str(target), is_whole=True)
        self.claims.put(claim.made(aside))
        try:
            os.link(aside, target, follow_symlinks=False)
        except FileExistsError:
            raise NotApplicable(f"{target} exists", "name a place where nothing is") from None

    def _write_copy(self, copy: Path, aside: Path, digest: str, mode: int) -> None:
        hashed = hashlib.sha256()
        with open_aside(aside) as out, copy.open("rb") as source:
            while chunk := source.read(_CHUNK):
                hashed.update(chunk)
                out.write(chunk)
            if hashed.hexdigest() != digest:
                raise Damaged(f"the kept copy {copy.name} is not what was kept", "take it from a backup")
            os.fchmod(out.fileno(), mode & 0o777)
            out.flush()
            os.fsync(out.fileno())

    def undo_restore(self, place: str, key: str) -> str | None:
        claim = self.claims.find(key)
        target = None if claim is None else Path(claim.place)
        if claim is None or target is None or not claim.is_at(target):
            return None
        target.unlink(missing_ok=True)
        return f"the file {target} was removed"

    def remove(self, resource: Resource) -> None:
        if not resource.is_made:
            raise NotApplicable(f"{resource.place} was not made by Weft", "remove it yourself")
        if not os.path.lexists(resource.place):
            return
        path = _standing_file(resource.place)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise StoreFailed(f"{path}: {error.strerror}", "remove it yourself") from None

    def _place_of(self, digest: str, mode: int) -> Path:
        return self._copies / f"{digest}.{mode:o}"

    def forget_snapshot(self, snapshot: Snapshot, is_wanted: Callable[[], bool]) -> None:
        if not is_wanted():
            self._place_of(*_file_reference(snapshot)).unlink(missing_ok=True)

    def holds(self, snapshot: Snapshot) -> bool:
        return self._place_of(*_file_reference(snapshot)).is_file()

    def new_place(self, resource: Resource, label: str) -> str:
        path = Path(resource.place)
        word, number = label_word(label), 1
        target = path.with_name(f"{path.stem}-{word}{path.suffix}")
        while os.path.lexists(target):
            number += 1
            target = path.with_name(f"{path.stem}-{word}-{number}{path.suffix}")
        return str(target)


def _standing_file(place: str) -> Path:
    """A file that is where it was declared. Raises NotApplicable where a link leads elsewhere now."""
    path = new_folder(place)
    if str(path) != place:
        raise NotApplicable(f"{place} leads to {path} now: it is another file", "put it back where it was")
    return path


def _file_status(path: Path) -> os.stat_result:
    try:
        return path.lstat()
    except OSError as error:
        raise InvalidInput(f"{path}: {error.strerror}", "name a file that exists") from None


def _file_reference(snapshot: Snapshot) -> tuple[str, int]:
    digest, colon, mode = (snapshot.external_id or "").partition(":")
    is_ours = (
        snapshot.external_kind == COPY_REFERENCE and len(digest) == 64 and not set(digest) - set("0123456789abcdef")
    )
    if not is_ours or not colon or set(mode) - set("01234567") or not 1 <= len(mode) <= 4:
        raise NotApplicable(f"snapshot {snapshot.id} is no copy of a file", "name one of a file")
    return digest, int(mode, 8)


# --- Addresses as resources: they are shared and looked at; what lies behind them cannot be kept or brought back.

ADDRESS_CAPABILITIES = (ResourceCapability.MIGRATE, ResourceCapability.SHARE)
_LONGEST = 2048
Look = Callable[[str], int]
"""The status of the answer to a request for an address; raises OutsideError where none comes."""


class UriDriver:
    """Addresses; `look` asks those of the web, where somebody gave it."""

    kind = ResourceKind.URI

    def __init__(self, look: Look | None = None) -> None:
        self._look = look

    def describe(self, place: str) -> PlaceDescription:
        scheme, colon, rest = place.partition(":")
        is_scheme = scheme[:1].isalpha() and all(letter.isalnum() or letter in "+.-" for letter in scheme)
        if not colon or not rest or not is_scheme or len(place) > _LONGEST or any(letter.isspace() for letter in place):
            raise InvalidInput(
                f"{quoted(place, 200)} is no address", "write it with its scheme, such as https://example.org/x"
            )
        return PlaceDescription(name=place, place=place, capabilities=ADDRESS_CAPABILITIES, imperative=True)

    def probe(self, place: str) -> ResourceLiveness:
        """Only what the web answers is known: 404 and 410 mean that it is not there."""
        if self._look is None or place.partition(":")[0].lower() not in ("http", "https"):
            return ResourceLiveness.UNKNOWN
        try:
            status = self._look(place)
        except OutsideError:
            return ResourceLiveness.UNKNOWN
        if status in (404, 410):
            return ResourceLiveness.DEAD
        return ResourceLiveness.ALIVE if status < 400 else ResourceLiveness.UNKNOWN

    def snapshot(self, resource: Resource, key: str) -> NewSnapshot:
        raise Unsupported(f"what lies behind {resource.place} cannot be kept")

    def restore(self, resource: Resource, snapshot: Snapshot, place: str | None, key: str) -> RestoredPlace:
        raise Unsupported(f"what lies behind {resource.place} cannot be brought back")

    def undo_restore(self, place: str, key: str) -> str | None:
        return None

    def remove(self, resource: Resource) -> None:
        raise Unsupported(f"what lies behind {resource.place} is not Weft's to remove")

    def forget_snapshot(self, snapshot: Snapshot, is_wanted: Callable[[], bool]) -> None:
        """It has none."""

    def holds(self, snapshot: Snapshot) -> bool:
        return True

    def new_place(self, resource: Resource, label: str) -> str:
        return resource.place
