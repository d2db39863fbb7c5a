"""Which of Kiro's tools touch files, and where their arguments name these."""

from __future__ import annotations

from typing import Any

from weft.exchange.importers.values import mapping, sequence, text, whole
from weft.kernel.enums import FileKind
from weft.ledger.model import FileNote

READERS = frozenset({"fs_read", "read", "readFile", "read_file", "readMultipleFiles", "readCode", "read_code"})
WRITERS = frozenset(
    {
        "fs_write", "write", "fsWrite", "fsAppend", "fs_append", "strReplace", "str_replace", "deleteFile",
        "delete_file", "editCode", "edit_code", "create_file", "createFile", "smartRelocate",
    }
)  # fmt: skip
SEARCHERS = frozenset(
    {"grep", "glob", "grepSearch", "grep_search", "fileSearch", "file_search", "listDirectory", "list_directory", "ls"}
)
PATHS = ("path", "file_path", "filePath", "targetFile", "target_file", "file")


def files(name: str, arguments: Any) -> tuple[FileNote, ...]:
    told = mapping(arguments)
    if name in WRITERS:
        return tuple(FileNote(kind=FileKind.WRITTEN, path=path) for path in _paths(told))
    if name in SEARCHERS:
        return tuple(FileNote(kind=FileKind.REFERENCED, path=path) for path in _paths(told))
    if name not in READERS:
        return ()
    operations = [mapping(each) for each in sequence(told.get("operations"))] or [told]
    return tuple(note for each in operations for note in _read(each))


def _read(told: dict[str, Any]) -> list[FileNote]:
    """A directory is looked into, not read; lines may be counted from the end."""
    if told.get("mode") in ("Directory", "Search"):
        return [FileNote(kind=FileKind.REFERENCED, path=path) for path in _paths(told)]
    start = _line(told, "start_line", "startLine", "offset")
    end = _line(told, "end_line", "endLine")
    return [FileNote(kind=FileKind.READ, path=path, line_start=start, line_end=end) for path in _paths(told)]


def _line(told: dict[str, Any], *names: str) -> int | None:
    found = (whole(told.get(name)) for name in names)
    return next((line for line in found if line is not None and line > 0), None)


def _paths(told: dict[str, Any]) -> list[str]:
    one = next((path for name in PATHS if (path := text(told.get(name)))), None)
    several = [each for name in ("paths", "image_paths", "files") for each in sequence(told.get(name))]
    return [one] if one else [path for each in several if (path := text(each) or text(mapping(each).get("path")))]
