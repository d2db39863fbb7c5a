"""What a sandboxed command is shown of the machine's files, and what of them is covered: its mounts.

The files of the system, a home folder of nobody, what the workspace leads to, and the ledgers in
shown folders.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import hashlib
import os
import stat
import sys
import sysconfig
import tempfile
import time
from collections import deque
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from functools import cache, lru_cache
from pathlib import Path
from typing import TypedDict

from msgspec import Struct

from weft.kernel.clock import SystemClock, system_random
from weft.kernel.errors import InvalidInput
from weft.runtime.sandbox.git_settings import GitIdentity
from weft.runtime.sandbox.git_view import GitGuard, GitPerson
from weft.runtime.sandbox.hidden_places import (
    FETCHED_FOLDERS,
    HiddenEntry,
    ProtectedPlaces,
    SearchedWorkspace,
    few_entries,
    identity_at,
    is_ledger_folder,
    is_real_folder,
    listed_numbers,
    search_workspace,
)
from weft.runtime.sandbox.processes import MIB
from weft.runtime.sandbox.profiles import (
    Mount,
    MountKind,
    cover,
    empty_folder,
    is_beneath,
    memory_folder,
    ordered_mounts,
    read_only,
    unreadable,
    writable,
)
from weft.runtime.sandbox.remembered_places import RememberedPlace
from weft.runtime.sandbox.toolchains import NO_TOOLCHAINS, PersonalHome, Toolchains

# --- What a program in the sandbox sees of the machine's files.

TEMPORARY_BYTES = 64 * MIB
SHARED_MEMORY_BYTES = 32 * MIB
_DEVICE_FOLDER_BYTES = 64 * 1024
_TOP_LEVEL = ("bin", "sbin", "lib", "lib32", "lib64")
_LIBRARY_LEVEL = ("lib", "lib32", "lib64")
_LOADERS = ("/lib/ld-*.so*", "/lib64/ld-*.so*")
_ETC = ("alternatives", "ld.so.cache", "localtime")
_LIBRARY_ETC = ("ld.so.cache", "localtime")
_DEVICES = {"null": 3, "zero": 5, "full": 7, "urandom": 9}
"""Minor numbers; the major number of all is 1."""
_DEVICE_LINKS = {
    "random": "urandom",
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
}
_HARMLESS_FOLDERS_OF_PROC = frozenset({"sysvipc", "tty"})
"""Of the own namespace, and without anything that can be written."""
_LISTED_SECONDS = 60.0
"""So long it is not listed again."""
_REVEALING_FILES_OF_PROC = frozenset(
    "cmdline config.gz diskstats kallsyms kcore key-users keys kmsg locks modules partitions sched_debug swaps "
    "timer_list vmallocinfo".split()
)


class SystemFiles(Enum):
    """How much of the system is shown."""

    PROGRAMS = "programs"
    LIBRARIES = "libraries"


@cache
def system_mounts(system: SystemFiles) -> tuple[Mount, ...]:
    """The system's programs, or the libraries alone. Looked at once: no command can change what is a folder there, and
    what a link."""
    return tuple(_programs() if system is SystemFiles.PROGRAMS else _libraries())


@cache
def _real_system_paths(system: SystemFiles) -> Mapping[str, str]:
    return {mount.source: os.path.realpath(mount.source) for mount in system_mounts(system)}


def readable_mounts(readable: Sequence[Path], hidden: Sequence[Path]) -> tuple[Mount, ...]:
    """What is shown beside. Of `hidden`, folders in what is readable, only what is itself readable is shown."""
    shown = [read_only(os.path.abspath(path), str(path)) for path in readable]
    return (*shown, *(empty_folder(os.path.abspath(path)) for path in hidden))


def kernel_options(system: SystemFiles, devices: Path) -> list[str]:
    """What is no file of the machine: the old top-level names of folders in /usr, /proc, /dev and /tmp."""
    return [
        *_top_level_links(_TOP_LEVEL if system is SystemFiles.PROGRAMS else _LIBRARY_LEVEL),
        "--proc", "/proc", *_covered_proc(os.geteuid() == 0),
        *_device_options(devices),
        "--size", str(TEMPORARY_BYTES), "--tmpfs", "/tmp",
    ]  # fmt: skip


def _programs() -> Iterator[Mount]:
    yield read_only("/usr")
    for name in _TOP_LEVEL:
        if os.path.isdir(f"/{name}") and not os.path.islink(f"/{name}"):
            yield read_only(f"/{name}")
    yield from _etc(_ETC)


def _libraries() -> Iterator[Mount]:
    """The loader and the folders that it looks into."""
    folder = f"/usr/lib/{sysconfig.get_config_var('MULTIARCH')}"
    if os.path.isdir(folder):
        yield read_only(folder)
        for loader in sorted({path for pattern in _LOADERS for path in glob.glob(pattern)}):
            place = os.path.join(os.path.realpath(os.path.dirname(loader)), os.path.basename(loader))
            yield read_only(place, os.path.realpath(loader))
    else:
        for folder in ("/usr/lib", "/usr/lib64", "/lib", "/lib64"):
            if os.path.isdir(folder) and not os.path.islink(folder):
                yield read_only(folder)
    yield from _etc(_LIBRARY_ETC)


def _top_level_links(names: Sequence[str]) -> Iterator[str]:
    for name in names:
        if os.path.islink(f"/{name}"):
            yield from ("--symlink", os.readlink(f"/{name}"), f"/{name}")


def _etc(names: Sequence[str]) -> Iterator[Mount]:
    for name in names:
        yield read_only(f"/etc/{name}", is_optional=True)


def _covered_proc(is_root: bool) -> tuple[str, ...]:
    """Folders are shown empty, and files cannot be opened, where they can be written or tell of others.

    The rest are a few numbers of the machine. To cover all of them takes longer than the program's own start.
    """
    # Listing it takes the longer the more processes there are. New entries come with modules of the kernel alone, which
    # no command can load.
    return _covers_in_proc(is_root, int(time.monotonic() // _LISTED_SECONDS))


@lru_cache(maxsize=2)
def _covers_in_proc(is_root: bool, _: int) -> tuple[str, ...]:
    options: list[str] = []
    for name in sorted(name for name in os.listdir("/proc") if not name.isdecimal()):
        path = f"/proc/{name}"
        mode = os.lstat(path).st_mode
        if stat.S_ISLNK(mode):
            continue
        if stat.S_ISDIR(mode):
            if name == "sys" or (is_root and name not in _HARMLESS_FOLDERS_OF_PROC):
                options += ("--tmpfs", path, "--remount-ro", path)
        elif (is_root and mode & 0o222) or (name in _REVEALING_FILES_OF_PROC and (is_root or mode & 0o044)):
            options += ("--ro-bind-try", "/dev/null", path)
    return tuple(options)


def _device_options(devices: Path) -> Iterator[str]:
    yield from ("--size", str(_DEVICE_FOLDER_BYTES), "--tmpfs", "/dev")
    for name in _DEVICES:
        yield from ("--dev-bind", str(devices / name), f"/dev/{name}")
    for name, target in _DEVICE_LINKS.items():
        yield from ("--symlink", target, f"/dev/{name}")
    yield from ("--dir", "/dev/shm", "--remount-ro", "/dev")
    yield from ("--size", str(SHARED_MEMORY_BYTES), "--tmpfs", "/dev/shm")


def interpreter_files() -> tuple[list[Path], list[Path]]:
    """What the interpreter itself needs, and the folders of installed packages in that, which it does not."""
    base = {"platbase": sys.base_exec_prefix}
    folders = [Path(sysconfig.get_path(name, vars=base)) for name in ("stdlib", "platstdlib")]
    libraries = Path(sysconfig.get_config_var("LIBDIR") or "/nowhere").glob("libpython3*")
    installed = [folder / name for folder in folders for name in ("site-packages", "dist-packages")]
    hidden = [folder for folder in dict.fromkeys(installed) if folder.is_dir()]
    return list(dict.fromkeys([*folders, *libraries])), hidden


MACHINE_DEVICES = Path("/dev")


def make_devices(is_root: bool) -> Path:
    """Where the device nodes lie that the program gets.

    What root started owns the machine's nodes inside too, and could change their modes for everybody. So root makes
    nodes for this one run: in memory, beside the machine's, or else in the folder for temporary files, whose disk takes
    many times as long. Where that cannot be done, the nodes are those of the machine.
    """
    if not is_root:
        return MACHINE_DEVICES
    for place in (str(MACHINE_DEVICES), tempfile.gettempdir()):
        folder = f"{place}/weft-devices-{system_random(16).hex()}"
        try:
            os.mkdir(folder, 0o700)
        except OSError:  # it cannot be written, or is full
            continue
        if _has_made_nodes(folder):
            return Path(folder)
        remove_devices(Path(folder))
    return MACHINE_DEVICES


def _has_made_nodes(folder: str) -> bool:
    """False in a container that may not make nodes, and where they would open nothing."""
    if os.statvfs(folder).f_flag & os.ST_NODEV:
        return False
    try:
        for name, minor in _DEVICES.items():
            os.mknod(f"{folder}/{name}", stat.S_IFCHR | 0o666, os.makedev(1, minor))
            os.chmod(f"{folder}/{name}", 0o666)  # the umask may have taken some away
    except OSError:
        return False
    return True


def remove_devices(folder: Path) -> None:
    """When they are bound, or not needed any more."""
    if folder == MACHINE_DEVICES:
        return
    for name in _DEVICES:
        with suppress(OSError):  # it was not made
            os.unlink(f"{folder}/{name}")
    with suppress(OSError):  # it is gone
        os.rmdir(folder)


# --- The home folder of commands in the sandbox: empty, in memory, and of nobody.

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


# --- Looks for ledgers of projects in folders that commands are shown and cannot write: toolchains, and what a person
# chose to show.

MOST_FOLDERS = 5000
"""Of one that is shown, the uppermost first."""
MOST_REMEMBERED = 50_000
_SETTLED_NS = 2_000_000_000
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
Stamp = tuple[int, int, int]


class _HeldFolders(Struct, frozen=True):
    """The folders in a folder, by name."""

    stamp: Stamp
    ledgers: tuple[str, ...]
    others: tuple[str, ...]


_remembered: dict[str, _HeldFolders] = {}


def ledger_folders(folder: Path) -> Iterator[str]:
    """Those in a folder that has no link on its way: their paths in it. One that cannot be listed counts as one."""
    top = os.open(folder, _OPEN_FOLDER)
    try:
        waiting = deque([""])
        for _ in range(MOST_FOLDERS):
            if not waiting:
                return
            path = waiting.popleft()
            try:
                held = _held_folders(top, path, os.path.join(folder, path))
            except OSError as error:
                if error.errno not in _GONE:
                    yield path
                continue
            yield from (os.path.join(path, name) for name in held.ledgers)
            waiting.extend(os.path.join(path, name) for name in held.others)
    finally:
        os.close(top)


def _held_folders(top: int, path: str, place: str) -> _HeldFolders:
    remembered = _remembered.get(place)
    if remembered is not None and remembered.stamp == _stamp(os.stat(path or ".", dir_fd=top, follow_symlinks=False)):
        return remembered
    descriptor = os.open(path or ".", _OPEN_FOLDER, dir_fd=top)
    try:
        stamp = _stamp(os.fstat(descriptor))  # before it is listed: what comes meanwhile has another
        with os.scandir(descriptor) as listed:
            folders = [entry for entry in listed if is_real_folder(entry)]
            ledgers = tuple(entry.name for entry in folders if is_ledger_folder(entry))
    finally:
        os.close(descriptor)
    left_out = FETCHED_FOLDERS.union(ledgers)
    held = _HeldFolders(stamp, ledgers, tuple(entry.name for entry in folders if entry.name not in left_out))
    if SystemClock().now_ms() * 1_000_000 - stamp[2] > _SETTLED_NS:
        if len(_remembered) >= MOST_REMEMBERED:
            _remembered.clear()
        _remembered[place] = held
    return held


def _stamp(status: os.stat_result) -> Stamp:
    return status.st_dev, status.st_ino, status.st_ctime_ns


# --- What a command finds of the machine because of its workspace, beside the workspace itself.


class PersonFolders(Struct, frozen=True, kw_only=True):
    """The folders of the person for whom commands run, as surfaces hand them in."""

    home: Path | None = None
    """Where commands are at home that run without a sandbox. Inside a sandbox it is not their home."""
    caches: Path | None = None
    """Beneath it lies, for each workspace, what package managers fetched. None: it is kept in memory, and gone."""
    covered_places: Path | None = None
    """Beneath it is noted, for each workspace, what was covered there. None: all of it is looked through each time."""
    command_notes: Path | None = None
    """Where notes lie of commands that run, for whoever comes after a kill. None: nobody looks then."""
    variables: Mapping[str, str] = {}
    """Those that say where version managers keep what they installed."""
    identity: GitIdentity | None = None
    """Who makes commits where a repository does not say it."""
    git_settings: tuple[Path, ...] = ()
    """The files of the person's own configuration of git, also those that do not exist yet."""

    @property
    def git_person(self) -> GitPerson:
        return GitPerson(identity=self.identity, settings=tuple(map(str, self.git_settings)), home=self.home)

    @property
    def toolchain_home(self) -> PersonalHome | None:
        """Where toolchains are looked for that commands in the sandbox are shown."""
        return None if self.home is None else PersonalHome(folder=str(self.home), variables=self.variables)


NO_FOLDERS = PersonFolders()


class WorkspaceView(Struct, frozen=True, kw_only=True):
    """Mounts and variables for the commands of one workspace."""

    mounts: tuple[Mount, ...] = ()
    environment: Mapping[str, str] = {}
    program_folders: tuple[str, ...] = ()
    """Where programs are looked for before the folders of the system."""
    git: GitGuard | None = None
    """What holds the folders of git as they are shown."""

    def close(self) -> None:
        if self.git is not None:
            self.git.close()


def workspace_view(
    workspace: Path, person: PersonFolders, *, is_read_only: bool = False, trusted_until: float | None = None
) -> WorkspaceView:
    """Looks at a workspace each time that something is started in it. `workspace` has no links on its way. The view
    must be closed when what was started has ended, or was not started. `trusted_until`: since when another command runs
    in it."""
    git = GitGuard(workspace, person.git_person, is_read_only=is_read_only, trusted_until=trusted_until)
    return WorkspaceView(mounts=git.view.mounts, environment=git.view.environment, git=git)


# --- What a command in the sandbox is shown of the machine's files, and what of them is covered: the plan of its
# mounts.

INSIDE_PATH = "/usr/local/bin:/usr/bin:/bin"
PROGRAM_FOLDER = "/program"
"""Where a program without a workspace starts."""


class Surroundings(TypedDict, total=False):
    """What a command in the sandbox finds. It starts in the workspace, the one place where what it writes stays, or
    without one in `/program`, which holds `files`, and nothing that it writes stays."""

    workspace: Path | None
    folder: str | None
    """A folder of the workspace, in which it starts."""
    read_only: bool
    """Whether the workspace cannot be written either."""
    files: Mapping[str, bytes] | None
    held_files: Sequence[Mount]
    """Files of the workspace with the bytes that they are to have, whatever becomes of them there."""
    uncovered_files: Sequence[Mount]
    """What takes the place of the covers of files of secrets, by its place. Anywhere else it shows nothing."""
    readable: Sequence[Path]
    """What is shown to it beside the system and the workspace."""
    hidden: Sequence[Path]
    shown: Sequence[Path]
    """What somebody chose to show beside. It is looked through for ledgers of projects, as the workspace is."""
    system: SystemFiles
    person: PersonFolders
    """For whom it runs."""
    cache_name: str | None
    """By which its package caches are found again, in place of those of its workspace, which other commands write."""
    toolchains: Toolchains
    """What is shown of the person's home folder so that programs are found."""


class SandboxPlan(Struct, frozen=True, kw_only=True):
    """All that a command finds of the machine, and the variables that it needs for that."""

    mounts: tuple[Mount, ...]
    """In the order in which they are made."""
    numbers: Mapping[str, int]
    """Of what is covered in the workspace: by its place, the number of what must lie under the cover."""
    secrets: tuple[str, ...]
    """The files of secrets that are hidden, as paths in the workspace."""
    gathered: tuple[str, ...]
    """Folders of it that are hidden whole, since they hold too much that must be."""
    sockets: frozenset[str]
    """The places of those that are covered."""
    covered: tuple[RememberedPlace, ...]
    absent: tuple[RememberedPlace, ...]
    """What of the workspace is to be remembered, and what was and is nowhere now."""
    identities: Mapping[str, tuple[int, int]]
    """By the place where it is mounted: what was to be mounted of what commands can write to."""
    home: str
    environment: Mapping[str, str]
    caches: Path | None


def plan_sandbox(
    protected: ProtectedPlaces,
    surroundings: Surroundings,
    place: str | None,
    view: WorkspaceView,
    remembered: Collection[RememberedPlace] | None,
) -> SandboxPlan:
    """What of the machine's files a command is shown, without what is protected. Looks through the workspace, which is
    at `place`; `remembered` is what was covered there before, if that is known."""
    toolchains = surroundings.get("toolchains", NO_TOOLCHAINS)
    hidden = [folder for folder in surroundings.get("hidden", ()) if not toolchains.shows(str(folder))]
    readable = surroundings.get("readable", ())
    system = surroundings.get("system", SystemFiles.PROGRAMS)
    shown = [
        *system_mounts(system),
        *readable_mounts((*surroundings.get("shown", ()), *readable), hidden),
        *toolchains.mounts,
    ]
    covers: list[Mount] = []
    searched = SearchedWorkspace(entries=())
    person = surroundings.get("person", NO_FOLDERS)
    is_writable = not surroundings.get("read_only", False)
    held = () if place is None else held_programs(place, protected)
    if place is not None:
        shown += [writable(place) if is_writable else read_only(place), *view.mounts]
        shown += surroundings.get("held_files", ())
        searched = search_workspace(Path(place), protected.secrets, remembered, protected.linked_ledgers())
    covers += protected.covers(shown, _real_system_paths(system))
    covers += [mount for folder in surroundings.get("shown", ()) for mount in _ledger_covers(folder)]
    own = {mount.place for mount in shown}  # what leads to hosts, where temporary files lie in the workspace
    hidden_entries = [entry for entry in searched.entries if not (entry.is_socket and f"{place}/{entry.path}" in own)]
    entries = few_entries(hidden_entries, len(covers))
    pinning = [f"{place}/{entry.path}" for entry in entries if entry.is_pinned]
    pinning += [*held, *(mount.place for mount in covers)]
    # a command could else put a folder there whose file of that name is hidden
    pinning += [path for path in protected.secrets.shown() if _is_real_folder(os.path.dirname(path))]
    pinned = tuple(_pinned_folders(pinning, place)) if place is not None and is_writable else ()
    uncovered = {mount.place: mount for mount in surroundings.get("uncovered_files", ())}
    covers += _entry_covers(entries, str(place), uncovered, {mount.place for mount in covers})
    numbers = listed_numbers(mount.place for mount in covers) if place is not None else {}
    numbers |= {f"{place}/{entry.path}": entry.number for entry in entries if not entry.is_gathered}
    home = home_beside(place)
    name = surroundings.get("cache_name")
    caches = _caches(person.caches, place, name) if is_writable or name is not None else None
    path = toolchains.path(":".join((*view.program_folders, INSIDE_PATH)))
    return SandboxPlan(
        mounts=ordered_mounts(
            (*_with_held_places(held, (*shown, *map(writable, pinned))), *home_mounts(home, caches), *covers)
        ),
        numbers=numbers,
        identities=_source_identities((*view.mounts, *map(read_only, held), *map(writable, pinned))),
        secrets=tuple(entry.path for entry in entries if entry.is_secret and f"{place}/{entry.path}" not in uncovered),
        gathered=tuple(entry.path for entry in entries if entry.is_gathered),
        sockets=frozenset(f"{place}/{entry.path}" for entry in entries if entry.is_socket),
        covered=tuple(entry.place for entry in searched.entries if not entry.is_socket),
        absent=searched.absent,
        home=home,
        environment={"PATH": path, "HOME": home, **toolchains.variables, **view.environment},
        caches=caches,
    )


def own_installation(workspace: str) -> tuple[str, ...]:
    """The folders of a workspace that Weft's own code is loaded from: its package, and the environment or the Python in
    which it is installed. A command could else change what this process loads next, outside of any sandbox."""
    environment = (sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix)
    folders = (os.path.realpath(folder) for folder in (*environment, Path(__file__).parents[2]))
    return tuple(dict.fromkeys(folder for folder in folders if folder != workspace and is_beneath(folder, workspace)))


def held_programs(workspace: str, protected: ProtectedPlaces) -> tuple[str, ...]:
    """What of a workspace no command in it can write, since it runs elsewhere with more than the command has."""
    programs = [path for path in protected.programs() if path != workspace and is_beneath(path, workspace)]
    return tuple(dict.fromkeys((*own_installation(workspace), *filter(os.path.exists, programs))))


def _with_held_places(held: Sequence[str], mounts: Iterable[Mount]) -> Iterator[Mount]:
    """With what cannot be written; nothing at such a place or beneath it can be, whatever else it is mounted for."""
    for mount in mounts:
        is_opened = mount.kind is MountKind.WRITABLE and any(is_beneath(mount.place, program) for program in held)
        yield read_only(mount.place, mount.source) if is_opened else mount
    yield from map(read_only, held)


def _entry_covers(
    entries: Iterable[HiddenEntry], workspace: str, uncovered: Mapping[str, Mount], covered: Container[str]
) -> Iterator[Mount]:
    """Of what was found in a workspace. A ledger of a secret's name is hidden already, and stays so."""
    for entry in entries:
        path = f"{workspace}/{entry.path}"
        if not (entry.is_secret or entry.is_socket):
            yield cover(path, is_folder=True)
        elif path not in covered:
            yield uncovered.get(path, unreadable(path))


def _ledger_covers(folder: Path) -> Iterator[Mount]:
    """Of the ledgers of projects in a folder that is read and not worked in."""
    real, place = Path(os.path.realpath(folder)), os.path.abspath(folder)
    if os.access(real, os.R_OK | os.X_OK) and real.is_dir():
        yield from (cover(f"{place}/{path}", is_folder=True) for path in ledger_folders(real))


def _source_identities(mounts: Iterable[Mount]) -> dict[str, tuple[int, int]]:
    """Bubblewrap is told paths. What it finds there must be what was looked at here: a command that runs in the same
    workspace could lead a path to the person's home folder for just that moment."""
    shown = {mount.place: mount.source for mount in mounts if mount.kind in (MountKind.READ_ONLY, MountKind.WRITABLE)}
    return {place: identity_at(source) for place, source in shown.items()}


def _pinned_folders(places: Iterable[str], workspace: str) -> Iterator[str]:
    """The folders on the way to what is protected in the workspace. They are mounted on themselves, since a mount point
    cannot be renamed: a command could else move one to where the next look does not come, and leave the protected
    thing uncovered for the next command."""
    pinned: set[str] = set()
    for place in places:
        folder = os.path.dirname(place)
        while folder != workspace and is_beneath(folder, workspace) and folder not in pinned:
            pinned.add(folder)
            yield folder
            folder = os.path.dirname(folder)


def _is_real_folder(path: str) -> bool:
    return os.path.isdir(path) and os.path.realpath(path) == path


def _caches(caches: Path | None, workspace: str | None, name: str | None) -> Path | None:
    if caches is None:
        return None
    if name is not None:
        return named_caches(caches, name)
    return None if workspace is None else workspace_caches(caches, Path(workspace))


def written_folders(plan: SandboxPlan) -> Iterator[str]:
    """Where what a command writes stays, beside the caches: the uppermost folders that are shown for writing."""
    sources = [mount.source for mount in plan.mounts if mount.kind is MountKind.WRITABLE]
    for source in dict.fromkeys(sources):
        is_cache = plan.caches is not None and is_beneath(source, str(plan.caches))
        is_within = any(other != source and is_beneath(source, other) for other in sources)
        if not is_cache and not is_within and os.path.isdir(source):
            yield source


def workspace_place(workspace: Path | None) -> str | None:
    """Where the workspace lies, the same inside and outside."""
    if workspace is None:
        return None
    if not workspace.is_dir():
        raise InvalidInput(f"the workspace {workspace} is not a folder", "make it first")
    place = os.path.realpath(workspace)
    if place == "/" or place.startswith(("/proc", "/dev", "/sys")):
        raise InvalidInput(f"the workspace cannot be {place}", "give it a folder of its own")
    return place
