"""The labels by which whatever Weft made in an engine is found again, and the list of it.

An operation has a key, and everything that it makes carries the key: an operation that is repeated after a crash finds
what it made before, and what nobody repeats can be listed and removed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from enum import StrEnum
from itertools import chain

import msgspec
from msgspec import Struct

from weft.kernel.enums import ResourceKind
from weft.kernel.errors import EngineObjectMissing, EngineRefused, InvalidInput
from weft.runtime.resources.docker.engine import About, ContainerEngine, container_path, image_path, volume_path

RESOURCE_LABEL, OPERATION_LABEL, ROLE_LABEL = "weft.resource", "weft.operation", "weft.role"
SNAPSHOT_IMAGE = "weft.local/snapshot"
"""Images that Weft made, or keeps from being swept away, have a tag of this name."""
_OF_IMAGE = "-of-image"
_OBJECT_NAME = re.compile(r"weft-[0-9a-f]{32}\Z")
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@/-]{0,199}\Z")


class MadeRole(StrEnum):
    """What an object of the engine was made for."""

    RESULT = "result"
    """What the operation is there for: a restored volume or container, a committed image."""
    MARKER = "marker"
    """A container that is never started: as long as it is there, the result is unfinished."""
    COPIER = "copier"
    """A container through which an archive is read or written."""


class MadeBy(Struct, frozen=True):
    """For which resource something is made, and by which operation."""

    resource: str
    operation: str

    def __post_init__(self) -> None:
        for value in (self.resource, self.operation):
            if not _WORD.match(value):
                raise InvalidInput(f"{value!r} cannot be a label: letters, digits and _.:@/- alone, at most 200")

    def labels(self, role: MadeRole = MadeRole.RESULT) -> dict[str, str]:
        return {RESOURCE_LABEL: self.resource, OPERATION_LABEL: self.operation, ROLE_LABEL: role.value}

    @property
    def image_labels(self) -> dict[str, str]:
        """Under other names than those of containers, which have the labels of their image too."""
        return {f"{RESOURCE_LABEL}{_OF_IMAGE}": self.resource, f"{OPERATION_LABEL}{_OF_IMAGE}": self.operation}

    @property
    def image_tag(self) -> str:
        return f"{SNAPSHOT_IMAGE}:{self.object_name}"

    @property
    def object_name(self) -> str:
        """A name for what it makes, the same at each try."""
        return _object_name(self.resource, self.operation)


class MadeObject(Struct, frozen=True, kw_only=True):
    """Something in the engine that carries Weft's labels."""

    kind: ResourceKind
    id: str
    name: str
    role: str
    resource: str
    operation: str


def list_made_by(
    engine: ContainerEngine, *, resource: str | None = None, operation: str | None = None
) -> tuple[MadeObject, ...]:
    """What an operation, or any for a resource, has left in the engine: containers first, which hold the others."""
    for value in (resource, operation):
        if value is not None:
            MadeBy(value, value)
    listed = (_containers(engine, resource, operation), _volumes(engine), _images(engine, resource, operation))
    return tuple(
        made
        for made in chain.from_iterable(listed)
        if resource in (None, made.resource) and operation in (None, made.operation)
    )


def remove_made(engine: ContainerEngine, made: MadeObject) -> bool:
    """Removes it, a container also while it runs, an image by Weft's name for it. Whether it was there."""
    paths = {
        ResourceKind.DOCKER_CONTAINER: container_path,
        ResourceKind.DOCKER_VOLUME: volume_path,
        ResourceKind.DOCKER_IMAGE: image_path,
    }
    name = made.name if made.kind is ResourceKind.DOCKER_IMAGE else made.id
    query = {"force": "true", "v": "true"} if made.kind is ResourceKind.DOCKER_CONTAINER else {}
    return removed(engine, paths[made.kind](name), made.kind, name, query)


def removed(engine: ContainerEngine, path: str, kind: ResourceKind, name: str, query: dict[str, str]) -> bool:
    what = kind.value.removeprefix("docker_")
    try:
        engine.call("DELETE", path, asked=f"remove the {what} {name}", about=About(what, name), query=query)
    except EngineObjectMissing:
        return False
    except EngineRefused as error:
        if kind is ResourceKind.DOCKER_CONTAINER and error.status == 409 and "already in progress" in error.reason:
            return True
        raise
    return True


def _made(kind: ResourceKind, id: str, name: str, labels: dict[str, str] | None) -> MadeObject:
    known = labels or {}
    return MadeObject(
        kind=kind,
        id=id,
        name=name,
        role=known.get(ROLE_LABEL, ""),
        resource=known.get(RESOURCE_LABEL, ""),
        operation=known.get(OPERATION_LABEL, ""),
    )


def _containers(engine: ContainerEngine, resource: str | None, operation: str | None) -> Iterator[MadeObject]:
    """Results by their name: a container that was copied has the labels of the first one."""
    for item in engine.call("GET", "/containers/json", asked="list containers", query={"all": "true"}) or ():
        name = (item.get("Names") or [""])[0].lstrip("/")
        made = _made(ResourceKind.DOCKER_CONTAINER, item["Id"], name, item.get("Labels"))
        if made.role not in (MadeRole.MARKER, MadeRole.COPIER):
            if not _OBJECT_NAME.match(name):
                continue
            made = _by_name(made, name, resource, operation)
        yield made


def _by_name(made: MadeObject, object_name: str, resource: str | None, operation: str | None) -> MadeObject:
    """Whose result it is by its name, if that can be told."""
    for owner in ((made.resource, made.operation), (resource, operation)):
        if all(owner) and _object_name(*map(str, owner)) == object_name:
            return msgspec.structs.replace(made, role=MadeRole.RESULT, resource=str(owner[0]), operation=str(owner[1]))
    return msgspec.structs.replace(made, role=MadeRole.RESULT, resource="", operation="")


def _volumes(engine: ContainerEngine) -> Iterator[MadeObject]:
    """By one label: of several, some engines take the volumes that have any of them."""
    filters = msgspec.json.encode({"label": [OPERATION_LABEL]}).decode()
    listed = engine.call("GET", "/volumes", asked="list volumes", query={"filters": filters}) or {}
    for item in listed.get("Volumes") or ():
        yield _made(ResourceKind.DOCKER_VOLUME, item["Name"], item["Name"], item.get("Labels"))


def _images(engine: ContainerEngine, resource: str | None, operation: str | None) -> Iterator[MadeObject]:
    """By their tag: labels of an image also stand on the images and containers that others make of it."""
    for item in engine.call("GET", "/images/json", asked="list images") or ():
        labels = item.get("Labels") or {}
        own_labels = {label: str(labels.get(f"{label}{_OF_IMAGE}", "")) for label in (RESOURCE_LABEL, OPERATION_LABEL)}
        for tag in item.get("RepoTags") or ():
            if tag.startswith(f"{SNAPSHOT_IMAGE}:"):
                made = _made(ResourceKind.DOCKER_IMAGE, item["Id"], tag, own_labels)
                yield _by_name(made, tag.removeprefix(f"{SNAPSHOT_IMAGE}:"), resource, operation)


def _object_name(resource: str, operation: str) -> str:
    digest = hashlib.sha256(msgspec.json.encode([resource, operation])).hexdigest()
    return f"weft-{digest[:32]}"
