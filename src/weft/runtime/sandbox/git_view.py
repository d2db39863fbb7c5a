"""What of git's folders a sandboxed command is shown: it can work with git and set up nothing there.

Which of them it can write is told as well: that is kept before a command that nobody asked about.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shlex
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from weft.kernel.errors import LimitExceeded, WeftError
from weft.kernel.permission_subjects import self_running
from weft.runtime.opened_folders import Identity
from weft.runtime.sandbox.git_repositories import (
    GIT,
    FileState,
    GitFolder,
    LinkedFolders,
    OddRepository,
    WatchedPlace,
    branch_names,
    common_folder,
    folders_inside,
    folders_named,
    git_places,
    identity_of,
    is_at,
    is_git_folder,
    kind_of,
    module_folders,
    noted_files,
    publish_file,
    read_small,
    repository_above,
    separate_file,
    separate_files,
)
from weft.runtime.sandbox.git_settings import (
    SYSTEM_SETTINGS,
    GitIdentity,
    GitSetting,
    files_read,
    harmless_settings,
    has_worktree_settings,
    included_files,
    object_format,
    read_settings,
    system_settings,
)
from weft.runtime.sandbox.profiles import Mount, empty_folder, file_of, is_beneath, read_only, writable

if TYPE_CHECKING:
    from weft.runtime.sandbox.own_git import SubfolderTree


# --- What of git's folders a command in the sandbox is shown, so that it can work with git and set up nothing there.

SAME_FOLDER = b".\n"
"""What `commondir` says as long as a command runs."""
MOST_REPOSITORIES = 64
"""So many of a workspace can be written; any more are read-only."""
MOST_SHOWN_REPOSITORIES = 200
"""So many can be read; any more are hidden. The copy of the settings of each takes an open file."""
_FEWER = "make a folder with fewer of them the workspace"
MAIN_TREE_FILES = ("HEAD", "index")
OBEYED_FOLDERS = ("hooks", "remotes", "branches")
"""Git obeys the files in these; the last two name remotes, as git did long ago."""
_HELD_FOLDERS = (*OBEYED_FOLDERS, "info")
_SETTINGS_INSIDE = str(SYSTEM_SETTINGS[0])
_TRIES = 10
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


ObeyedFile = tuple[str, int, int]
"""Its path in git's folder, its number and its time of change."""


class KnownFolder(Struct, frozen=True, kw_only=True):
    """What one of git's folders had before a command that could write it."""

    path: str
    files: Mapping[str, bytes]
    obeyed: frozenset[ObeyedFile]
    """Hooks, and files that name remotes."""
    links: frozenset[str]
    """Names in the folder itself."""
    is_led_to: bool = False
    """Whether the `.git` of the workspace was a link to it."""


class GitPerson(Struct, frozen=True, kw_only=True):
    """The person whose git obeys what lies in the workspace."""

    identity: GitIdentity | None = None
    """Who makes commits where a repository does not say it."""
    settings: Sequence[str] = ()
    """The files of their own configuration, also those that do not exist yet."""
    home: Path | None = None


NOBODY = GitPerson()


class GitView(Struct, frozen=True, kw_only=True):
    """Mounts and variables for git in one workspace, and whose folders they are."""

    mounts: tuple[Mount, ...]
    environment: Mapping[str, str]
    folders: Mapping[Identity, str]
    """Git's folders that are mounted, by what stays when they are moved."""
    known: Mapping[Identity, KnownFolder]
    """Those that are not mounted, and what they were before."""
    odd: tuple[str, ...] = ()
    """Those that are read-only, with why."""
    noted: frozenset[FileState] = frozenset()
    """Indexes and links in git's folders, as they were before."""


class ReplacedSettings(Struct, frozen=True):
    """A configuration that is another file now, and what it said before."""

    place: str
    config: bytes


class GitGuard:
    """Holds what a view needs as long as a command runs. Close it when the command has ended."""

    def __init__(
        self,
        workspace: Path,
        person: GitPerson = NOBODY,
        *,
        is_read_only: bool = False,
        trusted_until: float | None = None,
    ) -> None:
        """`workspace` has no links on its way. `trusted_until`: since when another command runs in it, which may have
        written what changed after that."""
        self._workspace, self._is_read_only = str(workspace), is_read_only
        self._held: dict[str, FileIO] = {}
        self._unheld: set[str] = set()
        self._mounts: dict[str, Mount] = {}
        self._folders: dict[Identity, str] = {}
        self._odd: list[str] = []
        self._settings: dict[str, ReplacedSettings] = {}
        self._said: dict[str, bytes] = {}
        self._known: dict[Identity, KnownFolder] = {}
        self._trusted_until = trusted_until
        self._person = person
        self._links: dict[str, str] = {}
        self._missing: set[str] = set()
        self._unread: set[str] = set()
        self.branches: dict[Identity, frozenset[str]] = {}
        """Of each repository that can be written, those that were there before the command."""
        self.tree: SubfolderTree | None = None
        """Where the repository lies above the workspace."""
        self._descriptors: list[int] = []
        self._own_descriptors: dict[Identity, int] = {}
        self._watched: dict[str, WatchedPlace] = {}
        self._add(file_of(_SETTINGS_INSIDE, system_settings(person.identity)))
        try:
            self._add_workspace()
            for entry in git_places(self._workspace):
                if os.path.basename(entry).casefold() == GIT:
                    self._add_entry(entry)
                else:
                    self._note_folder(entry)
            if not self._is_read_only:
                self._add_includes()
            self._watch_mounts()
        except BaseException:  # the locks are let go, whatever it was
            self.close()
            raise
        self.view = GitView(
            mounts=tuple(self._mounts.values()),
            environment={
                "GIT_CONFIG_SYSTEM": _SETTINGS_INSIDE,
                # the workspace is a mount, and the repository is looked for above it
                **({} if self.tree is None else {"GIT_DISCOVERY_ACROSS_FILESYSTEM": "1"}),
            },
            folders=self._folders,
            known=self._known,
            odd=tuple(self._odd),
            noted=frozenset() if is_read_only else frozenset(self._noted_files()),
        )

    def _watch_mounts(self) -> None:
        """Beneath a folder of git's from that folder, which a command may move with what is mounted in it. All are held
        open: the number of a file that is gone would be given to the next one."""
        mounted = {mount.source or place for place, mount in self._mounts.items()}
        places = (mounted | self._settings.keys() | self._links.keys()) - self._unheld
        held = {identity: folder for identity, folder in self._folders.items() if folder not in self._unheld}
        folders = {folder: self._hold(folder) for folder in held.values()}
        self._own_descriptors = {identity: folders[folder] for identity, folder in held.items()}
        for place in sorted(places - {_SETTINGS_INSIDE} - folders.keys()):
            # what is only a place inside has nothing outside; the main tree's own git replaces its files all the time
            if os.path.lexists(place) and os.path.basename(place) not in MAIN_TREE_FILES:
                above = max((folder for folder in folders if is_beneath(place, folder)), key=len, default=None)
                name = place if above is None else os.path.relpath(place, above)
                descriptor = self._hold(place)
                self._watched[place] = WatchedPlace(None if above is None else folders[above], name, descriptor)

    def _hold(self, place: str) -> int:
        self._descriptors.append(os.open(place, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC))
        return self._descriptors[-1]

    def _noted_files(self) -> Iterator[FileState]:
        for place in (*self._folders.values(), *(folder.path for folder in self._known.values())):
            for state in noted_files(place):
                if self._trusted_until is None or state[2] < self._trusted_until * 1e9:
                    yield state

    def folders_now(self) -> Mapping[Identity, str]:
        """Where the folders are that were mounted, which a command may have moved; those that were removed are not
        anywhere."""
        places = {}
        for identity, folder in self._folders.items():
            descriptor = self._own_descriptors.get(identity)
            place = folder if descriptor is None else os.readlink(f"/proc/self/fd/{descriptor}")
            with suppress(OSError):
                if identity_of(place) == identity:
                    places[identity] = place
        return places

    def is_intact(self) -> bool:
        """Whether everything that was mounted is still what it was mounted on, and no file is included that was missing
        before."""
        is_same = all(watched.is_same() for watched in self._watched.values())
        return is_same and not any(map(os.path.lexists, self._missing))

    def replaced_settings(self) -> tuple[ReplacedSettings, ...]:
        """Of configurations that another file took the place of meanwhile, or that say something else, what they
        were."""
        return tuple(
            structs.replace(self._settings[place], place=self._place_now(place))
            for place, watched in self._watched.items()
            if place in self._settings and not watched.still_says(self._said[place])
        )

    def _place_now(self, place: str) -> str:
        """Of a file in a folder that a command may have moved."""
        for identity, folder in self._folders.items():
            if is_beneath(place, folder):
                return self.folders_now().get(identity, folder) + place[len(folder) :]
        return place

    @property
    def missing_settings(self) -> tuple[str, ...]:
        """Files of settings that there were not, and that git reads or would read as soon as a setting says so."""
        return tuple(sorted(self._missing | self._unread))

    @property
    def included_links(self) -> Mapping[str, str]:
        """Those on the way to included files, and where they lead."""
        return self._links

    def made_settings(self) -> tuple[str, ...]:
        """Those of them that there are now."""
        return tuple(filter(os.path.lexists, self.missing_settings))

    def replaced_links(self) -> Mapping[str, str]:
        """Links to included files that something else took the place of, and where they led."""
        places = (place for place in self._links if place in self._watched)
        return {place: self._links[place] for place in places if not self._watched[place].is_same()}

    def close(self) -> None:
        """Nobody else's command needs them any longer where the lock can be had alone."""
        if self.tree is not None:
            self.tree.close()
        self._watched.clear()
        while self._descriptors:
            os.close(self._descriptors.pop())
        while self._held:
            path, file = self._held.popitem()
            with file, suppress(BlockingIOError, FileNotFoundError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if is_at(path, file.fileno()):
                    os.unlink(path)

    def _add(self, *mounts: Mount) -> None:
        """The first one at a place stays."""
        for mount in mounts:
            self._mounts.setdefault(mount.place, mount)

    def _add_workspace(self) -> None:
        entry = f"{self._workspace}/{GIT}"
        kind = kind_of(entry)
        if kind is None:
            self._add_repository_above()
        elif kind == stat.S_IFREG:
            with _reading_only(self._odd, entry):
                self._add_linked(entry)
            self._add(read_only(entry))
        elif kind == stat.S_IFDIR:
            self._add_entry(entry)
        else:  # nothing can be mounted at a link
            self._odd.append(f"{entry}: it is a link")

    def _add_entry(self, entry: str) -> None:
        """A `.git` in the workspace. What a file or a link leads to outside of it is not shown."""
        with _reading_only(self._odd, entry):
            folders = folders_inside(entry, self._workspace)
            if folders is not None:
                self._add_inside(folders)

    def _add_inside(self, folders: LinkedFolders) -> None:
        if folders.own in self._mounts:
            return
        if folders.common is None:
            self._add_folder(folders.own)
        else:
            if folders.common not in self._mounts:
                self._add_folder(folders.common)
            self._add_second_tree(folders.own)

    def _note_folder(self, folder: str) -> None:
        """One of another name than `.git` is not mounted: it may be a file of a test, which commands may change and
        commit."""
        with suppress(OSError):
            descriptor = os.open(folder, _FOLDER)
            try:
                if is_git_folder(descriptor):
                    status = os.fstat(descriptor)
                    self._known[status.st_dev, status.st_ino] = self._known_folder(folder)
            finally:
                os.close(descriptor)

    def _known_folder(self, folder: str) -> KnownFolder:
        files = {}
        for name in ("config", "config.worktree", "commondir"):
            place = f"{folder}/{name}"
            with suppress(OSError, OddRepository):
                data = read_small(place)
                if name != "commondir":
                    files[name] = self._trusted_settings(place, data)
                elif self._is_trusted(place):
                    files[name] = data
        obeyed = set[ObeyedFile]()
        for part in OBEYED_FOLDERS:
            with suppress(OSError), os.scandir(f"{folder}/{part}") as entries:
                for entry in entries:
                    status = entry.stat(follow_symlinks=False)
                    if self._is_trusted(entry.path):
                        obeyed.add((f"{part}/{entry.name}", status.st_ino, status.st_ctime_ns))
        with os.scandir(folder) as entries:
            links = frozenset(entry.name for entry in entries if entry.is_symlink() and self._is_trusted(entry.path))
        is_led_to = os.path.realpath(f"{self._workspace}/{GIT}") == folder
        return KnownFolder(path=folder, files=files, obeyed=frozenset(obeyed), links=links, is_led_to=is_led_to)

    def _is_trusted(self, place: str) -> bool:
        return self._trusted_until is None or os.lstat(place).st_ctime < self._trusted_until

    def _trusted_settings(self, place: str, config: bytes) -> bytes:
        """What a configuration says, without what a command that still runs may have written there."""
        return config if self._is_trusted(place) else harmless_settings(config)

    def _add_includes(self) -> None:
        """When all else is mounted: what commands can write to is known then."""
        roots = (self._workspace, *self._folders.values())

        def root_of(folder: str) -> str | None:
            return next((root for root in roots if is_beneath(folder, root)), None)

        known_files = {f"{folder.path}/{name}" for folder in self._known.values() for name in folder.files}
        files = (*self._person.settings, *self._settings, *sorted(known_files - self._settings.keys()))
        for included in included_files(files, lambda folder: root_of(folder) is not None, self._person.home):
            if included.path in known_files:  # what that includes is held, and it is compared itself afterwards
                continue
            self._links |= {link: os.readlink(link) for link in included.links}
            if included.missing is not None and included.path not in self._settings:
                self._missing.add(included.missing)
            root = None if included.file is None else root_of(os.path.dirname(included.file))
            if included.file is not None and root is not None and included.file not in self._settings:
                with suppress(OSError, OddRepository):  # what it says is then not put back, should it be replaced
                    separate_file(included.file)
                    self._said[included.file] = read_small(included.file)
                    config = self._trusted_settings(included.file, self._said[included.file])
                    self._settings[included.file] = ReplacedSettings(included.file, config)
                mounts = _pinned_file(included.file, root)
                self._add(*(mounts if self.tree is None else map(self.tree.inside, mounts)))

    def _add_linked(self, entry: str) -> None:
        """The workspace is a second working tree or a submodule."""
        folders = folders_named(entry, self._workspace)
        if folders is None:
            return
        if is_beneath(folders.own, self._workspace):
            self._add_inside(folders)
        elif folders.common is None:
            self._add_folder(folders.own)
        else:
            self._add_worktree(folders.own, folders.common)

    def _add_worktree(self, own: str, common: str) -> None:
        self._inspect(common)
        self._add(*self._shared_mounts(common))
        for module in module_folders(common):
            self._add(read_only(module), *self._settings_mounts(module))
        if self._is_read_only:
            return
        self._add_second_tree(own)
        if has_worktree_settings(read_small(f"{common}/config")):
            self._add(self._own_settings(own))
        for module in module_folders(own):
            self._add_folder(module)

    def _shared_mounts(self, common: str) -> Iterator[Mount]:
        """The folder that the working trees of a repository share, without what is the main one's alone."""
        if self._is_read_only:
            yield read_only(common)
            yield from self._settings_mounts(common)
            return
        self._hold_commondir(common)
        yield from self._folder_mounts(common)
        for name in MAIN_TREE_FILES:
            if kind_of(f"{common}/{name}") == stat.S_IFREG:
                yield read_only(f"{common}/{name}")
        self._folders[identity_of(common)] = common
        self.branches[identity_of(common)] = frozenset(branch_names(common))

    def _add_second_tree(self, own: str) -> None:
        """Its folder names the one that it shares with others, and its files."""
        if not self._is_read_only:
            parts = (read_only(f"{own}/{name}") for name in ("commondir", "gitdir"))
            self._add(writable(own), *parts, self._own_settings(own))
            self._folders[identity_of(own)] = own

    def _add_repository_above(self) -> None:
        entry = repository_above(self._workspace)
        if entry is not None:
            with _reading_only(self._odd, entry):
                self._add_subfolder(entry)

    def _add_subfolder(self, repository: str) -> None:
        from weft.runtime.sandbox.own_git import SubfolderTree  # it starts git, which few workspaces need

        self._inspect(repository)
        try:
            config = read_small(f"{repository}/config")
            self.tree = SubfolderTree(repository, self._workspace, object_format(config))
        except WeftError as error:
            raise OddRepository(str(error)) from None
        self._add(*self.tree.mounts(self._shared_mounts(repository), is_read_only=self._is_read_only))

    def _add_folder(self, folder: str) -> None:
        """A folder of git's, with those of its submodules."""
        with _reading_only(self._odd, folder) as odd:
            self._inspect(folder)
            if self._is_read_only:
                self._add(*self._settings_mounts(folder))
            elif len(self._folders) < MOST_REPOSITORIES:
                self._hold_commondir(folder)
                self._add(*self._folder_mounts(folder))
                self.branches[identity_of(folder)] = frozenset(branch_names(folder))
            else:
                raise OddRepository(
                    f"there are more than {MOST_REPOSITORIES} repositories that can be written: {_FEWER}"
                )
        if odd:
            self._add_unheld(folder)
        with suppress(FileNotFoundError):
            self._folders[identity_of(folder)] = folder
        if not odd:
            for module in module_folders(folder):
                if f"{module}/config" not in self._mounts:
                    self._add_folder(module)

    def _add_unheld(self, folder: str) -> None:
        """One that can only be read, or nothing of it. No number of them takes the open files of this process: it is
        looked at by its path again when the command has ended."""
        if len(self._folders) >= MOST_SHOWN_REPOSITORIES:
            self._odd.append(
                f"{folder}: it is hidden, there are more than {MOST_SHOWN_REPOSITORIES} repositories: {_FEWER}"
            )
            self._add(empty_folder(folder))
        else:
            self._add(read_only(folder))
            for place in (f"{folder}/config", f"{folder}/config.worktree"):
                with suppress(OSError, OddRepository):  # a command cannot read it either, or it is no file
                    self._add(file_of(place, harmless_settings(read_small(place))))
                    self._unheld.add(place)
        self._unheld.add(folder)

    def _folder_mounts(self, folder: str) -> Iterator[Mount]:
        yield writable(folder)
        yield from self._settings_mounts(folder)
        for name in _HELD_FOLDERS:
            with suppress(FileExistsError):
                os.mkdir(f"{folder}/{name}")
            if name in OBEYED_FOLDERS:  # a person may have made a hook a second name of a file that they track
                separate_files(f"{folder}/{name}")
            yield read_only(f"{folder}/{name}")
        if kind_of(f"{folder}/worktrees") is not None:  # each names the repository that another folder belongs to
            yield read_only(f"{folder}/worktrees")
        yield file_of(f"{folder}/commondir", SAME_FOLDER)

    def _settings_mounts(self, folder: str) -> Iterator[Mount]:
        config, own = read_small(f"{folder}/config"), f"{folder}/config.worktree"
        yield self._settings_file(f"{folder}/config", config)
        if kind_of(own) is not None or (has_worktree_settings(config) and not self._is_read_only):
            yield self._own_settings(folder)
        else:  # git reads it as soon as the person sets that, which `git sparse-checkout` does
            self._unread.add(own)

    def _own_settings(self, folder: str) -> Mount:
        """Those of one working tree, which git reads where the repository says so. An empty file says nothing."""
        place = f"{folder}/config.worktree"
        if kind_of(place) is None:
            os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644))
        return self._settings_file(place, read_small(place))

    def _settings_file(self, place: str, config: bytes) -> Mount:
        trusted = self._trusted_settings(place, config)
        if not self._is_read_only:
            separate_file(place)
        self._said[place], self._settings[place] = config, ReplacedSettings(place, trusted)
        return file_of(place, harmless_settings(config))

    def _inspect(self, folder: str) -> None:
        """Raises OddRepository where a part is something else than git makes of it."""
        if os.path.realpath(folder) != folder:
            raise OddRepository("there is a link on its way")
        required = {"config": stat.S_IFREG, "objects": stat.S_IFDIR, "refs": stat.S_IFDIR}
        possible = {
            "config.worktree": stat.S_IFREG,
            "commondir": stat.S_IFREG,
            **dict.fromkeys((*_HELD_FOLDERS, "worktrees", "modules", "logs"), stat.S_IFDIR),
        }
        if kind_of(f"{folder}/HEAD") is None:
            raise OddRepository("it has no HEAD")
        for name, kind in (required | possible).items():
            actual = kind_of(f"{folder}/{name}")
            if actual != kind and (actual is not None or name in required):
                raise OddRepository(f"its {name} is missing, a link or of another kind")
        if kind_of(f"{folder}/commondir") is not None and read_small(f"{folder}/commondir") != SAME_FOLDER:
            raise OddRepository("its commondir leads to another folder")

    def _hold_commondir(self, folder: str) -> None:
        """The lock is on the file itself: whoever removes it holds it alone, and who waited meanwhile begins anew."""
        place = f"{folder}/commondir"
        for _ in range(_TRIES):
            with suppress(FileExistsError):
                publish_file(place, SAME_FOLDER)
            try:
                file = open(os.open(place, _READ), "rb", buffering=0)  # noqa: SIM115 - held until the command has ended
            except FileNotFoundError:
                continue
            fcntl.flock(file, fcntl.LOCK_SH)
            if is_at(place, file.fileno()) and file.read(len(SAME_FOLDER) + 1) == SAME_FOLDER:
                self._held[place] = file
                return
            file.close()
        raise OddRepository("its commondir is written by others")


class _reading_only:  # noqa: N801 - a context, as a function is
    """Notes a repository that is odd, or that this user cannot read or write, instead of raising. True where it is."""

    def __init__(self, odd: list[str], folder: str) -> None:
        self._odd, self._folder, self._is_odd = odd, folder, False

    def __bool__(self) -> bool:
        return self._is_odd

    def __enter__(self) -> _reading_only:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            return False  # it is not the repository's fault
        if isinstance(error, OddRepository | OSError):
            self._is_odd = True
            self._odd.append(f"{self._folder}: {error.strerror if isinstance(error, OSError) else error}")
            return True
        return False


def _pinned_file(place: str, workspace: str) -> Iterator[Mount]:
    """A file that can neither be written nor replaced, not by renaming a folder above it either."""
    folder = os.path.dirname(place)
    while folder != workspace:
        yield writable(folder)
        folder = os.path.dirname(folder)
    yield read_only(place)


# --- Git's folders that commands in a workspace can write: what is to be kept of them before a command that nobody
# asked about, and given back by an undo.

SHARED_PARTS = frozenset((b"refs", b"packed-refs", b"logs", b"shallow"))
"""What the working trees of one repository share, and each of them can write."""


def writable_git_folders(workspace: Path) -> tuple[GitFolder, ...]:
    """`workspace` has no links on its way. Raises LimitExceeded for more than the sandbox lets commands write."""
    folders: dict[str, GitFolder] = {}
    for folder in _candidates(str(workspace)):
        folders.setdefault(folder.place, folder)
        if len(folders) > MOST_REPOSITORIES:
            raise LimitExceeded("git repositories in the workspace", len(folders), MOST_REPOSITORIES)
    return tuple(folders.values())


def repository_settings(workspace: Path) -> tuple[str, ...]:
    """Where the repositories of a workspace have their settings. All of its folders are looked through."""
    folders = dict.fromkeys(git_folders_in(str(workspace)))
    return tuple(f"{folder}/{name}" for folder in folders for name in ("config", "config.worktree"))


def git_folders_in(workspace: str) -> Iterator[str]:
    """The folders of its repositories, some of them several times. `workspace` has no links on its way. Raises
    InvalidInput after the first ones where there are more folders than can be looked through."""
    return (folder.place for folder in _candidates(workspace))


def obeyed_settings(workspace: Path, settings: Sequence[str], person: GitPerson) -> frozenset[str]:
    """Files of a workspace in which a person's git reads settings, outside of the sandbox: theirs, those of the
    repositories, and what either includes, whether it is there or not. Commands cannot change them."""
    top = str(workspace)
    read = included_files(
        [*person.settings, *settings], lambda place: place == top or is_beneath(place, top), person.home
    )
    places = (place for included in read for place in (included.file, included.missing, *included.links))
    return frozenset(place for place in places if place is not None and is_beneath(place, top))


def _candidates(workspace: str) -> Iterator[GitFolder]:
    entry = f"{workspace}/{GIT}"
    kind = kind_of(entry)
    if kind is None:
        above = repository_above(workspace)
        if above is not None:
            yield from _with_modules(above)
    elif kind == stat.S_IFDIR:
        yield from _with_modules(entry)
    elif kind == stat.S_IFREG:
        yield from _linked(folders_named, entry, workspace)
    for inner in git_places(workspace):
        if os.path.basename(inner).casefold() != GIT:
            continue  # under another name its files are like any others
        if kind_of(inner) == stat.S_IFDIR:
            yield from _with_modules(inner)
        elif kind_of(inner) == stat.S_IFREG:
            yield from _linked(folders_inside, inner, workspace)


def _linked(follow: Callable[[str, str], LinkedFolders | None], entry: str, workspace: str) -> Iterator[GitFolder]:
    """Of a second working tree or a submodule, whose folder a file names. None that commands cannot write: an undo
    would reset another's repository."""
    try:
        folders = follow(entry, workspace)
    except (OddRepository, OSError):
        return
    if folders is None:
        return
    own, common = folders
    if common is None:
        yield from _with_modules(own)
        return
    shared = _folder_at(common, objects=common)
    if shared is None:
        return
    if is_beneath(common, workspace):
        yield from _with_modules(common)
    else:
        yield GitFolder(place=common, objects=common, object_format=shared.object_format, parts=SHARED_PARTS)
    yield GitFolder(place=own, objects=common, object_format=shared.object_format)
    yield from _modules_of(own)


def _with_modules(place: str) -> Iterator[GitFolder]:
    folder = _folder_at(place, objects=place)
    if folder is not None:
        yield folder
        yield from _modules_of(place)


def _modules_of(place: str) -> Iterator[GitFolder]:
    """Those of submodules, known by their configuration, which commands cannot take away."""
    for path in module_folders(place, known_by="config"):
        yield from _with_modules(path)


def _folder_at(place: str, objects: str) -> GitFolder | None:
    """None where git could not work with it, or where commands see no more than what is there."""
    try:
        if os.path.realpath(place) != place or common_folder(place) is not None:
            return None
        config = read_small(f"{place}/config")
    except (OSError, OddRepository):
        return None
    return GitFolder(place=place, objects=objects, object_format=object_format(config))


# --- The files of a workspace that a person's git runs because a configuration says so: `core.hooksPath = tools/hooks`,
# a filter, a driver for merges. What is read is theirs and that of the repositories, with what either includes. They
# have no fixed names, and agents may change them like any other file: they are named where somebody looks at changes.
# Not known is what such a program starts itself.

_HOOK_FOLDERS: Mapping[tuple[str, str | None, str], str] = {
    ("core", None, "hookspath"): "core.hooksPath",
    ("init", None, "templatedir"): "init.templateDir",
}
"""Settings that name a folder with hooks. Those of a template come into each repository that the person makes."""
_PROGRAMS = (
    "core.fsmonitor core.sshCommand core.askPass core.editor core.pager core.gitProxy core.alternateRefsCommand "
    "sequence.editor diff.external filter.*.clean filter.*.smudge filter.*.process diff.*.textconv diff.*.command "
    "merge.*.driver alias.* alias.*.command pager.* credential.helper credential.*.helper gpg.program gpg.*.program "
    "gpg.ssh.defaultKeyCommand difftool.*.cmd difftool.*.path mergetool.*.cmd mergetool.*.path browser.*.cmd "
    "browser.*.path man.*.cmd man.*.path interactive.diffFilter trailer.*.command trailer.*.cmd hook.*.command "
    "remote.*.uploadpack remote.*.receivepack uploadpack.packObjectsHook submodule.*.update sendemail.sendmailCmd "
    "sendemail.toCmd sendemail.ccCmd sendemail.headerCmd imap.tunnel"
).split()
_SETTINGS = ("config", "config.worktree")
_VARIABLE = re.compile(r"\$(?:\w+|\{\w+\})")
_SPLIT = re.compile(r"[\s;&|<>()'\"`=!]+")


def _spelled() -> dict[tuple[str, bool, str], str]:
    """How a setting that names a program is written, by its section, whether it has a subsection, and its name."""
    parts = [(spelled.split("."), spelled) for spelled in _PROGRAMS]
    return {(words[0].lower(), len(words) > 2, words[-1].lower()): spelled for words, spelled in parts}


_SPELLED = _spelled()


class GitPrograms:
    """Those of one workspace, which are looked for once."""

    def __init__(self, workspace: Path, person: GitPerson) -> None:
        self._top, self._person = os.path.realpath(workspace), person

    def self_running(self, paths: Iterable[str]) -> dict[str, str]:
        """Those of these paths, from the workspace on, that something runs by itself, each with what runs it."""
        return self_running(paths, self.runners)

    @cached_property
    def runners(self) -> Mapping[str, str]:
        """As `self_running` takes them."""
        folders, trees = list[str](), {self._top: None}
        with suppress(WeftError, OSError):  # of more folders than can be looked through the first ones; it may be gone
            for folder in git_folders_in(self._top):
                folders.append(folder)
                if os.path.basename(folder).casefold() == GIT:
                    trees[os.path.dirname(folder)] = None
        files = [*self._person.settings, *(f"{folder}/{name}" for folder in folders for name in _SETTINGS)]
        settings = [setting for _, data in files_read(files, self._person.home) for setting in read_settings(data)]
        runners: dict[str, str] = {}
        for setting in settings:
            runner = f"git, as {_key(setting)} says"
            for tree in trees:
                for place in self._places(setting, tree):
                    is_hooks = _is_hooks(setting)
                    self._add(runners, place, runner, is_folder=is_hooks)
                    for program in _links_in(place) if is_hooks else ():
                        self._add(runners, program, runner)
        for folder in folders:
            for program in _links_in(f"{folder}/hooks"):
                self._add(runners, program, "git, by a link among its hooks")
        return runners

    def _places(self, setting: GitSetting, tree: str) -> Iterator[str]:
        """Where a setting may lead, for git in one working tree."""
        if _is_hooks(setting):
            yield os.path.join(tree, self._at_home(setting.value))
        elif _spelled_as(setting) is not None:
            for word in _path_words(setting.value):
                yield os.path.join(tree, self._at_home(word))
                yield f"{tree}/{word.lstrip('/')}"  # what stands before it may be a variable or a command

    def _at_home(self, path: str) -> str:
        is_there = self._person.home is not None and (path == "~" or path.startswith("~/"))
        return f"{self._person.home}{path[1:]}" if is_there else path

    def _add(self, runners: dict[str, str], place: str, runner: str, *, is_folder: bool = False) -> None:
        """A path and what it leads to, with the links on the way."""
        if "\0" in place:
            return
        path, end = os.path.normpath(place), "/" if is_folder else ""
        for led in (path, os.path.realpath(place)):
            is_top = led == self._top and is_folder
            if is_top or (is_beneath(led, self._top) and led != self._top):
                runners.setdefault(f"{self._name(led).rstrip('/')}{end}", runner)
        for above in (path, *map(str, Path(path).parents)):
            if is_beneath(above, self._top) and os.path.islink(above):
                runners.setdefault(self._name(above), runner)

    def _name(self, place: str) -> str:
        return f"/{os.path.relpath(place, self._top)}".lower() if place != self._top else "/"


def _is_hooks(setting: GitSetting) -> bool:
    return (setting.section, setting.subsection, setting.name) in _HOOK_FOLDERS


def _spelled_as(setting: GitSetting) -> str | None:
    section, has_subsection = setting.section, setting.subsection is not None
    return _SPELLED.get((section, has_subsection, setting.name)) or _SPELLED.get((section, has_subsection, "*"))


def _key(setting: GitSetting) -> str:
    spelled = _HOOK_FOLDERS.get((setting.section, setting.subsection, setting.name)) or _spelled_as(setting)
    name = setting.name if spelled is None or spelled.endswith("*") else spelled.rpartition(".")[2]
    return ".".join(part for part in (setting.section, setting.subsection, name) if part is not None)


def _path_words(value: str) -> Iterator[str]:
    """Of a command whatever could be a path. A program without a slash is looked for elsewhere."""
    words = list[str]()
    with suppress(ValueError):  # a quote that is not closed: the shell starts nothing either
        words = shlex.split(value.removeprefix("!"))
    pieces = [word for word in _SPLIT.split(_VARIABLE.sub(" ", value.replace("$HOME", "~"))) if word]
    for split in (words, pieces):
        yield from (word for number, word in enumerate(split) if number or "/" in word)


def _links_in(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [os.path.realpath(entry.path) for entry in entries if entry.is_symlink()]
    except OSError:  # it is not there, or git cannot read it either
        return []
