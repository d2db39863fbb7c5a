"""Images as resources: an image is its id, and a tag of Weft's keeps the engine from sweeping it away.

Or it is saved as a tar archive in the store. An archive is judged before it is loaded: it holds one image, whose id
fits its bytes, and no name: loading it gives no name of the user another meaning.
"""

from __future__ import annotations

import hashlib
import re
from contextlib import closing
from typing import Any, BinaryIO

import msgspec

from weft.kernel.enums import ResourceCapability, ResourceKind, ResourceLiveness
from weft.kernel.errors import ArchiveRefused, EngineObjectMissing, InvalidInput
from weft.kernel.foreign_input import MIB
from weft.runtime.resources.docker.archive_entries import IMAGE_ARCHIVE, ArchiveEntry, ArchiveEntryKind, ArchiveRules
from weft.runtime.resources.docker.archive_store import ArchiveStore
from weft.runtime.resources.docker.descriptions import EngineSnapshot, ResourceDescription, RestoredObject
from weft.runtime.resources.docker.engine import About, ContainerEngine, image_path
from weft.runtime.resources.docker.engine_labels import SNAPSHOT_IMAGE, MadeBy, removed
from weft.runtime.resources.docker.tar_writer import archive_chunks
from weft.runtime.resources.docker.volumes import liveness

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
        "GET", f"{image_path(name)}/json", asked=f"describe the image {name}", about=About("image", name)
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
            self._tag(image_id, made_by)
            size = int(image.get("Size") or 0)
            return EngineSnapshot(method=IMAGE_METHOD, reference_kind="image", reference_id=image_id, size_bytes=size)
        asked, about = f"save the image {name}", About("image", name)
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
        self._tag(image_id, made_by)
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
        self._tag(image_id, made_by)
        return RestoredObject(kind=ResourceKind.DOCKER_IMAGE, id=image_id, name=made_by.image_tag, is_new=is_new)

    def remove(self, name: str) -> bool:
        """Whether it was there. A tag is taken away; the image goes with its last one. The engine refuses while a
        container uses it."""
        return removed(self._engine, image_path(name), ResourceKind.DOCKER_IMAGE, name, {})

    def _tag(self, image_id: str, made_by: MadeBy) -> None:
        self._engine.call(
            "POST",
            f"{image_path(image_id)}/tag",
            asked="tag an image",
            about=About("image", image_id),
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
