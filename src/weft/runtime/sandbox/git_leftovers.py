"""Takes away what a command left in repositories that it made itself, where git would run it outside of the sandbox.

What was a repository before the command is mounted so that nothing can be planted in it (`git_view`). What became one
meanwhile, a `.git` in a folder that had none, a nested clone, a new submodule, has the configuration that the command
gave it. A `git status` of the person runs a file monitor that is named there, also from the repository around it. Of
such a configuration the harmless part is kept; hooks get another name; a `commondir` of a folder that is no second
working tree is removed.

Where a command changed something is known from the walk through the whole workspace that follows each command. Folders
are opened one after the other beneath the workspace, without following links. What is not looked at: repositories
without a `.git`, which git obeys only where somebody goes into them.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from weft.kernel.clock import system_random
from weft.runtime.sandbox.git_settings import (
    CONFIG_BYTES,
    GitLeftovers,
    harmless_settings,
    restored_settings,
    upstream_settings,
    withheld_keys,
)
from weft.runtime.sandbox.git_view import (
    SAME_FOLDER,
    Identity,
    ReplacedSettings,
    branch_names,
    kind_of,
    module_folders,
)
from weft.runtime.sandbox.mounts import is_beneath

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_EXECUTABLE = 0o111
_MOST_POINTER_BYTES = 64 * 1024
_MADE_FROM = re.compile(rb"0+ [0-9a-f]+ [^\t\n]*\tbranch: Created from ([^\s\x00-\x1f]{1,500})\n")
_OLD_HEAD = re.compile(r"refs/heads/[\w-]+")
"""Where a `HEAD` leads that is a link, as git made it long ago."""
_STEPS = ("rebase-merge/git-rebase-todo", "rebase-apply/git-rebase-todo", "sequencer/todo")
"""What git does next, when somebody tells it to go on: a line of these can name a command."""


def disarm_repositories(
    workspace: str,
    changed: Iterable[str],
    guarded: Mapping[Identity, str],
    replaced: Iterable[ReplacedSettings] = (),
    written: Iterable[str] = (),
) -> GitLeftovers:
    """`changed` are the paths in the workspace of each `.git` in which the command changed something. `guarded` are the
    folders of git's that were mounted when it ran, `written` those of them that it could write to, `replaced`
    the configurations of those that somebody else replaced meanwhile."""
    cleaning = _Cleaning(workspace, guarded)
    for settings in replaced:
        cleaning.restore_settings(settings)
    for path in sorted(changed):
        try:
            cleaning.clean_entry(f"{workspace}/{path}")
        except OSError:  # a path that cannot be looked at keeps no other one from being cleaned
            cleaning.runs_by_itself.append(path)
    for folder in written:
        cleaning.remove_links(folder)
    for folder in guarded.values():
        cleaning.clean_modules(folder)
        cleaning.name_steps(folder)
    return GitLeftovers(taken_away=tuple(cleaning.taken_away), runs_by_itself=tuple(cleaning.runs_by_itself))


def carry_upstreams(branches: Mapping[str, frozenset[str]]) -> tuple[str, ...]:
    """Inside, a new branch does not follow the remote's branch that it was made from, for that is written to the
    configuration. It is done here: git notes in a branch's log what it was made from. `branches` are those that were
    there before, by the repository's folder. The names of those that were changed."""
    return tuple(
        branch
        for folder, old in branches.items()
        for branch in sorted(frozenset(branch_names(folder)) - old)
        if _carry_upstream(folder, branch)
    )


def _carry_upstream(folder: str, branch: str) -> bool:
    """Added in place: a file that replaced it would be without the mounts of commands that still run. The lock keeps
    away a git that writes it at the same time; nothing is taken from it, for commands can write it."""
    try:
        with _opened(folder, f"{folder}/logs/refs/heads/{os.path.dirname(branch)}".rstrip("/")) as logs:
            log = _read_at(logs, os.path.basename(branch)) or b""
        made = _MADE_FROM.match(log)
        if made is None:
            return False
        with _opened(folder, folder) as descriptor:
            lock = os.open("config.lock", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=descriptor)
            os.close(lock)
            try:
                return _append_upstream(descriptor, os.fsdecode(branch), os.fsdecode(made[1]))
            finally:
                os.unlink("config.lock", dir_fd=descriptor)
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
    def __init__(self, workspace: str, guarded: Mapping[Identity, str]) -> None:
        self._workspace, self._seen = workspace, set(guarded)
        self._roots = (workspace, *guarded.values())
        """What commands can write lies beneath these."""
        self.taken_away: list[str] = []
        self.runs_by_itself: list[str] = []

    def clean_entry(self, entry: str) -> None:
        kind = kind_of(entry)
        if kind == stat.S_IFDIR:
            self._clean_folder(entry)
        elif kind == stat.S_IFLNK:
            self._clean_target(entry, os.path.realpath(entry))
        elif kind == stat.S_IFREG:
            self._clean_pointed(entry)

    def restore_settings(self, replaced: ReplacedSettings) -> None:
        """A person who replaced it adds a remote or a branch; who added a program meanwhile is not known."""
        folder, file = os.path.split(replaced.place)
        root = self._root_of(folder)
        if root is None:
            self.runs_by_itself.append(self._name(replaced.place))
            return
        try:
            with _opened(root, folder) as descriptor:
                now = _read_at(descriptor, file)
                restored = replaced.config if now is None else restored_settings(replaced.config, now)
                if restored is not None:
                    _replace_at(descriptor, file, restored)
                    keys = withheld_keys(now or b"")
                    self.taken_away += [f"{self._name(replaced.place)}: {key}" for key in keys]
        except OSError:
            self.runs_by_itself.append(self._name(replaced.place))

    def remove_links(self, folder: str) -> None:
        """A person's git writes its files through links: to whatever they lead. Of what was mounted for writing nothing
        was a link before, so the command made it."""
        for place in (folder, f"{folder}/logs", f"{folder}/refs"):
            if kind_of(place) != stat.S_IFDIR:
                continue
            for parent, folders, files, descriptor in os.fwalk(place):
                for name in sorted((*folders, *files)):
                    is_link = stat.S_ISLNK(os.lstat(name, dir_fd=descriptor).st_mode)
                    if is_link and not _OLD_HEAD.fullmatch(os.readlink(name, dir_fd=descriptor)):
                        os.unlink(name, dir_fd=descriptor)
                        self.taken_away.append(self._name(f"{parent}/{name}"))
                if place == folder:
                    break

    def clean_modules(self, folder: str) -> None:
        for module in module_folders(folder):
            self._clean_folder(module)

    def name_steps(self, folder: str) -> None:
        self.runs_by_itself += [self._name(path) for path in (f"{folder}/{step}" for step in _STEPS) if kind_of(path)]

    def _clean_pointed(self, entry: str) -> None:
        """What a `.git` file leads to, and what that shares with other working trees. Git reads more forms of such
        files than it writes; what is not understood here is named."""
        text = _pointer(entry)
        if text is None or not text.startswith("gitdir: "):
            self.runs_by_itself.append(self._name(entry))
            return
        own = os.path.realpath(os.path.join(os.path.dirname(entry), text.removeprefix("gitdir: ")))
        common = None if self._root_of(own) is None else _pointer(f"{own}/commondir")
        if common is not None:
            self._clean_target(entry, os.path.realpath(os.path.join(own, common)))
        self._clean_target(entry, own)

    def _clean_target(self, entry: str, folder: str) -> None:
        if self._root_of(folder) is not None:
            self._clean_folder(folder)
        elif self._is_new(folder):
            self.runs_by_itself.append(self._name(entry))

    def _root_of(self, folder: str) -> str | None:
        return next((root for root in self._roots if is_beneath(folder, root)), None)

    def _is_new(self, folder: str) -> bool:
        try:
            status = os.lstat(folder)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) not in self._seen

    def _clean_folder(self, folder: str) -> None:
        root = self._root_of(folder)
        assert root is not None
        try:
            with _opened(root, folder) as descriptor:
                status = os.fstat(descriptor)
                if (status.st_dev, status.st_ino) in self._seen:
                    return
                self._seen.add((status.st_dev, status.st_ino))
                name = self._name(folder)
                for settings in ("config", "config.worktree"):
                    self._clean_settings(descriptor, settings, name)
                self._clean_commondir(descriptor, name)
                self._clean_hooks(descriptor, name)
        except FileNotFoundError:
            return
        except OSError:  # a link on the way, or closed to this user: it is named, for nothing was done
            self.runs_by_itself.append(self._name(folder))
            return
        self.clean_modules(folder)
        self.name_steps(folder)

    def _clean_settings(self, folder: int, file: str, name: str) -> None:
        config = _read_at(folder, file)
        if config is None:
            if _exists_at(folder, file):  # a link, a pipe, or endless
                _remove_at(folder, file)
                self.taken_away.append(f"{name}/{file}")
            return
        harmless = harmless_settings(config)
        if harmless != config:  # also where nothing was found in it: git may read it in another way
            _replace_at(folder, file, harmless)
            self.taken_away += [f"{name}/{file}: {key}" for key in withheld_keys(config)]

    def _clean_commondir(self, folder: int, name: str) -> None:
        """The folder of a second working tree lies in `worktrees` of the one that it shares with others, which is
        looked at by itself. Git reads the settings of whatever else it leads to as well."""
        common = _read_at(folder, "commondir")
        if not _exists_at(folder, "commondir") or common == SAME_FOLDER:
            return
        is_second_tree = os.path.basename(os.path.dirname(name)) == "worktrees" and _exists_at(folder, "gitdir")
        if not is_second_tree or common is None or common.rstrip(b"\r\n") != b"../..":
            _remove_at(folder, "commondir")
            self.taken_away.append(f"{name}/commondir")

    def _clean_hooks(self, folder: int, name: str) -> None:
        try:
            hooks = os.open("hooks", _FOLDER, dir_fd=folder)
        except FileNotFoundError:
            return
        except OSError:  # a link
            _remove_at(folder, "hooks")
            self.taken_away.append(f"{name}/hooks")
            return
        try:
            for hook in sorted(os.listdir(hooks)):
                if not hook.endswith(".sample") and _stop_executing(hooks, hook):
                    self.taken_away.append(f"{name}/hooks/{hook}")
        finally:
            os.close(hooks)

    def _name(self, path: str) -> str:
        return os.path.relpath(path, self._workspace)


@contextmanager
def _opened(root: str, folder: str) -> Iterator[int]:
    """A folder beneath another, gone to without a link."""
    descriptor = os.open(root, _FOLDER)
    try:
        for part in Path(folder).relative_to(root).parts:
            inner = os.open(part, _FOLDER, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
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
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        data = file.read(CONFIG_BYTES + 1)
    return data if len(data) <= CONFIG_BYTES else None


def _replace_at(folder: int, name: str, data: bytes) -> None:
    aside = f"{name}.{system_random(8).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(aside, flags, 0o644, dir_fd=folder), "wb") as file:
        file.write(data)
    os.rename(aside, name, src_dir_fd=folder, dst_dir_fd=folder)


def _remove_at(folder: int, name: str) -> None:
    """A file or a link; a folder gets another name, for it may hold anything."""
    try:
        os.unlink(name, dir_fd=folder)
    except IsADirectoryError:
        os.rename(name, f"{name}.{system_random(8).hex()}", src_dir_fd=folder, dst_dir_fd=folder)


def _stop_executing(folder: int, name: str) -> bool:
    """Git passes over a hook of another name, and a person sees whose it was. Whether git would have run it."""
    mode = os.lstat(name, dir_fd=folder).st_mode
    if not stat.S_ISLNK(mode) and (not stat.S_ISREG(mode) or not mode & _EXECUTABLE):
        return False
    os.rename(name, f"{name}.{system_random(4).hex()}.sample", src_dir_fd=folder, dst_dir_fd=folder)
    return True


def _pointer(path: str) -> str | None:
    """As git reads it: without the line ends at its end, up to a zero byte."""
    try:
        with open(os.open(path, _READ), "rb") as file:
            data = file.read(_MOST_POINTER_BYTES + 1)
    except OSError:
        return None
    text = os.fsdecode(data.rstrip(b"\r\n").split(b"\0")[0])
    return text if text and len(data) <= _MOST_POINTER_BYTES else None
