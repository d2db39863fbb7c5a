"""The files beneath a folder of the workspace, without what `.gitignore` leaves out.

Each folder is opened by its resolved path, so no link is followed. How many things are looked at and for how long is
limited; where a limit is reached, the walk ends and says so.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from msgspec import Struct

from weft.kernel.errors import LimitExceeded
from weft.kernel.foreign_input import KIB, ReadBudget
from weft.runtime.tools.calls import ToolFailure
from weft.runtime.tools.path_patterns import ANY_FOLDERS, PathPattern
from weft.runtime.tools.workspace import WorkspaceFolder, parts_of

IGNORE_FILE = ".gitignore"
VERSION_FOLDERS = frozenset((".git", ".hg", ".svn", ".jj"))
IGNORE_FILE_BYTES = 64 * KIB
MOST_RULES = 500
"""Of one file; a longer one is not followed."""
DEEPEST_FOLDER = 100


class FolderEntry(Struct, frozen=True):
    """One thing in a folder. A link is a link, wherever it leads."""

    name: str
    is_folder: bool
    is_link: bool
    is_file: bool

    @property
    def shown(self) -> str:
        """With a `/` after a folder and an `@` after a link."""
        name = os.fsencode(self.name).decode(errors="backslashreplace")
        return name + ("/" if self.is_folder else "@" if self.is_link else "")


class IgnoreRule(Struct, frozen=True):
    pattern: PathPattern
    is_negated: bool
    is_for_folders: bool
    depth: int
    """Of the folder that its file lies in."""

    def fits(self, parts: tuple[str, ...], is_folder: bool) -> bool:
        return (is_folder or not self.is_for_folders) and self.pattern.matches(parts[self.depth :])


class FolderWalk:
    """One walk. `leaves_out` counts folders that could not be opened; `is_complete` says whether no limit was met."""

    def __init__(self, workspace: WorkspaceFolder, budget: ReadBudget) -> None:
        self._workspace, self._budget = workspace, budget
        self.unreadable = 0
        self.is_complete = True

    def entries(self, path: str) -> list[FolderEntry]:
        """What is in the folder at a resolved path, in order, without what is withheld."""
        withheld = self._workspace.withheld
        found: list[FolderEntry] = []
        with self._workspace.folder(path) as folder, os.scandir(folder) as entries:
            for entry in entries:
                self._budget.take_entries()
                if not withheld.has_name(entry.name):
                    is_folder, is_file = entry.is_dir(follow_symlinks=False), entry.is_file(follow_symlinks=False)
                    found.append(FolderEntry(entry.name, is_folder, entry.is_symlink(), is_file))
        return sorted(found, key=lambda entry: entry.name)

    def files(self, path: str, enters: Callable[[tuple[str, ...]], bool]) -> Iterator[str]:
        """The resolved paths of regular files beneath a folder; `enters` is asked for each folder, by its parts."""
        try:
            yield from self._files(path, enters)
        except LimitExceeded:
            self.is_complete = False

    def _files(self, path: str, enters: Callable[[tuple[str, ...]], bool]) -> Iterator[str]:
        top = parts_of(path)
        pending: list[tuple[tuple[str, ...], tuple[IgnoreRule, ...]]] = [(top, self._rules_above(top))]
        while pending:
            parts, rules = pending.pop()
            self._budget.check_time()
            try:
                entries = self.entries("/".join(parts) or ".")
            except ToolFailure:
                if parts == top:
                    raise
                self.unreadable += 1
                continue
            if any(entry.name == IGNORE_FILE and entry.is_file for entry in entries):
                rules = (*rules, *self._rules(parts))
            folders: list[tuple[tuple[str, ...], tuple[IgnoreRule, ...]]] = []
            for entry in entries:
                inner = (*parts, entry.name)
                if not (entry.is_folder or entry.is_file) or not _is_text(entry.name):
                    continue
                if entry.name in VERSION_FOLDERS or is_ignored(rules, inner, entry.is_folder):
                    continue
                if entry.is_file:
                    yield "/".join(inner)
                elif len(inner) <= DEEPEST_FOLDER and enters(inner):
                    folders.append((inner, rules))
            pending += reversed(folders)

    def _rules_above(self, parts: tuple[str, ...]) -> tuple[IgnoreRule, ...]:
        """Those of the folders above, which hold here too."""
        return tuple(rule for depth in range(len(parts)) for rule in self._rules(parts[:depth]))

    def _rules(self, folder: tuple[str, ...]) -> tuple[IgnoreRule, ...]:
        try:
            present = self._workspace.read_if_there("/".join((*folder, IGNORE_FILE)))
        except ToolFailure:
            return ()
        if present is None or len(present.data) > IGNORE_FILE_BYTES:
            return ()
        return ignore_rules(present.data.decode(errors="replace"), len(folder))


def _is_text(name: str) -> bool:
    """A name whose bytes are no UTF-8 cannot be told to a model, nor be named by it."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def ignore_rules(text: str, depth: int) -> tuple[IgnoreRule, ...]:
    """The rules of one file, as git reads them."""
    lines = [line.rstrip("\r").rstrip() for line in text.split("\n")]
    lines = [line for line in lines if line and not line.startswith("#")]
    rules = (_rule(line, depth) for line in lines) if len(lines) <= MOST_RULES else ()
    return tuple(rule for rule in rules if rule is not None)


def _rule(line: str, depth: int) -> IgnoreRule | None:
    is_negated = line.startswith("!")
    pattern = line[is_negated:]
    is_for_folders = pattern.endswith("/")
    pattern = pattern.rstrip("/")
    is_anchored = "/" in pattern
    try:
        compiled = PathPattern(pattern.lstrip("/") if is_anchored else f"{ANY_FOLDERS}/{pattern}")
    except ToolFailure:  # git would not know what to make of it either
        return None
    return IgnoreRule(compiled, is_negated, is_for_folders, depth)


def is_ignored(rules: tuple[IgnoreRule, ...], parts: tuple[str, ...], is_folder: bool) -> bool:
    """The last rule that fits decides."""
    return next((not rule.is_negated for rule in reversed(rules) if rule.fits(parts, is_folder)), False)
