"""What the drivers answer: what a resource is, what a snapshot of it is, and what a restore made."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from weft.kernel.enums import ResourceCapability, ResourceKind, SnapshotConsistency, SubresourcePart, VolumeMode


class ContainerPart(Struct, frozen=True, kw_only=True):
    """A part of a container about which a fork decides by itself."""

    part: SubresourcePart
    name: str
    mount: str = ""
    is_read_only: bool = False
    kind: ResourceKind | None = None
    """As what it can be a resource of its own."""
    capabilities: tuple[ResourceCapability, ...] = ()
    imperative: bool = False
    """What it is cannot be brought back."""
    proposed: VolumeMode
    reason: str


class ResourceDescription(Struct, frozen=True, kw_only=True):
    """What a volume, container or image is, and what can be done with it."""

    kind: ResourceKind
    name: str
    id: str
    capabilities: tuple[ResourceCapability, ...]
    imperative: bool = False
    metadata: Mapping[str, object] = {}
    parts: tuple[ContainerPart, ...] = ()


class EngineSnapshot(Struct, frozen=True, kw_only=True):
    """`reference_kind` and `reference_id` are the external reference: a tar in the store, or an image of the engine."""

    method: str
    reference_kind: str
    reference_id: str
    size_bytes: int
    consistency: SnapshotConsistency = SnapshotConsistency.CRASH_CONSISTENT
    """As after a power cut: whoever was writing was not told to stop."""
    restorable: bool = True


class RestoredObject(Struct, frozen=True, kw_only=True):
    """What a restore made in an engine."""

    kind: ResourceKind
    id: str
    name: str
    is_new: bool
    """False: the same operation had made it before."""
