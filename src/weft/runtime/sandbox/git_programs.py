"""The files of a workspace that a person's git runs because a configuration says so: `core.hooksPath = tools/hooks`, a
filter, a driver for merges. What is read is theirs and that of the repositories, with what either includes.

They have no fixed names, and agents may change them like any other file. So they are named where somebody looks at
what changed. Not known is what such a program starts itself.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from weft.kernel.errors import WeftError
from weft.kernel.permission_subjects import self_running
from weft.runtime.sandbox.git_repositories import GIT
from weft.runtime.sandbox.git_settings import GitSetting, files_read, read_settings
from weft.runtime.sandbox.git_view import GitPerson, git_folders_in
from weft.runtime.sandbox.profiles import is_beneath

_HOOKS = ("core", None, "hookspath")
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
        settings = [one for _, data in files_read(files, self._person.home) for one in read_settings(data)]
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
            for word in _words(setting.value):
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
    return (setting.section, setting.subsection, setting.name) == _HOOKS


def _spelled_as(setting: GitSetting) -> str | None:
    section, has_subsection = setting.section, setting.subsection is not None
    return _SPELLED.get((section, has_subsection, setting.name)) or _SPELLED.get((section, has_subsection, "*"))


def _key(setting: GitSetting) -> str:
    spelled = "core.hooksPath" if _is_hooks(setting) else _spelled_as(setting)
    name = setting.name if spelled is None or spelled.endswith("*") else spelled.rpartition(".")[2]
    return ".".join(part for part in (setting.section, setting.subsection, name) if part is not None)


def _words(value: str) -> Iterator[str]:
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
