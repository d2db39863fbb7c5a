"""Looks through a workspace for what a program made there: how much it takes, and what must not stay.

Files count as the program's when they changed after it started, by the time of change that no program can set. Links
are not followed. Folders may be nested deeper than a path is long, and may be closed to their owner.

Started: by the clock of the file system in which the workspace lies, which a file without a name tells. What a person
changed a moment before is then not taken for the program's. Where no such file can be made, and in other file systems
that are mounted in the workspace, it is this machine's clock, less what theirs may be behind it.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Collection, Iterator
from contextlib import suppress

from msgspec import Struct

from weft.kernel.clock import SystemClock
from weft.runtime.sandbox.folder_descent import change_mode, open_to_owner, visit_folders

_CLOCK_SECONDS = 1.0
"""The clock of a file system may be so far behind ours."""
_ROUNDING_SECONDS = 0.005
"""By so much two readings of the clocks differ that were made at once; no program starts as fast."""
_REPOSITORY = ".git"
_GIT_FILES = frozenset(
    {"head", "config", "config.worktree", "commondir", "objects", "refs", "hooks", "remotes", "branches", "index"}
)
"""What makes a folder git's, whatever its name is, or is obeyed in it; in lower case, for a file system may not tell
them apart."""
_SHARED_INDEX = "sharedindex."
_MONITOR_ENDING = ".ipc"
_GIT_FOLDERS = frozenset({"hooks", "remotes", "branches"})
_SPECIAL_BITS = stat.S_ISUID | stat.S_ISGID


class ChangedSize(Struct, frozen=True):
    """What files take that changed: bytes on disk, how many there are, whether some are in folders closed to us."""

    bytes: int
    files: int
    is_partly_hidden: bool


class Leftovers(Struct, frozen=True, kw_only=True):
    """What was found among what changed."""

    repositories: frozenset[str] = frozenset()
    """The paths of each `.git` that changed, or in which something did, and of each folder with changed files in it of
    names that git gives its own."""
    removed_links: tuple[str, ...] = ()
    """Those that led to a place that was not looked through."""
    missed: tuple[str, ...] = ()
    """Paths that could not be looked at or mended: another user's, or moved while this looked."""
    pointers: frozenset[str] = frozenset()
    """The paths of each `.git` that is no folder, changed or not: where it leads may have changed."""
    shared: tuple[str, ...] = ()
    """Files that have a further name, which was not come to: what is there changed with them."""


class StartTime(Struct, frozen=True, kw_only=True):
    """When a program started that can write to a folder."""

    seconds: float
    """By this machine's clock."""
    monotonic: float
    """By the clock that nobody sets."""
    device: int | None = None
    own_seconds: float = 0.0
    """By the clock of the folder's own file system, where that could be asked."""

    @classmethod
    def now(cls, folder: str) -> StartTime:
        """Asks the file system by a file without a name."""
        seconds, monotonic = SystemClock().now_ms() / 1000, time.monotonic()
        try:
            file = os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        except OSError:  # it has no such files, or nothing can be written there
            return cls(seconds=seconds, monotonic=monotonic)
        try:
            status = os.fstat(file)
        finally:
            os.close(file)
        return cls(seconds=seconds, monotonic=monotonic, device=status.st_dev, own_seconds=status.st_ctime)

    def turned_back(self) -> float:
        """By how many seconds somebody set the clock back since: files that changed afterwards seem so much older."""
        passed = time.monotonic() - self.monotonic
        difference = passed - (SystemClock().now_ms() / 1000 - self.seconds)
        return difference + _ROUNDING_SECONDS if difference > _ROUNDING_SECONDS else 0.0


class ChangedFiles:
    """The files of a workspace that changed since a run started."""

    def __init__(self, workspace: str, started: StartTime) -> None:
        self._workspace, self._started = workspace, started

    def size(self) -> ChangedSize:
        """A file of several names counts once."""
        blocks: dict[tuple[int, int], int] = {}
        closed: list[str] = []
        for _, _, _, status in self._walk(closed):
            blocks[status.st_dev, status.st_ino] = status.st_blocks
        return ChangedSize(512 * sum(blocks.values()), len(blocks), bool(closed))

    def remove_privileges(self, unseen: Collection[str] = ()) -> Leftovers:
        """Take the setuid and setgid bits from files and remove device nodes; what is closed is opened for that. Pipes
        and sockets are removed where git reads files: it would wait at them for ever. Links are removed that name one
        of the folders `unseen`: programs can write to these, and nobody looks there."""
        repositories = set[str]()
        removed = list[str]()
        missed = list[str]()
        pointers = set[str]()
        names: dict[tuple[int, int, int], list[str]] = {}
        for folder, path, name, status in self._walk(None, missed, pointers):
            if status.st_nlink > 1 and stat.S_ISREG(status.st_mode):
                names.setdefault((status.st_dev, status.st_ino, status.st_nlink), []).append(_joined(path, name))
            repositories |= _git_places(path, name)
            try:
                if _is_waited_at(path, name, status):
                    _unlink(folder, name)
                elif _remove_privilege(folder, name, status, unseen):
                    removed.append(_joined(path, name))
            except FileNotFoundError:
                continue
            except OSError:  # whatever becomes of one, the others are looked at
                missed.append(_joined(path, name))
        return Leftovers(
            repositories=frozenset(repositories),
            removed_links=tuple(sorted(removed)),
            missed=tuple(sorted(missed)),
            pointers=frozenset(pointers),
            # all names of a file have its one time of change, so each that lies here is among them
            shared=tuple(sorted(paths[0] for (_, _, count), paths in names.items() if len(paths) < count)),
        )

    def _walk(
        self, closed: list[str] | None, missed: list[str] | None = None, pointers: set[str] | None = None
    ) -> Iterator[tuple[int, str, str, os.stat_result]]:
        """Folder, its path, name and status of what changed. Folders that are closed are listed in `closed`, else
        opened. Those that cannot be gone through are listed in `missed`, and each `.git` that is none in `pointers`."""
        started, turned_back = self._started, self._started.turned_back()
        since = {started.device: started.own_seconds - turned_back}
        usual = started.seconds - _CLOCK_SECONDS - turned_back

        def note_failure(path: str, error: OSError) -> None:
            if isinstance(error, FileNotFoundError):  # it is gone
                return
            if missed is None:
                raise error
            missed.append(path)

        top = os.open(self._workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for visited in visit_folders(top, note_failure):
                for name, status in _entries(visited.descriptor):
                    is_changed = status.st_ctime >= since.get(status.st_dev, usual)
                    if stat.S_ISDIR(status.st_mode):
                        if _is_enterable(visited.descriptor, name, status, is_changed and closed is None):
                            visited.inner.append(name)
                        elif is_changed and closed is not None:
                            closed.append(_joined(visited.path, name))
                    elif pointers is not None and name.casefold() == _REPOSITORY:
                        pointers.add(_joined(visited.path, name))
                    if is_changed:
                        yield visited.descriptor, visited.path, name, status
        finally:
            os.close(top)


def _git_places(path: str, name: str) -> set[str]:
    """Of a changed entry, the paths in the workspace that git may obey because of it."""
    whole = _joined(path, name)
    places = set()
    if _REPOSITORY in whole.casefold():  # as in few: folders may be nested very deep
        parts = whole.split("/")
        named = next((place for place, part in enumerate(parts) if part.casefold() == _REPOSITORY), None)
        places |= set() if named is None else {"/".join(parts[: named + 1])}
    above, _, folder = path.rpartition("/")
    if name.casefold() in _GIT_FILES or name.casefold().startswith(_SHARED_INDEX):
        places.add(path)
    elif folder.casefold() in _GIT_FOLDERS:
        places.add(above)
    if name.casefold() == _REPOSITORY:
        places.add(whole)
    return places


def _is_waited_at(path: str, name: str, status: os.stat_result) -> bool:
    """Whether an entry keeps git from coming to an end: a pipe, or a socket, in one of its folders or under a name that
    it reads. The socket of its own monitor stays."""
    is_pipe, is_socket = stat.S_ISFIFO(status.st_mode), stat.S_ISSOCK(status.st_mode)
    if not (is_pipe or (is_socket and not name.endswith(_MONITOR_ENDING))):
        return False
    return any(part.startswith(_REPOSITORY) for part in _joined(path, name).casefold().split("/"))


def _is_named(text: str, folders: Collection[str]) -> bool:
    return not set(text.split("/")).isdisjoint(folders)


def _entries(folder: int) -> list[tuple[str, os.stat_result]]:
    entries = []
    with os.scandir(folder) as names:
        for entry in names:
            with suppress(FileNotFoundError):
                entries.append((entry.name, entry.stat(follow_symlinks=False)))
    return entries


def _is_enterable(folder: int, name: str, status: os.stat_result, may_open: bool) -> bool:
    if os.access(name, os.R_OK | os.X_OK, dir_fd=folder, effective_ids=True):
        return True
    if may_open and status.st_uid == os.geteuid():
        with suppress(OSError):  # it is gone, or a link now: opening it says so
            change_mode(folder, name, added=stat.S_IRWXU)
        return True
    return False


def _remove_privilege(folder: int, name: str, status: os.stat_result, unseen: Collection[str]) -> bool:
    """Of an entry; whether it was a link to where nobody looks, which is removed."""
    if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
        _unlink(folder, name)
    elif stat.S_ISREG(status.st_mode) and status.st_mode & _SPECIAL_BITS:
        change_mode(folder, name, removed=_SPECIAL_BITS)
    elif stat.S_ISLNK(status.st_mode) and unseen and _is_named(os.readlink(name, dir_fd=folder), unseen):
        _unlink(folder, name)
        return True
    return False


def _unlink(folder: int, name: str) -> None:
    """Also where a command took its owner the right to write in the folder."""
    try:
        os.unlink(name, dir_fd=folder)
    except PermissionError:
        open_to_owner(folder)
        os.unlink(name, dir_fd=folder)


def _joined(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name
