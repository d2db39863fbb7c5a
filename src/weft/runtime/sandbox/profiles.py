"""How much of the machine the sandbox leaves to a command, as values.

A profile says it in one word; mounts say what a process finds at which place, and become options of
bubblewrap.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum

from msgspec import Struct

from weft.kernel.authority import SandboxFiles, strictest_files
from weft.kernel.errors import InvalidInput, quoted
from weft.kernel.permission_subjects import ANY_HOST, HostEndpoint, common_endpoints, endpoints_of, host_texts
from weft.runtime.egress.credentials import is_near_by_name

# --- Profiles: how much of the machine the sandbox leaves to a command.

NO_SANDBOX = "none"
_NETWORK = "network:"
_FORMS = "give workspace, read-only, network:HOST[,HOST…] or read-only+network:HOST[,HOST…]"
_GRANT = f"{_FORMS}; only a person grants none, to one command, and no configuration does"


class SandboxProfile(Struct, frozen=True, kw_only=True):
    """One profile. `SandboxFiles.EVERYTHING` is `none`, and needs `granted_by`."""

    files: SandboxFiles = SandboxFiles.WORKSPACE
    endpoints: frozenset[HostEndpoint] = frozenset()
    granted_by: str | None = None
    """The person who granted that nothing is confined."""

    def __post_init__(self) -> None:
        if self.files is SandboxFiles.EVERYTHING and not (self.granted_by or "").strip():
            raise InvalidInput("the profile none is no sandbox", _GRANT)
        for endpoint in self.endpoints:
            if endpoint.host != ANY_HOST and is_near_by_name(endpoint.host):
                raise InvalidInput(
                    f"the host {endpoint.host} is no part of the internet", "a sandbox reaches public servers alone"
                )

    @property
    def is_unconfined(self) -> bool:
        return self.files is SandboxFiles.EVERYTHING

    @property
    def is_read_only(self) -> bool:
        return self.files is SandboxFiles.READ_ONLY

    @property
    def hosts(self) -> tuple[str, ...]:
        return host_texts(self.endpoints)

    def allows_endpoint(self, host: str, port: int) -> bool:
        """`host` in its one form, as `host_name` gives it."""
        return self.is_unconfined or any(granted.covers(HostEndpoint(host, port)) for granted in self.endpoints)

    def narrowed(self, other: SandboxProfile) -> SandboxProfile:
        """What both leave. A profile that confines wins over one that does not."""
        if self.is_unconfined:
            return other
        if other.is_unconfined:
            return self
        files = strictest_files((self.files, other.files)) or SandboxFiles.WORKSPACE
        return SandboxProfile(files=files, endpoints=common_endpoints(self.endpoints, other.endpoints))

    def __str__(self) -> str:
        if self.is_unconfined:
            return NO_SANDBOX
        network = _NETWORK + ",".join(self.hosts) if self.endpoints else ""
        if self.is_read_only:
            return "+".join(filter(None, (SandboxFiles.READ_ONLY.value, network)))
        return network or SandboxFiles.WORKSPACE.value


WORKSPACE_PROFILE = SandboxProfile()
READ_ONLY_PROFILE = SandboxProfile(files=SandboxFiles.READ_ONLY)


def parse_profile(text: str, *, granted_by: str | None = None) -> SandboxProfile:
    """The profile that a text names. `granted_by`: the person who grants `none`; other profiles need nobody."""
    if text == NO_SANDBOX:
        return SandboxProfile(files=SandboxFiles.EVERYTHING, granted_by=granted_by)
    files, plus, rest = text.partition("+") if text.startswith(SandboxFiles.READ_ONLY) else ("", "", text)
    level = SandboxFiles.READ_ONLY if files else SandboxFiles.WORKSPACE
    if files not in ("", SandboxFiles.READ_ONLY) or (plus and not rest):
        raise InvalidInput(f"{quoted(text)} is no sandbox profile", _FORMS)
    if rest.startswith(_NETWORK) and rest != _NETWORK:
        return SandboxProfile(files=level, endpoints=endpoints_of(rest.removeprefix(_NETWORK).split(",")))
    if rest != ("" if files else SandboxFiles.WORKSPACE):
        raise InvalidInput(f"{quoted(text)} is no sandbox profile", _FORMS)
    return SandboxProfile(files=level)


# --- What a sandboxed process finds at which place, as values, and the options of bubblewrap that are made from them.


class MountKind(StrEnum):
    """Whether a mount shows something of the machine, for reading or writing, or something empty or given."""

    READ_ONLY = "read-only"
    """A file or folder of the machine, which cannot be written."""
    WRITABLE = "writable"
    """A file or folder of the machine; what is written stays."""
    EMPTY_FOLDER = "empty folder"
    """A folder that holds nothing but what is mounted beneath it, and cannot be written."""
    MEMORY_FOLDER = "folder in memory"
    """An empty folder that can be written; what is written is gone at the end."""
    FILE = "file"
    """A file with the given bytes, which cannot be written."""


class Mount(Struct, frozen=True, kw_only=True):
    """One place of a sandbox. Make it with the functions below."""

    kind: MountKind
    place: str
    """Where it lies inside: absolute, without `.`, `..` and links."""
    source: str = ""
    """Where it lies outside, if it is something of the machine."""
    data: bytes = b""
    mode: int = 0o444
    """The permissions of a file with given bytes."""
    size: int = 0
    """The bytes that a folder in memory takes at most."""
    is_cover: bool = False
    """Whether it hides what lies at its place: no other mount at this place or beneath it is made."""
    is_optional: bool = False
    """Whether it is left out where its source is missing."""

    def __post_init__(self) -> None:
        if not self.place.startswith("/") or os.path.normpath(self.place) != self.place or "\0" in self.place:
            raise InvalidInput(f"{self.place!r} is no place of a sandbox", "give an absolute path without . and ..")


def read_only(place: str, source: str | None = None, *, is_optional: bool = False) -> Mount:
    """`source`: where it lies outside, if that is another path."""
    return Mount(kind=MountKind.READ_ONLY, place=place, source=source or place, is_optional=is_optional)


def writable(place: str, source: str | None = None) -> Mount:
    return Mount(kind=MountKind.WRITABLE, place=place, source=source or place)


def empty_folder(place: str) -> Mount:
    return Mount(kind=MountKind.EMPTY_FOLDER, place=place)


def memory_folder(place: str, size: int) -> Mount:
    return Mount(kind=MountKind.MEMORY_FOLDER, place=place, size=size)


def file_of(place: str, data: bytes, mode: int = 0o444) -> Mount:
    return Mount(kind=MountKind.FILE, place=place, data=data, mode=mode)


def cover(place: str, *, is_folder: bool) -> Mount:
    """Hides a file or folder: an empty one is found in its place."""
    return Mount(kind=MountKind.EMPTY_FOLDER if is_folder else MountKind.FILE, place=place, is_cover=True)


def uncovered(place: str, data: bytes, mode: int) -> Mount:
    """In the place of the cover of a file: these bytes, which a person said the command may read."""
    return Mount(kind=MountKind.FILE, place=place, data=data, mode=mode, is_cover=True)


def unreadable(place: str) -> Mount:
    """Hides a file of the workspace: one that cannot be opened is found in its place. Programs fail then, instead of
    taking it for empty: git would commit it so."""
    return Mount(kind=MountKind.FILE, place=place, mode=0, is_cover=True)


def ordered_mounts(mounts: Iterable[Mount]) -> tuple[Mount, ...]:
    """As bubblewrap must make them; at the same place the later one of the list is seen. What lies at or beneath a
    covered place is left out: it would be uncovered, or, where the cover is read-only, could not be made."""
    all_mounts = tuple(dict.fromkeys(mounts))
    covered = {mount.place for mount in all_mounts if mount.is_cover}
    shown = (
        mount
        for mount in all_mounts
        if covered.isdisjoint(_folders_above(mount.place)) and (mount.is_cover or mount.place not in covered)
    )
    return tuple(sorted(shown, key=lambda mount: mount.place.split("/") if mount.place != "/" else [""]))


def mount_options(mounts: Iterable[Mount], file_descriptor: Callable[[bytes], int]) -> list[str]:
    """The words that tell bubblewrap of the mounts, in their order. `file_descriptor` gives one from which the bytes of
    a file are read."""
    ordered = ordered_mounts(mounts)
    options = [word for mount in ordered for word in _options(mount, file_descriptor)]
    for mount in ordered:
        # only when all are made: the places beneath such a folder are made in it
        if mount.kind is MountKind.EMPTY_FOLDER:
            options += ["--remount-ro", mount.place]
    return options


def is_beneath(place: str, folder: str) -> bool:
    """Whether a place is this folder or lies in it."""
    return place == folder or place.startswith(folder if folder == "/" else f"{folder}/")


def _folders_above(place: str) -> Iterator[str]:
    if place == "/":
        return
    while place := place[: place.rfind("/")]:
        yield place
    yield "/"


def _options(mount: Mount, file_descriptor: Callable[[bytes], int]) -> tuple[str, ...]:
    match mount.kind:
        case MountKind.READ_ONLY:
            return ("--ro-bind-try" if mount.is_optional else "--ro-bind", mount.source, mount.place)
        case MountKind.WRITABLE:
            return "--bind", mount.source, mount.place
        case MountKind.EMPTY_FOLDER:
            return "--tmpfs", mount.place
        case MountKind.MEMORY_FOLDER:
            return "--size", str(mount.size), "--tmpfs", mount.place
        case MountKind.FILE:
            return "--perms", f"{mount.mode:04o}", "--ro-bind-data", str(file_descriptor(mount.data)), mount.place
