"""The path of a tool's file, followed part by part beneath the workspace, and what of it is withheld from tools.

Links are followed as the kernel would, but no step leads out of the folder. What was gone through is held open, so that
nobody can put another folder in its place meanwhile.
"""

from __future__ import annotations

import errno
import os
import stat

from msgspec import Struct

from weft.runtime.opened_folders import FOLDER_FLAGS, Identity
from weft.runtime.tool.tool_contract import ToolFailure

MOST_LINKS = 40
LONGEST_PATH_BYTES = 4096


class BeneathPath(Struct, frozen=True):
    """A path without links, `.` and `..`, as its parts, from the folder that it lies beneath."""

    parts: tuple[str, ...]
    exists: bool

    @property
    def text(self) -> str:
        return "/".join(self.parts) or "."


class WithheldPaths(Struct, frozen=True):
    """What is neither opened nor listed: folders of these names at any depth, and these files and folders, under any
    name, and whatever takes their names."""

    names: frozenset[str] = frozenset()
    identities: frozenset[Identity] = frozenset()
    paths: frozenset[tuple[str, ...]] = frozenset()
    """The parts of their paths in the workspace."""

    def ensure_name(self, name: str) -> None:
        if self.has_name(name):
            raise ToolFailure("withheld", f"{name!r} holds a ledger, which tools neither read nor write")

    def has_name(self, name: str) -> bool:
        return name.casefold() in self.names

    def ensure(self, status: os.stat_result, path: str) -> None:
        if (status.st_dev, status.st_ino) in self.identities:
            raise ToolFailure("withheld", f"{path!r} is not for tools to read or write")

    def ensure_parts(self, parts: tuple[str, ...]) -> None:
        if any(parts[:count] in self.paths for count in range(1, len(parts) + 1)):
            raise ToolFailure("withheld", f"{'/'.join(parts)!r} is not for tools to read or write")


def checked_text(path: str) -> str:
    """Raises ToolFailure for a text that is the path of no file."""
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        raise ToolFailure("invalid_path", "a path is Unicode text without lone surrogates") from None
    if not path or "\0" in path or size > LONGEST_PATH_BYTES:
        raise ToolFailure("invalid_path", f"a path has 1 to {LONGEST_PATH_BYTES} bytes, none of them 0")
    return path


def outside(path: str) -> ToolFailure:
    return ToolFailure("outside", f"{path!r} leads out of the workspace")


class PathResolution:
    """One path on its way: the folders that were gone through, held open, and the parts that are still to come."""

    def __init__(self, root: int, place: str, withheld: WithheldPaths, path: str) -> None:
        self._place, self._withheld, self._path = place, withheld, checked_text(path)
        self._folders = [os.dup(root)]
        self._names: list[str] = []
        self._links = 0
        self._pending: list[str] = []

    def __enter__(self) -> PathResolution:
        return self

    def __exit__(self, *_: object) -> None:
        while self._folders:
            os.close(self._folders.pop())

    def run(self) -> BeneathPath:
        self._push_parts(self._path)
        while self._pending:
            name = self._pending.pop()
            if name in ("", "."):
                continue
            if name == "..":
                self._go_back()
                continue
            self._withheld.ensure_name(name)
            try:
                status = os.stat(name, dir_fd=self._folders[-1], follow_symlinks=False)
            except FileNotFoundError:
                return self._missing_path(name)
            if stat.S_ISLNK(status.st_mode):
                self._follow_link(name)
            elif stat.S_ISDIR(status.st_mode):
                self._enter_folder(name)
            else:
                return self._file_path(name, status)
        return BeneathPath(tuple(self._names), True)

    def _push_parts(self, path: str) -> None:
        """An absolute path is meant where it begins with the workspace's own; it goes on from there."""
        if path.startswith("/"):
            prefix = self._place.rstrip("/")
            if path != prefix and not path.startswith(prefix + "/"):
                raise outside(self._path)
            path = path[len(prefix) :]
            while len(self._folders) > 1:
                self._go_back()
        self._pending.extend(reversed(path.split("/")))

    def _go_back(self) -> None:
        if len(self._folders) == 1:
            raise outside(self._path)
        os.close(self._folders.pop())
        self._names.pop()

    def _follow_link(self, name: str) -> None:
        try:
            target = os.readlink(name, dir_fd=self._folders[-1])
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            raise ToolFailure("changed", f"{self._path!r} changes while it is looked at") from None
        self._links += 1
        if self._links > MOST_LINKS:
            raise ToolFailure("invalid_path", f"{self._path!r} leads through more than {MOST_LINKS} links")
        self._push_parts(checked_text(target))

    def _enter_folder(self, name: str) -> None:
        folder = os.open(name, FOLDER_FLAGS, dir_fd=self._folders[-1])
        self._folders.append(folder)
        self._names.append(name)
        self._withheld.ensure(os.fstat(folder), self._path)

    def _missing_path(self, name: str) -> BeneathPath:
        rest = [part for part in reversed(self._pending) if part not in ("", ".")]
        if ".." in rest:
            raise ToolFailure("not_found", f"{self._path!r} goes back from {name!r}, which is not there")
        for part in rest:
            self._withheld.ensure_name(part)
        return BeneathPath((*self._names, name, *rest), False)

    def _file_path(self, name: str, status: os.stat_result) -> BeneathPath:
        if any(part not in ("", ".") for part in self._pending):
            raise ToolFailure("not_found", f"{self._path!r} goes through {name!r}, which is no folder")
        self._withheld.ensure(status, self._path)
        return BeneathPath((*self._names, name), True)
