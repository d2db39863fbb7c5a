"""Takes away what a command left in repositories that it made itself, where git would run it outside of the sandbox.

What was a repository before the command is mounted so that nothing can be planted in it (`git_view`). What became one
meanwhile, a `.git` in a folder that had none, a nested clone, a new submodule, a folder of any name with a `HEAD`, has
the configuration that the command gave it. A `git status` of the person runs a file monitor that is named there, also
from the repository around it. Of such a configuration the harmless part is kept; hooks and old files of remotes get
another name; a `commondir` of a folder that is no second working tree is removed, and so are links, through which a
person's git would write. A folder that was known before the command and could not be mounted keeps what it had.

Where a command changed something is known from the walk through all that it could write, which follows each command.
Whatever leads to a folder, a file `.git` or a link, need not be followed therefore, but where it leads out of what is
looked through. Folders are opened one after the other beneath the workspace, without following links.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from msgspec import Struct

from weft.kernel.clock import system_random
from weft.runtime.opened_folders import (
    READ_FOLDER_FLAGS,
    Descent,
    Identity,
    open_closed,
    open_to_owner,
    opened_beneath,
    opened_identity,
    visit_folders,
)
from weft.runtime.sandbox.git_repositories import (
    ALTERNATES,
    GIT,
    INDEX,
    MOST_ALTERNATES,
    FolderLinks,
    alternate_folders,
    branch_names,
    hash_bytes_of,
    is_git_folder,
    is_index_name,
    is_old_head,
    is_usable_index,
    kind_at,
    pointed_path,
    state_at,
)
from weft.runtime.sandbox.git_settings import (
    CONFIG_BYTES,
    GitLeftovers,
    harmless_settings,
    names_strategy_by_path,
    object_format,
    restored_settings,
    upstream_settings,
    withheld_keys,
)
from weft.runtime.sandbox.git_view import (
    OBEYED_FOLDERS,
    SAME_FOLDER,
    GitView,
    KnownFolder,
    ObeyedFile,
    ReplacedSettings,
)
from weft.runtime.sandbox.profiles import is_beneath

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_EXECUTABLE = 0o111
_SETTINGS = ("config", "config.worktree")
_MADE_FROM = re.compile(rb"0+ [0-9a-f]+ [^\t\n]*\tbranch: Created from ([^\s\x00-\x1f]{1,500})\n")
_ODD_INDEX = "it named files that are not the repository's, or could not be read; `git reset` makes a new one"
_NAME_BYTES = 200
"""So much of a name is kept where something is added to it; the system takes 255 bytes."""
_STEPS = ("rebase-merge/git-rebase-todo", "rebase-apply/git-rebase-todo", "sequencer/todo")
"""What git does next, when somebody tells it to go on: a line of these can name a command."""
_STRATEGIES: Mapping[str, Callable[[bytes], bool]] = {
    "rebase-merge/strategy": lambda data: b"/" in data,
    "sequencer/opts": names_strategy_by_path,
}
"""How it merges then, and whether such a file names a program of the workspace for that."""


class ChangedGit(Struct, frozen=True, kw_only=True):
    """What a command may have changed that git obeys."""

    changed: Mapping[str, Collection[str]]
    """By each folder that it could write, the paths in there that git may obey (`leftovers.Leftovers`)."""
    pointers: Mapping[str, Collection[str]] = {}
    """In the same way the paths of each `.git` that is no folder."""
    replaced: Collection[ReplacedSettings] = ()
    """Configurations that were mounted, and that somebody else replaced meanwhile."""
    made: Collection[str] = ()
    """Files of settings that were missing before."""
    links: Mapping[str, str] = {}
    """Links to included files that something took the place of, and where they led."""
    unseen: Collection[str] = ()
    """Names of folders that it could write to and that are not looked through."""


def disarm_repositories(workspace: str, view: GitView, git: ChangedGit) -> GitLeftovers:
    """`view` is what the command was shown."""
    cleaning = _Cleaning(workspace, view, [*git.changed, workspace], git.unseen)
    try:
        _clean_all(cleaning, view, git)
    finally:
        cleaning.close()
    return GitLeftovers(
        taken_away=tuple(dict.fromkeys(cleaning.taken_away)),
        runs_by_itself=tuple(dict.fromkeys(cleaning.runs_by_itself)),
        not_cleaned=tuple(dict.fromkeys(cleaning.not_cleaned)),
    )


def _clean_all(cleaning: _Cleaning, view: GitView, git: ChangedGit) -> None:
    for settings in git.replaced:
        cleaning.restore_settings(settings)
    for place, target in git.links.items():
        cleaning.restore_link(place, target)
    for folder, paths in sorted(git.changed.items()):
        for path in sorted(paths):
            cleaning.clean_place(f"{folder}/{path}" if path else folder)
    cleaning.part_from_known(f"{folder}/{path}" for folder, paths in git.pointers.items() for path in sorted(paths))
    for place in git.made:
        cleaning.clean_made(place)
    for identity, folder in view.folders.items():
        cleaning.clean_held(identity, folder)
    for identity, known_folder in view.known.items():
        cleaning.stop_alternates_of(identity, known_folder.path)


def carry_upstreams(folders: Mapping[Identity, str], branches: Mapping[Identity, frozenset[str]]) -> tuple[str, ...]:
    """Inside, a new branch does not follow the remote's branch that it was made from, for that is written to the
    configuration. It is done here: git notes in a branch's log what it was made from. `branches` are those that were
    there before, by the repository's folder; `folders` says where these are now. The names of those that were
    changed."""
    carried = []
    for identity, old in branches.items():
        with suppress(OSError), _opened_as(identity, folders.get(identity)) as folder:
            new = frozenset(branch_names(f"/proc/self/fd/{folder}")) - old
            carried += [branch for branch in sorted(new) if _carry_upstream(folder, branch)]
    return tuple(carried)


def _carry_upstream(folder: int, branch: str) -> bool:
    """Added in place: a file that replaced it would be without the mounts of commands that still run. The lock keeps
    away a git that writes it at the same time; nothing is taken from it, for commands can write it."""
    try:
        with opened_beneath(folder, f"logs/refs/heads/{os.path.dirname(branch)}") as logs:
            log = _read_at(logs, os.path.basename(branch)) or b""
        origin = _MADE_FROM.match(log)
        if origin is None:
            return False
        lock = os.open("config.lock", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=folder)
        os.close(lock)
        try:
            return _append_upstream(folder, os.fsdecode(branch), os.fsdecode(origin[1]))
        finally:
            os.unlink("config.lock", dir_fd=folder)
    except OSError:  # no log, or git writes the configuration right now: the branch follows nothing
        return False


def _append_upstream(folder: int, branch: str, start: str) -> bool:
    config = _read_at(folder, "config")
    lines = None if config is None else upstream_settings(config, branch, start)
    if lines is None:
        return False
    flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open("config", flags, dir_fd=folder), "ab", buffering=0) as file:
        file.write(lines)
    return True


class _Cleaning:
    def __init__(self, workspace: str, view: GitView, written: Iterable[str], unseen: Collection[str]) -> None:
        self._workspace, self._seen, self._known = workspace, set(view.folders), view.known
        self._held, self._noted = set(view.folders), view.noted
        self._odd = view.odd
        self._armed = {
            identity
            for identity, known_folder in view.known.items()
            if identity not in view.folders and _is_armed(known_folder)
        }
        """Folders that came along as files, maybe, and in which git would run something if a command made it obey them.
        Where nothing led to them before, nothing may lead to them now, and they may not be in another's place."""
        places = dict.fromkeys((*written, *view.folders.values()))
        self._roots = tuple(
            place for place in places if not any(is_beneath(place, other) for other in places if other != place)
        )
        """What commands can write lies beneath these, and on the way to them they can change nothing."""
        self._unseen = unseen
        self._descents: dict[str, Descent] = {}
        self.taken_away: list[str] = []
        self.runs_by_itself: list[str] = []
        self.not_cleaned: list[str] = []
        """What could not be looked at or mended."""

    def clean_place(self, place: str) -> None:
        """A path that cannot be looked at keeps no other one from being cleaned."""
        if place in self._roots:
            self._clean_folder(place)
            return
        with self._noting(place), self._writable(os.path.dirname(place)) as above:
            kind = kind_at(above, os.path.basename(place))
            if kind == stat.S_IFREG:
                self._clean_pointer(above, place)
            elif kind == stat.S_IFLNK:
                target = os.readlink(os.path.basename(place), dir_fd=above)
                self._name_target(place, os.path.realpath(os.path.join(os.path.dirname(place), target)))
            elif kind == stat.S_IFDIR:
                self._clean_folder(place)

    def part_from_known(self, pointers: Iterable[str]) -> None:
        """Take away what leads to a folder in which git would run something, and clean such a folder that was moved."""
        if not self._armed:  # as nearly always
            return
        for place in pointers:
            with self._noting(place), self._writable(os.path.dirname(place)) as above:
                name = os.path.basename(place)
                target = os.readlink(name, dir_fd=above) if kind_at(above, name) == stat.S_IFLNK else None
                led = pointed_path(place, above) if target is None else os.path.join(os.path.dirname(place), target)
                if led is not None and self._is_armed_place(os.path.realpath(led)):
                    _rename_at(above, name)
                    self.taken_away.append(self._name(place))
        moved = {identity for identity in self._armed - self._seen if not self._is_still_there(identity)}
        for root in self._roots if moved else ():
            with self._noting(root), self._writable(root) as top:
                for visited in visit_folders(top, partial(self._note_failure, root)):
                    visited.inner = _folders_in(visited.descriptor)
                    identity = opened_identity(visited.descriptor)
                    if identity in moved - self._seen:
                        self._seen.add(identity)
                        self._clean_parts(visited.descriptor, self._name(f"{root}/{visited.path}"), None)

    def _note_failure(self, root: str, path: str, error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            self.not_cleaned.append(self._name(f"{root}/{path}"))

    def _is_armed_place(self, folder: str) -> bool:
        try:
            status = os.lstat(folder)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) in self._armed

    def _is_still_there(self, identity: Identity) -> bool:
        try:
            with self._writable(self._known[identity].path) as folder:
                return opened_identity(folder) == identity
        except OSError:
            return False

    def restore_settings(self, replaced: ReplacedSettings) -> None:
        """A person who replaced it adds a remote or a branch; who added a program meanwhile is not known."""
        folder, file = os.path.split(replaced.place)
        with self._naming(self._name(replaced.place)), self._writable(folder) as descriptor:
            self._clean_settings(descriptor, file, self._name(folder), replaced.config)

    def restore_link(self, place: str, target: str) -> None:
        folder, name = os.path.split(place)
        # where the folder was moved as well, it is named
        with self._naming(self._name(place)), self._writable(folder) as descriptor:
            if _exists_at(descriptor, name):
                if kind_at(descriptor, name) == stat.S_IFLNK and os.readlink(name, dir_fd=descriptor) == target:
                    return
                _rename_at(descriptor, name)
            os.symlink(target, name, dir_fd=descriptor)
            self.taken_away.append(self._name(place))

    def clean_made(self, place: str) -> None:
        """Settings that git reads, of which there were none. Of the way there nothing was a link before, so one that is
        met now is the command's."""
        folder, name = os.path.split(place)
        try:
            with self._writable(folder) as descriptor:
                self._clean_settings(descriptor, name, self._name(folder), None)
        except OSError:
            if not self._remove_link_above(place):
                self.not_cleaned.append(self._name(place))

    def _remove_link_above(self, place: str) -> bool:
        """The uppermost one: on the way to that there is none."""
        root = self._root_of(place)
        folders = [] if root is None else [str(folder) for folder in reversed(Path(place).parents)]
        for folder in (
            folder for folder in folders if root is not None and folder != root and is_beneath(folder, root)
        ):
            above, name = os.path.split(folder)
            with self._writable(above) as descriptor:
                if kind_at(descriptor, name) == stat.S_IFLNK:
                    os.unlink(name, dir_fd=descriptor)
                    self.taken_away.append(self._name(folder))
                    return True
        return False

    def clean_held(self, identity: Identity, folder: str) -> None:
        """A folder that was mounted. Nothing is done where it is not the one: something else may have its place."""
        # one that was moved is met where it is now
        with self._noting(folder), self._writable(folder) as descriptor:
            if identity in self._held and opened_identity(descriptor) == identity:
                self._clean_open_held(descriptor, folder)

    def stop_alternates_of(self, identity: Identity, folder: str) -> None:
        """Of one that was there before. Where a command changes these, nothing says that the folder changed."""
        with self._noting(folder), self._writable(folder) as descriptor:
            if opened_identity(descriptor) == identity:  # one that was moved is met where it is now
                self._stop_alternates(descriptor)

    def _clean_open_held(self, descriptor: int, folder: str) -> None:
        self._held.discard(opened_identity(descriptor))
        if not any(why.startswith(f"{folder}:") for why in self._odd):
            self._remove_links(descriptor, self._name(folder))
        self._check_indexes(descriptor, self._name(folder))
        self._stop_alternates(descriptor)
        self._stop_strategies(descriptor, self._name(folder))
        self._name_steps(descriptor, self._name(folder))

    def _remove_links(self, folder: int, name: str, known: Collection[str] = ()) -> None:
        """A person's git writes its files through links: to whatever they lead. Those that were there before stay; in a
        folder that was not mounted these were `known`."""
        links = FolderLinks(folder)
        for inside, path, link in links.find():
            place = os.path.normpath(f"{name}/{path}/{link}")
            try:
                is_known = state_at(inside, link) in self._noted or (not path and link in known)
                if not is_known and not is_old_head(inside, link):
                    open_to_owner(inside)
                    os.unlink(link, dir_fd=inside)
                    self.taken_away.append(place)
            except OSError:  # it is gone, or the folder is another user's
                if kind_at(inside, link) == stat.S_IFLNK:
                    self.not_cleaned.append(place)
        self.not_cleaned += [os.path.normpath(f"{name}/{path}") for path in links.failures]

    def _stop_alternates(self, folder: int) -> None:
        """Objects of another repository of the person's: their `git gc` would copy them to where commands read."""
        waiting, seen = [os.path.realpath(f"/proc/self/fd/{folder}/objects")], set[str]()
        while waiting and len(seen) < MOST_ALTERNATES:
            objects = waiting.pop()
            if objects in seen or self._root_of(objects) is None:
                continue
            seen.add(objects)
            place = f"{objects}/info"
            with self._noting(place), self._writable(place) as info:
                if kind_at(info, ALTERNATES) != stat.S_IFREG:  # a link is another matter, of a folder git reads nothing
                    continue
                data = _read_at(info, ALTERNATES)
                led: list[str | None] = [None] if data is None else list(alternate_folders(data, objects))
                is_known = state_at(info, ALTERNATES) in self._noted
                if not is_known and any(path is None or self._is_outside(path) for path in led):
                    _rename_at(info, ALTERNATES)
                    self.taken_away.append(self._name(f"{place}/{ALTERNATES}"))
                else:
                    waiting += filter(None, led)

    def _is_outside(self, path: str) -> bool:
        return self._root_of(path) is None or not set(path.split("/")).isdisjoint(self._unseen)

    def _stop_strategies(self, folder: int, name: str) -> None:
        """Git looks for the program of a strategy that has a `/` from the files of the repository on."""
        for path, names_program in _STRATEGIES.items():
            place = f"{name}/{path}"
            with self._noting(place), opened_beneath(folder, os.path.dirname(path)) as inside:
                file = os.path.basename(path)
                if kind_at(inside, file) != stat.S_IFREG:
                    continue
                data = _read_at(inside, file)
                if data is None or names_program(data):
                    open_to_owner(inside)
                    _rename_at(inside, file)
                    self.taken_away.append(place)

    def _name_steps(self, folder: int, name: str) -> None:
        for step in _STEPS:
            with suppress(OSError), opened_beneath(folder, os.path.dirname(step)) as inside:
                if kind_at(inside, os.path.basename(step)) is not None:
                    self.runs_by_itself.append(f"{name}/{step}")

    def _check_indexes(self, folder: int, name: str) -> None:
        """One that changed, and that is none or leads a person's git to files that are not the repository's, gets
        another name."""
        is_second_tree = _read_at(folder, "commondir") not in (None, SAME_FOLDER)
        config = _read_at(folder, "../../config" if is_second_tree else "config") or b""
        hash_bytes = hash_bytes_of(object_format(config))
        for file in sorted(filter(is_index_name, os.listdir(folder))):
            try:
                if state_at(folder, file) in self._noted or is_usable_index(folder, file, hash_bytes):
                    continue
                os.rename(file, f"index.weft-{system_random(8).hex()}", src_dir_fd=folder, dst_dir_fd=folder)
                self.taken_away.append(f"{name}/{file}: {_ODD_INDEX}")
            except FileNotFoundError:
                continue
            except OSError:
                self.not_cleaned.append(f"{name}/{file}")

    def _clean_pointer(self, above: int, entry: str) -> None:
        """A file `.git`. Beneath what commands could write all is looked at by itself, so it stays, wherever it leads
        there. Where one leads to through `/proc` depends on who asks."""
        if os.path.basename(entry).casefold() != GIT:
            return
        target = pointed_path(entry, above)
        if target is None:  # git follows none that is written otherwise
            return
        names = os.path.normpath(target).split("/")
        if "proc" in names[:2] or not set(names).isdisjoint(self._unseen):
            _rename_at(above, os.path.basename(entry))
            self.taken_away.append(self._name(entry))
            return
        self._name_target(entry, os.path.realpath(target))

    def _name_target(self, entry: str, folder: str) -> None:
        """A repository of the person's elsewhere: a command could not see whether there is one."""
        if self._root_of(folder) is None and self._is_new(folder):
            self.runs_by_itself.append(self._name(entry))

    def _root_of(self, folder: str) -> str | None:
        return next((root for root in self._roots if is_beneath(folder, root)), None)

    def _is_new(self, folder: str) -> bool:
        try:
            status = os.lstat(folder)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) not in self._seen

    @contextmanager
    def _writable(self, folder: str) -> Iterator[int]:
        """A folder in which something is to be removed, whatever its owner, the command, closed it for."""
        root = self._root_of(folder)
        if root is None:
            raise FileNotFoundError(folder)
        descriptor = os.dup(self._descent_from(root).go_to(os.path.relpath(folder, root)))
        try:
            open_to_owner(descriptor)
            yield descriptor
        finally:
            os.close(descriptor)

    def _descent_from(self, root: str) -> Descent:
        """Places are cleaned in their order, so each is a few steps from the one before, however deep they lie."""
        if root not in self._descents:
            top = os.open(root, READ_FOLDER_FLAGS)
            try:
                self._descents[root] = Descent(top, open_closed)
            finally:
                os.close(top)
        return self._descents[root]

    def close(self) -> None:
        while self._descents:
            self._descents.popitem()[1].close()

    def _clean_folder(self, folder: str) -> None:
        with self._noting(folder), self._writable(folder) as descriptor:
            identity = opened_identity(descriptor)
            if identity in self._held:  # it may have been moved
                self._clean_open_held(descriptor, folder)
            if identity in self._seen:
                return
            if not is_git_folder(descriptor) and os.path.basename(folder).casefold() != GIT:
                return
            self._seen.add(identity)
            known_folder = self._known.get(identity)
            is_moved = known_folder is not None and identity in self._armed and known_folder.path != folder
            self._clean_parts(descriptor, self._name(folder), None if is_moved else known_folder)

    def _clean_parts(self, folder: int, name: str, known_folder: KnownFolder | None) -> None:
        """Each part, whatever becomes of the others."""
        files = {} if known_folder is None else known_folder.files
        for settings in _SETTINGS:
            with self._naming(f"{name}/{settings}"):
                self._clean_settings(folder, settings, name, files.get(settings))
        with self._naming(f"{name}/commondir"):
            if _read_at(folder, "commondir") != files.get("commondir", SAME_FOLDER):
                self._clean_commondir(folder, name)
        for part in OBEYED_FOLDERS:
            with self._naming(f"{name}/{part}"):
                self._stop_files(folder, part, name, frozenset() if known_folder is None else known_folder.obeyed)
        with self._naming(name):
            self._remove_links(folder, name, () if known_folder is None else known_folder.links)
        with self._naming(f"{name}/{INDEX}"):
            self._check_indexes(folder, name)
        self._stop_alternates(folder)
        self._stop_strategies(folder, name)
        self._name_steps(folder, name)

    @contextmanager
    def _noting(self, place: str) -> Iterator[None]:
        """What is gone needs no cleaning. A link on the way, or what is closed to this user, is named, for nothing was
        done."""
        with self._naming(self._name(place)), suppress(FileNotFoundError):
            yield

    @contextmanager
    def _naming(self, place: str) -> Iterator[None]:
        """What could not be cleaned is named."""
        try:
            yield
        except OSError:
            self.not_cleaned.append(place)

    def _clean_settings(self, folder: int, file: str, name: str, before: bytes | None) -> None:
        """`before`: what it said before the command, where that is known."""
        config = _read_at(folder, file)
        place = os.path.normpath(f"{name}/{file}")
        if config is None:
            kind = kind_at(folder, file)
            if kind is not None and (kind != stat.S_IFDIR or before is not None):
                _remove_at(folder, file)  # a link, a pipe, or endless; of a folder git reads nothing
                self.taken_away.append(place)
            if before is not None:
                _replace_at(folder, file, before)
            return
        harmless = None
        if b"[" in config:  # there is no setting without a section
            harmless = harmless_settings(config) if before is None else restored_settings(before, config)
        if harmless is not None and harmless != config:  # also where nothing was found in it: git may read it otherwise
            _replace_at(folder, file, harmless)
            old = frozenset(withheld_keys(before or b""))
            keys = [key for key in withheld_keys(config) if key not in old]
            self.taken_away += [f"{place}: {key}" for key in keys] or [place]
        elif _has_other_names(folder, file):  # through another name the next command could write it
            _replace_at(folder, file, config)

    def _clean_commondir(self, folder: int, name: str) -> None:
        """The folder of a second working tree lies in `worktrees` of the one that it shares with others, which is
        looked at by itself. Git reads the settings of whatever else it leads to as well."""
        common = _read_at(folder, "commondir")
        if not _exists_at(folder, "commondir") or common == SAME_FOLDER:
            return
        is_second_tree = os.path.basename(os.path.dirname(name)) == "worktrees" and _exists_at(folder, "gitdir")
        if is_second_tree:
            status = os.stat("../..", dir_fd=folder)
            is_second_tree = (status.st_dev, status.st_ino) not in self._armed
        if not is_second_tree or common is None or common.rstrip(b"\r\n") != b"../..":
            _remove_at(folder, "commondir")
            self.taken_away.append(f"{name}/commondir")

    def _stop_files(self, folder: int, part: str, name: str, known_files: frozenset[ObeyedFile]) -> None:
        """Hooks, and files that each name a remote: git passes over those of another name, and a person sees whose they
        were."""
        try:
            files = open_closed(folder, part)
        except FileNotFoundError:
            return
        except OSError:
            kind = kind_at(folder, part)
            if kind == stat.S_IFDIR:
                raise
            if kind == stat.S_IFLNK:
                _remove_at(folder, part)
                self.taken_away.append(f"{name}/{part}")
            return  # in what is no folder nothing is obeyed
        try:
            for file in sorted(os.listdir(files)):
                status = os.lstat(file, dir_fd=files)
                is_known = (f"{part}/{file}", status.st_ino, status.st_ctime_ns) in known_files
                # through another name the next command could make it executable
                is_obeyed = part != "hooks" or _is_executable(status) or status.st_nlink > 1
                if not file.endswith(".sample") and is_obeyed and not is_known:
                    self._stop_file(files, file, f"{name}/{part}/{file}")
        finally:
            os.close(files)

    def _stop_file(self, folder: int, file: str, place: str) -> None:
        """One that cannot be stopped keeps no other one from being stopped."""
        new = f"{os.fsdecode(os.fsencode(file)[:_NAME_BYTES])}.{system_random(4).hex()}.sample"
        try:
            os.rename(file, new, src_dir_fd=folder, dst_dir_fd=folder)
            self.taken_away.append(place)
        except OSError:
            self.not_cleaned.append(place)

    def _name(self, path: str) -> str:
        return os.path.relpath(path, self._workspace)


def _is_armed(folder: KnownFolder) -> bool:
    """Whether git runs something, or is led elsewhere, as soon as it takes a folder for its own."""
    settings = [data for name, data in folder.files.items() if name in _SETTINGS]
    if folder.is_led_to:
        return False
    is_readable = "config" in folder.files and "commondir" not in folder.files
    has_files = any(not path.endswith(".sample") for path, _, _ in folder.obeyed)
    return not is_readable or has_files or any(map(withheld_keys, settings))


def _folders_in(folder: int) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]


@contextmanager
def _opened_as(identity: Identity, folder: str | None) -> Iterator[int]:
    """Raises FileNotFoundError where the folder is another one."""
    if folder is None:
        raise FileNotFoundError
    descriptor = os.open(folder, READ_FOLDER_FLAGS)
    try:
        if opened_identity(descriptor) != identity:
            raise FileNotFoundError(folder)
        yield descriptor
    finally:
        os.close(descriptor)


def _exists_at(folder: int, name: str) -> bool:
    try:
        os.lstat(name, dir_fd=folder)
    except FileNotFoundError:
        return False
    return True


def _read_at(folder: int, name: str) -> bytes | None:
    """None for what is no file of a size that git's own files have."""
    try:
        descriptor = os.open(name, _READ, dir_fd=folder)
    except OSError:
        return None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return None
    with open(descriptor, "rb") as file:
        data = file.read(CONFIG_BYTES + 1)
    return data if len(data) <= CONFIG_BYTES else None


def _replace_at(folder: int, name: str, data: bytes) -> None:
    aside = f"{os.fsdecode(os.fsencode(name)[:_NAME_BYTES])}.{system_random(8).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(aside, flags, 0o644, dir_fd=folder), "wb") as file:
        file.write(data)
    os.rename(aside, name, src_dir_fd=folder, dst_dir_fd=folder)


def _remove_at(folder: int, name: str) -> None:
    """A file or a link; a folder gets another name, for it may hold anything."""
    try:
        os.unlink(name, dir_fd=folder)
    except IsADirectoryError:
        _rename_at(folder, name)


def _rename_at(folder: int, name: str) -> None:
    new = f"{os.fsdecode(os.fsencode(name)[:_NAME_BYTES])}.{system_random(8).hex()}"
    os.rename(name, new, src_dir_fd=folder, dst_dir_fd=folder)


def _has_other_names(folder: int, name: str) -> bool:
    status = os.lstat(name, dir_fd=folder)
    return stat.S_ISREG(status.st_mode) and status.st_nlink > 1


def _is_executable(status: os.stat_result) -> bool:
    """Whether git would run a hook. What a link leads to may become executable later."""
    is_file = stat.S_ISREG(status.st_mode) and status.st_mode & _EXECUTABLE
    return bool(is_file or stat.S_ISLNK(status.st_mode))
