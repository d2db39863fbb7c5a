"""The repositories of folders on this machine, read off their `.git`: no command is run, and little is read.

What a folder's `.git` says was written by others: only small regular files are read, links are not followed, and what
cannot be understood means that nothing is known of the folder.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

GIT = ".git"
POINTER_BYTES = 4096
CONFIG_BYTES = 256 * 1024
MOST_LEVELS = 64
_HEADING = re.compile(r'\[\s*([\w.-]+(?:\s+"[^"]*")?)\s*\]')
_REMOTE = re.compile(r'remote\s+"([^"]*)"', re.IGNORECASE)
_SETTING = re.compile(r"(\w+)\s*=\s*(.+)")


def trusted_repositories(is_trusted: Callable[[], bool]) -> Callable[[str], str | None]:
    """Gives repositories of folders, and a folder itself that lies here and belongs to none; nothing where the ledger
    that names the folders is not trusted, as nothing on this machine is looked at for such a one."""
    trusted = cache(is_trusted)

    def repository_of(folder: str) -> str | None:
        if not trusted() or not _is_here(folder):
            return None
        return local_repository(folder) or folder

    return repository_of


@cache
def local_repository(folder: str) -> str | None:
    """The remote of the repository that a folder here belongs to, as `host/path`; of one without a remote its main
    folder, which all its worktrees share. None: no such folder, or no repository."""
    if not _is_here(folder):
        return None
    path = Path(os.path.normpath(folder))
    for place in (path, *path.parents)[:MOST_LEVELS]:
        try:
            mode = os.lstat(place / GIT).st_mode
        except OSError:
            continue
        try:
            shared = place / GIT if stat.S_ISDIR(mode) else _shared_folder(place)
            if shared is None:
                return None
            return _remote(shared) or str(shared.parent if shared.name == GIT else shared)
        except (OSError, ValueError):  # it is no file of git, or cannot be read
            return None
    return None


def _is_here(folder: str) -> bool:
    return os.path.isabs(folder) and not folder.startswith("//") and "\0" not in folder and os.path.isdir(folder)


def _shared_folder(place: Path) -> Path | None:
    """The folder of git that a `.git` file leads to: that of a submodule, or the one that a worktree shares with the
    others. None where that folder does not name this place as its own, as git writes it on both sides: a file alone
    would make any folder part of any repository."""
    lead, _, target = _read(place / GIT, POINTER_BYTES).partition(":")
    if lead != "gitdir":
        return None
    own = Path(os.path.normpath(place / target.strip()))
    try:
        common = _read(own / "commondir", POINTER_BYTES).strip()
    except FileNotFoundError:
        return own if _is_submodule(own, place) else None
    shared = Path(os.path.normpath(own / common))
    back = _read(own / "gitdir", POINTER_BYTES).strip()
    return shared if own.parent == shared / "worktrees" and _is_same(own / back, place / GIT) else None


def _is_submodule(own: Path, place: Path) -> bool:
    """Does a folder of git lie below the `modules` of a `.git`, with its files at this place?"""
    parts = own.parts
    if GIT not in parts or "modules" not in parts[parts.index(GIT) : -1]:
        return False
    files = dict(_settings(own)).get(("core", "worktree"))
    return files is not None and _is_same(own / files, place)


def _is_same(path: Path, other: Path) -> bool:
    return os.path.realpath(path) == os.path.realpath(other)


def _remote(shared: Path) -> str | None:
    """The address of `origin`, or of the first remote."""
    from weft.ledger.api import repository_name

    addresses: dict[str, str] = {}
    for (section, name), value in _settings(shared):
        if name == "url" and (remote := _REMOTE.fullmatch(section)) is not None:
            addresses.setdefault(remote[1], value)
    address = addresses.get("origin") or next(iter(addresses.values()), "")
    return repository_name(address)


def _settings(own: Path) -> Iterator[tuple[tuple[str, str], str]]:
    """What the configuration of a folder of git sets: sections and names, with their values."""
    section = ""
    for line in map(str.strip, _read(own / "config", CONFIG_BYTES).splitlines()):
        if line.startswith("["):
            heading = _HEADING.match(line)
            section = "" if heading is None else heading[1]
        elif (setting := _SETTING.fullmatch(line)) is not None:
            yield (section, setting[1].lower()), setting[2].strip().strip('"')


def _read(path: Path, most: int) -> str:
    from weft.exchange.importers.foreign_files import read_beneath

    return read_beneath(path, path.parent, most).decode("utf-8", "replace")
