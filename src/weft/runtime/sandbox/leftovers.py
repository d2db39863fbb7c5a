"""Looks through a workspace for what a program made there: how much it takes, and what must not stay.

Files count as the program's when they changed after it started, by the time of change that no program can set. Links
are not followed. Folders may be nested deeper than a path is long, and may be closed to their owner.

Started: by the clock of the file system in which the workspace lies, which a file without a name tells. What a person
changed a moment before is then not taken for the program's. Where no such file can be made, and in other file systems
that are mounted in the workspace, it is this machine's clock, less what theirs may be behind it.

A note of each command is written before it starts and removed when its leftovers were taken away. As long as whoever
started the command lives, it holds a lock on the note. A note that can be locked is of one whose weft was killed: the
sandbox ended with it, and nobody looked at what the command had written. Whoever comes next does so, before anything
else.

Its processes may still be ending: the note names the first of them from before the command could do anything. When
such a command ended is not known. What changed since it began counts as its own therefore, but for what was held or
known then: also a repository that the person made meanwhile keeps nothing but the harmless part of its settings.

A workspace may have got another name since. It is known by its number and by when it was made, and looked for at the
folder of the next command, above it and below it. Where it is not, the note waits under another ending: it is then
compared with the folders of commands alone, and concerns nobody else.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import stat
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from weft.kernel.clock import SystemClock, system_random
from weft.kernel.errors import StoreFailed, WeftError
from weft.runtime.opened_folders import Identity, birth_time, change_mode, open_to_owner, visit_folders
from weft.runtime.sandbox.git_leftovers import ChangedGit, disarm_repositories
from weft.runtime.sandbox.git_repositories import FileState, identity_of
from weft.runtime.sandbox.git_settings import GitLeftovers
from weft.runtime.sandbox.git_view import GitGuard, GitView, KnownFolder
from weft.runtime.sandbox.hidden_places import folders_numbered
from weft.runtime.sandbox.profiles import is_beneath
from weft.runtime.sandbox.sandbox_plan import rename_caches
from weft.store.replicas import process_of, process_owner

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


# --- Notes of the commands that run in the sandbox, so that what one leaves is looked at also when weft was killed.

_ENDING, _WAITING_ENDING = ".json", ".moved"
_ENDING_SECONDS = 10.0
_PAUSE_SECONDS = 0.01


class NotedFolder(Struct, frozen=True, kw_only=True):
    """One of git's folders, as it was when the command began."""

    path: str
    device: int
    number: int
    known: KnownFolder | None = None
    """None for one that was mounted, so that the command could set nothing up in it."""


class CommandNote(Struct, frozen=True, kw_only=True):
    """What must be known to take away what a command left."""

    workspace: str
    seconds: float
    """When it began."""
    written: Mapping[str, StartTime]
    """The folders that it could write."""
    folders: tuple[NotedFolder, ...]
    odd: tuple[str, ...]
    missing: tuple[str, ...]
    """Files of settings that there were not."""
    links: Mapping[str, str]
    """Those on the way to included files, and where they led."""
    unseen: tuple[str, ...]
    temporary: str | None
    """A folder of ours that is removed with it."""
    noted: tuple[FileState, ...] = ()
    """Indexes and links in git's folders, as they were."""
    caches: str | None = None
    """One of those that it could write: where its package caches lie."""
    folder: tuple[int, int] | None = None
    """The number of the workspace, and when it was made. None where its file system does not tell that."""

    @classmethod
    def of(
        cls,
        workspace: str,
        git: GitGuard,
        written: Mapping[str, StartTime],
        unseen: tuple[str, ...],
        caches: str | None = None,
    ) -> CommandNote:
        """Of a command that is about to start."""
        held = [NotedFolder(path=path, device=id[0], number=id[1]) for id, path in git.view.folders.items()]
        known_folders = [
            NotedFolder(path=folder.path, device=id[0], number=id[1], known=folder)
            for id, folder in git.view.known.items()
        ]
        temporary = None if git.tree is None else git.tree.private_folder
        return cls(
            workspace=workspace,
            seconds=min(started.seconds for started in written.values()) if written else 0.0,
            written={place: started for place, started in written.items() if not _is_in(place, temporary)},
            folders=(*held, *known_folders),
            odd=git.view.odd,
            missing=git.missing_settings,
            links=git.included_links,
            unseen=unseen,
            temporary=temporary,
            noted=tuple(git.view.noted),
            caches=caches,
            folder=_folder_of(workspace),
        )

    def moved_to(self, workspace: str) -> CommandNote:
        """The same, where the workspace has another path. What lay above it is elsewhere, too, if a folder above was
        renamed."""
        old, new = Path(self.workspace), Path(workspace)
        while old.name == new.name and old.name:
            old, new = old.parent, new.parent

        def moved(path: str) -> str:
            if not is_beneath(path, str(old)):
                return path
            is_inside = is_beneath(path, self.workspace)
            return path if not is_inside and os.path.lexists(path) else os.path.join(new, os.path.relpath(path, old))

        return msgspec.structs.replace(
            self,
            workspace=workspace,
            written={moved(place): started for place, started in self.written.items()},
            folders=tuple(_moved_folder(folder, moved(folder.path)) for folder in self.folders),
            missing=tuple(map(moved, self.missing)),
            links={moved(place): target for place, target in self.links.items()},
        )


class InterruptedCommand(Struct, frozen=True, kw_only=True):
    """A command whose weft was killed."""

    workspace: str
    seconds: float
    """When it began."""
    git: GitLeftovers = GitLeftovers()
    """What was taken away."""
    written: tuple[str, ...] = ()
    """The folders that it could write."""
    failure: WeftError | None = None
    """Why its leftovers could not be taken away, and are still there."""

    def ensure_cleaned(self, workspace: str) -> None:
        """Raises StoreFailed where something is still there of which a command in this workspace would find some."""
        if self.failure is not None and any(_overlap(workspace, place) for place in (self.workspace, *self.written)):
            raise self.failure

    @property
    def sentences(self) -> tuple[str, ...]:
        if self.failure is not None:
            return (f"a command in {self.workspace} was cut off, and what it left is still there: {self.failure}",)
        began = f"a command in {self.workspace} was cut off, and"
        taken = tuple(f"{began} what git would obey of it was taken away: {name}" for name in self.git.taken_away)
        rest = {"something of it runs by itself": self.git.runs_by_itself}
        rest["this could not be looked through, and is not again: look at it yourself"] = self.git.not_cleaned
        return taken + tuple(f"{began} {what}: {name}" for what, names in rest.items() for name in names)


class OpenNote:
    """The note of a command that runs."""

    def __init__(self, path: str, descriptor: int) -> None:
        self._path, self._descriptor = path, descriptor

    def add_process(self, first_process: int) -> None:
        """The first of the command's processes, before it may run: the others end with it."""
        os.write(self._descriptor, f"\n{process_owner(first_process)}\n".encode())

    def remove(self) -> None:
        """When nothing is left to be taken away."""
        os.unlink(self._path)
        self.close()

    def close(self) -> None:
        """Leaves the note for whoever comes next, if it was not removed."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class CommandNotes:
    """The notes in one folder, which no command can see."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, note: CommandNote) -> OpenNote:
        """Raises StoreFailed where it cannot be written: then the command must not start."""
        name = system_random(16).hex()
        path, aside = str(self._folder / f"{name}{_ENDING}"), str(self._folder / name)
        try:
            os.makedirs(self._folder, 0o700, exist_ok=True)
            descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreFailed(f"{self._folder}: {error.strerror}", "make it a folder that you can write") from None
        open_note = OpenNote(path, descriptor)
        try:
            # locked before it has its name: one that can be locked is of a killed process
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            with open(descriptor, "w", encoding="ascii", closefd=False) as file:
                json.dump(msgspec.to_builtins(note), file)  # escapes what in a path is no text
            os.rename(aside, path)
        except BaseException:  # whatever it was, no note is left that nobody can read
            open_note.close()
            os.unlink(aside)
            raise
        return open_note

    def running_since(self, workspace: str) -> float | None:
        """Since when some other command runs that can write to a workspace; None where there is none."""
        begun = []
        for path in self._paths():
            note = self._load(path)
            if note is not None and any(_overlap(workspace, place) for place in (note.workspace, *note.written)):
                begun.append(note.seconds - _CLOCK_SECONDS)
        return min(begun, default=None)

    def interrupted(self) -> Iterator[InterruptedCommand]:
        """Those that were cut off, and whose leftovers nobody has looked at. Changes nothing."""
        for path in self._paths():
            with _Locked(path) as is_locked:
                note = self._load(path) if is_locked else None
            if note is not None and not _is_moved(note):
                yield InterruptedCommand(workspace=note.workspace, seconds=note.seconds)

    def clean_up(self, place: str | None = None) -> tuple[InterruptedCommand, ...]:
        """Take away what they left, before anything else is done where they worked. One of which it cannot be taken
        away says why, and keeps its note: it concerns its own workspace alone. Workspaces that are not where they were
        are looked for at `place`, the folder of the next command."""
        commands = []
        above = () if place is None else _folders_above(place)
        for path in (*self._paths(), *(self._paths(_WAITING_ENDING) if place is not None else ())):
            with _Locked(path) as is_locked:
                note = self._load(path) if is_locked else None
                if note is not None and _is_moved(note):
                    note = self._moved_note(path, note, place, above)
                if note is not None and _is_reachable(note):
                    commands.append(_clean_up(path, note))
        return tuple(commands)

    def _moved_note(
        self, path: str, note: CommandNote, place: str | None, above: Sequence[tuple[tuple[int, int] | None, str]]
    ) -> CommandNote | None:
        """None where the workspace is not found: then the note waits."""
        for identity, folder in above:
            if identity == note.folder:
                return note.moved_to(folder)
        if place is None or not path.endswith(_ENDING):
            return None
        if note.folder is not None and is_beneath(note.workspace, place):
            beneath = _folder_beneath(place, note.folder)
            if beneath is not None:
                return note.moved_to(beneath)
        if _overlap(note.workspace, place):
            os.rename(path, path.removesuffix(_ENDING) + _WAITING_ENDING)
        return None

    def _paths(self, ending: str = _ENDING) -> list[str]:
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return []
        return [str(self._folder / name) for name in sorted(names) if name.endswith(ending)]

    def _load(self, path: str) -> CommandNote | None:
        """None where it was removed just now."""
        try:
            with open(path, encoding="ascii") as file:
                return msgspec.convert(json.loads(file.readline()), CommandNote)
        except FileNotFoundError:
            return None
        except (ValueError, msgspec.ValidationError) as error:
            raise StoreFailed(
                f"{path}, which says what a command was about, cannot be read: {error}",
                "look for what you did not write in the settings of git of your workspaces, and remove the file",
            ) from None


class _Locked:
    """Whether a note could be locked, and is still there: nobody lives who wrote it, and nobody else looks after it."""

    def __init__(self, path: str) -> None:
        self._path, self._descriptor = path, -1

    def __enter__(self) -> bool:
        try:
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return os.path.samestat(os.stat(self._path), os.fstat(self._descriptor))
        except (FileNotFoundError, BlockingIOError):
            return False

    def __exit__(self, *_: object) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)


def _folder_of(place: str) -> tuple[int, int] | None:
    try:
        born = birth_time(Path(place))
        return None if born is None else (os.lstat(place).st_ino, born)
    except OSError:
        return None


def _folders_above(place: str) -> list[tuple[tuple[int, int] | None, str]]:
    """A folder and those above it, with what they are known by."""
    return [(_folder_of(str(folder)), str(folder)) for folder in (Path(place), *Path(place).parents)]


def _folder_beneath(place: str, identity: tuple[int, int]) -> str | None:
    """Where a folder lies now, somewhere beneath another one."""
    places = folders_numbered(place, identity[0])
    return next((folder for folder in places if _folder_of(folder) == identity), None)


def _is_moved(note: CommandNote) -> bool:
    """Whether the workspace is not where it was, and may have another name."""
    return note.folder is not None and _is_reachable(note) and _folder_of(note.workspace) != note.folder


def _moved_folder(folder: NotedFolder, path: str) -> NotedFolder:
    moved = None if folder.known is None else msgspec.structs.replace(folder.known, path=path)
    return msgspec.structs.replace(folder, path=path, known=moved)


def _clean_up(path: str, note: CommandNote) -> InterruptedCommand:
    command = InterruptedCommand(workspace=note.workspace, seconds=note.seconds, written=tuple(note.written))
    try:
        _await_end(path, note.workspace)
        git = _take_away(note)
        os.unlink(path)
    except OSError as error:
        what = f"{error.filename or note.workspace}: {error.strerror}"
        failure = StoreFailed(what, "make it readable and writable for you, and try again")
        return msgspec.structs.replace(command, failure=failure)
    except StoreFailed as error:
        return msgspec.structs.replace(command, failure=error)
    return msgspec.structs.replace(command, git=git)


def _await_end(path: str, workspace: str) -> None:
    """Until the first of the command's processes is gone: the kernel ends its namespace with it, and the others before
    it. It ends with its weft anyhow, so one that cannot be seen from here is not waited for. Raises StoreFailed where
    it does not end."""
    with open(path, encoding="ascii") as file:
        _, *lines = file.read().split("\n")
    if len(lines) < 2:  # it was not allowed to run yet
        return
    deadline = time.monotonic() + _ENDING_SECONDS
    while (process := process_of(lines[0])) is not None:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise StoreFailed(
                f"a command that was cut off still runs in {workspace}: process {process}", "end it, and try again"
            )
        time.sleep(_PAUSE_SECONDS)


def _is_reachable(note: CommandNote) -> bool:
    """Whether the workspace is there or was removed, and does not lie on a disk that is not there now."""
    device = note.written[note.workspace].device if note.workspace in note.written else None
    place = Path(note.workspace)
    while not place.exists():
        place = place.parent
    return device is None or str(place) == note.workspace or place.stat().st_dev == device


def _take_away(note: CommandNote) -> GitLeftovers:
    if note.temporary is not None:
        shutil.rmtree(note.temporary, ignore_errors=True)
    if note.caches is not None:
        rename_caches(Path(note.caches))
    changed = {
        place: ChangedFiles(place, started).remove_privileges(note.unseen)
        for place, started in note.written.items()
        if os.path.isdir(place)
    }
    if not os.path.isdir(note.workspace):  # it was removed, and all that was made in it
        return GitLeftovers()
    view = GitView(
        mounts=(),
        environment={},
        folders={id: folder.path for folder in note.folders if folder.known is None for id in _identities(folder)},
        known={id: folder.known for folder in note.folders if folder.known is not None for id in _identities(folder)},
        odd=note.odd,
        noted=frozenset(note.noted),
    )
    git = ChangedGit(
        changed={place: folder_changes.repositories for place, folder_changes in changed.items()},
        pointers={place: folder_changes.pointers for place, folder_changes in changed.items()},
        made=tuple(filter(os.path.lexists, note.missing)),
        links={place: target for place, target in note.links.items() if _target(place) != target},
        unseen=note.unseen,
    )
    leftovers = disarm_repositories(note.workspace, view, git)
    removed = [path for folder_changes in changed.values() for path in folder_changes.removed_links]
    missed = [os.path.join(place, path) for place, folder_changes in changed.items() for path in folder_changes.missed]
    return msgspec.structs.replace(
        leftovers,
        taken_away=(*removed, *leftovers.taken_away),
        not_cleaned=tuple(dict.fromkeys((*missed, *leftovers.not_cleaned))),
    )


def _identities(folder: NotedFolder) -> Iterator[Identity]:
    """The number of its device may be another one since the machine was started again."""
    yield folder.device, folder.number
    try:
        device, number = identity_of(folder.path)
    except OSError:  # it was removed
        return
    if number == folder.number:
        yield device, number


def _target(place: str) -> str | None:
    try:
        return os.readlink(place)
    except OSError:
        return None


def _is_in(place: str, folder: str | None) -> bool:
    return folder is not None and is_beneath(place, folder)


def _overlap(place: str, other: str) -> bool:
    return is_beneath(place, other) or is_beneath(other, place)
