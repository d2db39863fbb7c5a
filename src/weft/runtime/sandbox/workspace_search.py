"""Looks through a workspace for what commands must not see: ledgers of projects in it, and files of secrets.

It is looked through twice. Before a sandbox is made, from outside, to know what is to be covered. Then, when it is made
and nothing has run in it yet, as the command will see it: whoever may write to the workspace meanwhile, such as a
command in another sandbox, can have moved things between the look and the mount. What is found uncovered then, or is no
longer the thing that was to be covered, makes the start fail.
"""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from weft.runtime.sandbox.mounts import is_beneath
from weft.runtime.sandbox.processes import StartAgain
from weft.runtime.sandbox.secret_files import SecretFiles

LEDGER_FOLDER = ".weft"
MOST_FOLDERS = 5000
"""Of a workspace that are looked through, the uppermost first."""
FETCHED_FOLDERS = frozenset({".git", ".hg", ".svn", "node_modules", ".venv", "__pycache__", ".tox", ".mypy_cache"})
"""Those that tools fill with what they fetched or made are not looked through."""
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_PLACE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class HiddenEntry(Struct, frozen=True, kw_only=True):
    """A file or folder that is to be hidden."""

    path: str
    """From the workspace on."""
    number: int
    """Its number in its file system, as its folder lists it, also while something is mounted on it."""
    is_folder: bool
    is_secret: bool = False
    """A file of secrets, not a ledger."""


def identity_at(path: str, root: str = "/") -> tuple[int, int]:
    """Device and number of what lies at an absolute path below a root, with no link on its way and none at its end.
    Raises StartAgain: whoever may write there could lead it elsewhere between two looks."""
    place = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in filter(None, path.split("/")):
            try:
                beneath = os.open(name, _OPEN_PLACE, dir_fd=place)
            except OSError as error:
                raise StartAgain(f"{path} was moved ({error.strerror})") from None
            os.close(place)
            place = beneath
        status = os.fstat(place)
    finally:
        os.close(place)
    if stat.S_ISLNK(status.st_mode):
        raise StartAgain(f"{path} became a link")
    return status.st_dev, status.st_ino


def search_workspace(workspace: Path, secrets: SecretFiles) -> tuple[HiddenEntry, ...]:
    """What is to be hidden in a workspace; its path has no links. A folder that cannot be listed is hidden whole: the
    command could open it."""
    top, shown = os.open(workspace, _OPEN_FOLDER), frozenset(secrets.shown())
    try:
        entries: list[HiddenEntry] = []
        numbers: dict[str, int] = {}
        for path, folder, listed in walk_folders(top):
            if folder < 0:
                entries.append(HiddenEntry(path=path, number=numbers[path], is_folder=True))
            for entry in listed:
                if is_real_folder(entry):
                    numbers[_joined(path, entry.name)] = entry.inode()
                hidden = _hidden_entry(str(workspace), path, folder, entry, secrets, shown)
                if hidden is not None:
                    entries.append(hidden)
    finally:
        os.close(top)
    return tuple(entries)


def listed_numbers(places: Iterable[str]) -> dict[str, int]:
    """The numbers of files and folders as their folders list them, of those that are there."""
    numbers: dict[str, int] = {}
    for parent, names in _by_folder(places).items():
        with suppress(OSError), os.scandir(parent) as listed:
            numbers |= {os.path.join(parent, entry.name): entry.inode() for entry in listed if entry.name in names}
    return numbers


def ensure_hidden(inside: int, planned: Mapping[str, int | None], workspace: Path, secrets: SecretFiles) -> None:
    """Raises StartAgain unless all is mounted where it was planned, over the very things that were to be hidden, and
    nothing else is seen that is to be hidden. `inside` is the workspace as the command will see it; `planned` has the
    paths in it of what is mounted there, and the number of what lies under it, where that matters."""
    for parent, names in _by_folder(planned).items():
        try:
            folder = os.open(parent or ".", _OPEN_FOLDER, dir_fd=inside)
        except OSError as error:
            raise StartAgain(f"{parent} was replaced ({error.strerror})") from None
        try:
            with os.scandir(folder) as listed:
                numbers = {entry.name: entry.inode() for entry in listed if entry.name in names}
            for name in names:
                path = _joined(parent, name)
                number = planned[path]
                if name not in numbers or number not in (None, numbers[name]) or not _is_mount_point(folder, name):
                    raise StartAgain(f"{path} was moved or replaced")
        finally:
            os.close(folder)
    top, shown = os.open(".", _OPEN_FOLDER, dir_fd=inside), frozenset(secrets.shown())
    try:
        for path, folder, entries in walk_folders(top):
            if folder < 0:
                raise StartAgain(f"{path} was closed")
            for entry in entries:
                hidden = _hidden_entry(str(workspace), path, folder, entry, secrets, shown)
                if hidden is not None and not entry.is_symlink() and not _is_mount_point(folder, entry.name):
                    raise StartAgain(f"{hidden.path} came to where it is")
    finally:
        os.close(top)


def walk_folders(top: int, most: int = MOST_FOLDERS) -> Iterator[tuple[str, int, list[os.DirEntry[str]]]]:
    """The folders beneath one, links not followed: path, descriptor and entries of each. One that cannot be listed has
    no entries, and the descriptor -1."""
    waiting = deque([""])
    for _ in range(most):
        if not waiting:
            return
        path = waiting.popleft()
        try:
            folder = os.open(path or ".", _OPEN_FOLDER, dir_fd=top)
        except PermissionError:
            yield path, -1, []
            continue
        except OSError:  # it is gone, or was replaced by something else
            continue
        try:
            with os.scandir(folder) as listed:
                entries = list(listed)
            yield path, folder, entries
        finally:
            os.close(folder)
        for entry in entries:
            if is_real_folder(entry) and entry.name not in FETCHED_FOLDERS and not is_ledger_folder(entry):
                waiting.append(_joined(path, entry.name))


def is_ledger_folder(entry: os.DirEntry[str]) -> bool:
    return entry.name.casefold() == LEDGER_FOLDER and is_real_folder(entry)


def is_real_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:  # it is gone
        return False


def _hidden_entry(
    workspace: str, path: str, folder: int, entry: os.DirEntry[str], secrets: SecretFiles, shown: frozenset[str]
) -> HiddenEntry | None:
    """What is to be hidden because of an entry of a folder: the entry, or the file that it leads to."""
    entry_path = _joined(path, entry.name)
    if is_ledger_folder(entry):
        return HiddenEntry(path=entry_path, number=entry.inode(), is_folder=True)
    if os.path.join(workspace, entry_path) in shown:
        return None
    if entry.is_file(follow_symlinks=False):
        is_secret = secrets.has(entry_path, folder, entry.name)
        return _secret(entry_path, entry.inode()) if is_secret else None
    return _linked_secret(workspace, entry_path, secrets, shown) if entry.is_symlink() else None


def _linked_secret(workspace: str, path: str, secrets: SecretFiles, shown: frozenset[str]) -> HiddenEntry | None:
    """A link of a secret's name: over a link nothing can be mounted, so the file that it leads to is hidden."""
    if not secrets.is_named(path):
        return None
    target = os.path.realpath(os.path.join(workspace, path))
    if target == workspace or not is_beneath(target, workspace) or target in shown:
        return None  # what lies outside is not seen anyway
    try:
        folder = os.open(os.path.dirname(target), _OPEN_FOLDER)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.stat(os.path.basename(target), dir_fd=folder, follow_symlinks=False).st_mode):
            return None
        is_secret = secrets.has(path, folder, os.path.basename(target))
    except OSError:  # it leads nowhere
        return None
    finally:
        os.close(folder)
    number = listed_numbers([target]).get(target) if is_secret else None
    return None if number is None else _secret(os.path.relpath(target, workspace), number)


def _secret(path: str, number: int) -> HiddenEntry:
    return HiddenEntry(path=path, number=number, is_folder=False, is_secret=True)


def _is_mount_point(folder: int, name: str) -> bool:
    try:
        place = os.open(name, _OPEN_PLACE, dir_fd=folder)
    except OSError:  # it is gone
        return False
    try:
        return _mount_id(place) != _mount_id(folder)
    finally:
        os.close(place)


def _mount_id(descriptor: int) -> bytes:
    with open(f"/proc/self/fdinfo/{descriptor}", "rb") as file:
        return next(line for line in file if line.startswith(b"mnt_id:"))


def _by_folder(paths: Iterable[str]) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for path in paths:
        parent, name = os.path.split(path)
        names.setdefault(parent, []).append(name)
    return names


def _joined(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name
