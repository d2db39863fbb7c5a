"""Single files as resources: copies in a folder of Weft's own, named by the digest of their bytes and their mode."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from weft.kernel.enums import ResourceCapability, ResourceKind, ResourceLiveness
from weft.kernel.errors import Damaged, InvalidInput, LimitExceeded, NotApplicable, StoreFailed
from weft.ledger.api import NewSnapshot, Resource, Snapshot
from weft.runtime.resources.claims import Claim, ClaimKind, Claims, status_of
from weft.runtime.resources.directory_driver import label_word, new_folder
from weft.runtime.resources.drivers import Description, RestoredPlace
from weft.runtime.resources.held_work import ensure_held
from weft.store.private_files import make_folder, open_aside, put_in_place, sync

METHOD, REFERENCE = "fs_copy", "file"
CAPABILITIES = (
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
        self.claims = Claims(copies / "restoring")

    def describe(self, place: str) -> Description:
        path = new_folder(place)
        status = _status(path)
        if not stat.S_ISREG(status.st_mode):
            raise InvalidInput(f"{place} is not a file", "name a file; a link or a folder is not one")
        return Description(
            name=path.name, place=str(path), capabilities=CAPABILITIES, metadata={"mode": stat.S_IMODE(status.st_mode)}
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
            digest, size, mode = self._copy(path, aside)
            put_in_place(aside, self._place_of(digest, mode))
        except OSError as error:
            raise StoreFailed(f"{error.filename or resource.place}: {error.strerror}") from None
        finally:
            with suppress(OSError):  # an error that is on its way says more; the next attempt removes it
                aside.unlink()
        return NewSnapshot(method=METHOD, external_kind=REFERENCE, external_id=f"{digest}:{mode:o}", size_bytes=size)

    def _copy(self, path: Path, aside: Path) -> tuple[str, int, int]:
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
        digest, mode = _reference(snapshot)
        target = _standing_file(resource.place) if place is None else new_folder(place)
        aside = target.with_name(f".weft-{key}.partial")
        try:
            if place is None:
                self._write(self._place_of(digest, mode), aside, digest, mode)
                ensure_held()
                aside.replace(target)
            elif not self._is_ours(target, key):
                self._write(self._place_of(digest, mode), aside, digest, mode)
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
        claim = Claim(key=key, kind=ClaimKind.RESTORE, place=str(target), is_whole=True)
        self.claims.put(claim.made(aside))
        try:
            os.link(aside, target, follow_symlinks=False)
        except FileExistsError:
            raise NotApplicable(f"{target} exists", "name a place where nothing is") from None

    def _write(self, copy: Path, aside: Path, digest: str, mode: int) -> None:
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
            self._place_of(*_reference(snapshot)).unlink(missing_ok=True)

    def holds(self, snapshot: Snapshot) -> bool:
        return self._place_of(*_reference(snapshot)).is_file()

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


def _status(path: Path) -> os.stat_result:
    try:
        return path.lstat()
    except OSError as error:
        raise InvalidInput(f"{path}: {error.strerror}", "name a file that exists") from None


def _reference(snapshot: Snapshot) -> tuple[str, int]:
    digest, colon, mode = (snapshot.external_id or "").partition(":")
    is_ours = snapshot.external_kind == REFERENCE and len(digest) == 64 and not set(digest) - set("0123456789abcdef")
    if not is_ours or not colon or set(mode) - set("01234567") or not 1 <= len(mode) <= 4:
        raise NotApplicable(f"snapshot {snapshot.id} is no copy of a file", "name one of a file")
    return digest, int(mode, 8)
