"""Volumes of a container engine as resources: a snapshot is a tar archive, a restore makes a new volume of one.

A restore has a key. It makes a marker, then the volume, fills it, and removes the marker last: after a crash the same
restore finds a volume without a marker, which is finished, or one with a marker, which it removes and makes anew.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

from weft.kernel.enums import ResourceCapability, ResourceKind, ResourceLiveness
from weft.kernel.errors import EngineObjectMissing, EngineUnreachable, KeyTaken, LabelTaken, WeftError
from weft.runtime.resources.docker.archive_entries import FOREIGN_ARCHIVE, OWN_ARCHIVE, ArchiveEntry, ArchiveRules
from weft.runtime.resources.docker.archive_store import ArchiveStore
from weft.runtime.resources.docker.copying import (
    ensure_empty_image,
    make_volume,
    ulimits,
    volume_chunks,
    write_volume,
)
from weft.runtime.resources.docker.descriptions import EngineSnapshot, ResourceDescription, RestoredObject
from weft.runtime.resources.docker.engine import About, ContainerEngine, checked_name, volume_path
from weft.runtime.resources.docker.engine_labels import (
    MadeBy,
    MadeObject,
    MadeRole,
    list_made_by,
    remove_made,
    removed,
)

VOLUME_METHOD = "docker_volume_tar"
VOLUME_CAPABILITIES = (
    ResourceCapability.SNAPSHOT,
    ResourceCapability.RESTORE,
    ResourceCapability.FORK,
    ResourceCapability.SHARE,
)
DIGEST_LABEL = "weft.archive"


def liveness(look: Callable[[], object]) -> ResourceLiveness:
    """Whether something is there; unknown while the engine is not."""
    try:
        look()
    except EngineObjectMissing:
        return ResourceLiveness.DEAD
    except EngineUnreachable:
        return ResourceLiveness.UNKNOWN
    return ResourceLiveness.ALIVE


class DockerVolumes:
    """`tar_image` is an image of the engine that has `tar`; Podman needs one to read volumes."""

    def __init__(self, engine: ContainerEngine, store: ArchiveStore, *, tar_image: str | None = None) -> None:
        self._engine, self._store, self._tar_image = engine, store, tar_image

    def describe(self, name: str) -> ResourceDescription:
        """What it is. Values of its options stay away: they may be passwords of a server."""
        volume = self._inspect(name)
        return ResourceDescription(
            kind=ResourceKind.DOCKER_VOLUME,
            name=name,
            id=name,
            capabilities=VOLUME_CAPABILITIES,
            metadata={
                "driver": str(volume.get("Driver", "")),
                "options": sorted(volume.get("Options") or {}),
                "created_at": str(volume.get("CreatedAt", "")),
                "labels": sorted(volume.get("Labels") or {}),
            },
        )

    def probe(self, name: str) -> ResourceLiveness:
        return liveness(lambda: self._inspect(name))

    def snapshot(self, name: str, made_by: MadeBy, rules: ArchiveRules = OWN_ARCHIVE) -> EngineSnapshot:
        """Packs the volume into the store while whoever uses it goes on. The same files make no second archive."""
        self._inspect(name)  # a container that names a volume would make it
        with closing(volume_chunks(self._engine, name, made_by, self._tar_image)) as chunks:
            stored = self._store.keep(made_by.object_name, chunks, rules)
        return EngineSnapshot(
            method=VOLUME_METHOD, reference_kind="tar", reference_id=stored.digest, size_bytes=stored.size_bytes
        )

    def restore(
        self, digest: str, made_by: MadeBy, *, name: str | None = None, rules: ArchiveRules = FOREIGN_ARCHIVE
    ) -> RestoredObject:
        """A new volume with the files of a stored archive. `OWN_ARCHIVE` as rules brings back what a stranger's archive
        must not hold, and is meant for snapshots that were taken here."""
        name = checked_name(name or made_by.object_name, "volume")
        with self._store.opened(digest, rules) as (entries, file):
            if self._is_restored(name, digest, made_by):
                return RestoredObject(kind=ResourceKind.DOCKER_VOLUME, id=name, name=name, is_new=False)
            self._mark(made_by)
            try:
                self._create(name, digest, made_by, _owner_of_top(entries))
                write_volume(self._engine, name, entries, file, made_by)
            except WeftError:
                self._remove_unfinished(made_by)
                raise
            self._remove_containers(made_by)
        return RestoredObject(kind=ResourceKind.DOCKER_VOLUME, id=name, name=name, is_new=True)

    def remove(self, name: str) -> bool:
        """Whether it was there. The engine refuses while a container uses it."""
        return removed(self._engine, volume_path(name), ResourceKind.DOCKER_VOLUME, name, {})

    def _inspect(self, name: str) -> Any:
        return self._engine.call(
            "GET", volume_path(name), asked=f"describe the volume {name}", about=About("volume", name)
        )

    def _left_by(self, made_by: MadeBy) -> tuple[MadeObject, ...]:
        return list_made_by(self._engine, resource=made_by.resource, operation=made_by.operation)

    def _is_restored(self, name: str, digest: str, made_by: MadeBy) -> bool:
        """Whether this operation has made its volume before. What it left unfinished is removed."""
        left = self._left_by(made_by)
        if any(made.role == MadeRole.MARKER for made in left):
            self._remove_unfinished(made_by)
            return False
        volumes = [made.name for made in left if made.kind is ResourceKind.DOCKER_VOLUME]
        if not volumes:
            return False
        if volumes != [name] or self._inspect(name)["Labels"].get(DIGEST_LABEL) != digest:
            raise KeyTaken(made_by.operation)
        return True

    def _remove_containers(self, made_by: MadeBy) -> None:
        """The marker last."""
        for made in sorted(self._left_by(made_by), key=lambda made: made.role == MadeRole.MARKER):
            if made.kind is ResourceKind.DOCKER_CONTAINER:
                remove_made(self._engine, made)

    def _remove_unfinished(self, made_by: MadeBy) -> None:
        """The volume and whatever holds it, then the marker that tells of it."""
        left = self._left_by(made_by)
        for made in left:
            if made.kind is ResourceKind.DOCKER_CONTAINER and made.role != MadeRole.MARKER:
                remove_made(self._engine, made)
        for made in left:
            if made.kind is ResourceKind.DOCKER_VOLUME:
                remove_made(self._engine, made)
        self._remove_containers(made_by)

    def _mark(self, made_by: MadeBy) -> None:
        body = {
            "Image": ensure_empty_image(self._engine),
            "Cmd": ["none"],
            "Labels": made_by.labels(MadeRole.MARKER),
            "HostConfig": {"NetworkMode": "none", "Ulimits": ulimits()},
        }
        self._engine.call("POST", "/containers/create", asked="mark a restore", body=body)

    def _create(self, name: str, digest: str, made_by: MadeBy, owner: tuple[int, int]) -> None:
        if self.probe(name) is ResourceLiveness.ALIVE:
            raise LabelTaken(name, "a volume of this engine")
        labels = made_by.labels() | {DIGEST_LABEL: digest}
        if make_volume(self._engine, name, labels, owner) != labels:  # somebody else has made it meanwhile
            raise LabelTaken(name, "a volume of this engine")


def _owner_of_top(entries: tuple[ArchiveEntry, ...]) -> tuple[int, int]:
    return (entries[0].uid, entries[0].gid) if entries and not entries[0].path else (0, 0)
