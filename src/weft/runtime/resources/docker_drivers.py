"""Volumes, containers and images of a container engine as resources.

Places are `docker:volume/NAME`, `docker:container/ID` and `docker:image/NAME`. A restore always makes something new:
what a container uses cannot be replaced under it. The parts of a container are resources of their own: its file system,
its volumes, folders of the host, its network.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import msgspec

from weft.kernel.enums import ResourceKind, ResourceLiveness, SubresourcePart
from weft.kernel.errors import NotApplicable, Unsupported
from weft.ledger.api import NewSnapshot, Resource, Snapshot
from weft.runtime.resources.container_engine import ContainerEngine, ContainerHandle, MadeBy, list_made_by, remove_made
from weft.runtime.resources.drivers import DescribedHandle, DescribedPart, Driver, PlaceDescription, RestoredPlace
from weft.runtime.resources.engine_containers import (
    CHECKPOINT_METHOD,
    COMMIT_METHOD,
    IN_ENGINE,
    IN_STORE,
    ContainerCheckpoints,
    ContainerSettings,
    DockerContainers,
)
from weft.runtime.resources.engine_volumes import (
    ContainerPart,
    DockerImages,
    DockerVolumes,
    EngineSnapshot,
    ResourceDescription,
)
from weft.runtime.resources.tar_archives import OWN_ARCHIVE, ArchiveStore

ARCHIVE = "tar"
"""The kind of a reference to an archive in the store."""
CHECKPOINTS = (IN_STORE, IN_ENGINE)
VOLUME, CONTAINER, IMAGE = "docker:volume/", "docker:container/", "docker:image/"
_FILES = "/files"
"""What the place of a container's file system ends with."""
_OTHER_PARTS = {SubresourcePart.NETWORK: "/network", SubresourcePart.VOLUME: "/memory"}


class EngineAccess:
    """A container engine that is connected to when something first asks for it, and the archives of its volumes."""

    def __init__(self, connect: Callable[[], ContainerEngine], store: ArchiveStore, tar_image: str | None) -> None:
        self._connect, self.store, self._tar_image = connect, store, tar_image

    @cached_property
    def engine(self) -> ContainerEngine:
        return self._connect()

    @cached_property
    def volumes(self) -> DockerVolumes:
        return DockerVolumes(self.engine, self.store, tar_image=self._tar_image)

    @cached_property
    def containers(self) -> DockerContainers:
        return DockerContainers(self.engine)

    @cached_property
    def checkpoints(self) -> ContainerCheckpoints:
        return ContainerCheckpoints(self.engine, self.store)

    @cached_property
    def images(self) -> DockerImages:
        return DockerImages(self.engine, self.store)

    def remove_made(self, key: str) -> str | None:
        """Remove all that an operation made, by its key; what was done, for people."""
        made = [one for one in list_made_by(self.engine, operation=key) if one.kind is not ResourceKind.DOCKER_IMAGE]
        removed = [one.name for one in made if remove_made(self.engine, one)]
        return f"{', '.join(removed)} was removed from the engine" if removed else None


def docker_drivers(
    connect: Callable[[], ContainerEngine], store: ArchiveStore, *, tar_image: str | None = None
) -> tuple[Driver, ...]:
    """The drivers of one engine. `tar_image` is an image of it that has `tar`; Podman needs one to read volumes."""
    access = EngineAccess(connect, store, tar_image)
    return VolumeDriver(access), ContainerDriver(access), ImageDriver(access)


class VolumeDriver:
    """Volumes, whose snapshots are archives in the store."""

    kind = ResourceKind.DOCKER_VOLUME

    def __init__(self, access: EngineAccess) -> None:
        self._access = access

    def describe(self, place: str) -> PlaceDescription:
        found = self._access.volumes.describe(_engine_name(place, VOLUME))
        return _described_resource(found, VOLUME + found.name)

    def probe(self, place: str) -> ResourceLiveness:
        return self._access.volumes.probe(_engine_name(place, VOLUME))

    def snapshot(self, resource: Resource, key: str) -> NewSnapshot:
        return _new_snapshot(
            self._access.volumes.snapshot(_engine_name(resource.place, VOLUME), MadeBy(resource.id, key))
        )

    def restore(self, resource: Resource, snapshot: Snapshot, place: str | None, key: str) -> RestoredPlace:
        made_by = MadeBy(resource.id, key)
        name = _engine_name(_required_place(place, resource), VOLUME)
        digest = _external_reference(snapshot, ARCHIVE)
        made = self._access.volumes.restore(digest, made_by, name=name, rules=OWN_ARCHIVE)
        return RestoredPlace(place=VOLUME + made.name)

    def undo_restore(self, place: str, key: str) -> str | None:
        return self._access.remove_made(key)

    def remove(self, resource: Resource) -> None:
        _ensure_made(resource)
        self._access.volumes.remove(_engine_name(resource.place, VOLUME))

    def forget_snapshot(self, snapshot: Snapshot, is_wanted: Callable[[], bool]) -> None:
        if snapshot.external_id is not None and not is_wanted():
            self._access.store.remove(snapshot.external_id)

    def holds(self, snapshot: Snapshot) -> bool:
        return self._access.store.has(_external_reference(snapshot, ARCHIVE))

    def new_place(self, resource: Resource, label: str) -> str:
        wanted = f"{_engine_name(resource.place, VOLUME)}-{_name_word(label)}"
        name, number = wanted, 1
        while self._access.volumes.probe(name) is ResourceLiveness.ALIVE:
            number += 1
            name = f"{wanted}-{number}"
        return VOLUME + name


class ContainerDriver:
    """Containers, whose snapshots are images of their file systems. A new one has no network and none of the volumes:
    those are resources of their own."""

    kind = ResourceKind.DOCKER_CONTAINER
    methods = (COMMIT_METHOD, CHECKPOINT_METHOD)

    def __init__(self, access: EngineAccess) -> None:
        self._access = access

    def describe(self, place: str) -> PlaceDescription:
        found = self._access.containers.describe(_engine_name(place, CONTAINER))
        handle = ContainerHandle(self._access.engine, found.id)
        return msgspec.structs.replace(
            _described_resource(found, CONTAINER + found.id),
            parts=tuple(_described_part(found, part) for part in found.parts),
            handle=DescribedHandle(
                provider=handle.provider, provider_id=found.id, capabilities=tuple(handle.capabilities())
            ),
        )

    def probe(self, place: str) -> ResourceLiveness:
        return self._access.containers.probe(_engine_name(place, CONTAINER))

    def handle(self, provider_id: str) -> ContainerHandle:
        return ContainerHandle(self._access.engine, provider_id)

    def snapshot(self, resource: Resource, key: str) -> NewSnapshot:
        return self.snapshot_by(COMMIT_METHOD, resource, key)

    def snapshot_by(self, method: str, resource: Resource, key: str) -> NewSnapshot:
        """Its files, as an image; or a checkpoint, with its processes, where the engine makes them."""
        name, made_by = _engine_name(resource.place, CONTAINER), MadeBy(resource.id, key)
        if method == CHECKPOINT_METHOD:
            return _new_snapshot(self._access.checkpoints.take(name, made_by))
        return _new_snapshot(self._access.containers.snapshot(name, made_by))

    def restore(self, resource: Resource, snapshot: Snapshot, place: str | None, key: str) -> RestoredPlace:
        if snapshot.external_kind in CHECKPOINTS:
            return self._restore_checkpoint(resource, snapshot, place, key)
        _required_place(place, resource)
        made = self._access.containers.restore(
            _external_reference(snapshot, "image"), MadeBy(resource.id, key), _container_settings(resource)
        )
        described = resource.metadata if isinstance(resource.metadata, dict) else {}
        notes = tuple(f"not carried over: {one}" for one in described.get("not_carried_over") or ())
        return RestoredPlace(place=CONTAINER + made.id, notes=notes)

    def _restore_checkpoint(self, resource: Resource, snapshot: Snapshot, place: str | None, key: str) -> RestoredPlace:
        """As a new container, or with Docker in the one that it was taken of."""
        kind = str(snapshot.external_kind)
        if kind == IN_STORE:
            _required_place(place, resource)
        elif place is not None:
            raise Unsupported("this engine lets only the container itself go on from a checkpoint", "name no place")
        made = self._access.checkpoints.restore(kind, _external_reference(snapshot, kind), MadeBy(resource.id, key))
        return RestoredPlace(place=CONTAINER + made.id)

    def undo_restore(self, place: str, key: str) -> str | None:
        return self._access.remove_made(key)

    def remove(self, resource: Resource) -> None:
        _ensure_made(resource)
        self._access.containers.remove(_engine_name(resource.place, CONTAINER))

    def forget_snapshot(self, snapshot: Snapshot, is_wanted: Callable[[], bool]) -> None:
        if is_wanted():
            return
        if snapshot.external_kind in CHECKPOINTS:
            self._access.checkpoints.remove(
                str(snapshot.external_kind), _external_reference(snapshot, str(snapshot.external_kind))
            )
            return
        self._access.images.remove(MadeBy(snapshot.resource, snapshot.id).image_tag)

    def holds(self, snapshot: Snapshot) -> bool:
        """Of an image the engine tells when it is asked for it."""
        if snapshot.external_kind == IN_STORE:
            return self._access.checkpoints.has(_external_reference(snapshot, IN_STORE))
        return True

    def new_place(self, resource: Resource, label: str) -> str:
        """The engine names it; this says what it is for."""
        return f"{CONTAINER}{_name_word(resource.name)}-{_name_word(label)}"


class ImageDriver:
    """Images, and file systems of containers: a snapshot is an image that a tag of Weft's keeps."""

    kind = ResourceKind.DOCKER_IMAGE

    def __init__(self, access: EngineAccess) -> None:
        self._access = access

    def describe(self, place: str) -> PlaceDescription:
        found = self._access.images.describe(_engine_name(place, IMAGE))
        return _described_resource(found, IMAGE + found.name)

    def probe(self, place: str) -> ResourceLiveness:
        container = _container_of_files(place)
        if container is not None:
            return self._access.containers.probe(container)
        return self._access.images.probe(_engine_name(place, IMAGE))

    def snapshot(self, resource: Resource, key: str) -> NewSnapshot:
        container, made_by = _container_of_files(resource.place), MadeBy(resource.id, key)
        if container is not None:
            return _new_snapshot(self._access.containers.snapshot(container, made_by))
        return _new_snapshot(self._access.images.snapshot(_engine_name(resource.place, IMAGE), made_by))

    def restore(self, resource: Resource, snapshot: Snapshot, place: str | None, key: str) -> RestoredPlace:
        _required_place(place, resource)
        made = self._access.images.restore(_external_reference(snapshot, "image"), MadeBy(resource.id, key))
        return RestoredPlace(place=IMAGE + made.name)

    def undo_restore(self, place: str, key: str) -> str | None:
        """A tag is all that a restore makes, and that in one step."""
        return None

    def remove(self, resource: Resource) -> None:
        _ensure_made(resource)
        self._access.images.remove(_engine_name(resource.place, IMAGE))

    def forget_snapshot(self, snapshot: Snapshot, is_wanted: Callable[[], bool]) -> None:
        if not is_wanted():
            self._access.images.remove(MadeBy(snapshot.resource, snapshot.id).image_tag)

    def holds(self, snapshot: Snapshot) -> bool:
        """An archive of an image lies in the store; of what the engine has, it tells itself."""
        if snapshot.external_kind != ARCHIVE or snapshot.external_id is None:
            return True
        return self._access.store.has(snapshot.external_id)

    def new_place(self, resource: Resource, label: str) -> str:
        """The engine keeps it under a tag of Weft's; this says what it is for."""
        return f"{IMAGE}{_name_word(resource.name)}-{_name_word(label)}"


def _engine_name(place: str, prefix: str) -> str:
    """What a place names in the engine; the name alone is one, too."""
    return place.removeprefix(prefix)


def _container_of_files(place: str) -> str | None:
    """The container whose file system a place is."""
    is_part = place.startswith(CONTAINER) and place.endswith(_FILES)
    return place.removeprefix(CONTAINER).removesuffix(_FILES) if is_part else None


def _required_place(place: str | None, resource: Resource) -> str:
    if place is None:
        raise Unsupported(
            f"a {resource.kind} is not restored over itself: somebody may use it", "restore it to a new place"
        )
    return place


def _described_resource(found: ResourceDescription, place: str) -> PlaceDescription:
    return PlaceDescription(
        name=found.name,
        place=place,
        capabilities=found.capabilities,
        imperative=found.imperative,
        metadata=dict(found.metadata),
    )


def _described_part(container: ResourceDescription, part: ContainerPart) -> DescribedPart:
    """What is in memory alone, and a network, is told as an address: nothing of it can be kept."""
    place = CONTAINER + container.id
    if part.part is SubresourcePart.FILE_SYSTEM:
        place, name = place + _FILES, f"files of {container.name}"
    elif part.kind is ResourceKind.DOCKER_VOLUME:
        place, name = VOLUME + part.name, part.name
    elif part.kind is ResourceKind.DIRECTORY:
        place = name = part.name
    else:
        place = f"{place}{_OTHER_PARTS[part.part]}{part.mount}"
        name = f"{part.part.value} of {container.name}"
    return DescribedPart(
        name=name,
        kind=part.kind or ResourceKind.URI,
        place=place,
        part=part.part,
        capabilities=part.capabilities,
        imperative=part.imperative,
        mount=part.mount or None,
        is_read_only=part.is_read_only,
    )


def _new_snapshot(taken: EngineSnapshot) -> NewSnapshot:
    return NewSnapshot(
        method=taken.method,
        external_kind=taken.reference_kind,
        external_id=taken.reference_id,
        consistency=taken.consistency,
        size_bytes=taken.size_bytes,
        restorable=taken.restorable,
    )


def _external_reference(snapshot: Snapshot, kind: str) -> str:
    if snapshot.external_kind != kind or snapshot.external_id is None:
        raise NotApplicable(f"snapshot {snapshot.id} is no {kind} of an engine", "name one that is")
    return snapshot.external_id


def _container_settings(resource: Resource) -> ContainerSettings:
    """What a new container takes over of the one that was described, as far as that can be read."""
    settings = resource.metadata.get("settings") if isinstance(resource.metadata, dict) else None
    try:
        return msgspec.convert(settings or {}, ContainerSettings)
    except msgspec.ValidationError:
        return ContainerSettings()


def _ensure_made(resource: Resource) -> None:
    if not resource.is_made:
        raise NotApplicable(f"{resource.place} was not made by Weft", "remove it yourself")


def _name_word(label: str) -> str:
    """A label as a part of a name in an engine."""
    kept = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "-_.") else "-" for letter in label)
    return kept.strip(".-")[:64] or "fork"
