"""Volumes and images of a container engine as resources.

A snapshot of a volume is a tar archive, an image is its id. Files go in and out through containers
that are never started.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from io import BytesIO
from itertools import islice
from typing import Any, BinaryIO

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from weft.kernel.enums import (
    ResourceCapability,
    ResourceKind,
    ResourceLiveness,
    SnapshotConsistency,
    SubresourcePart,
    VolumeMode,
)
from weft.kernel.errors import (
    ArchiveRefused,
    EngineObjectMissing,
    EngineRefused,
    EngineUnreachable,
    InvalidInput,
    KeyTaken,
    LabelTaken,
    Unsupported,
    WeftError,
)
from weft.kernel.foreign_input import MIB
from weft.runtime.ledger_port import ensure_held
from weft.runtime.resources.container_engine import (
    PODMAN_API,
    ROLE_LABEL,
    SNAPSHOT_IMAGE,
    STDOUT,
    ContainerEngine,
    EngineSubject,
    MadeBy,
    MadeObject,
    MadeRole,
    checked_name,
    container_path,
    frames,
    image_path,
    list_made_by,
    remove_made,
    removed,
    volume_path,
)
from weft.runtime.resources.tar_archives import (
    FOREIGN_ARCHIVE,
    IMAGE_ARCHIVE,
    OWN_ARCHIVE,
    ArchiveEntry,
    ArchiveEntryKind,
    ArchiveRules,
    ArchiveStore,
    archive_chunks,
)

# --- What the drivers answer: what a resource is, what a snapshot of it is, and what a restore made.


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


# --- Containers that are never started: through them the engine hands out and takes in the files of a volume.

MOUNT = "/volume"
EMPTY_IMAGE = "weft.local/empty"
ULIMITS = (("nofile", 1024), ("nproc", 512))
"""Given to every container: an engine whose own limits are above the host's starts none without."""
UNUSED_CHUNKS = 4
"""Of the archive of a volume that must be empty."""
_EMPTY_ROLE = "empty"
_TAR_RIGHTS = ("DAC_READ_SEARCH", "DAC_OVERRIDE")


def ulimits() -> list[dict[str, object]]:
    return [{"Name": name, "Soft": number, "Hard": number} for name, number in ULIMITS]


def ensure_empty_image(engine: ContainerEngine) -> str:
    """The id of an image that holds one empty folder and runs nothing."""
    filters = msgspec.json.encode({"label": [f"{ROLE_LABEL}={_EMPTY_ROLE}"]}).decode()
    listed = engine.call("GET", "/images/json", asked="list images", query={"filters": filters})
    if listed:
        return str(listed[0]["Id"])
    folder = ArchiveEntry(path=MOUNT.strip("/").encode(), kind=ArchiveEntryKind.FOLDER)
    answer = engine.call(
        "POST",
        "/images/create",
        asked="import an empty image",
        query={"fromSrc": "-", "repo": EMPTY_IMAGE, "changes": f"LABEL {ROLE_LABEL}={_EMPTY_ROLE}"},
        data=archive_chunks([folder], BytesIO()),
    )
    return str(answer["status"])


@contextmanager
def copier(engine: ContainerEngine, volume: str, made_by: MadeBy, *, read_only: bool) -> Iterator[str]:
    """The id of a container that sees the volume and never runs."""
    body: dict[str, object] = {
        "Image": ensure_empty_image(engine),
        "Cmd": ["none"],
        "Labels": made_by.labels(MadeRole.COPIER),
        "HostConfig": _host_settings(volume, read_only=read_only),
    }
    with temporary_container(engine, body, f"read or write the volume {volume}") as container:
        yield container


@contextmanager
def temporary_container(engine: ContainerEngine, body: dict[str, object], asked: str) -> Iterator[str]:
    container = str(engine.call("POST", "/containers/create", asked=asked, body=body)["Id"])
    try:
        yield container
    finally:
        remove_container(engine, container)


def remove_container(engine: ContainerEngine, container: str) -> bool:
    query = {"force": "true", "v": "true"}
    return removed(engine, container_path(container), ResourceKind.DOCKER_CONTAINER, container, query)


def _host_settings(volume: str, *, read_only: bool) -> dict[str, object]:
    return {
        "NetworkMode": "none",
        "CapDrop": ["ALL"],
        "Ulimits": ulimits(),
        "Mounts": [
            {
                "Type": "volume",
                "Source": volume,
                "Target": MOUNT,
                "ReadOnly": read_only,
                "VolumeOptions": {"NoCopy": True},
            }
        ],
    }


def volume_chunks(engine: ContainerEngine, volume: str, made_by: MadeBy, tar_image: str | None) -> Generator[bytes]:
    """The files of a volume as a tar archive."""
    if engine.facts().archives_have_owners:
        yield from _archive_of(engine, volume, made_by)
        return
    if _is_unused(engine, volume):
        yield from _unused_volume_chunks(engine, volume, made_by)
        return
    refusals = []
    for image in [tar_image] if tar_image else images_beside(engine, volume):
        started = _TarRun(engine, volume, image, made_by)
        try:
            yield from started.chunks()
        except EngineRefused as error:
            if started.has_begun:
                raise
            refusals.append(error.reason)
        else:
            return
    raise Unsupported(
        f"the archives of this engine do not tell whose the files of the volume {volume!r} are"
        + "".join(f"; {reason}" for reason in refusals[:3]),
        "name an image of the engine that has `tar`, which reads them inside a container",
    )


def _is_unused(engine: ContainerEngine, volume: str) -> bool:
    """Podman gives a volume to the user of the first container that is started on it: that must not be ours."""
    path = f"{PODMAN_API}{volume_path(volume)}/json"
    answer = engine.call("GET", path, asked=f"describe the volume {volume}", about=EngineSubject("volume", volume))
    return bool(answer.get("NeedsChown"))


def _unused_volume_chunks(engine: ContainerEngine, volume: str, made_by: MadeBy) -> Iterator[bytes]:
    archive = b"".join(islice(_archive_of(engine, volume, made_by), UNUSED_CHUNKS))
    if archive.strip(b"\0"):
        raise Unsupported(
            f"whose the files of the volume {volume!r} are is not known before a container has used it",
            "start a container on it first",
        )
    yield archive


def _archive_of(engine: ContainerEngine, volume: str, made_by: MadeBy) -> Generator[bytes]:
    with copier(engine, volume, made_by, read_only=True) as container:
        yield from engine.transfer(
            f"{container_path(container)}/archive",
            asked=f"read the volume {volume}",
            about=EngineSubject("container", container),
            query={"path": f"{MOUNT}/."},
        )


def make_volume(engine: ContainerEngine, name: str, labels: dict[str, str], owner: tuple[int, int]) -> dict[str, str]:
    """Makes a volume that belongs to this user and group, and tells its labels: an engine gives one that is there."""
    body: dict[str, object] = {"Name": name, "Labels": labels}
    if not engine.facts().archives_have_owners:
        body["DriverOpts"] = {"o": f"uid={owner[0]},gid={owner[1]}"}  # else the first container would change the owner
    answer = engine.call("POST", "/volumes/create", asked=f"make the volume {name}", body=body)
    return dict(answer.get("Labels") or {})


def images_beside(engine: ContainerEngine, volume: str) -> list[str]:
    """Images of the containers that use the volume."""
    filters = msgspec.json.encode({"volume": [volume]}).decode()
    listed = engine.call("GET", "/containers/json", asked="list containers", query={"all": "true", "filters": filters})
    return list(dict.fromkeys(str(item["ImageID"]) for item in listed or ()))


class _TarRun:
    """`tar` of an image, run once on a volume that it can only read."""

    def __init__(self, engine: ContainerEngine, volume: str, image: str, made_by: MadeBy) -> None:
        self._engine, self._volume, self._image, self._made_by = engine, volume, image, made_by
        self.has_begun = False

    def _creation_body(self) -> dict[str, object]:
        settings = _host_settings(self._volume, read_only=True)
        settings |= {
            "CapAdd": list(_TAR_RIGHTS),
            "ReadonlyRootfs": True,
            "SecurityOpt": ["no-new-privileges"],
            "LogConfig": {"Type": "none", "Config": {}},
        }
        return {
            "Image": self._image,
            "Entrypoint": ["tar"],
            "Cmd": ["-c", "-f", "-", "-C", MOUNT, "."],
            "User": "0:0",
            "WorkingDir": "/",
            "AttachStdout": True,
            "AttachStderr": True,
            "Labels": self._made_by.labels(MadeRole.COPIER),
            "HostConfig": settings,
        }

    def chunks(self) -> Iterator[bytes]:
        engine, asked = self._engine, f"read the volume {self._volume} with tar"
        with temporary_container(engine, self._creation_body(), asked) as container:
            about, path = EngineSubject("container", container), container_path(container)
            attached = {"stream": "true", "stdout": "true", "stderr": "true"}
            seconds = engine.limits.transfer_seconds
            error_output = b""
            with engine.stream(
                "POST", f"{path}/attach", asked=asked, about=about, query=attached, seconds=seconds
            ) as stream:
                engine.call("POST", f"{path}/start", asked=asked, about=about)
                for kind, data in frames(stream.chunks()):
                    if kind == STDOUT:
                        self.has_begun = True
                        yield data
                    else:
                        error_output = (error_output + data)[:500]
            ended = engine.call("POST", f"{path}/wait", asked=asked, about=about, query={"interval": "20ms"})
            if stream.is_cut or ended.get("StatusCode") != 0:
                reason = error_output.decode("utf-8", "replace").strip() or f"tar ended with {ended.get('StatusCode')}"
                raise EngineRefused(asked, 200, " ".join(reason.split()))


def write_volume(
    engine: ContainerEngine, volume: str, entries: Iterable[ArchiveEntry], source: BinaryIO, made_by: MadeBy
) -> None:
    """Unpacks an archive into a volume; owners, modes and times are those of the archive.

    Docker refuses links that lead out of where it unpacks, so it unpacks into the root of the copier, which has the
    volume as a folder. Podman does not see the volume from there."""
    is_docker = engine.facts().archives_have_owners
    placed = [_below_mount(entry) for entry in entries] if is_docker else entries
    with copier(engine, volume, made_by, read_only=False) as container:
        engine.call(
            "PUT",
            f"{container_path(container)}/archive",
            asked=f"write the volume {volume}",
            about=EngineSubject("container", container),
            query={"path": "/" if is_docker else MOUNT, "noOverwriteDirNonDir": "true"},
            data=_while_held(archive_chunks(placed, source)),
            seconds=engine.limits.transfer_seconds,
        )


def _while_held(chunks: Iterable[bytes]) -> Iterator[bytes]:
    for chunk in chunks:
        ensure_held()
        yield chunk


def _below_mount(entry: ArchiveEntry) -> ArchiveEntry:
    folder = MOUNT.strip("/").encode()
    path = folder + b"/" + entry.path if entry.path else folder
    is_hard_link = entry.kind is ArchiveEntryKind.HARD_LINK
    return replace(entry, path=path, target=folder + b"/" + entry.target if is_hard_link else entry.target)


# --- Volumes of a container engine as resources: a snapshot is a tar archive, a restore makes a new volume of one.

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
        volume = self._inspect_volume(name)
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
        return liveness(lambda: self._inspect_volume(name))

    def snapshot(self, name: str, made_by: MadeBy, rules: ArchiveRules = OWN_ARCHIVE) -> EngineSnapshot:
        """Packs the volume into the store while whoever uses it goes on. The same files make no second archive."""
        self._inspect_volume(name)  # a container that names a volume would make it
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
            self._mark_restore(made_by)
            try:
                self._create_volume(name, digest, made_by, _owner_of_top(entries))
                write_volume(self._engine, name, entries, file, made_by)
            except WeftError:
                self._remove_unfinished(made_by)
                raise
            self._remove_containers(made_by)
        return RestoredObject(kind=ResourceKind.DOCKER_VOLUME, id=name, name=name, is_new=True)

    def remove(self, name: str) -> bool:
        """Whether it was there. The engine refuses while a container uses it."""
        return removed(self._engine, volume_path(name), ResourceKind.DOCKER_VOLUME, name, {})

    def _inspect_volume(self, name: str) -> Any:
        return self._engine.call(
            "GET", volume_path(name), asked=f"describe the volume {name}", about=EngineSubject("volume", name)
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
        if volumes != [name] or self._inspect_volume(name)["Labels"].get(DIGEST_LABEL) != digest:
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

    def _mark_restore(self, made_by: MadeBy) -> None:
        body = {
            "Image": ensure_empty_image(self._engine),
            "Cmd": ["none"],
            "Labels": made_by.labels(MadeRole.MARKER),
            "HostConfig": {"NetworkMode": "none", "Ulimits": ulimits()},
        }
        self._engine.call("POST", "/containers/create", asked="mark a restore", body=body)

    def _create_volume(self, name: str, digest: str, made_by: MadeBy, owner: tuple[int, int]) -> None:
        if self.probe(name) is ResourceLiveness.ALIVE:
            raise LabelTaken(name, "a volume of this engine")
        labels = made_by.labels() | {DIGEST_LABEL: digest}
        if make_volume(self._engine, name, labels, owner) != labels:  # somebody else has made it meanwhile
            raise LabelTaken(name, "a volume of this engine")


def _owner_of_top(entries: tuple[ArchiveEntry, ...]) -> tuple[int, int]:
    return (entries[0].uid, entries[0].gid) if entries and not entries[0].path else (0, 0)


# --- Images as resources: an image is its id, and a tag of Weft's keeps the engine from sweeping it away.

IMAGE_METHOD, IMAGE_ARCHIVE_METHOD = "oci_image", "oci_archive"
IMAGE_CAPABILITIES = (
    ResourceCapability.SNAPSHOT,
    ResourceCapability.RESTORE,
    ResourceCapability.FORK,
    ResourceCapability.SHARE,
)
_ID = re.compile(r"sha256:[0-9a-f]{64}\Z")
_LISTS_BYTES = 4 * MIB
_NAMING = ("org.opencontainers.image.ref.name", "io.containerd.image.name")


def checked_image_id(image_id: str) -> str:
    """Its id by content; a name could mean another image by now."""
    if not _ID.match(image_id):
        raise InvalidInput(f"{image_id!r} is no id of an image", "name the image by its id, sha256:…")
    return image_id


def inspect_image(engine: ContainerEngine, name: str) -> Any:
    return engine.call(
        "GET", f"{image_path(name)}/json", asked=f"describe the image {name}", about=EngineSubject("image", name)
    )


class DockerImages:
    def __init__(self, engine: ContainerEngine, store: ArchiveStore) -> None:
        self._engine, self._store = engine, store

    def describe(self, name: str) -> ResourceDescription:
        """What it is. Its variables stay away: they may hold keys."""
        image = inspect_image(self._engine, name)
        return ResourceDescription(
            kind=ResourceKind.DOCKER_IMAGE,
            name=name,
            id=str(image["Id"]),
            capabilities=IMAGE_CAPABILITIES,
            metadata={
                "tags": sorted(image.get("RepoTags") or ()),
                "size_bytes": int(image.get("Size") or 0),
                "created_at": str(image.get("Created", "")),
                "platform": f"{image.get('Os', '')}/{image.get('Architecture', '')}",
            },
        )

    def probe(self, name: str) -> ResourceLiveness:
        return liveness(lambda: inspect_image(self._engine, name))

    def snapshot(self, name: str, made_by: MadeBy, *, with_archive: bool = False) -> EngineSnapshot:
        """Keeps the image under a tag of Weft's; with an archive, in the store instead."""
        image = inspect_image(self._engine, name)
        image_id = checked_image_id(str(image["Id"]))
        if not with_archive:
            self._tag_image(image_id, made_by)
            size = int(image.get("Size") or 0)
            return EngineSnapshot(method=IMAGE_METHOD, reference_kind="image", reference_id=image_id, size_bytes=size)
        asked, about = f"save the image {name}", EngineSubject("image", name)
        with closing(self._engine.transfer(f"{image_path(image_id)}/get", asked=asked, about=about)) as chunks:
            stored = self._store.keep(made_by.object_name, chunks, IMAGE_ARCHIVE)
        return EngineSnapshot(
            method=IMAGE_ARCHIVE_METHOD,
            reference_kind="tar",
            reference_id=stored.digest,
            size_bytes=stored.size_bytes,
        )

    def restore(self, image_id: str, made_by: MadeBy) -> RestoredObject:
        """The image that a snapshot kept in the engine: it is there, or EngineObjectMissing."""
        inspect_image(self._engine, checked_image_id(image_id))
        self._tag_image(image_id, made_by)
        return RestoredObject(kind=ResourceKind.DOCKER_IMAGE, id=image_id, name=made_by.image_tag, is_new=False)

    def load(self, digest: str, made_by: MadeBy, rules: ArchiveRules = IMAGE_ARCHIVE) -> RestoredObject:
        """The image of a stored archive, loaded unless the engine has it."""
        with self._store.opened(digest, rules) as (entries, file):
            image_id = image_id_of(entries, file)
            is_new = self.probe(image_id) is ResourceLiveness.DEAD
            if is_new:
                answer = self._engine.call(
                    "POST",
                    "/images/load",
                    asked="load an image",
                    query={"quiet": "true"},
                    data=archive_chunks(entries, file),
                    seconds=self._engine.limits.transfer_seconds,
                )
                image_id = self._loaded_id(image_id, answer)
        self._tag_image(image_id, made_by)
        return RestoredObject(kind=ResourceKind.DOCKER_IMAGE, id=image_id, name=made_by.image_tag, is_new=is_new)

    def remove(self, name: str) -> bool:
        """Whether it was there. A tag is taken away; the image goes with its last one. The engine refuses while a
        container uses it."""
        return removed(self._engine, image_path(name), ResourceKind.DOCKER_IMAGE, name, {})

    def _tag_image(self, image_id: str, made_by: MadeBy) -> None:
        self._engine.call(
            "POST",
            f"{image_path(image_id)}/tag",
            asked="tag an image",
            about=EngineSubject("image", image_id),
            query={"repo": SNAPSHOT_IMAGE, "tag": made_by.object_name},
        )

    def _loaded_id(self, image_id: str, answer: Any) -> str:
        """Engines that keep images by their manifest have another id than that of the configuration."""
        if self.probe(image_id) is ResourceLiveness.ALIVE:
            return image_id
        id_match = (
            re.search(r"sha256:[0-9a-f]{64}", str(answer.get("stream", ""))) if isinstance(answer, dict) else None
        )
        if id_match is None:
            raise EngineObjectMissing("image", image_id)
        return id_match[0]


def image_id_of(entries: tuple[ArchiveEntry, ...], file: BinaryIO) -> str:
    """The id of the one image of an archive, or ArchiveRefused: several images, names, or bytes that do not fit."""
    by_path = {entry.path: entry for entry in entries}
    listed = _list_in(b"manifest.json", by_path, file)
    if not isinstance(listed, list) or len(listed) != 1 or not isinstance(listed[0], dict):
        raise ArchiveRefused("it does not hold one image")
    if listed[0].get("RepoTags"):
        raise ArchiveRefused("it names its image: loading it would give that name another meaning")
    if b"repositories" in by_path and _list_in(b"repositories", by_path, file):
        raise ArchiveRefused("it names images: loading it would give those names another meaning")
    if b"index.json" in by_path:
        _check_index(_list_in(b"index.json", by_path, file))
    config = str(listed[0].get("Config", "")).encode()
    entry = by_path.get(config)
    if entry is None or entry.kind is not ArchiveEntryKind.FILE:
        raise ArchiveRefused("the configuration of its image is not in it")
    digest = hashlib.sha256(_bytes_of(entry, file)).hexdigest()
    if digest.encode() not in config:
        raise ArchiveRefused("the configuration of its image is not the one that it names")
    return f"sha256:{digest}"


def _check_index(index: Any) -> None:
    manifests = index.get("manifests") if isinstance(index, dict) else None
    if not isinstance(manifests, list) or len(manifests) != 1 or not isinstance(manifests[0], dict):
        raise ArchiveRefused("it does not hold one image")
    annotations = manifests[0].get("annotations") or {}
    if not isinstance(annotations, dict) or any(annotations.get(name) for name in _NAMING):
        raise ArchiveRefused("it names its image: loading it would give that name another meaning")


def _list_in(path: bytes, by_path: dict[bytes, ArchiveEntry], file: BinaryIO) -> Any:
    entry = by_path.get(path)
    if entry is None or entry.kind is not ArchiveEntryKind.FILE:
        raise ArchiveRefused(f"it is no archive of an image: {path.decode()} is not in it")
    try:
        return msgspec.json.decode(_bytes_of(entry, file))
    except (msgspec.DecodeError, RecursionError) as error:
        raise ArchiveRefused(f"{path.decode()} is no JSON") from error


def _bytes_of(entry: ArchiveEntry, file: BinaryIO) -> bytes:
    if entry.size > _LISTS_BYTES:
        raise ArchiveRefused("a list in it is too long")
    file.seek(entry.offset)
    return file.read(entry.size)
