"""What is asked of whoever acts on a kind of resource: what it is, whether it is there, to keep it, to bring it back.

A driver changes the world and never the ledger. Each of its acts has a key, the id of the wish that it carries out, and
can be done again under it: after a crash nobody knows how far the first attempt came.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from weft.kernel.errors import Unsupported
from weft.ledger.api import NewSnapshot, Resource, Snapshot


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

    def forget_snapshot(self, snapshot: Snapshot) -> None:
        """Remove what a snapshot kept, where nothing else needs it."""

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
class HandlingDriver(Protocol):
    """A driver of a kind that is acted on while it lives."""

    def handle(self, provider_id: str) -> LiveHandle: ...


class Drivers:
    """The drivers that are there, by kind."""

    def __init__(self, *drivers: Driver) -> None:
        self._drivers: Mapping[ResourceKind, Driver] = {driver.kind: driver for driver in drivers}

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
