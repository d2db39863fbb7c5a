"""What a sandboxed process finds at which place, as values, and the options of bubblewrap that are made from them.

Every part of a sandbox gives a list of `Mount`s: what is shown of the machine, the workspace, what is hidden in it.
They become one list in the order in which bubblewrap must make them: whatever lies beneath another place comes after
it. What hides something wins over everything at the same place and beneath it, so no other part can uncover it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum

from msgspec import Struct

from weft.kernel.errors import InvalidInput


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
    while place != "/":
        place = os.path.dirname(place)
        yield place


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
