"""What a command in the sandbox is shown of the machine's files, and what of them is covered: the plan of its mounts.

It is made anew at each start, since what lies in a workspace changes between two commands. Whoever makes the sandbox
compares afterwards what was mounted with the plan.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from msgspec import Struct

from weft.kernel.errors import InvalidInput
from weft.runtime.sandbox.mounts import (
    Mount,
    MountKind,
    cover,
    is_beneath,
    ordered_mounts,
    read_only,
    unreadable,
    writable,
)
from weft.runtime.sandbox.private_home import (
    home_beside,
    home_mounts,
    named_caches,
    workspace_caches,
)
from weft.runtime.sandbox.protected_places import ProtectedPlaces, few_entries
from weft.runtime.sandbox.remembered_places import RememberedPlace
from weft.runtime.sandbox.shown_folders import ledger_folders
from weft.runtime.sandbox.toolchains import NO_TOOLCHAINS, Toolchains
from weft.runtime.sandbox.visible_files import SystemFiles, readable_mounts, system_mounts
from weft.runtime.sandbox.workspace_search import (
    HiddenEntry,
    SearchedWorkspace,
    identity_at,
    listed_numbers,
    search_workspace,
)
from weft.runtime.sandbox.workspace_view import NO_FOLDERS, PersonFolders, WorkspaceView

INSIDE_PATH = "/usr/local/bin:/usr/bin:/bin"
PROGRAM_FOLDER = "/program"
"""Where a program without a workspace starts."""


class Surroundings(TypedDict, total=False):
    """What a command in the sandbox finds. It starts in the workspace, the one place where what it writes stays, or
    without one in `/program`, which holds `files`, and nothing that it writes stays."""

    workspace: Path | None
    folder: str | None
    """A folder of the workspace, in which it starts."""
    read_only: bool
    """Whether the workspace cannot be written either."""
    files: Mapping[str, bytes] | None
    held_files: Sequence[Mount]
    """Files of the workspace with the bytes that they are to have, whatever becomes of them there."""
    uncovered_files: Sequence[Mount]
    """What takes the place of the covers of files of secrets, by its place. Anywhere else it shows nothing."""
    readable: Sequence[Path]
    """What is shown to it beside the system and the workspace."""
    hidden: Sequence[Path]
    shown: Sequence[Path]
    """What somebody chose to show beside. It is looked through for ledgers of projects, as the workspace is."""
    system: SystemFiles
    person: PersonFolders
    """For whom it runs."""
    cache_name: str | None
    """By which its package caches are found again, in place of those of its workspace, which other commands write."""
    toolchains: Toolchains
    """What is shown of the person's home folder so that programs are found."""


class SandboxPlan(Struct, frozen=True, kw_only=True):
    """All that a command finds of the machine, and the variables that it needs for that."""

    mounts: tuple[Mount, ...]
    """In the order in which they are made."""
    numbers: Mapping[str, int]
    """Of what is covered in the workspace: by its place, the number of what must lie under the cover."""
    secrets: tuple[str, ...]
    """The files of secrets that are hidden, as paths in the workspace."""
    gathered: tuple[str, ...]
    """Folders of it that are hidden whole, since they hold too much that must be."""
    covered: tuple[RememberedPlace, ...]
    absent: tuple[RememberedPlace, ...]
    """What of the workspace is to be remembered, and what was and is nowhere now."""
    identities: Mapping[str, tuple[int, int]]
    """By the place where it is mounted: what was to be mounted of what commands can write to."""
    home: str
    environment: Mapping[str, str]
    caches: Path | None


def plan_sandbox(
    protected: ProtectedPlaces,
    surroundings: Surroundings,
    view: WorkspaceView,
    remembered: Collection[RememberedPlace] | None,
) -> SandboxPlan:
    """What of the machine's files a command is shown, without what is protected. Looks through the workspace;
    `remembered` is what was covered there before, if that is known."""
    toolchains = surroundings.get("toolchains", NO_TOOLCHAINS)
    hidden = [folder for folder in surroundings.get("hidden", ()) if not toolchains.shows(str(folder))]
    readable = surroundings.get("readable", ())
    shown = [
        *system_mounts(surroundings.get("system", SystemFiles.PROGRAMS)),
        *readable_mounts((*surroundings.get("shown", ()), *readable), hidden),
        *toolchains.mounts,
    ]
    covers: list[Mount] = []
    searched = SearchedWorkspace(entries=())
    person, place = surroundings.get("person", NO_FOLDERS), workspace_place(surroundings.get("workspace"))
    is_writable = not surroundings.get("read_only", False)
    if place is not None:
        shown += [writable(place) if is_writable else read_only(place), *view.mounts]
        shown += surroundings.get("held_files", ())
        searched = search_workspace(Path(place), protected.secrets, remembered)
    covers += protected.covers(shown)
    covers += [mount for folder in surroundings.get("shown", ()) for mount in _ledger_covers(folder)]
    entries = few_entries(searched.entries, len(covers))
    pinning = [f"{place}/{entry.path}" for entry in entries if entry.is_pinned]
    pinning += [mount.place for mount in covers]
    # a command could else put a folder there whose file of that name is hidden
    pinning += [path for path in protected.secrets.shown() if _is_real_folder(os.path.dirname(path))]
    pinned = tuple(_pinned_folders(pinning, place)) if place is not None and is_writable else ()
    uncovered = {mount.place: mount for mount in surroundings.get("uncovered_files", ())}
    covers += _entry_covers(entries, str(place), uncovered, {mount.place for mount in covers})
    numbers = listed_numbers(mount.place for mount in covers) if place is not None else {}
    numbers |= {f"{place}/{entry.path}": entry.number for entry in entries if not entry.is_gathered}
    home = home_beside(place)
    name = surroundings.get("cache_name")
    caches = _caches(person.caches, place, name) if is_writable or name is not None else None
    path = toolchains.path(":".join((*view.program_folders, INSIDE_PATH)))
    return SandboxPlan(
        mounts=ordered_mounts((*shown, *map(writable, pinned), *home_mounts(home, caches), *covers)),
        numbers=numbers,
        identities=_source_identities((*view.mounts, *map(writable, pinned))),
        secrets=tuple(entry.path for entry in entries if entry.is_secret and f"{place}/{entry.path}" not in uncovered),
        gathered=tuple(entry.path for entry in entries if entry.is_gathered),
        covered=tuple(entry.place for entry in searched.entries),
        absent=searched.absent,
        home=home,
        environment={"PATH": path, "HOME": home, **toolchains.variables, **view.environment},
        caches=caches,
    )


def _entry_covers(
    entries: Iterable[HiddenEntry], workspace: str, uncovered: Mapping[str, Mount], covered: Container[str]
) -> Iterator[Mount]:
    """Of what was found in a workspace. A ledger of a secret's name is hidden already, and stays so."""
    for entry in entries:
        path = f"{workspace}/{entry.path}"
        if not entry.is_secret:
            yield cover(path, is_folder=True)
        elif path not in covered:
            yield uncovered.get(path, unreadable(path))


def _ledger_covers(folder: Path) -> Iterator[Mount]:
    """Of the ledgers of projects in a folder that is read and not worked in."""
    real, place = Path(os.path.realpath(folder)), os.path.abspath(folder)
    if os.access(real, os.R_OK | os.X_OK) and real.is_dir():
        yield from (cover(f"{place}/{path}", is_folder=True) for path in ledger_folders(real))


def _source_identities(mounts: Iterable[Mount]) -> dict[str, tuple[int, int]]:
    """Bubblewrap is told paths. What it finds there must be what was looked at here: a command that runs in the same
    workspace could lead a path to the person's home folder for just that moment."""
    shown = {mount.place: mount.source for mount in mounts if mount.kind in (MountKind.READ_ONLY, MountKind.WRITABLE)}
    return {place: identity_at(source) for place, source in shown.items()}


def _pinned_folders(places: Iterable[str], workspace: str) -> Iterator[str]:
    """The folders on the way to what is protected in the workspace. They are mounted on themselves, since a mount point
    cannot be renamed: a command could else move one to where the next look does not come, and leave the protected
    thing uncovered for the next command."""
    pinned: set[str] = set()
    for place in places:
        folder = os.path.dirname(place)
        while folder != workspace and is_beneath(folder, workspace) and folder not in pinned:
            pinned.add(folder)
            yield folder
            folder = os.path.dirname(folder)


def _is_real_folder(path: str) -> bool:
    return os.path.isdir(path) and os.path.realpath(path) == path


def _caches(caches: Path | None, workspace: str | None, name: str | None) -> Path | None:
    if caches is None:
        return None
    if name is not None:
        return named_caches(caches, name)
    return None if workspace is None else workspace_caches(caches, Path(workspace))


def written_folders(plan: SandboxPlan) -> Iterator[str]:
    """Where what a command writes stays, beside the caches: the uppermost folders that are shown for writing."""
    sources = [mount.source for mount in plan.mounts if mount.kind is MountKind.WRITABLE]
    for source in dict.fromkeys(sources):
        is_cache = plan.caches is not None and is_beneath(source, str(plan.caches))
        is_within = any(other != source and is_beneath(source, other) for other in sources)
        if not is_cache and not is_within and os.path.isdir(source):
            yield source


def workspace_place(workspace: Path | None) -> str | None:
    """Where the workspace lies, the same inside and outside."""
    if workspace is None:
        return None
    if not workspace.is_dir():
        raise InvalidInput(f"the workspace {workspace} is not a folder", "make it first")
    place = str(workspace.resolve())
    if place == "/" or place.startswith(("/proc", "/dev", "/sys")):
        raise InvalidInput(f"the workspace cannot be {place}", "give it a folder of its own")
    return place
