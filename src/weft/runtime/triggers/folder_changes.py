"""What changed in a folder since it was last looked at: files added, changed and removed, by their digests.

A file counts as changed once two looks in a row find the same size and time: a file that is being written is waited
for. Links are not followed, and what `.gitignore` leaves out is left out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from msgspec import Struct

from weft.kernel.foreign_input import MIB, ReadBudget, ReadLimits
from weft.runtime.tools.calls import ToolFailure
from weft.runtime.tools.folder_walk import FolderWalk
from weft.runtime.tools.path_patterns import PathPattern
from weft.runtime.tools.workspace import WorkspaceFolder

MOST_FILES = 20_000
MOST_FILE_BYTES = 64 * MIB
SHOWN_CHANGES = 200
LIMITS = ReadLimits(entries=10 * MOST_FILES, seconds=30)


class FileMark(Struct, frozen=True):
    """What a file was like: its size, when it was written, and a digest of what it holds."""

    size: int
    time_ns: int
    digest: str


class FolderState(Struct, frozen=True):
    """A folder as it was last looked at; `count` says how often it had changed by then."""

    count: int
    files: Mapping[str, FileMark]

    def encode(self) -> str:
        files = {path: [mark.size, mark.time_ns, mark.digest] for path, mark in self.files.items()}
        return json.dumps([self.count, files], sort_keys=True)

    @classmethod
    def decode(cls, text: str) -> FolderState:
        count, files = json.loads(text)
        return cls(count, {path: FileMark(*mark) for path, mark in files.items()})


class FolderWatch:
    """Looks at one folder. Keeps in memory what was seen at the last look and is not yet settled."""

    def __init__(self, folder: str, patterns: Sequence[str], withheld: Iterable[Path] = ()) -> None:
        self._folder, self._withheld = folder, tuple(withheld)
        self._patterns = [PathPattern(pattern if "/" in pattern else f"**/{pattern}") for pattern in patterns]
        self._last: dict[str, tuple[int, int]] = {}

    def look(self, before: FolderState | None) -> tuple[FolderState, list[dict[str, str]]]:
        """The folder as it is, and what of it changed. What is being written is left to a later look. The first look at
        a folder finds no changes."""
        workspace = WorkspaceFolder(Path(self._folder), withheld=self._withheld)
        found = self._stats(workspace)
        old = {} if before is None else before.files
        moved = {path for path, stat in found.items() if path not in old or stat != (old[path].size, old[path].time_ns)}
        settled = {path for path in moved if before is None or self._last.get(path) == found[path]}
        gone = set(old) - set(found)
        gone_for_good = {path for path in gone if path not in self._last}
        self._last = found
        files = {path: old[path] for path in old if path not in gone_for_good and path not in settled}
        changes: list[dict[str, str]] = [{"path": path, "change": "removed"} for path in gone_for_good]
        for path in settled:
            mark = self._mark(workspace, path, found[path])
            if mark is None:
                continue
            files[path] = mark
            if path not in old or old[path].digest != mark.digest:
                changes.append({"path": path, "change": "changed" if path in old else "added"})
        if before is None:
            changes = []
        count = (0 if before is None else before.count) + bool(changes)
        changes.sort(key=lambda change: change["path"])
        return FolderState(count, files), changes

    def _stats(self, workspace: WorkspaceFolder) -> dict[str, tuple[int, int]]:
        walk = FolderWalk(workspace, ReadBudget(LIMITS))
        found: dict[str, tuple[int, int]] = {}
        for path in walk.files(".", lambda parts: True):
            parts = tuple(path.split("/"))
            if self._patterns and not any(pattern.matches(parts) for pattern in self._patterns):
                continue
            try:
                stat = os.stat(workspace.root / path, follow_symlinks=False)
            except OSError:  # gone since
                continue
            found[path] = (stat.st_size, stat.st_mtime_ns)
            if len(found) > MOST_FILES:
                raise ToolFailure("limit", f"the folder has more than {MOST_FILES} files that fit: name fewer")
        if not walk.is_complete:
            raise ToolFailure("limit", "the folder is too large to be looked through: name a smaller one")
        return found

    def _mark(self, workspace: WorkspaceFolder, path: str, stat: tuple[int, int]) -> FileMark | None:
        """None where it cannot be read. What is very large is told by its size and time alone."""
        size, time_ns = stat
        if size > MOST_FILE_BYTES:
            return FileMark(size, time_ns, f"{size} {time_ns}")
        try:
            data = workspace.read_if_there(path)
        except ToolFailure:
            return FileMark(size, time_ns, f"{size} {time_ns}")
        return None if data is None else FileMark(size, time_ns, sha256(data.data).hexdigest())


def changes_payload(folder: str, changes: list[dict[str, str]]) -> dict[str, Any]:
    """What a trigger tells of changes."""
    payload: dict[str, Any] = {"folder": folder, "changes": changes[:SHOWN_CHANGES]}
    if len(changes) > SHOWN_CHANGES:
        payload["left_out"] = len(changes) - SHOWN_CHANGES
    return payload
