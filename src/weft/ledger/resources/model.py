"""What is told of resources, and what is taken to record it."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from weft.kernel.enums import (
    HandleCapability,
    MountMode,
    ResourceCapability,
    ResourceKind,
    ResourceLiveness,
    RestoreOutcome,
    SnapshotConsistency,
    SnapshotState,
    SubresourcePart,
    VolumeMode,
)


class Owner(Struct, frozen=True):
    """Who owns a resource, or uses it: a session (that is, a branch), an agent, a run or a container."""

    kind: str
    id: str
    name: str | None = None
    """A session's label, an agent's name."""


class ResourcePart(Struct, frozen=True, kw_only=True):
    """A resource that is a part of another one."""

    resource: str
    part: SubresourcePart


class ResourceUse(Struct, frozen=True, kw_only=True):
    """That a resource is attached to somebody, or mounted somewhere."""

    way: str
    """`attached` or `mounted`."""
    user: Owner
    mode: MountMode
    since: int
    mount: str | None = None


class ResourceHandle(Struct, frozen=True, kw_only=True):
    """Through what a resource is acted on while it lives; it cannot be brought back."""

    id: str
    resource: str
    provider: str
    provider_id: str
    capabilities: tuple[HandleCapability, ...]
    opened_at: int
    closed_at: int | None = None
    restorable: bool = False


class Resource(Struct, frozen=True, kw_only=True):
    """Something that exists beside a conversation."""

    id: str
    kind: ResourceKind
    name: str
    place: str
    capabilities: tuple[ResourceCapability, ...]
    imperative: bool
    is_made: bool
    """Whether Weft made it, and may remove it."""
    is_own: bool
    """Whether this ledger declared it. The places of others lie elsewhere."""
    scope: dict[str, str] = field(default_factory=dict)
    metadata: Any = None
    owner: Owner | None = None
    liveness: ResourceLiveness = ResourceLiveness.UNKNOWN
    probed_at: int | None = None
    declared_by: str = ""
    declared_at: int = 0
    machine: str | None = None
    """The machine that has the place; None: it is bound to none, or to the one that has the ledger."""
    parts: tuple[ResourcePart, ...] = ()
    uses: tuple[ResourceUse, ...] = ()
    handles: tuple[ResourceHandle, ...] = ()

    def can(self, capability: ResourceCapability) -> bool:
        return capability in self.capabilities


class Snapshot(Struct, frozen=True, kw_only=True):
    """What a resource was like."""

    id: str
    resource: str
    state: SnapshotState
    created_at: int
    method: str | None = None
    external_kind: str | None = None
    external_id: str | None = None
    """How whoever took it finds it again."""
    consistency: SnapshotConsistency | None = None
    size_bytes: int | None = None
    restorable: bool = False
    run: str | None = None
    """The turn after which it shows the resource."""
    after: str | None = None
    """The event after which it was taken."""
    is_before: bool = False
    """Whether it shows what was there before the turn changed anything."""
    is_inferred: bool = False
    """Whether it was put together from what a source tells."""
    skipped: Any = None
    """What is not in it, and why."""
    error: str | None = None
    error_code: str | None = None


class KeptReference(Struct, frozen=True, kw_only=True):
    """How whoever took a snapshot finds again what it holds."""

    snapshot: str
    kind: str
    id: str
    is_own: bool
    """Whether it is of a resource that this ledger declared."""


class Restore(Struct, frozen=True, kw_only=True):
    """A wish that a snapshot be restored, and what came of it."""

    id: str
    snapshot: str
    requested_at: int
    new_resource: str | None = None
    """None: over the resource that the snapshot was taken of."""
    place: str | None = None
    owner: Owner | None = None
    outcome: RestoreOutcome | None = None
    """None: nobody has tried yet."""
    error: str | None = None
    error_code: str | None = None
    ended_at: int | None = None


class NewResource(Struct, frozen=True, kw_only=True):
    """A resource that is to be declared. Its owner is a session, by its name; without one, whoever declares it."""

    name: str
    kind: ResourceKind
    place: str
    capabilities: tuple[ResourceCapability, ...]
    imperative: bool = False
    is_made: bool = False
    session: str | None = None
    metadata: Any = None
    machine: str | None = None
    """The machine that has the place, where several share the ledger."""


class NewSnapshot(Struct, frozen=True, kw_only=True):
    """A snapshot that was taken."""

    method: str
    external_kind: str
    external_id: str
    consistency: SnapshotConsistency = SnapshotConsistency.CRASH_CONSISTENT
    size_bytes: int | None = None
    restorable: bool = True
    is_inferred: bool = False
    skipped: Any = None


class Failure(Struct, frozen=True):
    """Why something could not be done."""

    code: str
    message: str


class KeptState(Struct, frozen=True, kw_only=True):
    """What a resource was like after a call of a turn, or before the first one that could change it."""

    resource: str
    taken: NewSnapshot | Failure
    is_before: bool = False


class PlannedResource(Struct, frozen=True, kw_only=True):
    """What a fork does with one resource."""

    resource: str
    mode: VolumeMode
    is_kept_by_fork: bool = False
    """With `keep`: whether the fork owns it afterwards, not the session that it came from."""
    snapshot: str | None = None
    """With `snapshot`: the one that the fork gets a copy of."""
    place: str | None = None
    """Where the copy goes."""
    why_left: str | None = None
    """With `discard`: why what Weft made is left where it is."""
