"""The repositories of folders on this machine, read off their `.git`: no command is run, and little is read.

What a folder's `.git` says was written by others: only small regular files are read, links are not followed, and what
cannot be understood means that nothing is known of the folder.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from functools import cache
from pathlib import Path

GIT = ".git"
POINTER_BYTES = 4096
CONFIG_BYTES = 256 * 1024
MOST_LEVELS = 64
_REMOTE = re.compile(r'\[\s*remote\s+"([^"\n]*)"\s*\]', re.IGNORECASE)
_URL = re.compile(r"url\s*=\s*(.+)", re.IGNORECASE)


def trusted_repositories(is_trusted: Callable[[], bool]) -> Callable[[str], str | None]:
    """Gives repositories of folders; none where the ledger that names the folders is not trusted, as nothing on this
    machine is looked at for such a one."""
    trusted = cache(is_trusted)
    return lambda folder: local_repository(folder) if trusted() else None


@cache
def local_repository(folder: str) -> str | None:
    """The remote of the repository that a folder here belongs to, as `host/path`; of one without a remote its main
    folder, which all its worktrees share. None: no such folder, or no repository."""
    if not os.path.isabs(folder) or folder.startswith("//") or "\0" in folder or not os.path.isdir(folder):
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


def _shared_folder(worktree: Path) -> Path | None:
    """The folder of git that a worktree shares with the others, by the two small files that lead there; None where the
    first names no folder."""
    lead, _, target = _read(worktree / GIT, POINTER_BYTES).partition(":")
    if lead != "gitdir":
        return None
    own = Path(os.path.normpath(worktree / target.strip()))
    try:
        shared = _read(own / "commondir", POINTER_BYTES).strip()
    except FileNotFoundError:  # a submodule has a folder of its own
        return own
    return Path(os.path.normpath(own / shared))


def _remote(shared: Path) -> str | None:
    """The address of `origin`, or of the first remote."""
    from weft.ledger.api import repository_name

    addresses: dict[str, str] = {}
    section: str | None = None
    for line in _read(shared / "config", CONFIG_BYTES).splitlines():
        if line.lstrip().startswith("["):
            heading = _REMOTE.match(line.strip())
            section = None if heading is None else heading[1]
        elif section is not None and (url := _URL.fullmatch(line.strip())) is not None:
            addresses.setdefault(section, url[1].strip().strip('"'))
    address = addresses.get("origin") or next(iter(addresses.values()), "")
    return repository_name(address)


def _read(path: Path, most: int) -> str:
    from weft.exchange.importers.sidecars import read_beneath

    return read_beneath(path, path.parent, most).decode("utf-8", "replace")
