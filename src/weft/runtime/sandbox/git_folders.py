"""Git's folders that commands in a workspace can write: what is to be kept of them before a command that nobody asked
about, and given back by an undo.

They are those to which `git_view` follows what leads there: of the workspace, of the repository above it or beside
which it is a second working tree, of repositories and submodules in it. Those that it mounts read-only since a part of
them is missing are among them, too: a command may have taken that part away, and an undo gives it back.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from weft.kernel.errors import LimitExceeded
from weft.runtime.sandbox.git_includes import included_files
from weft.runtime.sandbox.git_repositories import (
    GIT,
    GitFolder,
    LinkedFolders,
    OddRepository,
    common_folder,
    folders_inside,
    folders_named,
    git_places,
    kind_of,
    module_folders,
    read_small,
    repository_above,
)
from weft.runtime.sandbox.git_settings import object_format
from weft.runtime.sandbox.git_view import MOST_REPOSITORIES, GitPerson
from weft.runtime.sandbox.mounts import is_beneath

SHARED_PARTS = frozenset((b"refs", b"packed-refs", b"logs", b"shallow"))
"""What the working trees of one repository share, and each of them can write."""


def writable_git_folders(workspace: Path) -> tuple[GitFolder, ...]:
    """`workspace` has no links on its way. Raises LimitExceeded for more than the sandbox lets commands write."""
    folders: dict[str, GitFolder] = {}
    for folder in _candidates(str(workspace)):
        folders.setdefault(folder.place, folder)
        if len(folders) > MOST_REPOSITORIES:
            raise LimitExceeded("git repositories in the workspace", len(folders), MOST_REPOSITORIES)
    return tuple(folders.values())


def repository_settings(workspace: Path) -> tuple[str, ...]:
    """Where the repositories of a workspace have their settings. All of its folders are looked through."""
    folders = dict.fromkeys(folder.place for folder in _candidates(str(workspace)))
    return tuple(f"{folder}/{name}" for folder in folders for name in ("config", "config.worktree"))


def obeyed_settings(workspace: Path, settings: Sequence[str], person: GitPerson) -> frozenset[str]:
    """Files of a workspace in which a person's git reads settings, outside of the sandbox: theirs, those of the
    repositories, and what either includes, whether it is there or not. Commands cannot change them."""
    top = str(workspace)
    read = included_files(
        [*person.settings, *settings], lambda place: place == top or is_beneath(place, top), person.home
    )
    places = (place for one in read for place in (one.file, one.missing, *one.links))
    return frozenset(place for place in places if place is not None and is_beneath(place, top))


def _candidates(workspace: str) -> Iterator[GitFolder]:
    entry = f"{workspace}/{GIT}"
    kind = kind_of(entry)
    if kind is None:
        above = repository_above(workspace)
        if above is not None:
            yield from _with_modules(above)
    elif kind == stat.S_IFDIR:
        yield from _with_modules(entry)
    elif kind == stat.S_IFREG:
        yield from _linked(folders_named, entry, workspace)
    for inner in git_places(workspace):
        if os.path.basename(inner).casefold() != GIT:
            continue  # under another name its files are like any others
        if kind_of(inner) == stat.S_IFDIR:
            yield from _with_modules(inner)
        elif kind_of(inner) == stat.S_IFREG:
            yield from _linked(folders_inside, inner, workspace)


def _linked(follow: Callable[[str, str], LinkedFolders | None], entry: str, workspace: str) -> Iterator[GitFolder]:
    """Of a second working tree or a submodule, whose folder a file names. None that commands cannot write: an undo
    would reset another's repository."""
    try:
        folders = follow(entry, workspace)
    except (OddRepository, OSError):
        return
    if folders is None:
        return
    own, common = folders
    if common is None:
        yield from _with_modules(own)
        return
    shared = _folder_at(common, objects=common)
    if shared is None:
        return
    if is_beneath(common, workspace):
        yield from _with_modules(common)
    else:
        yield GitFolder(place=common, objects=common, object_format=shared.object_format, parts=SHARED_PARTS)
    yield GitFolder(place=own, objects=common, object_format=shared.object_format)
    yield from _modules_of(own)


def _with_modules(place: str) -> Iterator[GitFolder]:
    folder = _folder_at(place, objects=place)
    if folder is not None:
        yield folder
        yield from _modules_of(place)


def _modules_of(place: str) -> Iterator[GitFolder]:
    """Those of submodules, known by their configuration, which commands cannot take away."""
    for path in module_folders(place, known_by="config"):
        yield from _with_modules(path)


def _folder_at(place: str, objects: str) -> GitFolder | None:
    """None where git could not work with it, or where commands see no more than what is there."""
    try:
        if os.path.realpath(place) != place or common_folder(place) is not None:
            return None
        config = read_small(f"{place}/config")
    except (OSError, OddRepository):
        return None
    return GitFolder(place=place, objects=objects, object_format=object_format(config))
