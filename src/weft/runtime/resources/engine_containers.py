"""Containers as resources: a snapshot is an image of the files, a restore a new container of it.

Each part is told with what can be done with it. A checkpoint keeps the state of the processes where
the engine can.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from weft.kernel.enums import (
    ResourceCapability,
    ResourceKind,
    ResourceLiveness,
    SnapshotConsistency,
    SubresourcePart,
    VolumeMode,
)
from weft.kernel.errors import (
    EngineObjectMissing,
    EngineRefused,
    EngineUnreachable,
    InvalidInput,
    Unsupported,
    WeftError,
)
from weft.kernel.foreign_input import GIB
from weft.runtime.resources.container_engine import (
    PODMAN_API,
    SNAPSHOT_IMAGE,
    ContainerEngine,
    EngineSubject,
    MadeBy,
    MadeRole,
    checked_name,
    container_path,
    list_made_by,
    volume_path,
)
from weft.runtime.resources.engine_volumes import (
    VOLUME_CAPABILITIES,
    ContainerPart,
    EngineSnapshot,
    ResourceDescription,
    RestoredObject,
    checked_image_id,
    ensure_empty_image,
    inspect_image,
    remove_container,
    temporary_container,
    ulimits,
)
from weft.runtime.resources.tar_archives import OWN_ARCHIVE, ArchiveStore, archive_chunks

# --- The parts of a container, each with what can be done with it and what a fork best does; and what is not carried
# over.

FILE_CAPABILITIES = (ResourceCapability.SNAPSHOT, ResourceCapability.RESTORE, ResourceCapability.FORK)
_NAMESPACES = {
    "NetworkMode": "network",
    "PidMode": "processes",
    "IpcMode": "memory",
    "UTSMode": "name",
    "UsernsMode": "users",
}
_RIGHTS = {
    "CapAdd": "added capabilities",
    "Devices": "devices",
    "DeviceRequests": "devices",
    "SecurityOpt": "security options",
    "GroupAdd": "added groups",
    "VolumesFrom": "volumes of other containers",
    "Links": "links to other containers",
    "ExtraHosts": "host names",
    "Sysctls": "kernel settings",
}


def parts_of(container: Any) -> tuple[ContainerPart, ...]:
    """Its file system, whatever is mounted in it, and its network."""
    return (_file_system(container), *_mounted_parts(container), _network_part(container))


def _file_system(container: Any) -> ContainerPart:
    return ContainerPart(
        part=SubresourcePart.FILE_SYSTEM,
        name=str(container["Id"]),
        mount="/",
        kind=ResourceKind.DOCKER_IMAGE,
        capabilities=FILE_CAPABILITIES,
        is_read_only=bool(container["HostConfig"].get("ReadonlyRootfs")),
        proposed=VolumeMode.SNAPSHOT,
        reason="it is committed to an image",
    )


def _mounted_parts(container: Any) -> Iterator[ContainerPart]:
    for mount in sorted(container.get("Mounts") or (), key=lambda mount: str(mount.get("Destination", ""))):
        path, is_read_only = str(mount.get("Destination", "")), not mount.get("RW", True)
        if mount.get("Type") == "volume":
            yield ContainerPart(
                part=SubresourcePart.VOLUME,
                name=str(mount.get("Name", "")),
                mount=path,
                is_read_only=is_read_only,
                kind=ResourceKind.DOCKER_VOLUME,
                capabilities=VOLUME_CAPABILITIES,
                proposed=VolumeMode.KEEP if is_read_only else VolumeMode.SNAPSHOT,
                reason="it is only read, and can be shared" if is_read_only else "it is packed as an archive",
            )
        elif mount.get("Type") == "bind":
            yield ContainerPart(
                part=SubresourcePart.VOLUME,
                name=str(mount.get("Source", "")),
                mount=path,
                is_read_only=is_read_only,
                kind=ResourceKind.DIRECTORY,
                proposed=VolumeMode.KEEP,
                reason="it is a folder of the host: a resource of its own, if it is one",
            )
    for path in sorted(container["HostConfig"].get("Tmpfs") or {}):
        yield ContainerPart(
            part=SubresourcePart.VOLUME,
            name=str(path),
            mount=str(path),
            imperative=True,
            proposed=VolumeMode.DISCARD,
            reason="it is in memory alone",
        )


def _network_part(container: Any) -> ContainerPart:
    networks = _network_names(container)
    return ContainerPart(
        part=SubresourcePart.NETWORK,
        name=", ".join(networks) or str(container["HostConfig"].get("NetworkMode", "")),
        imperative=True,
        proposed=VolumeMode.DISCARD,
        reason="connections cannot be kept; a new container has no network unless one is named",
    )


def _network_names(container: Any) -> list[str]:
    return sorted(name for name in container.get("NetworkSettings", {}).get("Networks") or {} if name != "none")


def not_carried_over(container: Any) -> Iterator[str]:
    """What a container has, in words, and a restored one has not."""
    host = container["HostConfig"]
    if host.get("Privileged"):
        yield "privileged"
    for field, words in _RIGHTS.items():
        if host.get(field):
            yield words
    for field, words in _NAMESPACES.items():
        mode = str(host.get(field) or "")
        if mode == "host" or mode.startswith(("container:", "ns:")):
            yield f"{words} of the host or of another container"
    if host.get("PortBindings") or host.get("PublishAllPorts"):
        yield "ports"
    if str((host.get("RestartPolicy") or {}).get("Name") or "no") != "no":
        yield "restart policy"
    if any(mount.get("Type") == "bind" for mount in container.get("Mounts") or ()):
        yield "folders of the host"
    if _network_names(container):
        yield "networks"


# --- Checkpoints: the state of a container's processes, with their files, where the engine can keep it (by CRIU).

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
            about=EngineSubject("container", name),
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
                about=EngineSubject("checkpoint", checkpoint),
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
        path, about = f"{container_path(name)}/json", EngineSubject("container", name)
        return self._engine.call("GET", path, asked=f"describe the container {name}", about=about)

    def _take_archive(self, container: str, made_by: MadeBy) -> EngineSnapshot:
        chunks = self._engine.transfer(
            f"{PODMAN_API}{container_path(container)}/checkpoint",
            method="POST",
            asked=f"checkpoint the container {container[:12]}",
            about=EngineSubject("container", container),
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
            about=EngineSubject("container", container),
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


# --- Containers as resources: a snapshot is an image of the file system, a restore a new container of that image.

COMMIT_METHOD = "oci_commit"
_HOST_NETWORKS = ("host", "default")


class ContainerSettings(Struct, frozen=True, kw_only=True):
    """What a new container takes over of another; 0 is no limit of its own."""

    memory_bytes: int = 0
    nano_cpus: int = 0
    processes: int = 0
    has_terminal: bool = False
    keeps_stdin_open: bool = False
    has_read_only_files: bool = False


class ContainerLimits(Struct, frozen=True, kw_only=True):
    """The most that a restored container may take, whatever its description says."""

    memory_bytes: int = 2 * GIB
    nano_cpus: int = 2 * 10**9
    processes: int = 512


class VolumeMount(Struct, frozen=True, kw_only=True):
    volume: str
    is_read_only: bool = False


class DockerContainers:
    """With `checkpoints` a description says whether the engine makes them."""

    def __init__(
        self,
        engine: ContainerEngine,
        *,
        checkpoints: ContainerCheckpoints | None = None,
        limits: ContainerLimits | None = None,
    ) -> None:
        self._engine, self._checkpoints, self._limits = engine, checkpoints, limits or ContainerLimits()

    def describe(self, name: str) -> ResourceDescription:
        """What it is and of which parts. Its variables and its command stay away: they may hold keys."""
        container = self._inspect(name)
        capabilities = [ResourceCapability.SNAPSHOT, ResourceCapability.RESTORE, ResourceCapability.FORK]
        if self._checkpoints is not None and self._checkpoints.is_available():
            capabilities.append(ResourceCapability.CHECKPOINT)
        return ResourceDescription(
            kind=ResourceKind.DOCKER_CONTAINER,
            name=str(container["Name"]).lstrip("/"),
            id=str(container["Id"]),
            capabilities=tuple(capabilities),
            metadata={
                "image": str(container["Config"].get("Image", "")),
                "image_id": str(container["Image"]),
                "state": str(container["State"].get("Status", "")),
                "settings": asdict(_settings_of(container)),
                "not_carried_over": list(not_carried_over(container)),
            },
            parts=parts_of(container),
        )

    def settings(self, name: str) -> ContainerSettings:
        """What a restore would take over of it."""
        return _settings_of(self._inspect(name))

    def probe(self, name: str) -> ResourceLiveness:
        """Alive while it runs; one that has ended is dead."""
        try:
            state = self._inspect(name)["State"]
        except EngineObjectMissing:
            return ResourceLiveness.DEAD
        except EngineUnreachable:
            return ResourceLiveness.UNKNOWN
        return ResourceLiveness.ALIVE if state.get("Running") or state.get("Paused") else ResourceLiveness.DEAD

    def snapshot(self, name: str, made_by: MadeBy) -> EngineSnapshot:
        """Commits its file system to an image; it stands still meanwhile. Its volumes are snapshots of their own."""
        about = EngineSubject("container", name)
        container = self._inspect(name)["Id"]
        try:
            image = inspect_image(self._engine, made_by.image_tag)
        except EngineObjectMissing:
            changes = "\n".join(f"LABEL {label}={value}" for label, value in made_by.image_labels.items())
            self._engine.call(
                "POST",
                "/commit",
                asked=f"commit the container {name}",
                about=about,
                query={
                    "container": container,
                    "repo": SNAPSHOT_IMAGE,
                    "tag": made_by.object_name,
                    "pause": "true",
                    "changes": changes,
                },
                body={},
                seconds=self._engine.limits.transfer_seconds,
            )
            image = inspect_image(self._engine, made_by.image_tag)
        return EngineSnapshot(
            method=COMMIT_METHOD,
            reference_kind="image",
            reference_id=str(image["Id"]),
            size_bytes=int(image.get("Size") or 0),
        )

    def restore(
        self,
        image_id: str,
        made_by: MadeBy,
        settings: ContainerSettings,
        *,
        volumes: Mapping[str, VolumeMount] | None = None,
        network: str | None = None,
        start: bool = True,
    ) -> RestoredObject:
        """A new container of a committed image, without network unless one is named. `volumes` are by their path."""
        checked_image_id(image_id)
        mounts = [self._mount_fields(path, mount) for path, mount in sorted((volumes or {}).items())]
        network = _checked_network(network)
        container, is_new = self._made_before(made_by), False
        if container is None:
            inspect_image(self._engine, image_id)
            body = self._creation_body(image_id, made_by, settings, mounts, network)
            container, is_new = self._create_container(made_by.object_name, body), True
        if start and (is_new or self._inspect(container)["State"].get("Status") == "created"):
            self._start_container(container)
        return RestoredObject(kind=ResourceKind.DOCKER_CONTAINER, id=container, name=made_by.object_name, is_new=is_new)

    def remove(self, name: str) -> bool:
        """Removes it, also while it runs, with the volumes that have no name. Whether it was there."""
        return remove_container(self._engine, name)

    def _inspect(self, name: str) -> Any:
        return self._engine.call(
            "GET",
            f"{container_path(name)}/json",
            asked=f"describe the container {name}",
            about=EngineSubject("container", name),
        )

    def _mount_fields(self, path: str, mount: VolumeMount) -> dict[str, object]:
        if not path.startswith("/") or "\0" in path or path == "/" or ".." in path.split("/"):
            raise InvalidInput(f"{path!r} is no path for a volume in a container")
        about = EngineSubject("volume", mount.volume)
        self._engine.call("GET", volume_path(mount.volume), asked="describe a volume", about=about)
        return {"Type": "volume", "Source": mount.volume, "Target": path, "ReadOnly": mount.is_read_only}

    def _made_before(self, made_by: MadeBy) -> str | None:
        left = list_made_by(self._engine, resource=made_by.resource, operation=made_by.operation)
        for made in left:
            if made.kind is ResourceKind.DOCKER_CONTAINER and made.role == MadeRole.RESULT:
                return made.id
        return None

    def _create_container(self, name: str, body: dict[str, object]) -> str:
        answer = self._engine.call(
            "POST", "/containers/create", asked=f"make the container {name}", query={"name": name}, body=body
        )
        return str(answer["Id"])

    def _start_container(self, container: str) -> None:
        try:
            self._engine.call(
                "POST",
                f"{container_path(container)}/start",
                asked=f"start the container {container[:12]}",
                about=EngineSubject("container", container),
            )
        except WeftError:
            remove_container(self._engine, container)
            raise

    def _creation_body(
        self,
        image_id: str,
        made_by: MadeBy,
        settings: ContainerSettings,
        mounts: list[dict[str, object]],
        network: str,
    ) -> dict[str, object]:
        most = self._limits
        memory = _at_most(settings.memory_bytes, most.memory_bytes)
        return {
            "Image": image_id,
            "Labels": made_by.labels(),
            "Tty": settings.has_terminal,
            "OpenStdin": settings.keeps_stdin_open,
            "HostConfig": {
                "NetworkMode": network,
                "Mounts": mounts,
                "Memory": memory,
                "MemorySwap": memory,
                "NanoCpus": _at_most(settings.nano_cpus, most.nano_cpus),
                "PidsLimit": _at_most(settings.processes, most.processes),
                "Ulimits": ulimits(),
                "ReadonlyRootfs": settings.has_read_only_files,
                "SecurityOpt": ["no-new-privileges"],
                "Privileged": False,
                "PublishAllPorts": False,
            },
        }


def _settings_of(container: Any) -> ContainerSettings:
    host, config = container["HostConfig"], container["Config"]
    return ContainerSettings(
        memory_bytes=max(int(host.get("Memory") or 0), 0),
        nano_cpus=max(int(host.get("NanoCpus") or 0), 0),
        processes=max(int(host.get("PidsLimit") or 0), 0),
        has_terminal=bool(config.get("Tty")),
        keeps_stdin_open=bool(config.get("OpenStdin")),
        has_read_only_files=bool(host.get("ReadonlyRootfs")),
    )


def _at_most(wanted: int, most: int) -> int:
    return min(wanted, most) if wanted > 0 else most


def _checked_network(name: str | None) -> str:
    if name is None:
        return "none"
    if name in _HOST_NETWORKS:
        raise InvalidInput(f"a restored container is not given the network {name!r}", "name a network of the engine")
    return checked_name(name, "network")
