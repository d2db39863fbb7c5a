"""The resources of an open ledger: where what is kept of them lies, what acts on them, and what the person configured.

Kept files lie in a folder beside the ledger, `<ledger>-files`; for a ledger on a server, in the user's data folder,
under the ledger's own id: however its address is written, it is one folder.
`resources.toml` of the configuration folder says whether turns keep their files, how much of a folder is kept,
and where the container engine is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from weft.kernel.errors import InvalidInput
from weft.kernel.typed_names import Site
from weft.surfaces.cli.interrupted_commands import clean_up_commands
from weft.surfaces.cli.user_files import SERVER, beside_ledger, configuration_folder, this_machine

if TYPE_CHECKING:
    from weft.ledger.api import Ledger
    from weft.runtime.resources.controller import ResourceController
    from weft.runtime.resources.drivers import Drivers
    from weft.runtime.resources.kept_files import KeptFiles
    from weft.runtime.resources.local_drivers import DirectoryDriver
    from weft.runtime.sandbox.hidden_places import SecretFiles

SETTINGS_FILE = "resources.toml"
_FILES = "-files"
_LOOK_SECONDS = 30.0


class SnapshotSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """What is kept of folders."""

    turns: bool = True
    """Whether the workspace of a turn is kept before and after each call that may change it."""
    file_bytes: int = 64 * 1024**2
    """A larger file is left out."""
    total_bytes: int = 8 * 1024**3
    """A folder that holds more is not kept."""
    files: int = 1_000_000


class DockerSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Where the container engine is."""

    host: str | None = None
    """None: where DOCKER_HOST says, else its usual socket."""
    tar_image: str | None = None
    """An image of the engine that has `tar`. Podman needs one to read volumes."""


class ResourceSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The file `resources.toml`."""

    snapshots: SnapshotSettings = SnapshotSettings()
    docker: DockerSettings = DockerSettings()


def load_resource_settings() -> ResourceSettings:
    path = configuration_folder() / SETTINGS_FILE
    try:
        text = path.read_text()
    except FileNotFoundError:
        return ResourceSettings()
    except ValueError as error:
        raise InvalidInput(f"{path}: {error}", "write it in UTF-8") from None
    import tomllib

    try:
        settings = msgspec.convert(tomllib.loads(text), ResourceSettings)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise InvalidInput(f"{path}: {error}", "docs/resources.md shows how it is written") from None
    kept = settings.snapshots
    if min(kept.file_bytes, kept.total_bytes, kept.files) < 1:
        raise InvalidInput(f"{path}: a limit of snapshots is below 1", "give numbers from 1 on")
    return settings


def folder_beside(file: str) -> Path:
    """Where what is kept of the resources of a ledger lies that is a file."""
    stem = beside_ledger(file)
    return stem.with_name(stem.name + _FILES)


def files_folder(ledger: Ledger) -> Path:
    """Where what is kept of the resources of a ledger lies."""
    if Site.of(ledger.path) is Site.FILE:
        return folder_beside(ledger.path)
    stem = beside_ledger(ledger.path)
    from weft.ledger.api import ResourceLog

    name, *former = (stem.with_name(f"{SERVER}{id}{_FILES}") for id in ResourceLog(ledger).own_ids())
    for earlier in (*former, stem.with_name(stem.name + _FILES)):
        if not name.exists() and earlier.is_dir():
            with suppress(FileNotFoundError):  # somebody else has just done so
                earlier.rename(name)
    return name


def machine_of(ledger: Ledger) -> str | None:
    """What tells this machine from others that share the ledger; None: a file, which lies with its places."""
    return None if Site.of(ledger.path) is Site.FILE else this_machine()


def ledger_files(ledger: Ledger) -> Iterator[Path]:
    """The files and folders that a ledger consists of and that lie beside it, as far as they are there."""
    stem = beside_ledger(ledger.path)
    try:
        names = os.listdir(stem.parent)
    except FileNotFoundError:
        return
    from weft.runtime.sandbox.hidden_places import BESIDE_LEDGERS

    own = files_folder(ledger).name
    for name in names:
        if name in (stem.name, own) or name.startswith(tuple(stem.name + ending for ending in BESIDE_LEDGERS)):
            yield stem.with_name(name)


def kept_files(folder: Path) -> KeptFiles:
    """What is kept in a folder beside a ledger."""
    from weft.runtime.resources.kept_files import KeptFiles

    return KeptFiles(folder, path_folders=os.environ.get("PATH", ""))


def directory_driver(ledger: Ledger, settings: SnapshotSettings, secrets: SecretFiles | None = None) -> DirectoryDriver:
    """Keeps folders for a ledger. Neither the ledger nor what lies beside it is in any snapshot, and of ignored files
    no secrets. What commands left that were cut off is taken away first: none is kept, compared or put back."""
    from weft.runtime.folder_snapshots.file_store import FileStore
    from weft.runtime.folder_snapshots.snapshot_objects import SnapshotLimit
    from weft.runtime.resources.kept_files import TREES
    from weft.runtime.resources.local_drivers import DirectoryDriver

    clean_up_commands()
    limit = SnapshotLimit(file_bytes=settings.file_bytes, total_bytes=settings.total_bytes, files=settings.files)
    store = FileStore(
        files_folder(ledger) / TREES,
        path_folders=os.environ.get("PATH", ""),
        apart=lambda: ledger_files(ledger),
    )
    return DirectoryDriver(store, limit, machine=machine_of(ledger), secrets=secrets)


def resource_drivers(ledger: Ledger) -> Drivers:
    """What acts on resources of a ledger: folders, files, addresses, and a container engine, which is connected to when
    it is first needed."""
    from weft.runtime.resources.container_engine import DEFAULT_ADDRESS, ContainerEngine
    from weft.runtime.resources.docker_drivers import docker_drivers
    from weft.runtime.resources.drivers import Drivers
    from weft.runtime.resources.kept_files import ARCHIVES, COPIES
    from weft.runtime.resources.local_drivers import FileDriver, UriDriver
    from weft.runtime.resources.tar_archives import ArchiveStore

    settings, folder = load_resource_settings(), files_folder(ledger)
    address = settings.docker.host or os.environ.get("DOCKER_HOST") or DEFAULT_ADDRESS
    return Drivers(
        directory_driver(ledger, settings.snapshots),
        FileDriver(folder / COPIES),
        UriDriver(look_at_address),
        *docker_drivers(
            lambda: ContainerEngine(address), ArchiveStore(folder / ARCHIVES), tar_image=settings.docker.tar_image
        ),
        folder=folder,
        machine=machine_of(ledger),
    )


def resource_controller(ledger: Ledger) -> ResourceController:
    from weft.runtime.resources.controller import ResourceController

    return ResourceController(ledger, resource_drivers(ledger))


def look_at_address(address: str) -> int:
    """The status of the answer to a request for an address of the web, by the rules of `fetch_url`: plain addresses of
    public hosts, without keys. Raises OutsideError."""
    import asyncio

    from weft.kernel.errors import ConnectionForbidden
    from weft.runtime.egress.connections import fetch_page
    from weft.runtime.tool.tool_contract import ToolFailure
    from weft.runtime.tools.fetch_url import FETCH_RULES, parse_url

    try:
        url = str(parse_url(address))
    except ToolFailure as failure:
        raise ConnectionForbidden(failure.message) from None
    return asyncio.run(fetch_page(url, FETCH_RULES, 0, _LOOK_SECONDS)).status
