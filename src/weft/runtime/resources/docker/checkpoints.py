"""Checkpoints: the state of a container's processes, with their files, where the engine can keep it (by CRIU).

Podman hands a checkpoint out as an archive, of which a new container is made that goes on where the first one was: a
fork of what runs. Such an archive holds a container's whole configuration, so only those that were made here are
restored: they lie in a folder of their own, and containers with rights, ports, networks or volumes that a copy must not
share are refused. Docker keeps a checkpoint beside its container, which alone goes on from it.
"""

from __future__ import annotations

from contextlib import closing
from typing import Any

from weft.kernel.enums import ResourceKind, SnapshotConsistency
from weft.kernel.errors import EngineObjectMissing, EngineRefused, InvalidInput, Unsupported, WeftError
from weft.runtime.resources.docker.archive_entries import OWN_ARCHIVE
from weft.runtime.resources.docker.archive_store import ArchiveStore
from weft.runtime.resources.docker.container_parts import not_carried_over
from weft.runtime.resources.docker.copying import ensure_empty_image, remove_container, temporary_container, ulimits
from weft.runtime.resources.docker.descriptions import EngineSnapshot, RestoredObject
from weft.runtime.resources.docker.engine import PODMAN_API, About, ContainerEngine, checked_name, container_path
from weft.runtime.resources.docker.engine_labels import MadeBy, MadeRole
from weft.runtime.resources.docker.tar_writer import archive_chunks

CHECKPOINT_METHOD = "app_checkpoint"
IN_STORE, IN_ENGINE = "checkpoint_tar", "checkpoint"
"""Where a checkpoint is: an archive of the store, or the engine, beside its container."""
_INSTEAD = "take a snapshot of its files instead"


class ContainerCheckpoints:
    """Keeps archives in a folder within that of the store."""

    def __init__(self, engine: ContainerEngine, store: ArchiveStore) -> None:
        self._engine, self._store = engine, ArchiveStore(store.folder / "checkpoints")
        self._is_available: bool | None = None

    def is_available(self) -> bool:
        """Whether the engine makes checkpoints; found out once, with a container of its own."""
        if self._is_available is None:
            self._is_available = self._engine.facts().offers_checkpoints and self._has_criu()
        return self._is_available

    def take(self, name: str, made_by: MadeBy) -> EngineSnapshot:
        """Keeps the state of a running container, which runs on. Raises Unsupported where that cannot be."""
        container = self._inspect(name)
        self._ensure_available()
        if self._is_podman:
            _check_alone(container)
            return self._take_archive(str(container["Id"]), made_by)
        path = f"{container_path(str(container['Id']))}/checkpoints"
        self._engine.call(
            "POST",
            path,
            asked=f"checkpoint the container {name}",
            about=About("container", name),
            body={"CheckpointID": made_by.object_name, "Exit": False},
            seconds=self._engine.limits.transfer_seconds,
        )
        return EngineSnapshot(
            method=CHECKPOINT_METHOD,
            reference_kind=IN_ENGINE,
            reference_id=f"{container['Id']}/{made_by.object_name}",
            size_bytes=0,
        )

    def restore(self, reference_kind: str, reference_id: str, made_by: MadeBy) -> RestoredObject:
        """Lets processes go on where a checkpoint was taken: in a new container, or with Docker in the stopped one."""
        self._ensure_available()
        if reference_kind == IN_STORE and self._is_podman:
            return self._restore_archive(reference_id, made_by)
        if reference_kind == IN_ENGINE and not self._is_podman:
            return self._restore_in_place(reference_id)
        raise Unsupported(f"this engine restores no {reference_kind!r}", "restore it with the engine that made it")

    def has(self, reference_id: str) -> bool:
        """Whether an archive is in the store."""
        return self._store.has(reference_id)

    def remove(self, reference_kind: str, reference_id: str) -> bool:
        """Removes what was kept. Whether it was there."""
        if reference_kind == IN_STORE:
            return self._store.remove(reference_id)
        container, checkpoint = _in_engine(reference_id)
        try:
            self._engine.call(
                "DELETE",
                f"{container_path(container)}/checkpoints/{checkpoint}",
                asked="remove a checkpoint",
                about=About("checkpoint", checkpoint),
            )
        except EngineObjectMissing:
            return False
        except EngineRefused as error:
            if "does not exist" not in error.reason:
                raise
            return False
        return True

    @property
    def _is_podman(self) -> bool:
        return self._engine.facts().product == "podman"

    def _ensure_available(self) -> None:
        if not self.is_available():
            raise Unsupported("this container engine makes no checkpoints", _INSTEAD)

    def _inspect(self, name: str) -> Any:
        path, about = f"{container_path(name)}/json", About("container", name)
        return self._engine.call("GET", path, asked=f"describe the container {name}", about=about)

    def _take_archive(self, container: str, made_by: MadeBy) -> EngineSnapshot:
        chunks = self._engine.transfer(
            f"{PODMAN_API}{container_path(container)}/checkpoint",
            method="POST",
            asked=f"checkpoint the container {container[:12]}",
            about=About("container", container),
            query={"export": "true", "leaveRunning": "true"},
        )
        with closing(chunks):
            stored = self._store.keep(made_by.object_name, chunks, OWN_ARCHIVE)
        return EngineSnapshot(
            method=CHECKPOINT_METHOD,
            reference_kind=IN_STORE,
            reference_id=stored.digest,
            size_bytes=stored.size_bytes,
            consistency=SnapshotConsistency.APP_CONSISTENT,
        )

    def _restore_archive(self, digest: str, made_by: MadeBy) -> RestoredObject:
        """The engine makes the container and starts it in one call, under a name that tells of the operation."""
        name = made_by.object_name
        try:
            made = self._inspect(name)
            return RestoredObject(kind=ResourceKind.DOCKER_CONTAINER, id=str(made["Id"]), name=name, is_new=False)
        except EngineObjectMissing:
            pass
        with self._store.opened(digest, OWN_ARCHIVE) as (entries, file):
            try:
                answer = self._engine.call(
                    "POST",
                    f"{PODMAN_API}/containers/import/restore",
                    asked="restore a checkpoint",
                    query={"import": "true", "name": name},
                    data=archive_chunks(entries, file),
                    seconds=self._engine.limits.transfer_seconds,
                )
            except WeftError:
                remove_container(self._engine, name)
                raise
        return RestoredObject(kind=ResourceKind.DOCKER_CONTAINER, id=str(answer["Id"]), name=name, is_new=True)

    def _restore_in_place(self, reference_id: str) -> RestoredObject:
        container, checkpoint = _in_engine(reference_id)
        name = str(self._inspect(container)["Name"]).lstrip("/")
        self._engine.call(
            "POST",
            f"{container_path(container)}/start",
            asked=f"restore the container {name}",
            about=About("container", container),
            query={"checkpoint": checkpoint},
            seconds=self._engine.limits.transfer_seconds,
        )
        return RestoredObject(kind=ResourceKind.DOCKER_CONTAINER, id=container, name=name, is_new=False)

    def _has_criu(self) -> bool:
        """Podman says that CRIU is missing before it says that a container does not run; Docker says it too late."""
        if not self._is_podman:
            return True
        body: dict[str, object] = {
            "Image": ensure_empty_image(self._engine),
            "Cmd": ["none"],
            "Labels": MadeBy("engine", "can-checkpoint").labels(MadeRole.COPIER),
            "HostConfig": {"NetworkMode": "none", "Ulimits": ulimits()},
        }
        asked = "say whether it makes checkpoints"
        with temporary_container(self._engine, body, asked) as container:
            try:
                self._engine.call("POST", f"{PODMAN_API}{container_path(container)}/checkpoint", asked=asked)
            except EngineRefused as error:
                return "CRIU" not in error.reason.upper() and error.status != 404
        return True


def _check_alone(container: Any) -> None:
    """A copy of it would have everything that it has, and would share its volumes."""
    shared = [*not_carried_over(container)]
    shared += ["volumes"] if any(mount.get("Type") == "volume" for mount in container.get("Mounts") or ()) else []
    if shared:
        raise Unsupported(f"no checkpoint is made of a container with {', '.join(shared)}", _INSTEAD)


def _in_engine(reference_id: str) -> tuple[str, str]:
    container, slash, checkpoint = reference_id.partition("/")
    if not slash:
        raise InvalidInput(f"{reference_id!r} is no checkpoint of an engine")
    return checked_name(container, "container"), checked_name(checkpoint, "checkpoint")
