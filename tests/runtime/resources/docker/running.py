"""Containers that tests run, and volumes that they fill."""

from __future__ import annotations

import io
import secrets
import shutil
import subprocess
import tarfile

from weft.kernel.errors import EngineObjectMissing, EngineRefused
from weft.runtime.resources.container_engine import ContainerEngine, MadeBy, container_path, volume_path
from weft.runtime.resources.engine_volumes import make_volume, remove_container, ulimits, write_volume
from weft.runtime.resources.tar_archives import OWN_ARCHIVE, read_archive


def why_no_checkpoints() -> str | None:
    """What the CRIU of this machine has against its kernel, which may be newer than it knows."""
    program = shutil.which("criu")
    if program is None:
        return "there is no criu"
    done = subprocess.run([program, "check"], capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else (done.stderr or done.stdout).strip().splitlines()[-1]


def entry(name: str, kind: bytes = tarfile.REGTYPE, mode: int = 0o644, **fields: object) -> tarfile.TarInfo:
    """An entry of an archive; fields as tarfile calls them."""
    made = tarfile.TarInfo(name)
    made.type, made.mode, made.mtime = kind, mode, 1_700_000_000
    for field, value in fields.items():
        setattr(made, field, value)
    return made


def packed(*entries: tarfile.TarInfo | tuple[tarfile.TarInfo, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    """An archive as Python's own library writes it."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=form, encoding="utf-8", errors="surrogateescape") as archive:
        for made in entries:
            header, data = made if isinstance(made, tuple) else (made, b"")
            if data:
                header.size = len(data)
            archive.addfile(header, io.BytesIO(data))
    return target.getvalue()


def file(name: str, data: str) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name), data.encode()


class Runner:
    """Makes volumes, and containers of the test image; removes all of them."""

    def __init__(self, engine: ContainerEngine, image: str) -> None:
        self._engine, self._image = engine, image
        self._containers: list[str] = []
        self._volumes: list[str] = []

    def volume(self, archive: bytes = b"") -> str:
        """A new volume with the files of an archive."""
        name = f"test-{secrets.token_hex(8)}"
        make_volume(self._engine, name, {}, (0, 0))
        self.forget_later(name)
        if archive:
            self.fill(name, archive)
        return name

    def fill(self, volume: str, archive: bytes) -> None:
        source = io.BytesIO(archive)
        write_volume(self._engine, volume, read_archive(source, OWN_ARCHIVE), source, MadeBy("tests", volume))

    def forget_later(self, volume: str) -> None:
        self._volumes.append(volume)

    def container(self, command: list[str], volume: str | None = None, **settings: object) -> str:
        """A container that is not started."""
        mounts = [{"Type": "volume", "Source": volume, "Target": "/data"}] if volume else []
        body = {
            "Image": self._image,
            "Cmd": command,
            "HostConfig": {"NetworkMode": "none", "Ulimits": ulimits(), "Mounts": mounts, **settings},
        }
        container = str(self._engine.call("POST", "/containers/create", asked="make a container", body=body)["Id"])
        self._containers.append(container)
        return container

    def started(self, command: list[str], volume: str | None = None, **settings: object) -> str:
        container = self.container(command, volume, **settings)
        self._engine.call("POST", f"{container_path(container)}/start", asked="start")
        return container

    def remove_all(self) -> None:
        for container in self._containers:
            remove_container(self._engine, container)
        for volume in self._volumes:
            try:
                self._engine.call("DELETE", volume_path(volume), asked="remove", query={"force": "true"})
            except (EngineObjectMissing, EngineRefused):
                continue
