"""What of git's folders a command in the sandbox is shown, so that it can work with git and set up nothing there.

A program that git starts is named in a repository's configuration or hooks, and the person's own git obeys both later,
outside of the sandbox. Inside, `config` is therefore a harmless copy that cannot be written, `hooks`, `info` and the
folders of other working trees are read-only, and `.git` is a mount of its own: it cannot be renamed and replaced.
References, objects, `HEAD` and the index can be written.

`commondir` would lead git to another folder's configuration and hooks. It cannot be covered where it does not exist, so
as long as a command runs there is one that says `.`: the folder itself, which is what git takes without one. Commands
that run at the same time share it by a lock; the last one removes it. One that a killed process left is removed by the
next.

Of a second working tree, whose repository lies elsewhere, `HEAD` and the index of the main one cannot be written, and
of other trees nothing. A workspace in a repository above it becomes such a tree (`git_subfolder`). A repository whose
parts are links, or not what git makes, is read-only.

A mount lies on a file, not on a name. Where the person's own git replaces `config` meanwhile, as it does for each
setting, the kernel takes the mount away in every sandbox. Whoever runs a command therefore asks `is_intact` again and
again, and kills what it runs where it is not; settings that name a program and were not there before are then removed
from the file.

What this cannot hold: a repository that a command makes in the workspace, its configuration included. `git_leftovers`
takes away what would run there, when the command has ended; until then a person's git obeys it.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from weft.kernel.clock import system_random
from weft.kernel.errors import WeftError
from weft.runtime.sandbox.git_settings import (
    CONFIG_BYTES,
    GitIdentity,
    harmless_settings,
    has_worktree_settings,
    included_paths,
    object_format,
    read_settings,
    system_settings,
)
from weft.runtime.sandbox.mounts import Mount, file_of, is_beneath, read_only, writable
from weft.runtime.sandbox.workspace_search import FETCHED_FOLDERS

if TYPE_CHECKING:
    from weft.runtime.sandbox.git_subfolder import SubfolderTree

GIT = ".git"
SYSTEM_SETTINGS = "/etc/gitconfig"
SAME_FOLDER = b".\n"
"""What `commondir` says as long as a command runs."""
MOST_REPOSITORIES = 64
"""So many of a workspace can be written; any more are read-only."""
MAIN_TREE_FILES = ("HEAD", "index")
MOST_FOLDERS = 5000
_MOST_LEVELS = 64
_MODULE_LEVELS = 8
_POINTER_BYTES = 4096
_TRIES = 10
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
Identity = tuple[int, int]


class OddRepository(Exception):
    """It is not as git makes it, so nothing in it may be written."""


class GitView(Struct, frozen=True, kw_only=True):
    """Mounts and variables for git in one workspace, and whose folders they are."""

    mounts: tuple[Mount, ...]
    environment: Mapping[str, str]
    folders: Mapping[Identity, str]
    """Git's folders that are mounted, by what stays when they are moved."""
    odd: tuple[str, ...] = ()
    """Those that are read-only, with why."""


class WatchedPlace(Struct, frozen=True):
    """What something was mounted on: a descriptor of it, its name, and the folder from which it has that name."""

    folder: int | None
    name: str
    descriptor: int

    def is_same(self) -> bool:
        try:
            now = os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)
        except OSError:
            return False
        return os.path.samestat(now, os.fstat(self.descriptor))


class ReplacedSettings(Struct, frozen=True):
    """A configuration that is another file now, and what it said before."""

    place: str
    config: bytes


class GitGuard:
    """Holds what a view needs as long as a command runs. Close it when the command has ended."""

    def __init__(self, workspace: Path, identity: GitIdentity | None, *, is_read_only: bool = False) -> None:
        """`workspace` has no links on its way."""
        self._workspace, self._is_read_only = str(workspace), is_read_only
        self._held: dict[str, FileIO] = {}
        self._mounts: dict[str, Mount] = {}
        self._folders: dict[Identity, str] = {}
        self._odd: list[str] = []
        self._settings: dict[str, ReplacedSettings] = {}
        self.branches: dict[str, frozenset[str]] = {}
        """Of each repository that can be written, those that were there before the command."""
        self.tree: SubfolderTree | None = None
        """Where the repository lies above the workspace."""
        self._descriptors: list[int] = []
        self._watched: dict[str, WatchedPlace] = {}
        self._add(file_of(SYSTEM_SETTINGS, system_settings(identity)))
        try:
            self._add_workspace()
            for entry in git_entries(self._workspace):
                self._add_entry(entry)
            self._watch_mounts()
        except BaseException:  # the locks are let go, whatever it was
            self.close()
            raise
        self.view = GitView(
            mounts=tuple(self._mounts.values()),
            environment={
                "GIT_CONFIG_SYSTEM": SYSTEM_SETTINGS,
                # the workspace is a mount, and the repository is looked for above it
                **({} if self.tree is None else {"GIT_DISCOVERY_ACROSS_FILESYSTEM": "1"}),
            },
            folders=self._folders,
            odd=tuple(self._odd),
        )

    def _watch_mounts(self) -> None:
        """Beneath a folder of git's from that folder, which a command may move with what is mounted in it. All are held
        open: the number of a file that is gone would be given to the next one."""
        places = {mount.source or place for place, mount in self._mounts.items()} | self._settings.keys()
        folders = {folder: self._hold(folder) for folder in self._folders.values()}
        for place in sorted(places - {SYSTEM_SETTINGS} - folders.keys()):
            # what is only a place inside has nothing outside; the main tree's own git replaces its files all the time
            if os.path.lexists(place) and os.path.basename(place) not in MAIN_TREE_FILES:
                above = max((folder for folder in folders if is_beneath(place, folder)), key=len, default=None)
                name = place if above is None else os.path.relpath(place, above)
                descriptor = self._hold(place)
                self._watched[place] = WatchedPlace(None if above is None else folders[above], name, descriptor)

    def _hold(self, place: str) -> int:
        self._descriptors.append(os.open(place, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC))
        return self._descriptors[-1]

    def is_intact(self) -> bool:
        """Whether everything that was mounted is still what it was mounted on."""
        return all(watched.is_same() for watched in self._watched.values())

    def replaced_settings(self) -> tuple[ReplacedSettings, ...]:
        """Of configurations that another file took the place of meanwhile, what they were."""
        places = [place for place, watched in self._watched.items() if not watched.is_same()]
        return tuple(self._settings[place] for place in places if place in self._settings)

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
                if _is_at(path, file.fileno()):
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
        kind = kind_of(entry)
        if kind != stat.S_IFREG:
            own = os.path.realpath(entry)
        elif (text := read_pointer(entry)) is not None and text.startswith("gitdir: "):
            own = os.path.realpath(os.path.join(os.path.dirname(entry), text.removeprefix("gitdir: ")))
        else:
            return
        if not self._is_inside(own) or own in self._mounts:
            return
        with _reading_only(self._odd, entry):
            common = None if kind == stat.S_IFDIR else common_folder(own)
            if common is None:
                self._add_folder(own)
            elif self._is_inside(common):
                if common not in self._mounts:
                    self._add_folder(common)
                self._add_second_tree(own)

    def _is_inside(self, folder: str) -> bool:
        return is_beneath(folder, self._workspace) and folder != self._workspace and kind_of(folder) == stat.S_IFDIR

    def _add_linked(self, entry: str) -> None:
        """The workspace is a second working tree or a submodule. A file alone would show any folder of the machine:
        the folder that it names must name the workspace, too, as git writes it on both sides."""
        own = pointed_folder(entry)
        if own is None:
            raise OddRepository("it names no folder")
        if is_beneath(own, self._workspace):
            self._add_entry(entry)
            return
        common = common_folder(own)
        if common is None:
            if not is_submodule_of(own, self._workspace):
                raise OddRepository("the folder that it names does not name it")
            self._add_folder(own)
        else:
            back = read_pointer(f"{own}/gitdir")
            is_named = back is not None and os.path.realpath(os.path.join(own, back)) == entry
            if os.path.dirname(own) != f"{common}/worktrees" or not is_named:
                raise OddRepository("the folder that it names does not name it")
            self._add_worktree(own, common)

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
        self.branches[common] = frozenset(branch_names(common))

    def _add_second_tree(self, own: str) -> None:
        """Its folder names the one that it shares with others, and its files."""
        if not self._is_read_only:
            parts = (read_only(f"{own}/{name}") for name in ("commondir", "gitdir"))
            self._add(writable(own), *parts, self._own_settings(own))
            self._folders[identity_of(own)] = own

    def _add_repository_above(self) -> None:
        """Only where the folder is this user's: anybody could put a repository into `/tmp`."""
        for folder in list(Path(self._workspace).parents)[:_MOST_LEVELS]:
            entry = f"{folder}/{GIT}" if str(folder) != "/" else f"/{GIT}"
            kind = kind_of(entry)
            if kind is None:
                continue
            if kind == stat.S_IFDIR and os.lstat(entry).st_uid == os.stat(self._workspace).st_uid:
                with _reading_only(self._odd, entry):
                    self._add_subfolder(entry)
            return

    def _add_subfolder(self, repository: str) -> None:
        from weft.runtime.sandbox.git_subfolder import SubfolderTree  # it starts git, which few workspaces need

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
                self.branches[folder] = frozenset(branch_names(folder))
            else:
                raise OddRepository(f"there are more than {MOST_REPOSITORIES} repositories")
        if odd:
            self._add(read_only(folder))
        with suppress(FileNotFoundError):
            self._folders[identity_of(folder)] = folder
        if not odd:
            for module in module_folders(folder):
                if f"{module}/config" not in self._mounts:
                    self._add_folder(module)

    def _folder_mounts(self, folder: str) -> Iterator[Mount]:
        yield writable(folder)
        yield from self._settings_mounts(folder)
        for name in ("hooks", "info"):
            with suppress(FileExistsError):
                os.mkdir(f"{folder}/{name}")
            yield read_only(f"{folder}/{name}")
        if kind_of(f"{folder}/worktrees") is not None:  # each names the repository that another folder belongs to
            yield read_only(f"{folder}/worktrees")
        yield file_of(f"{folder}/commondir", SAME_FOLDER)

    def _settings_mounts(self, folder: str) -> Iterator[Mount]:
        config = read_small(f"{folder}/config")
        yield self._settings_file(f"{folder}/config", config)
        if has_worktree_settings(config) and (not self._is_read_only or kind_of(f"{folder}/config.worktree")):
            yield self._own_settings(folder)
        for path in included_paths(config):
            place = os.path.normpath(os.path.join(folder, path))
            if is_beneath(place, self._workspace) and kind_of(place) == stat.S_IFREG:
                yield from _pinned_file(place, self._workspace)

    def _own_settings(self, folder: str) -> Mount:
        """Those of one working tree, which git reads where the repository says so. An empty file says nothing."""
        place = f"{folder}/config.worktree"
        if kind_of(place) is None:
            os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644))
        return self._settings_file(place, read_small(place))

    def _settings_file(self, place: str, config: bytes) -> Mount:
        self._settings[place] = ReplacedSettings(place, config)
        return file_of(place, harmless_settings(config))

    def _inspect(self, folder: str) -> None:
        """Raises OddRepository where a part is something else than git makes of it."""
        if os.path.realpath(folder) != folder:
            raise OddRepository("there is a link on its way")
        required = {"config": stat.S_IFREG, "objects": stat.S_IFDIR, "refs": stat.S_IFDIR}
        possible = {
            "config.worktree": stat.S_IFREG,
            "commondir": stat.S_IFREG,
            **dict.fromkeys(("hooks", "info", "worktrees", "modules", "logs"), stat.S_IFDIR),
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
                _publish(place, SAME_FOLDER)
            try:
                file = open(os.open(place, _READ), "rb", buffering=0)  # noqa: SIM115 - held until the command has ended
            except FileNotFoundError:
                continue
            fcntl.flock(file, fcntl.LOCK_SH)
            if _is_at(place, file.fileno()) and file.read(len(SAME_FOLDER) + 1) == SAME_FOLDER:
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
        if isinstance(error, OddRepository | OSError):
            self._is_odd = True
            self._odd.append(f"{self._folder}: {error.strerror if isinstance(error, OSError) else error}")
            return True
        return False


def git_entries(workspace: str, most: int = MOST_FOLDERS) -> Iterator[str]:
    """Every `.git` in the folders of a workspace but its own, links not followed. So many folders are looked through,
    the uppermost first; those that tools fill with what they fetched or made are not."""
    waiting = deque([workspace])
    for _ in range(most):
        if not waiting:
            return
        folder = waiting.popleft()
        try:
            with os.scandir(folder) as entries:
                inner = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
        except OSError:  # it is gone, or cannot be read, neither by a command
            continue
        for name, is_folder in inner:
            if name.casefold() == GIT:
                if folder != workspace or name != GIT:
                    yield f"{folder}/{name}"
            elif is_folder and name not in FETCHED_FOLDERS:
                waiting.append(f"{folder}/{name}")


def module_folders(folder: str, levels: int = _MODULE_LEVELS) -> Iterator[str]:
    """Git's folders of the submodules of one repository, not those of submodules in them. Names may have slashes."""
    waiting = [(f"{folder}/modules", levels)]
    while waiting:
        place, left = waiting.pop()
        try:
            with os.scandir(place) as entries:
                inner = sorted(entry.path for entry in entries if entry.is_dir(follow_symlinks=False))
        except OSError:
            continue
        for path in inner:
            if kind_of(f"{path}/HEAD") is not None:
                yield path
            elif left:
                waiting.append((path, left - 1))


def branch_names(folder: str) -> Iterator[str]:
    """Those with a file of their own, as every branch has that was made a moment ago."""
    top = f"{folder}/refs/heads"
    for place, _, names in os.walk(top):
        yield from (os.path.relpath(f"{place}/{name}", top) for name in names)


def pointed_folder(entry: str) -> str | None:
    """The folder that a `.git` file leads to. None where it leads nowhere, or through a link."""
    text = read_pointer(entry) or ""
    lead, _, target = text.partition(": ")
    if lead != "gitdir" or not target:
        return None
    folder = os.path.normpath(os.path.join(os.path.dirname(entry), target))
    return folder if os.path.realpath(folder) == folder and kind_of(folder) == stat.S_IFDIR else None


def common_folder(own: str) -> str | None:
    """The folder that the working trees of one repository share; None where `own` is not that of a second one."""
    text = read_pointer(f"{own}/commondir")
    if text is None or text == ".":
        return None
    folder = os.path.normpath(os.path.join(own, text))
    if os.path.realpath(folder) != folder:
        raise OddRepository("its commondir leads through a link")
    return folder


def is_submodule_of(own: str, workspace: str) -> bool:
    """Whether git's folder lies among the modules of another and names this workspace as the place of its files."""
    parts = Path(own).parts
    if GIT not in parts or "modules" not in parts[parts.index(GIT) : -1]:
        return False
    places = [one.value for one in read_settings(read_small(f"{own}/config")) if one.key == "core.worktree"]
    return bool(places) and os.path.realpath(os.path.join(own, places[-1])) == workspace


def read_pointer(path: str) -> str | None:
    """The path in a small file of git's; None where there is no such file."""
    try:
        text = os.fsdecode(read_small(path, _POINTER_BYTES)).strip()
    except (OSError, OddRepository):
        return None
    return text if text and "\0" not in text and "\n" not in text else None


def read_small(path: str, most: int = CONFIG_BYTES) -> bytes:
    """Raises OddRepository for what is no file or too large for one of these."""
    with open(os.open(path, _READ), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OddRepository(f"{os.path.basename(path)} is not a file")
        data = file.read(most + 1)
    if len(data) > most:
        raise OddRepository(f"{os.path.basename(path)} has more than {most} bytes")
    return data


def kind_of(path: str) -> int | None:
    """File, folder or link; None where there is nothing."""
    try:
        return stat.S_IFMT(os.lstat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return None


def identity_of(path: str) -> Identity:
    status = os.lstat(path)
    return status.st_dev, status.st_ino


def _is_at(path: str, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.lstat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _publish(place: str, data: bytes) -> None:
    """Whole or not at all: git would not start with half of it. Raises FileExistsError where something is there."""
    aside = f"{place}.{system_random(8).hex()}"
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o444)
    try:
        os.write(descriptor, data)
        os.link(aside, place)
    finally:
        os.close(descriptor)
        os.unlink(aside)


def _pinned_file(place: str, workspace: str) -> Iterator[Mount]:
    """A file that can neither be written nor replaced, not by renaming a folder above it either."""
    folder = os.path.dirname(place)
    while folder != workspace:
        yield writable(folder)
        folder = os.path.dirname(folder)
    yield read_only(place)
