"""Containers as resources: a snapshot is an image of the file system, a restore a new container of that image.

What a description carries over to a new container is `ContainerSettings` and nothing else: limits, and whether it has a
terminal. Command, user, folder and variables are in the image. Ports, networks, devices, added rights, namespaces and
folders of the host and restart rules are not carried over; the description names them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from weft.kernel.enums import ResourceCapability, ResourceKind, ResourceLiveness
from weft.kernel.errors import (
    EngineObjectMissing,
    EngineUnreachable,
    InvalidInput,
    WeftError,
)
from weft.kernel.foreign_input import GIB
from weft.runtime.resources.docker.checkpoints import ContainerCheckpoints
from weft.runtime.resources.docker.container_parts import not_carried_over, parts_of
from weft.runtime.resources.docker.copying import (
    remove_container,
    ulimits,
)
from weft.runtime.resources.docker.descriptions import EngineSnapshot, ResourceDescription, RestoredObject
from weft.runtime.resources.docker.engine import (
    About,
    ContainerEngine,
    checked_name,
    container_path,
    volume_path,
)
from weft.runtime.resources.docker.engine_labels import (
    SNAPSHOT_IMAGE,
    MadeBy,
    MadeRole,
    list_made_by,
)
from weft.runtime.resources.docker.images import checked_image_id, inspect_image

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
        about = About("container", name)
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
        mounts = [self._mount(path, mount) for path, mount in sorted((volumes or {}).items())]
        network = _checked_network(network)
        container, is_new = self._made_before(made_by), False
        if container is None:
            inspect_image(self._engine, image_id)
            body = self._body(image_id, made_by, settings, mounts, network)
            container, is_new = self._create(made_by.object_name, body), True
        if start and (is_new or self._inspect(container)["State"].get("Status") == "created"):
            self._start(container)
        return RestoredObject(kind=ResourceKind.DOCKER_CONTAINER, id=container, name=made_by.object_name, is_new=is_new)

    def remove(self, name: str) -> bool:
        """Removes it, also while it runs, with the volumes that have no name. Whether it was there."""
        return remove_container(self._engine, name)

    def _inspect(self, name: str) -> Any:
        return self._engine.call(
            "GET",
            f"{container_path(name)}/json",
            asked=f"describe the container {name}",
            about=About("container", name),
        )

    def _mount(self, path: str, mount: VolumeMount) -> dict[str, object]:
        if not path.startswith("/") or "\0" in path or path == "/" or ".." in path.split("/"):
            raise InvalidInput(f"{path!r} is no path for a volume in a container")
        about = About("volume", mount.volume)
        self._engine.call("GET", volume_path(mount.volume), asked="describe a volume", about=about)
        return {"Type": "volume", "Source": mount.volume, "Target": path, "ReadOnly": mount.is_read_only}

    def _made_before(self, made_by: MadeBy) -> str | None:
        left = list_made_by(self._engine, resource=made_by.resource, operation=made_by.operation)
        for made in left:
            if made.kind is ResourceKind.DOCKER_CONTAINER and made.role == MadeRole.RESULT:
                return made.id
        return None

    def _create(self, name: str, body: dict[str, object]) -> str:
        answer = self._engine.call(
            "POST", "/containers/create", asked=f"make the container {name}", query={"name": name}, body=body
        )
        return str(answer["Id"])

    def _start(self, container: str) -> None:
        try:
            self._engine.call(
                "POST",
                f"{container_path(container)}/start",
                asked=f"start the container {container[:12]}",
                about=About("container", container),
            )
        except WeftError:
            remove_container(self._engine, container)
            raise

    def _body(
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
