"""The kinds that tell of resources: what exists beside a conversation, who owns it, how it is kept and brought back.

A resource is something that a fork must decide about: a directory, a file, a volume, a container, an image, a uri. Its
stream begins with `resource_declared`; a wish is written before its effect and the outcome after it.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import UNSET, UnsetType

from weft.kernel.enums import (
    EventClass,
    HandleCapability,
    MountMode,
    OwnershipReason,
    ResourceCapability,
    ResourceKind,
    ResourceLiveness,
    RestoreOutcome,
    SnapshotConsistency,
    SnapshotOutcome,
    SubresourcePart,
)
from weft.kernel.events import Event
from weft.kernel.fields import Content, ErrorFact, EventRef, ExtRef, Name, Named, NodeId, ResourceScope, Ulid


class ResourceDeclared(Event, frozen=True, gc=False, kw_only=True, tag="resource_declared"):
    about: ClassVar[str] = (
        "A resource exists, or is described anew. `imperative`: what it is cannot be brought back; `place` is where it"
        " is found: a path, a uri, a name in an engine; `machine`: the machine that has the place, where several share"
        " a ledger; `made`: Weft made it, so Weft may remove it."
    )
    category: ClassVar[EventClass] = EventClass.TRANSITION

    name: Content
    resource_kind: ResourceKind
    capabilities: tuple[ResourceCapability, ...]
    place: Content
    imperative: bool | UnsetType = UNSET
    made: bool | UnsetType = UNSET
    scope: ResourceScope | UnsetType = UNSET
    metadata: Content | UnsetType = UNSET
    machine: Ulid | UnsetType = UNSET


class ResourceOwned(Event, frozen=True, gc=False, kw_only=True, tag="resource_owned"):
    about: ClassVar[str] = (
        "A resource has another owner, one at a time: a session (that is, a branch), an agent or a run; null: nobody,"
        " it was discarded. `reason`: why what Weft made was left where it is."
    )
    category: ClassVar[EventClass] = EventClass.TRANSITION

    resource_ref: NodeId
    owner: ResourceScope | None
    before: ResourceScope | None
    why: OwnershipReason
    reason: Content | UnsetType = UNSET


class SubresourceAdded(Event, frozen=True, gc=False, kw_only=True, tag="subresource_added"):
    about: ClassVar[str] = "A resource is a part of another one, about which a fork decides by itself."
    category: ClassVar[EventClass] = EventClass.OBSERVATION

    resource_ref: NodeId
    part_ref: NodeId
    part: SubresourcePart


class SubresourceRemoved(Event, frozen=True, gc=False, kw_only=True, tag="subresource_removed"):
    about: ClassVar[str] = "A resource is no longer a part of another one."
    category: ClassVar[EventClass] = EventClass.OBSERVATION

    resource_ref: NodeId
    part_ref: NodeId


class HandleOpened(Event, frozen=True, gc=False, kw_only=True, tag="handle_opened"):
    about: ClassVar[str] = "A resource can be acted on through its provider, as long as the handle is open."
    category: ClassVar[EventClass] = EventClass.OBSERVATION

    handle: NodeId
    resource_ref: NodeId
    provider: Named
    provider_id: Content
    capabilities: tuple[HandleCapability, ...] | UnsetType = UNSET


class HandleClosed(Event, frozen=True, gc=False, kw_only=True, tag="handle_closed"):
    about: ClassVar[str] = "A handle is good for nothing any more."
    category: ClassVar[EventClass] = EventClass.OBSERVATION

    handle: NodeId
    resource_ref: NodeId
    reason: Content | UnsetType = UNSET


class ResourceAttached(Event, frozen=True, gc=False, kw_only=True, tag="resource_attached"):
    about: ClassVar[str] = "A resource was attached to an agent, a session or a run."
    category: ClassVar[EventClass] = EventClass.OBSERVATION

    resource_ref: NodeId
    mode: MountMode
    run: Ulid | UnsetType = UNSET
    session: Ulid | UnsetType = UNSET
    agent: Name | Ulid | UnsetType = UNSET


class ResourceDetached(Event, frozen=True, gc=False, kw_only=True, tag="resource_detached"):
    about: ClassVar[str] = "A resource was detached."
    category: ClassVar[EventClass] = EventClass.OBSERVATION

    resource_ref: NodeId
    run: Ulid | UnsetType = UNSET
    session: Ulid | UnsetType = UNSET
    agent: Name | Ulid | UnsetType = UNSET


class ResourceMounted(Event, frozen=True, gc=False, kw_only=True, tag="resource_mounted"):
    about: ClassVar[str] = "A run or a container sees a resource under a path."
    category: ClassVar[EventClass] = EventClass.OBSERVATION

    resource_ref: NodeId
    mount: Content
    mode: MountMode
    run: Ulid | UnsetType = UNSET
    container: NodeId | UnsetType = UNSET


class ResourceUnmounted(Event, frozen=True, gc=False, kw_only=True, tag="resource_unmounted"):
    about: ClassVar[str] = "A run or a container sees a resource no longer."
    category: ClassVar[EventClass] = EventClass.OBSERVATION

    resource_ref: NodeId
    run: Ulid | UnsetType = UNSET
    container: NodeId | UnsetType = UNSET


class ResourceLivenessProbe(Event, frozen=True, gc=False, kw_only=True, tag="resource_liveness_probe"):
    about: ClassVar[str] = "A resource was looked at; advisory."
    category: ClassVar[EventClass] = EventClass.OBSERVATION

    resource_ref: NodeId
    status: ResourceLiveness


class SnapshotRequested(Event, frozen=True, gc=False, kw_only=True, tag="snapshot_requested"):
    about: ClassVar[str] = "A snapshot of a resource is wanted; `method` says how, where whoever wants it does."
    category: ClassVar[EventClass] = EventClass.INTENT

    resource_ref: NodeId
    snapshot_ref: NodeId
    run: Ulid | UnsetType = UNSET
    method: Named | UnsetType = UNSET


class SnapshotCreated(Event, frozen=True, gc=False, kw_only=True, tag="snapshot_created"):
    about: ClassVar[str] = (
        "A snapshot of a resource was taken, or failed; `run` is the turn after which it shows the resource, `after`"
        " the event; with `before` it shows what was there before the turn changed anything. `inferred`: it was put"
        " together from what a source tells, and `skipped` says what is not in it."
    )
    category: ClassVar[EventClass] = EventClass.OBSERVATION

    resource_ref: NodeId
    snapshot_ref: NodeId
    outcome: SnapshotOutcome
    error: ErrorFact | UnsetType = UNSET
    method: Named | UnsetType = UNSET
    external_ref: ExtRef | UnsetType = UNSET
    consistency: SnapshotConsistency | UnsetType = UNSET
    size_bytes: int | UnsetType = UNSET
    restorable: bool | UnsetType = UNSET
    run: Ulid | UnsetType = UNSET
    after: EventRef | UnsetType = UNSET
    before: bool | UnsetType = UNSET
    inferred: bool | UnsetType = UNSET
    skipped: Content | UnsetType = UNSET


class SnapshotDiscarded(Event, frozen=True, gc=False, kw_only=True, tag="snapshot_discarded"):
    about: ClassVar[str] = "What a snapshot kept is gone; it cannot be restored any more."
    category: ClassVar[EventClass] = EventClass.TRANSITION

    resource_ref: NodeId
    snapshot_ref: NodeId
    reason: Content | UnsetType = UNSET


class RestoreRequested(Event, frozen=True, gc=False, kw_only=True, tag="restore_requested"):
    about: ClassVar[str] = (
        "A snapshot is to be restored: over the resource that it was taken of, or as a new one with this id, at this"
        " place and for this owner."
    )
    category: ClassVar[EventClass] = EventClass.INTENT

    snapshot_ref: NodeId
    new_resource_ref: NodeId | UnsetType = UNSET
    place: Content | UnsetType = UNSET
    owner: ResourceScope | UnsetType = UNSET
    restore: Ulid | UnsetType = UNSET
    """The id of this wish, which the outcome names."""


class RestoreAttempted(Event, frozen=True, gc=False, kw_only=True, tag="restore_attempted"):
    about: ClassVar[str] = "A snapshot was to be restored; `unsupported` where that cannot be done."
    category: ClassVar[EventClass] = EventClass.OBSERVATION

    snapshot_ref: NodeId
    outcome: RestoreOutcome
    new_resource_ref: NodeId | UnsetType = UNSET
    resource_ref: NodeId | UnsetType = UNSET
    error: ErrorFact | UnsetType = UNSET
    restore: Ulid | UnsetType = UNSET


class CompensationRecorded(Event, frozen=True, gc=False, kw_only=True, tag="compensation_recorded"):
    about: ClassVar[str] = "An effect was undone after a failure."
    category: ClassVar[EventClass] = EventClass.OBSERVATION

    of: EventRef
    outcome: Named
    details: Content | UnsetType = UNSET


ResourceEvent = (
    ResourceDeclared
    | ResourceOwned
    | SubresourceAdded
    | SubresourceRemoved
    | HandleOpened
    | HandleClosed
    | ResourceAttached
    | ResourceDetached
    | ResourceMounted
    | ResourceUnmounted
    | ResourceLivenessProbe
    | SnapshotRequested
    | SnapshotCreated
    | SnapshotDiscarded
    | RestoreRequested
    | RestoreAttempted
    | CompensationRecorded
)
