"""Containers that are never started: through them the engine hands out and takes in the files of a volume.

They are made of an image with one empty folder, which is put into the engine once. Where the engine's archives do not
tell whose the files are (Podman), `tar` of another image is run instead, without network and rights, to read a volume.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from io import BytesIO
from itertools import islice
from typing import BinaryIO

import msgspec
from msgspec.structs import replace

from weft.kernel.enums import ResourceKind
from weft.kernel.errors import EngineRefused, Unsupported
from weft.runtime.resources.docker.archive_entries import ArchiveEntry, ArchiveEntryKind
from weft.runtime.resources.docker.engine import PODMAN_API, About, ContainerEngine, container_path, volume_path
from weft.runtime.resources.docker.engine_labels import ROLE_LABEL, MadeBy, MadeRole, removed
from weft.runtime.resources.docker.output import STDOUT, frames
from weft.runtime.resources.docker.tar_writer import archive_chunks
from weft.runtime.resources.held_work import ensure_held

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
    answer = engine.call("GET", path, asked=f"describe the volume {volume}", about=About("volume", volume))
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
            about=About("container", container),
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

    def _body(self) -> dict[str, object]:
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
        with temporary_container(engine, self._body(), asked) as container:
            about, path = About("container", container), container_path(container)
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
            about=About("container", container),
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
