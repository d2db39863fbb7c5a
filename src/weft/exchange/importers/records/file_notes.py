"""Files that a tool call wrote, as told by the patch it applied or the diff it showed."""

from __future__ import annotations

import re

from weft.kernel.enums import FileKind
from weft.ledger.model import FileNote

_patched_file = re.compile(r"^\*\*\* (?:(?:Add|Update|Delete) File|Move to): (.+)$", re.MULTILINE)
_hunk = re.compile(r"^@@ -[0-9]{1,9}(?:,[0-9]{1,9})? \+([0-9]{1,9})(?:,([0-9]{1,9}))? @@", re.MULTILINE)


def patched_paths(patch: str) -> list[str]:
    """The files that an `apply_patch` text adds, changes, moves or deletes."""
    return list(dict.fromkeys(path.strip() for path in _patched_file.findall(patch)))


def written_notes(path: str, diff: str | None) -> tuple[FileNote, ...]:
    """A file that was written, with the lines of each hunk of its diff where there is one."""
    spans = hunk_lines(diff or "")
    if not spans:
        return (FileNote(kind=FileKind.WRITTEN, path=path),)
    return tuple(FileNote(kind=FileKind.WRITTEN, path=path, line_start=first, line_end=last) for first, last in spans)


def hunk_lines(diff: str) -> list[tuple[int, int]]:
    """The first and the last line of each hunk, counted in the new file."""
    hunks = ((int(start), int(lines or 1)) for start, lines in _hunk.findall(diff))
    return [(start, start + max(lines, 1) - 1) for start, lines in hunks]
