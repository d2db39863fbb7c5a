"""What is asked of the driver of a resource, and what it notes before it makes or removes one.

A claim stands in the driver's own folder until the ledger has recorded what came of it.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from weft.kernel.enums import (
    HandleCapability,
    ResourceCapability,
    ResourceKind,
    ResourceLiveness,
    SubresourcePart,
    VolumeMode,
)
from weft.kernel.errors import Damaged, InvalidInput, NotApplicable, Unsupported, quoted
from weft.ledger.api import NewSnapshot, Resource, Snapshot
from weft.runtime.opened_folders import birth_time
from weft.store.private_files import make_folder, new_file

# --- What is asked of whoever acts on a kind of resource: what it is, whether it is there, to keep it, to bring it
# back.

RESTORED_AS_NEW = frozenset({ResourceKind.DOCKER_VOLUME, ResourceKind.DOCKER_CONTAINER, ResourceKind.DOCKER_IMAGE})
"""Kinds of what somebody may use: they are not restored over themselves, only as something new beside."""


class DescribedPart(Struct, frozen=True, kw_only=True):
    """A part of a resource, about which a fork decides by itself."""

    name: str
    kind: ResourceKind
    place: str
    part: SubresourcePart
    capabilities: tuple[ResourceCapability, ...]
    imperative: bool = False
    mount: str | None = None
    is_read_only: bool = False


class DescribedHandle(Struct, frozen=True, kw_only=True):
    """Through what a resource is acted on while it lives."""

    provider: str
    provider_id: str
    capabilities: tuple[HandleCapability, ...]


class PlaceDescription(Struct, frozen=True, kw_only=True):
    """What something at a place is."""

    name: str
    place: str
    """As it is written down: absolute, without what is not needed to find it."""
    capabilities: tuple[ResourceCapability, ...]
    imperative: bool = False
    metadata: Any = None
    parts: tuple[DescribedPart, ...] = ()
    handle: DescribedHandle | None = None


class RestoredPlace(Struct, frozen=True, kw_only=True):
    """What came of a restore."""

    place: str
    notes: tuple[str, ...] = ()
    """What could not be made equal, for people."""
    is_made: bool = True
    """Whether Weft made what stands there, and did not find it."""
    mark: Mapping[str, int] | None = None
    """By what it is known again."""


class Driver(Protocol):
    """One kind of resource. Its methods raise WeftError where something cannot be done, Unsupported where it never
    can."""

    @property
    def kind(self) -> ResourceKind: ...

    def describe(self, place: str) -> PlaceDescription:
        """What is at a place. Raises InvalidInput or OutsideError where nothing is, or not of this kind."""

    def probe(self, place: str) -> ResourceLiveness: ...

    def snapshot(self, resource: Resource, key: str) -> NewSnapshot: ...

    def restore(self, resource: Resource, snapshot: Snapshot, place: str | None, key: str) -> RestoredPlace:
        """Over the resource, where no place is given; else as a new one there."""

    def undo_restore(self, place: str, key: str) -> str | None:
        """Remove what an unfinished restore made at a new place, and nothing else; what was done, for people."""

    def remove(self, resource: Resource) -> None:
        """Remove what Weft made."""

    def forget_snapshot(self, snapshot: Snapshot, is_wanted: Callable[[], bool]) -> None:
        """Remove what a snapshot kept, unless another one needs it by then."""

    def holds(self, snapshot: Snapshot) -> bool:
        """Whether what a snapshot kept is here; true where only somebody else could tell."""

    def new_place(self, resource: Resource, label: str) -> str:
        """Where a copy for another session would go."""


class EndedCommand(Protocol):
    """What became of a command."""

    @property
    def rc(self) -> int | None: ...
    @property
    def stdout(self) -> str: ...
    @property
    def stderr(self) -> str: ...
    @property
    def is_truncated(self) -> bool: ...
    @property
    def has_timed_out(self) -> bool: ...


class PrintedOutput(Protocol):
    """What was printed, as far as it was kept."""

    @property
    def stdout(self) -> bytes: ...
    @property
    def stderr(self) -> bytes: ...
    @property
    def is_truncated(self) -> bool: ...


class LiveHandle(Protocol):
    """What runs, to be acted on."""

    def exec(self, command: Sequence[str], *, seconds: float = 60) -> EndedCommand:
        """Run a command in it, and wait for its end so long."""

    def logs(self, *, lines: int = 1000) -> PrintedOutput:
        """The last lines that it printed."""

    def kill(self, signal: str = "KILL") -> bool:
        """Send a signal; whether it was running."""


@runtime_checkable
class StoringDriver(Protocol):
    """A driver whose snapshots share what they hold."""

    def storing(self) -> AbstractContextManager[None]:
        """Nothing is thrown away meanwhile: whoever takes a snapshot is in it until that is recorded."""


@runtime_checkable
class ChoosingDriver(Protocol):
    """A driver that can take a snapshot in several ways."""

    methods: Sequence[str]
    """The first is taken where nobody names one."""

    def snapshot_by(self, method: str, resource: Resource, key: str) -> NewSnapshot:
        """As `snapshot`, in one of these ways. Raises Unsupported where it cannot be."""


@runtime_checkable
class HandlingDriver(Protocol):
    """A driver of a kind that is acted on while it lives."""

    def handle(self, provider_id: str) -> LiveHandle: ...


@runtime_checkable
class RecognisingDriver(Protocol):
    """A driver that knows what it made from what came to its place."""

    def why_left(self, resource: Resource) -> str | None:
        """Why what is at the place of something that Weft made is not removed; None: it is what Weft made, or nothing
        is there."""

    def why_not_whole(self, resource: Resource, kept: Snapshot) -> str | None:
        """Why what is there would be lost if it were removed, though it was just kept; None: nothing would."""


class Drivers:
    """The drivers that are there, by kind, and the machine that they act on, where several share a ledger."""

    def __init__(self, *drivers: Driver, machine: str | None = None, folder: Path | None = None) -> None:
        """`folder` is where the files lie that they keep."""
        self.folder = folder
        self._drivers: Mapping[ResourceKind, Driver] = {driver.kind: driver for driver in drivers}
        self._machine = machine

    def machine_of(self, kind: ResourceKind) -> str | None:
        """The machine that a place of this kind is bound to; an address is bound to none."""
        return None if kind is ResourceKind.URI else self._machine

    def is_here(self, resource: Resource) -> bool:
        """Whether its place is on this machine. Where a ledger has but one, everything is."""
        return self._machine is None or resource.machine in (None, self._machine)

    def ensure_here(self, resource: Resource) -> None:
        """Raises NotApplicable where the place is on another machine."""
        if not self.is_here(resource):
            kind = resource.kind.value.replace("_", " ")
            raise NotApplicable(f"the {kind} {resource.place} is on another machine", "act on it there")

    def of(self, kind: ResourceKind) -> Driver:
        """Raises Unsupported where nothing here acts on this kind."""
        driver = self._drivers.get(kind)
        if driver is None:
            raise Unsupported(f"nothing here acts on a {kind}", "connect what does, such as a container engine")
        return driver

    def handle(self, kind: ResourceKind, provider_id: str) -> LiveHandle:
        """Raises Unsupported where nothing of this kind is acted on."""
        driver = self.of(kind)
        if not isinstance(driver, HandlingDriver):
            raise Unsupported(f"a {kind} is not acted on while it lives")
        return driver.handle(provider_id)

    def all(self) -> tuple[Driver, ...]:
        return tuple(self._drivers.values())

    def has(self, kind: ResourceKind) -> bool:
        return kind in self._drivers


def proposed_mode(resource: Resource) -> VolumeMode:
    """What a fork best does with a resource, by what it can: a copy where one can be had, else it stays where it is."""
    able = {ResourceCapability.SNAPSHOT, ResourceCapability.RESTORE}.issubset(resource.capabilities)
    return VolumeMode.SNAPSHOT if able and not resource.imperative else VolumeMode.KEEP


# --- What a driver is about to make or remove, noted in its own folder until the ledger has recorded what came of it.

_SUFFIX = ".json"


class ClaimKind(StrEnum):
    """What is being done at a place."""

    RESTORE = "restore"
    """Its key is the id of a restore."""
    REMOVAL = "removal"
    """Its key is the id of a resource."""


class PlaceClaim(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
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

    def made(self, path: Path) -> PlaceClaim:
        status = path.lstat()
        return replace(self, device=status.st_dev, inode=status.st_ino, born=birth_time(path))

    def is_at(self, path: Path) -> bool:
        """Whether what was made is what lies there."""
        status = status_of(path)
        if status is None or (self.device, self.inode) != (status.st_dev, status.st_ino):
            return False
        return self.born is None or self.born == birth_time(path)


class PlaceClaims:
    """The notes of one driver, a small file for each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, key: str) -> PlaceClaim | None:
        try:
            written = self._claim_path(key).read_bytes()
        except FileNotFoundError:
            return None
        try:
            return msgspec.json.decode(written, type=PlaceClaim)
        except msgspec.DecodeError as error:
            raise Damaged(
                f"{self._claim_path(key)} cannot be read: {error}", "look at the place, then remove it"
            ) from None

    def put(self, claim: PlaceClaim) -> PlaceClaim:
        make_folder(self._folder)
        with self._exclusively(), new_file(self._claim_path(claim.key)) as file:
            file.write(msgspec.json.encode(claim))
        return claim

    def drop(self, key: str) -> None:
        self._claim_path(key).unlink(missing_ok=True)

    def all(self) -> list[PlaceClaim]:
        """All that there are; what a process left that died while it wrote one is removed."""
        if not self._folder.is_dir():
            return []
        with self._exclusively():
            names = sorted(os.listdir(self._folder))
            for name in names:
                if not name.endswith(_SUFFIX):
                    (self._folder / name).unlink(missing_ok=True)
        claims = (self.find(name.removesuffix(_SUFFIX)) for name in names if name.endswith(_SUFFIX))
        return [claim for claim in claims if claim is not None]

    @contextmanager
    def _exclusively(self) -> Iterator[None]:
        """Nobody else writes one meanwhile."""
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _claim_path(self, key: str) -> Path:
        assert key.isalnum(), "keys are ids"
        return self._folder / f"{key}{_SUFFIX}"


@runtime_checkable
class ClaimingDriver(Protocol):
    """What a driver also has that notes what it is about to do."""

    @property
    def claims(self) -> PlaceClaims: ...


def status_of(path: Path) -> os.stat_result | None:
    """What lies at a path, without following a link; None: nothing."""
    try:
        return path.lstat()
    except FileNotFoundError:
        return None


# --- What a place most likely is.

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:.+", re.DOTALL)
_OF_ENGINE = {
    "docker:volume/": ResourceKind.DOCKER_VOLUME,
    "docker:container/": ResourceKind.DOCKER_CONTAINER,
    "docker:image/": ResourceKind.DOCKER_IMAGE,
}


def guessed_kind(place: str) -> ResourceKind:
    """What a place most likely is. Raises InvalidInput where nothing is there, and it is no address."""
    for prefix, kind in _OF_ENGINE.items():
        if place.startswith(prefix):
            return kind
    if os.path.isdir(place):
        return ResourceKind.DIRECTORY
    if os.path.lexists(place):
        return ResourceKind.FILE
    if _ADDRESS.fullmatch(place):
        return ResourceKind.URI
    raise InvalidInput(
        f"nothing is at {quoted(place)}",
        "name a folder, a file, an address such as https://example.org/x, or docker:volume/NAME",
    )
