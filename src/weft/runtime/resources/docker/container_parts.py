"""The parts of a container, each with what can be done with it and what a fork best does; and what is not carried over.

Pure functions of what an engine says of a container.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from weft.kernel.enums import ResourceCapability, ResourceKind, SubresourcePart, VolumeMode
from weft.runtime.resources.docker.descriptions import ContainerPart
from weft.runtime.resources.docker.volumes import VOLUME_CAPABILITIES

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
    return (_file_system(container), *_mounts(container), _network(container))


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


def _mounts(container: Any) -> Iterator[ContainerPart]:
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


def _network(container: Any) -> ContainerPart:
    networks = _networks(container)
    return ContainerPart(
        part=SubresourcePart.NETWORK,
        name=", ".join(networks) or str(container["HostConfig"].get("NetworkMode", "")),
        imperative=True,
        proposed=VolumeMode.DISCARD,
        reason="connections cannot be kept; a new container has no network unless one is named",
    )


def _networks(container: Any) -> list[str]:
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
    if _networks(container):
        yield "networks"
