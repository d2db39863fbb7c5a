"""Single files as resources: copies by their digest in a folder of Weft's own, with their modes."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from weft.kernel.clock import RandomBytes, system_random
from weft.kernel.enums import ResourceCapability, ResourceKind, ResourceLiveness
from weft.kernel.errors import Damaged, InvalidInput, LimitExceeded, NotApplicable, StoreFailed
from weft.ledger.api import NewSnapshot, Resource, Snapshot
from weft.runtime.resources.drivers import Description, RestoredPlace
from weft.store.atomic_files import make_folder

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
    """Files, whose copies lie in one folder under the digest of their bytes."""

    kind = ResourceKind.FILE

    def __init__(self, copies: Path, *, most_bytes: int = MOST_BYTES, random: RandomBytes = system_random) -> None:
        self._copies, self._most, self._random = copies, most_bytes, random

    def describe(self, place: str) -> Description:
        path = Path(os.path.abspath(place))
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
        make_folder(self._copies)
        aside = self._copies / f"{key}.partial"
        try:
            digest, size, mode = self._copy(Path(resource.place), aside)
            aside.replace(self._copies / digest)
        except OSError as error:
            raise StoreFailed(f"{error.filename or resource.place}: {error.strerror}") from None
        finally:
            aside.unlink(missing_ok=True)
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
        target = Path(resource.place if place is None else os.path.abspath(place))
        aside = target.with_name(f".{target.name}.{key[-8:]}.partial")
        try:
            if place is not None and os.path.lexists(target) and not self._is_copy(target, digest):
                raise NotApplicable(f"{target} exists", "name a place where nothing is")
            self._write(self._copies / digest, aside, digest, mode)
            aside.replace(target)
        except OSError as error:
            raise StoreFailed(f"{error.filename or target}: {error.strerror}") from None
        finally:
            aside.unlink(missing_ok=True)
        return RestoredPlace(place=str(target), is_new=place is not None)

    def _write(self, copy: Path, aside: Path, digest: str, mode: int) -> None:
        hashed = hashlib.sha256()
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as out, copy.open("rb") as source:
            while chunk := source.read(_CHUNK):
                hashed.update(chunk)
                out.write(chunk)
            if hashed.hexdigest() != digest:
                raise Damaged(f"the kept copy {copy.name} is not what was kept", "take it from a backup")
            os.fchmod(out.fileno(), mode & 0o777)
            out.flush()
            os.fsync(out.fileno())

    def _is_copy(self, path: Path, digest: str) -> bool:
        """Whether an attempt before a crash has written it already."""
        if not stat.S_ISREG(os.lstat(path).st_mode) or os.lstat(path).st_size > self._most:
            return False
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == digest

    def undo_restore(self, place: str, key: str) -> str | None:
        """A file appears whole or not at all, so there is nothing to undo."""
        return None

    def remove(self, resource: Resource) -> None:
        if not resource.is_made:
            raise NotApplicable(f"{resource.place} was not made by Weft", "remove it yourself")
        Path(resource.place).unlink(missing_ok=True)

    def forget_snapshot(self, snapshot: Snapshot) -> None:
        (self._copies / _reference(snapshot)[0]).unlink(missing_ok=True)

    def new_place(self, resource: Resource, label: str) -> str:
        path = Path(resource.place)
        word = "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in label)[:64]
        target, number = path.with_name(f"{path.stem}-{word}{path.suffix}"), 1
        while os.path.lexists(target):
            number += 1
            target = path.with_name(f"{path.stem}-{word}-{number}{path.suffix}")
        return str(target)


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
