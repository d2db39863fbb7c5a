"""Notes of the commands that run in the sandbox, so that what one leaves behind is looked at also when weft was killed.

A note is written before a command starts and removed when its leftovers were taken away. As long as whoever started the
command lives, it holds a lock on the note. A note that can be locked is of one whose weft was killed: the sandbox ended
with it, and nobody looked at what the command had written. Whoever comes next does so, before anything else.

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
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from weft.kernel.clock import system_random
from weft.kernel.errors import StoreFailed, WeftError
from weft.runtime.opened_folders import birth_time
from weft.runtime.sandbox.folder_descent import Identity
from weft.runtime.sandbox.git_leftovers import ChangedGit, disarm_repositories
from weft.runtime.sandbox.git_repositories import FileState, identity_of
from weft.runtime.sandbox.git_settings import GitLeftovers
from weft.runtime.sandbox.git_view import GitGuard, GitView, KnownFolder
from weft.runtime.sandbox.hidden_places import folders_numbered
from weft.runtime.sandbox.leftovers import ChangedFiles, StartTime
from weft.runtime.sandbox.profiles import is_beneath
from weft.runtime.sandbox.sandbox_plan import rename_caches
from weft.store.replicas import process_of, process_owner

_ENDING, _WAITING_ENDING = ".json", ".moved"
_ENDING_SECONDS = 10.0
_PAUSE_SECONDS = 0.01
_CLOCK_SECONDS = 1.0
"""The clock of a file system may be so far behind ours."""


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
