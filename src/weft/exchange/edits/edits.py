"""Edits of files as they can be applied and taken back: hunks of a patch, one text in another's place, a whole text."""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct

from weft.exchange.edits.arguments import EVERYWHERE, NEW, OLD, PATHS, WRITTEN, opened, text_at
from weft.exchange.edits.changes import DELETED, FileChange, patched, swaps_in

_START = re.compile(r"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@")


class Hunk(Struct, frozen=True):
    """Neighbouring lines, each with a sign: a space stays, `-` goes, `+` comes."""

    lines: tuple[tuple[str, str], ...]
    old_start: int | None = None
    new_start: int | None = None

    @property
    def before(self) -> list[str]:
        return [text for sign, text in self.lines if sign != "+"]

    @property
    def after(self) -> list[str]:
        return [text for sign, text in self.lines if sign != "-"]


class Swap(Struct, frozen=True):
    """One text in another's place, once or wherever it stands."""

    old: str
    new: str
    everywhere: bool = False


class FileEdit(Struct, frozen=True):
    """What one call did to one file."""

    path: str | None
    hunks: tuple[Hunk, ...] = ()
    swaps: tuple[Swap, ...] = ()
    whole: str | None = None
    """All that the file holds since."""
    deleted: bool = False


def edits_of(arguments: Any, detail: Any) -> list[FileEdit]:
    """What a call did to files, as exactly as its outcome or its arguments tell."""
    arguments = opened(arguments)
    changes = patched(arguments, detail)
    if changes:
        return [patch_edit(change) for change in changes]
    path = text_at(arguments, PATHS)
    swaps = tuple(swap for each in swaps_in(arguments) if (swap := _swap(each)) is not None)
    if swaps:
        return [FileEdit(path, swaps=swaps)]
    whole = text_at(arguments, WRITTEN)
    return [FileEdit(path, whole=whole)] if path is not None and whole is not None else []


def patch_edit(change: FileChange) -> FileEdit:
    if change.lines == [DELETED]:
        return FileEdit(change.path, deleted=True)
    hunks: list[Hunk] = []
    lines: list[tuple[str, str]] = []
    starts: tuple[int | None, int | None] = (None, None)
    for line in [*change.lines, "@@"]:
        if line.startswith("@@"):
            if lines:
                hunks.append(Hunk(tuple(lines), *starts))
            found = _START.match(line)
            lines, starts = [], (int(found[1]), int(found[2])) if found else (None, None)
        elif line[:1] in ("+", "-", " "):
            lines.append((line[0], line[1:]))
        elif not line:
            lines.append((" ", ""))
    is_new = len(hunks) == 1 and hunks[0].new_start is None and all(sign == "+" for sign, _ in hunks[0].lines)
    if is_new:
        return FileEdit(change.path, whole="\n".join(hunks[0].after))
    return FileEdit(change.path, hunks=tuple(hunks))


def _swap(given: Any) -> Swap | None:
    old, new = text_at(given, OLD), text_at(given, NEW)
    if old is None or new is None:
        return None
    return Swap(old, new, any(given.get(name) is True for name in EVERYWHERE))


def lines_of(text: str) -> list[str]:
    """The lines of a file's text; the end of the last line begins no other."""
    lines = text.replace("\r\n", "\n").split("\n")
    if lines[-1] == "":
        lines.pop()
    return lines
