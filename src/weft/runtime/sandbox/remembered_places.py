"""What was hidden in a workspace at earlier commands, and the lock under which a sandbox is made there.

A command cannot take what was covered out of the next one's look. Sandboxes are made one after the
other in a workspace, above it and below it, also between processes.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import DecodeError, Struct, ValidationError, structs
from msgspec.json import decode, encode

from weft.kernel.clock import system_random
from weft.kernel.errors import InvalidInput, StoreFailed
from weft.runtime.opened_folders import birth_time
from weft.runtime.sandbox.profiles import is_beneath
from weft.store.private_files import PRIVATE_FILE, make_folder, new_file

# --- Commands of one workspace start one after the other, and know whether another one runs that could move files
# there.

LONGEST_WAIT_SECONDS = 120.0
"""A look through the largest workspace takes some seconds; a process that was stopped holds its lock for ever."""
LONGEST_CLEANING_WAIT_SECONDS = 5.0
_PAUSE_SECONDS = 0.01
_OPEN_LOCK = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_STARTING, _RUNNING, _RUNNING_BELOW = "starting", "running", "below"
_REGISTER = "register"


class WorkspaceLock:
    """What one command holds of a workspace: the right to start, and that it runs. `workspace` has no links on its way.
    Close it when the command has ended."""

    def __init__(self, folder: Path, workspace: Path, *, can_write: bool) -> None:
        """Raises OSError where nothing can be locked."""
        self._folder, self._workspace, self._can_write = str(folder / "locks"), workspace, can_write
        _ensure_folder(self._folder)
        self._names = [_lock_name(place) for place in (*map(str, folders_above(workspace)), str(workspace))]
        self._start_locks: list[int] = []
        self._run_locks: list[int] = []
        self.is_alone = False
        """Whether no other command runs that can write here, in a workspace above or in one below."""

    def acquire(self) -> None:
        """Waits until no other command is being started in this workspace, above or below it. Raises StoreFailed where
        that takes too long."""
        if not self._has_start_locks(LONGEST_WAIT_SECONDS):
            self.close()
            raise StoreFailed(
                f"another command has been starting in {self._workspace}, above or below it for "
                f"{LONGEST_WAIT_SECONDS:g} seconds",
                "end the process of weft that was stopped there, and try again",
            )
        with self._register():
            self.is_alone = self._nobody_runs()
            if self._can_write:
                *above, own = self._names
                for name, activity in (*((name, _RUNNING_BELOW) for name in above), (own, _RUNNING)):
                    self._run_locks.append(self._open(name, activity))
                    fcntl.flock(self._run_locks[-1], fcntl.LOCK_SH)

    def _has_start_locks(self, seconds: float) -> bool:
        """Waits for them at most so long."""
        deadline = time.monotonic() + seconds
        for name in self._names:
            descriptor = self._open(name, _STARTING)
            self._start_locks.append(descriptor)
            kind = fcntl.LOCK_EX if name == self._names[-1] else fcntl.LOCK_SH
            while not _try_lock(descriptor, kind):
                if time.monotonic() > deadline:
                    return False
                _pause()
        return True

    def acquire_for_cleaning(self) -> None:
        """When the command has ended: waits until no other one is being started, whose look and mounts the cleaning
        would come between. Not for ever, for what is left must be taken away: that start then looks again itself."""
        if self._start_locks:  # it was not started, and still holds them
            return
        try:
            has_locks = self._has_start_locks(LONGEST_CLEANING_WAIT_SECONDS)
        except StoreFailed:  # the folder of the locks was removed, or no descriptor is left
            has_locks = False
        if not has_locks:
            _close_all(self._start_locks)

    def wait_to_be_alone(self, seconds: float) -> None:
        """Waits at most so long for the others that run, and leaves the lock to their cleaning. This command does not
        run: its start begins anew."""
        self.close()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with self._register():
                if self._nobody_runs():
                    return
            _pause()

    def release_start(self) -> None:
        """The command is about to run: others may start."""
        _close_all(self._start_locks)

    def close(self) -> None:
        _close_all(self._run_locks)
        _close_all(self._start_locks)

    def _nobody_runs(self) -> bool:
        *above, own = self._names
        return all(
            self._is_free(name, kind)
            for name, kind in (*((name, _RUNNING) for name in above), (own, _RUNNING), (own, _RUNNING_BELOW))
        )

    def _is_free(self, name: str, kind: str) -> bool:
        descriptor = self._open(name, kind)
        try:
            return _try_lock(descriptor, fcntl.LOCK_EX)
        finally:
            os.close(descriptor)

    @contextmanager
    def _register(self) -> Iterator[None]:
        """One at a time asks and notes who runs: asking takes a lock for a moment, which is nobody's command."""
        descriptor = self._open("all", _REGISTER)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _open(self, name: str, kind: str) -> int:
        try:
            return os.open(f"{self._folder}/{name}.{kind}", _OPEN_LOCK, PRIVATE_FILE)
        except OSError as error:
            raise StoreFailed(
                f"no command can wait for its turn in {self._workspace}: {self._folder}: {error.strerror}",
                "make it a folder that you can write, or close some files",
            ) from None


def folders_above(workspace: Path) -> list[Path]:
    """The uppermost first, without the root, which is no workspace."""
    return [*workspace.parents][-2::-1]


def _lock_name(folder: str) -> str:
    status = os.stat(folder)
    return f"{status.st_dev:x}-{status.st_ino:x}"


def _try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _pause() -> None:
    time.sleep(_PAUSE_SECONDS)


def _close_all(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())


# --- What was covered in a workspace at earlier commands, so that a command cannot take it out of the next one's look.

MOST_BYTES = 16 * 1024 * 1024
_NOTE, _STARTED, _BELOW = "covers.json", "started", "below"
_MOST_STAMP_BYTES = 64
_OPEN_MADE = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC


class RememberedPlace(Struct, frozen=True, kw_only=True):
    """A file or folder of a workspace that was covered."""

    path: bytes
    """From the workspace on; names are any bytes."""
    device: int
    number: int
    """In its file system, as its folder lists it."""
    is_folder: bool
    is_lasting: bool = False
    """Whether it stays hidden though neither its name nor a link says that it should be."""
    ignores_shown: bool = False
    """Whether it stays hidden though it lies where the person shows a file: it was hidden elsewhere and was moved."""

    came_beside: bool = False
    """Whether it came while another command ran, which sees it and can take it away."""
    is_elsewhere: bool = False
    """Whether it lay outside of this workspace, where a command of another one could move it here."""

    @property
    def text(self) -> str:
        return os.fsdecode(self.path)


class _Memory(Struct, frozen=True, kw_only=True):
    """What is noted of one workspace."""

    workspace: bytes
    """Where it lay."""
    places: tuple[RememberedPlace, ...]
    looked_for: Mapping[str, str] = {}
    """What other workspaces remember, by their keys, as it was when it was searched for here and nothing else ran."""


class PlaceMemory:
    """The places that are remembered of one workspace. `workspace` has no links on its way. Close it when the command
    has ended."""

    def __init__(self, folder: Path, workspace: Path, *, can_write: bool) -> None:
        """Raises OSError where nothing can be noted."""
        self._folder, self._workspace, self._can_write = str(folder), workspace, can_write
        self._key = _key(workspace)
        self._above = {_key(above): above for above in folders_above(workspace)}
        _ensure_folder(f"{self._folder}/{self._key}")
        for key in self._above:
            _ensure_file(f"{folder}/{key}/{_BELOW}", self._key)
        self.lock = WorkspaceLock(folder, workspace, can_write=can_write)
        self._known = _Memory(workspace=b"", places=())
        self._stamps: dict[str, str] = {}

    def load(self) -> tuple[RememberedPlace, ...]:
        """What was covered; of one who holds the lock. Raises StoreFailed where that cannot be known."""
        self._known = self._read_memory(self._key) or _Memory(workspace=os.fsencode(self._workspace), places=())
        places = list(self._known.places)
        for key, above in self._above.items():
            places += self._places_of(key, above)
        try:
            below = sorted(os.listdir(f"{self._folder}/{self._key}/{_BELOW}"))
        except FileNotFoundError:
            below = []
        for key in below:
            places += self._places_of(key, None)
        return tuple(dict.fromkeys(places))

    def _places_of(self, key: str, above: Path | None) -> Iterator[RememberedPlace]:
        """What another workspace remembers, as seen from this one; `above` is where it lies, if that is above."""
        stamp = self._stamp(key)
        if stamp is None:
            return
        self._stamps[key] = stamp
        if self._known.looked_for.get(key) == stamp:
            return
        memory = self._read_memory(key)
        if memory is None:
            return
        for place in memory.places:
            path = os.path.join(os.fsdecode(memory.workspace) if above is None else above, place.text)
            inside = self._path_inside(path)
            if inside is not None:
                yield structs.replace(place, path=os.fsencode(inside))
            elif above is None or not _is_at(place, above):
                yield structs.replace(place, is_elsewhere=True)

    def _path_inside(self, path: str) -> str | None:
        """From this workspace on, also where it had another name when that was noted."""
        for workspace in (str(self._workspace), os.fsdecode(self._known.workspace)):
            if is_beneath(path, workspace):
                return os.path.relpath(path, workspace)
        return None

    def _stamp(self, key: str) -> str | None:
        """Another one when a command was started in a workspace since; None where nothing is noted of it."""
        try:
            return _beginning_of(f"{self._folder}/{key}/{_STARTED}", _MOST_STAMP_BYTES).decode("ascii")
        except FileNotFoundError:
            return None

    def _read_memory(self, key: str) -> _Memory | None:
        """None where nothing was noted: no command was started there."""
        file = f"{self._folder}/{key}/{_NOTE}"
        try:
            return decode(_beginning_of(file, MOST_BYTES + 1), type=_Memory)
        except FileNotFoundError:
            return None
        except (OSError, DecodeError, ValidationError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise StoreFailed(
                f"{file}, which says what is hidden from commands in {self._workspace}, or above or below it, "
                f"cannot be read: {why}",
                "take files of secrets out of folders such as node_modules of that workspace, give those back their "
                "names whose folder was renamed, and remove the file",
            ) from None

    def save(self, covered: Iterable[RememberedPlace], absent: Iterable[RememberedPlace] = ()) -> None:
        """Before the command runs. `absent` was remembered and is nowhere now: it is forgotten where nobody else's
        command can have it."""
        places, looked_for = set(covered), {**self._known.looked_for, **self._stamps}
        if not self.lock.is_alone:
            looked_for = dict(self._known.looked_for)
            before = {_name_and_number(place) for place in self._known.places if not place.came_beside}
            places = {structs.replace(place, came_beside=_name_and_number(place) not in before) for place in places}
            places.update(place for place in absent if not place.is_elsewhere)
        ordered = tuple(sorted(places, key=lambda place: (place.path, place.device, place.number)))
        memory = _Memory(workspace=os.fsencode(self._workspace), places=ordered, looked_for=looked_for)
        try:
            if memory != self._known or not os.path.exists(f"{self._folder}/{self._key}/{_NOTE}"):
                self._write(memory)
            if self._can_write:
                self._note_start()
        except OSError as error:  # the next command would not know what to look for
            raise StoreFailed(
                f"what is hidden from commands cannot be noted in {self._folder}/{self._key}: {error.strerror}",
                "make room there",
            ) from None

    def _write(self, memory: _Memory) -> None:
        data = encode(memory)
        if len(data) > MOST_BYTES:
            raise InvalidInput(
                f"the workspace {self._workspace} holds more files and folders that must be hidden than can be noted",
                "remove what a program made there, or make a folder with fewer of them the workspace",
            )
        with new_file(Path(self._folder, self._key, _NOTE)) as file:
            file.write(data)

    def _note_start(self) -> None:
        descriptor = os.open(f"{self._folder}/{self._key}/{_STARTED}", _OPEN_MADE, PRIVATE_FILE)
        try:
            os.write(descriptor, system_random(16).hex().encode())
        finally:
            os.close(descriptor)

    def close(self) -> None:
        self.lock.close()


def remembered_files(folder: Path, workspace: Path) -> frozenset[int]:
    """The numbers of the files that were covered in a workspace, or in one above or below it. `workspace` has no links
    on its way. The notes are read without its lock: each is replaced as a whole. Raises OSError or DecodeError where
    they cannot be read."""
    key = _key(workspace)
    below = folder / key / _BELOW
    keys = [key, *map(_key, folders_above(workspace)), *(os.listdir(below) if below.is_dir() else ())]
    numbers = set[int]()
    for noted in keys:
        with suppress(FileNotFoundError):
            memory = decode(_beginning_of(f"{folder}/{noted}/{_NOTE}", MOST_BYTES + 1), type=_Memory)
            numbers.update(place.number for place in memory.places if not place.is_folder)
    return frozenset(numbers)


def _beginning_of(file: str, most: int) -> bytes:
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, min(os.fstat(descriptor).st_size, most))
    finally:
        os.close(descriptor)


def _ensure_folder(folder: str) -> None:
    if not os.path.isdir(folder):
        make_folder(Path(folder))


def _ensure_file(folder: str, name: str) -> None:
    try:
        descriptor = os.open(f"{folder}/{name}", _OPEN_MADE, PRIVATE_FILE)
    except FileNotFoundError:
        make_folder(Path(folder))
        descriptor = os.open(f"{folder}/{name}", _OPEN_MADE, PRIVATE_FILE)
    os.close(descriptor)


def _key(folder: Path) -> str:
    """The same for a folder under another name, and another for one that takes its place. Not by its file system, whose
    number is another one when the machine was started again."""
    born = birth_time(folder)
    words = b"%d %d" % (os.stat(folder).st_ino, born) if born is not None else os.fsencode(folder)
    return hashlib.sha256(words).hexdigest()[:32]


def _is_at(place: RememberedPlace, workspace: Path) -> bool:
    """Whether it is still there, with no link on its way."""
    descriptor = -1
    try:
        descriptor = os.open(workspace, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        *folders, name = place.text.split("/")
        for folder in folders:
            beneath = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = beneath
        return os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_ino == place.number
    except OSError:
        return False
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def _name_and_number(place: RememberedPlace) -> tuple[str, int]:
    return os.path.basename(place.text), place.number


def memory_of(folder: Path | None, workspace: Path, *, can_write: bool) -> PlaceMemory | None:
    """None where nothing can be remembered: everything is looked through then."""
    if folder is None:
        return None
    try:
        return PlaceMemory(folder, workspace, can_write=can_write)
    except OSError:  # a home folder that cannot be written
        return None
