"""What git takes for a folder of its own, and how it is led from one to another; read as git reads it.

A folder is git's if it has a `HEAD`, `objects` and `refs`, whatever its name is; here, a part of that suffices.
A file `.git` leads to one, and a `commondir` in one leads to another, whose `config` and hooks count then. Both are
read here alone: what looks for repositories before a command and what looks after it must follow them to the same
folder.
"""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from weft.kernel.errors import InvalidInput
from weft.runtime.sandbox.folder_descent import Identity
from weft.runtime.sandbox.git_settings import CONFIG_BYTES, read_settings
from weft.runtime.sandbox.mounts import is_beneath
from weft.runtime.sandbox.workspace_search import FETCHED_FOLDERS

GIT = ".git"
MOST_FOLDERS = 200_000
"""So many folders of a workspace are looked through for repositories; one with more of them is refused."""
MODULE_LEVELS = 8
POINTER_BYTES = 1024 * 1024
"""Git reads a `.git` file of at most this size."""
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_POINTER = b"gitdir: "
_MOST_LEVELS = 64


class LinkedFolders(NamedTuple):
    """Where git keeps what belongs to a working tree."""

    own: str
    common: str | None
    """The one that a second working tree shares with others."""


class OddRepository(Exception):
    """It is not as git makes it, so nothing in it may be written."""


class GitFolder(Struct, frozen=True, kw_only=True):
    """A folder of git's that commands in a workspace can write, by its path without links."""

    place: str
    objects: str
    """The folder that has its objects: itself, or the one that it shares with other working trees."""
    object_format: str
    parts: frozenset[bytes] | None = None
    """The names in it that are to be kept; None: all but what commands cannot write."""


def is_git_folder(folder: int) -> bool:
    """Whether git may read settings in a folder: as its own, or as what several working trees share. That one needs
    no `HEAD`. What is in a `HEAD` is not asked: git may read it otherwise."""
    names = ("HEAD", "commondir")
    return any(kind_at(folder, name) is not None for name in names) or all(
        kind_at(folder, name) is not None for name in ("objects", "refs")
    )


def lies_in_git_folder(place: str, workspace: str) -> bool:
    """Whether a file of a workspace lies in a folder that git may read settings in, whatever that is called, or would
    make one of a folder. Raises OSError where that cannot be seen."""
    names = os.path.relpath(place, workspace).split("/")
    for depth, name in enumerate(names):
        try:
            folder = os.open(os.path.join(workspace, *names[:depth]), _FOLDER)
        except (FileNotFoundError, NotADirectoryError):
            break  # a folder that is made for the file holds nothing else
        try:
            other = {"objects": "refs", "refs": "objects"}.get(name)
            if is_git_folder(folder) or (other is not None and kind_at(folder, other) is not None):
                return True
        finally:
            os.close(folder)
    return names[-1] == "HEAD"


def git_places(workspace: str, most: int = MOST_FOLDERS) -> Iterator[str]:
    """Every `.git` in the folders of a workspace but its own, and every folder in them that is git's under another
    name; links are not followed. What tools fill with what they fetched or made is not looked through. Raises
    InvalidInput where there are more folders than can be looked through: what lies in the others would not be held."""
    waiting, seen = deque([workspace]), 0
    while waiting:
        seen += 1
        if seen > most:
            raise InvalidInput(
                f"the workspace {workspace} has more than {most} folders: not all can be looked through for "
                "repositories of git",
                "make a folder with fewer of them the workspace, or remove what a program made there",
            )
        folder = waiting.popleft()
        try:
            with os.scandir(folder) as entries:
                inner = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
        except OSError:  # it is gone, or cannot be read, neither by a command
            continue
        names = {name for name, _ in inner}
        if {"objects", "refs"} <= names or not names.isdisjoint(("HEAD", "commondir")):
            yield folder
        for name, is_folder in inner:
            if name.casefold() == GIT:
                if folder != workspace or name != GIT:
                    yield f"{folder}/{name}"
            elif is_folder and name not in FETCHED_FOLDERS:
                waiting.append(f"{folder}/{name}")


def module_folders(folder: str, known_by: str = "HEAD") -> Iterator[str]:
    """Git's folders of the submodules of one repository, not those of submodules in them. Names may have slashes.
    `known_by` is the file that makes a folder one of them."""
    waiting = [(f"{folder}/modules", MODULE_LEVELS)]
    while waiting:
        place, left = waiting.pop()
        try:
            with os.scandir(place) as entries:
                inner = sorted(entry.path for entry in entries if entry.is_dir(follow_symlinks=False))
        except OSError:
            continue
        for path in inner:
            if kind_of(f"{path}/{known_by}") is not None:
                yield path
            elif left:
                waiting.append((path, left - 1))


def branch_names(folder: str) -> Iterator[str]:
    """Those with a file of their own, as every branch has that was made a moment ago."""
    top = f"{folder}/refs/heads"
    waiting = [top]
    while waiting:
        place = waiting.pop()
        with suppress(OSError), os.scandir(place) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                else:
                    yield os.path.relpath(entry.path, top)


def pointed_path(entry: str, above: int | None = None) -> str | None:
    """The path that a `.git` file leads to, as git follows it: without line ends at its end, up to a zero byte, with
    whatever blanks and line ends are in it. None where git reads no path there. `above` is the folder that it lies in,
    where a path could be led elsewhere. Raises OSError."""
    data = _read_pointer(entry if above is None else os.path.basename(entry), above)
    if data is None or not data.startswith(_POINTER):
        return None
    target = _path_in(data.removeprefix(_POINTER))
    return os.path.join(os.path.dirname(entry), os.fsdecode(target)) if target else None


def path_in_file(path: str) -> str | None:
    """The path in another small file of git's, such as `commondir`; None where there is no such file."""
    try:
        data = _read_pointer(path)
    except OSError:
        return None
    return os.fsdecode(_path_in(data)) or None if data is not None else None


def _path_in(data: bytes) -> bytes:
    return data.rstrip(b"\r\n").split(b"\0")[0]


def _read_pointer(path: str, folder: int | None = None) -> bytes | None:
    try:
        return read_small(path, POINTER_BYTES, folder)
    except OddRepository:
        return None


def pointed_folder(entry: str) -> str | None:
    """The folder that a `.git` file leads to. None where it leads nowhere, or through a link."""
    try:
        target = pointed_path(entry)
    except OSError:
        return None
    folder = None if target is None else os.path.normpath(target)
    if folder is None or os.path.realpath(folder) != folder or kind_of(folder) != stat.S_IFDIR:
        return None
    return folder


def common_folder(own: str) -> str | None:
    """The folder that the working trees of one repository share; None where `own` is not that of a second one."""
    text = path_in_file(f"{own}/commondir")
    if text is None or text == ".":
        return None
    folder = os.path.normpath(os.path.join(own, text))
    if os.path.realpath(folder) != folder:
        raise OddRepository("its commondir leads through a link")
    return folder


def repository_above(workspace: str) -> str | None:
    """The nearest `.git` above a workspace, where it is a folder of the same user: anybody could put a repository into
    `/tmp`."""
    for folder in list(Path(workspace).parents)[:_MOST_LEVELS]:
        entry = f"{str(folder).rstrip('/')}/{GIT}"
        kind = kind_of(entry)
        if kind is not None:
            is_own = os.lstat(entry).st_uid == os.stat(workspace).st_uid
            return entry if kind == stat.S_IFDIR and is_own else None
    return None


def folders_inside(entry: str, workspace: str) -> LinkedFolders | None:
    """What a `.git` in a workspace is or leads to; None where it leads out of the workspace, or the folder does that it
    leads to. Raises OddRepository and OSError."""
    is_file = kind_of(entry) == stat.S_IFREG
    target = pointed_path(entry) if is_file else entry
    own = None if target is None else os.path.realpath(target)
    if own is None or not _is_folder_in(own, workspace):
        return None
    common = common_folder(own) if is_file else None
    return LinkedFolders(own, common) if common is None or _is_folder_in(common, workspace) else None


def folders_named(entry: str, workspace: str) -> LinkedFolders | None:
    """What the file `.git` of a workspace leads to, which is a second working tree or a submodule; None as above. A
    file alone would open any folder of the machine: the folder that it names must name the workspace, too, as git
    writes it on both sides. Raises OddRepository where it does not, and OSError."""
    own = pointed_folder(entry)
    if own is None:
        raise OddRepository("it names no folder")
    if is_beneath(own, workspace):
        return folders_inside(entry, workspace)
    common = common_folder(own)
    if common is None:
        is_named = is_submodule_of(own, workspace)
    else:
        back = path_in_file(f"{own}/gitdir")
        is_named = back is not None and os.path.realpath(os.path.join(own, back)) == entry
        is_named = is_named and os.path.dirname(own) == f"{common}/worktrees"
    if not is_named:
        raise OddRepository("the folder that it names does not name it")
    return LinkedFolders(own, common)


def _is_folder_in(place: str, workspace: str) -> bool:
    return is_beneath(place, workspace) and place != workspace and kind_of(place) == stat.S_IFDIR


def is_submodule_of(own: str, workspace: str) -> bool:
    """Whether git's folder lies among the modules of another and names this workspace as the place of its files."""
    parts = Path(own).parts
    if GIT not in parts or "modules" not in parts[parts.index(GIT) : -1]:
        return False
    places = [one.value for one in read_settings(read_small(f"{own}/config")) if one.key == "core.worktree"]
    return bool(places) and os.path.realpath(os.path.join(own, places[-1])) == workspace


def read_small(path: str, most: int = CONFIG_BYTES, folder: int | None = None) -> bytes:
    """Raises OddRepository for what is no file or too large for one of these."""
    with open(os.open(path, _READ, dir_fd=folder), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OddRepository(f"{os.path.basename(path)} is not a file")
        data = file.read(most + 1)
    if len(data) > most:
        raise OddRepository(f"{os.path.basename(path)} has more than {most} bytes")
    return data


def kind_of(path: str) -> int | None:
    """File, folder or link; None where there is nothing."""
    try:
        return stat.S_IFMT(os.lstat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return None


def kind_at(folder: int, name: str) -> int | None:
    try:
        return stat.S_IFMT(os.lstat(name, dir_fd=folder).st_mode)
    except FileNotFoundError:
        return None


def identity_of(path: str) -> Identity:
    status = os.lstat(path)
    return status.st_dev, status.st_ino
