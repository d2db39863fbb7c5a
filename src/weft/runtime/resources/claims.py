"""What a driver is about to make or remove, noted in its own folder until the ledger has recorded what came of it.

A crash between an effect and its record leaves the note. Whoever carries the wish out again finds in it what the first
attempt made, by its place and its identity on the disk, so that nothing of somebody else is taken for it; and what the
ledger has recorded meanwhile is tidied up.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from weft.kernel.errors import Damaged
from weft.runtime.resources.birth_times import birth_time
from weft.store.private_files import make_folder, new_file

_SUFFIX = ".json"


class ClaimKind(StrEnum):
    """What is being done at a place."""

    RESTORE = "restore"
    """Its key is the id of a restore."""
    REMOVAL = "removal"
    """Its key is the id of a resource."""


class Claim(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Something that is being made, or removed, at a place."""

    key: str
    kind: ClaimKind
    place: str
    device: int | None = None
    inode: int | None = None
    """Which file or folder was made there; None: nothing yet."""
    born: int | None = None
    """When; None: the file system does not tell."""
    was_there: bool = False
    """Whether it was there before, empty, and is somebody's."""
    is_whole: bool = False
    """Whether all of it is there."""

    def made(self, path: Path) -> Claim:
        status = path.lstat()
        return replace(self, device=status.st_dev, inode=status.st_ino, born=birth_time(path))

    def is_at(self, path: Path) -> bool:
        """Whether what was made is what lies there."""
        status = status_of(path)
        if status is None or (self.device, self.inode) != (status.st_dev, status.st_ino):
            return False
        return self.born is None or self.born == birth_time(path)


class Claims:
    """The notes of one driver, a small file for each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, key: str) -> Claim | None:
        try:
            written = self._path(key).read_bytes()
        except FileNotFoundError:
            return None
        try:
            return msgspec.json.decode(written, type=Claim)
        except msgspec.DecodeError as error:
            raise Damaged(f"{self._path(key)} cannot be read: {error}", "look at the place, then remove it") from None

    def put(self, claim: Claim) -> Claim:
        make_folder(self._folder)
        with self._alone(), new_file(self._path(claim.key)) as file:
            file.write(msgspec.json.encode(claim))
        return claim

    def drop(self, key: str) -> None:
        self._path(key).unlink(missing_ok=True)

    def all(self) -> list[Claim]:
        """All that there are; what a process left that died while it wrote one is removed."""
        if not self._folder.is_dir():
            return []
        with self._alone():
            names = sorted(os.listdir(self._folder))
            for name in names:
                if not name.endswith(_SUFFIX):
                    (self._folder / name).unlink(missing_ok=True)
        claims = (self.find(name.removesuffix(_SUFFIX)) for name in names if name.endswith(_SUFFIX))
        return [claim for claim in claims if claim is not None]

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Nobody else writes one meanwhile."""
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _path(self, key: str) -> Path:
        assert key.isalnum(), "keys are ids"
        return self._folder / f"{key}{_SUFFIX}"


@runtime_checkable
class ClaimingDriver(Protocol):
    """What a driver also has that notes what it is about to do."""

    @property
    def claims(self) -> Claims: ...


def status_of(path: Path) -> os.stat_result | None:
    """What lies at a path, without following a link; None: nothing."""
    try:
        return path.lstat()
    except FileNotFoundError:
        return None
