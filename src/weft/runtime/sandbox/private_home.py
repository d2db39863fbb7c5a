"""The home folder of commands in the sandbox: empty, in memory, and of nobody.

No configuration of a tool is read from it that the person, the workspace or an earlier command has written. Only what
package managers fetched stays, in a folder on disk for each workspace, which nothing outside of the sandbox uses.

A command can read off its mounts where that folder lies. It could put a repository with hooks there, and write its path
as the address of a remote: the person's next `git push` would run the hooks. Each folder therefore gets a new name that
nobody can guess whenever a command has ended that could write to it: a path that was written down leads nowhere.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from weft.kernel.clock import system_random
from weft.runtime.sandbox.mounts import Mount, is_beneath, memory_folder, writable
from weft.runtime.sandbox.processes import MIB

HOME_BYTES = 64 * MIB
_HOMES = ("/home/agent", "/agent")
"""The second one where the workspace lies in the first one, or above it."""
_PERSON_SETTINGS = ((".gitconfig",), (".config", "git", "config"))
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CACHES = {".cache": "cache", ".npm": "npm"}
"""Folders of the home folder that last, with the beginning of their names outside: pip, uv, Go and most others use the
first one, npm the second one."""


def home_beside(workspace: str | None) -> str:
    """Where the home folder lies inside."""
    first, second = _HOMES
    is_taken = workspace is not None and (is_beneath(first, workspace) or is_beneath(workspace, first))
    return second if is_taken else first


def home_mounts(home: str, caches: Path | None) -> list[Mount]:
    """`caches` is made if need be; without it, or where it cannot be made, nothing lasts."""
    mounts = [memory_folder(home, HOME_BYTES)]
    if caches is not None:
        with suppress(OSError):  # a full disk, or a home folder that cannot be written: packages are fetched again
            os.makedirs(caches, 0o700, exist_ok=True)
            with _locked(caches) as folder:
                for name, purpose in _CACHES.items():
                    mounts.append(writable(f"{home}/{name}", str(caches / _ensure_cache(folder, purpose))))
    return mounts


def rename_caches(caches: Path) -> None:
    """So that no path leads there which a command wrote down. Commands that still run keep them. Raises OSError."""
    try:
        with _locked(caches) as folder:
            for purpose in _CACHES.values():
                for name in _cache_names(folder, purpose):
                    os.rename(name, _unguessable(purpose), src_dir_fd=folder, dst_dir_fd=folder)
    except FileNotFoundError:  # they were removed
        return


@contextmanager
def _locked(caches: Path) -> Iterator[int]:
    """Against others that look for the folders in there, make or rename them."""
    folder = os.open(caches, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield folder
    finally:
        os.close(folder)


def _ensure_cache(folder: int, purpose: str) -> str:
    """The name of the folder for a purpose."""
    names = _cache_names(folder, purpose)
    if names:
        return names[0]
    name = _unguessable(purpose)
    os.mkdir(name, 0o700, dir_fd=folder)
    return name


def _cache_names(folder: int, purpose: str) -> list[str]:
    return sorted(name for name in os.listdir(folder) if name == purpose or name.startswith(f"{purpose}-"))


def _unguessable(purpose: str) -> str:
    return f"{purpose}-{system_random(16).hex()}"


def has_person_settings(home: int) -> bool:
    """Whether settings of git for all repositories were written in a home folder, which is open."""
    return any(_is_file(home, names) for names in _PERSON_SETTINGS)


def _is_file(folder: int, names: Sequence[str]) -> bool:
    """Without following links: they would lead to the machine's files, and a result would tell whether one is there."""
    folders = [os.dup(folder)]
    try:
        for name in names[:-1]:
            folders.append(os.open(name, _FOLDER, dir_fd=folders[-1]))
        return stat.S_ISREG(os.lstat(names[-1], dir_fd=folders[-1]).st_mode)
    except OSError:  # nothing is there, or a program made the way there a link or a file
        return False
    finally:
        for descriptor in folders:
            os.close(descriptor)


def workspace_caches(caches: Path, workspace: Path) -> Path:
    """Where the caches of a workspace lie: a folder that takes its place has others."""
    status = os.stat(workspace)
    return caches / _digest(f"{workspace}\0{status.st_dev}\0{status.st_ino}")


def named_caches(caches: Path, name: str) -> Path:
    """The same for what has no workspace."""
    return caches / _digest(f"\0{name}")


def _digest(text: str) -> str:
    return hashlib.sha256(os.fsencode(text)).hexdigest()[:32]
