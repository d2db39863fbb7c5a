"""What a tar archive may hold: the entries, and the rules that tell which ones are taken.

Nothing here reads bytes. `checked_entries` judges the entries of one archive together: each lies in a folder of the
archive, no name comes twice, hard links lead to entries of the archive, and, where the rules say so, symbolic links do
not lead out. Entries come back in one order, with each hard link leading to the first of its names, so that the same
files give the same archive whichever engine or program packed them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

from msgspec import Struct
from msgspec.structs import replace

from weft.kernel.errors import ArchiveRefused, LimitExceeded
from weft.kernel.foreign_input import GIB, MIB

SET_ID_BITS = 0o6000
LINKS_FOLLOWED = 40
"""As many as the kernel follows before it calls a path a loop."""


class ArchiveEntryKind(Enum):
    """The types of a tar header that are taken; all others are refused."""

    FILE = b"0"
    HARD_LINK = b"1"
    SYMBOLIC_LINK = b"2"
    FOLDER = b"5"
    PIPE = b"6"


class ArchiveEntry(Struct, frozen=True, kw_only=True):
    """One file, folder, link or pipe of an archive."""

    path: bytes
    """From the top of the archive, without a slash at either end; empty is the top itself."""
    kind: ArchiveEntryKind
    mode: int = 0o755
    uid: int = 0
    gid: int = 0
    modified_ns: int = 0
    size: int = 0
    offset: int = 0
    """Of its bytes within the archive."""
    target: bytes = b""
    """Of a hard link: the path of another entry; of a symbolic link: whatever it says."""
    attributes: tuple[tuple[bytes, bytes], ...] = ()
    """Extended attributes, by name."""


class ArchiveRules(Struct, frozen=True, kw_only=True):
    """How large an archive may be, and whether it may hold what is a danger in a stranger's."""

    archive_bytes: int = 64 * GIB
    entries: int = 1_000_000
    path_bytes: int = 4096
    depth: int = 512
    header_bytes: int = 1 * MIB
    """Of the extended headers of one entry."""
    may_omit_folders: bool = False
    """An entry may lie in folders that the archive does not name."""
    may_link_out: bool = False
    """Symbolic links that lead out of the archive: kept as they are, never followed."""
    may_raise_privileges: bool = False
    """Set-user-id and set-group-id bits, and attributes other than the user's own."""


OWN_ARCHIVE = ArchiveRules(may_link_out=True, may_raise_privileges=True)
"""For what an engine of the user packs itself: a volume is kept as it is."""
FOREIGN_ARCHIVE = ArchiveRules()
IMAGE_ARCHIVE = ArchiveRules(may_omit_folders=True)
"""For images as an engine saves them."""


def shown(path: bytes) -> str:
    """A path as an error tells it."""
    text = ascii(path.decode("utf-8", "surrogateescape"))
    return text if len(text) <= 120 else f"{text[:117]}…'"


def checked_path(name: bytes, rules: ArchiveRules) -> bytes:
    """The path that a name of an archive stands for, from its top."""
    if not name or b"\0" in name:
        raise ArchiveRefused(f"an entry has no name, or one with a zero byte: {shown(name)}")
    if len(name) > rules.path_bytes:
        raise LimitExceeded("the bytes of a name in the archive", len(name), rules.path_bytes)
    if name.startswith(b"/"):
        raise ArchiveRefused(f"{shown(name)} is an absolute path")
    parts = [part for part in name.split(b"/") if part not in (b"", b".")]
    if b".." in parts:
        raise ArchiveRefused(f"{shown(name)} leads upwards")
    if len(parts) > rules.depth:
        raise LimitExceeded("the depth of a folder in the archive", len(parts), rules.depth)
    return b"/".join(parts)


def checked_entries(entries: Iterable[ArchiveEntry], rules: ArchiveRules) -> tuple[ArchiveEntry, ...]:
    """All entries in their one order, or ArchiveRefused."""
    by_path: dict[bytes, ArchiveEntry] = {}
    for entry in entries:
        if entry.path in by_path:
            raise ArchiveRefused(f"{shown(entry.path)} is in it twice")
        if entry.kind is ArchiveEntryKind.HARD_LINK:
            _check_hard_link(entry, by_path)
        by_path[entry.path] = entry
        _check_privileges(entry, rules)
    for entry in by_path.values():
        _check_place(entry, by_path, rules)
        if entry.kind is ArchiveEntryKind.SYMBOLIC_LINK and not rules.may_link_out and leads_out(entry, by_path):
            raise ArchiveRefused(f"the link {shown(entry.path)} leads out of the archive, to {shown(entry.target)}")
    return _ordered(by_path)


def _check_hard_link(entry: ArchiveEntry, before: Mapping[bytes, ArchiveEntry]) -> None:
    other = before.get(entry.target)
    if other is None or other.kind is ArchiveEntryKind.FOLDER:
        raise ArchiveRefused(f"the hard link {shown(entry.path)} leads to no file before it: {shown(entry.target)}")


def _check_privileges(entry: ArchiveEntry, rules: ArchiveRules) -> None:
    if rules.may_raise_privileges:
        return
    if entry.mode & SET_ID_BITS and entry.kind is not ArchiveEntryKind.FOLDER:
        raise ArchiveRefused(f"{shown(entry.path)} would run with the rights of its owner or group")
    if foreign := [name for name, _ in entry.attributes if not name.startswith(b"user.")]:
        raise ArchiveRefused(f"{shown(entry.path)} has the attribute {shown(foreign[0])}")


def _check_place(entry: ArchiveEntry, by_path: Mapping[bytes, ArchiveEntry], rules: ArchiveRules) -> None:
    if not entry.path and entry.kind is not ArchiveEntryKind.FOLDER:
        raise ArchiveRefused("its top is no folder")
    folder = entry.path.rpartition(b"/")[0]
    while folder:
        parent = by_path.get(folder)
        if parent is not None:
            if parent.kind is not ArchiveEntryKind.FOLDER:
                raise ArchiveRefused(f"{shown(entry.path)} lies below {shown(folder)}, which is no folder")
            return  # which is judged by itself
        if not rules.may_omit_folders:
            raise ArchiveRefused(f"the folder of {shown(entry.path)} is not in it")
        folder = folder.rpartition(b"/")[0]


def leads_out(link: ArchiveEntry, by_path: Mapping[bytes, ArchiveEntry]) -> bool:
    """Whether a symbolic link leads out of the archive, by itself or over other links in it."""
    place = link.path.split(b"/")[:-1]
    ahead = [link.target]
    followed = 0
    while ahead:
        first, _, rest = ahead.pop().partition(b"/")
        if rest:
            ahead.append(rest.lstrip(b"/") or b".")
        if first == b"":
            return True
        if first == b"..":
            if not place:
                return True
            place.pop()
        elif first != b".":
            place.append(first)
            entry = by_path.get(b"/".join(place))
            if entry is not None and entry.kind is ArchiveEntryKind.SYMBOLIC_LINK:
                followed += 1
                if followed > LINKS_FOLLOWED:
                    return True
                place.pop()
                ahead.append(entry.target)
    return False


def _ordered(by_path: dict[bytes, ArchiveEntry]) -> tuple[ArchiveEntry, ...]:
    """Folders before what is in them, names by their bytes, and of the names of one file the first has its bytes. The
    others have its owner, mode and time too: an engine sets them again at each name."""
    order = sorted(by_path, key=lambda path: path.split(b"/") if path else [])
    first_name: dict[bytes, bytes] = {}
    entries = []
    for path in order:
        entry = by_path[path]
        origin = entry
        while origin.kind is ArchiveEntryKind.HARD_LINK:
            origin = by_path[origin.target]
        first = first_name.setdefault(origin.path, path)
        if first != path:
            entries.append(
                replace(origin, path=path, kind=ArchiveEntryKind.HARD_LINK, target=first, size=0, attributes=())
            )
        else:
            entries.append(replace(origin, path=path))
    return tuple(entries)
