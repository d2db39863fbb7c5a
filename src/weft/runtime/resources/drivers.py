"""What is asked of whoever acts on a kind of resource: what it is, whether it is there, to keep it, to bring it back.

A driver changes the world and never the ledger. Each of its acts has a key, the id of the wish that it carries out, and
can be done again under it: after a crash nobody knows how far the first attempt came.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct

from weft.kernel.enums import (
    HandleCapability,
    ResourceCapability,
    ResourceKind,
    ResourceLiveness,
    SubresourcePart,
    VolumeMode,
)
from weft.kernel.errors import NotApplicable, Unsupported
from weft.ledger.api import NewSnapshot, Resource, Snapshot

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


class Description(Struct, frozen=True, kw_only=True):
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

    def describe(self, place: str) -> Description:
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
