"""Files that a call read or changed."""

from __future__ import annotations

from typing import Any

from weft.exchange.importers.values import mapping, sequence, text, whole
from weft.kernel.enums import FileKind
from weft.ledger.model import FileNote

LISTED = "Here's the files and directories"
"""How the editor begins where it was to view a folder."""
EDITORS = frozenset({"file_editor", "str_replace_editor", "planning_file_editor"})


def acted(action: str, arguments: dict[str, Any]) -> tuple[FileNote, ...]:
    """V0: actions are named by what they do."""
    path = text(arguments.get("path"))
    if path is None or action not in ("read", "write", "edit"):
        return ()
    if action != "read":
        return (FileNote(kind=FileKind.WRITTEN, path=path),)
    seen = sequence(arguments.get("view_range")) or [arguments.get("start"), arguments.get("end")]
    return (_read(path, seen),)


def _read(path: str, seen: list[Any]) -> FileNote:
    """From a line to a line; an end of -1 is that of the file."""
    first, last = (whole(number) for number in [*seen, None, None][:2])
    end = last if last is not None and last > 0 else None
    start = first if end is not None or (first or 0) > 0 else None
    return FileNote(kind=FileKind.READ, path=path, line_start=start, line_end=end)


def called(tool: str, arguments: Any) -> tuple[FileNote, ...]:
    """V1: the editor that Anthropic defined."""
    told = mapping(arguments)
    path, command = text(told.get("path")), text(told.get("command"))
    if tool not in EDITORS or path is None:
        return ()
    if command == "view":
        return (_read(path, sequence(told.get("view_range"))),)
    return (FileNote(kind=FileKind.WRITTEN, path=path),)


def settled(notes: tuple[FileNote, ...], result: Any, is_error: bool) -> tuple[FileNote, ...]:
    """As the outcome shows them: a failed call touched nothing, and a folder is no file."""
    if is_error:
        return ()
    if isinstance(result, str) and result.startswith(LISTED):
        return tuple(FileNote(kind=FileKind.REFERENCED, path=note.path) for note in notes)
    return notes
