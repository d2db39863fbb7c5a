"""What stands beside a message: files a person pointed at, lines selected in an editor, diagnostics, reminders.

Everything goes into the context of the message it stands at; files and diagnostics are told again as such.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import unquote

from weft.exchange.importers.claude_code.content import count_or_none, object_or_empty, text_or_none
from weft.exchange.importers.claude_code.kinds import JsonObject
from weft.exchange.importers.claude_code.results import file_note
from weft.kernel.enums import FileKind, LintSeverity
from weft.ledger.model import FileNote, LintNote

_POINTED: Final = frozenset({"already_read_file", "compact_file_reference", "edited_text_file", "opened_file_in_ide"})
_selection: Final = re.compile(r"<ide_selection>The user selected the lines (\d{1,9}) to (\d{1,9}) from (.+):\n").match
_opening: Final = re.compile(r"<ide_opened_file>The user opened the file (.+?) in the IDE").match
_SCHEMES: Final = ("file://", "_claude_fs_right:", "_claude_fs_left:")
_SEVERITIES: Final[dict[Any, LintSeverity]] = {
    "error": LintSeverity.ERROR,
    "warning": LintSeverity.WARNING,
    "info": LintSeverity.INFO,
    "information": LintSeverity.INFO,
    "hint": LintSeverity.HINT,
    1: LintSeverity.ERROR,
    2: LintSeverity.WARNING,
    3: LintSeverity.INFO,
    4: LintSeverity.HINT,
}


def attached_files(attachment: JsonObject) -> list[FileNote]:
    kind = attachment.get("type")
    path = attachment.get("filename") or attachment.get("path")
    if kind in ("file", "image", "pdf_reference"):
        file = object_or_empty(object_or_empty(attachment.get("content")).get("file"))
        start, lines = count_or_none(file.get("startLine")), count_or_none(file.get("numLines"))
        end = start + lines - 1 if start and lines else None
        return file_note(FileKind.ATTACHED, file.get("filePath") or path, start, end)
    if kind == "selected_lines_in_ide":
        return file_note(FileKind.ATTACHED, path, attachment.get("lineStart"), attachment.get("lineEnd"))
    if kind in ("directory", "nested_memory"):
        return file_note(FileKind.ATTACHED, path)
    return file_note(FileKind.REFERENCED, path) if isinstance(kind, str) and kind in _POINTED else []


def editor_files(text: str) -> list[FileNote]:
    """What an editor says in front of a prompt: the file that is open, or the lines that are selected."""
    if not text.startswith("<ide_"):
        return []
    if selected := _selection(text):
        return file_note(FileKind.ATTACHED, selected[3], int(selected[1]), int(selected[2]))
    opened = _opening(text)
    return file_note(FileKind.REFERENCED, opened[1]) if opened else []


def lints(attachment: JsonObject) -> Iterator[LintNote]:
    """Diagnostics. Editors count lines and columns from 0, we from 1."""
    files = attachment.get("files")
    if attachment.get("type") != "diagnostics" or not isinstance(files, list):
        return
    for file in map(object_or_empty, files):
        path = _path(file.get("uri") or file.get("filePath"))
        found = file.get("diagnostics")
        for each in map(object_or_empty, found if isinstance(found, list) else ()):
            span = object_or_empty(each.get("range"))
            start, end = object_or_empty(span.get("start")), object_or_empty(span.get("end"))
            yield LintNote(
                path=path,
                message=text_or_none(each.get("message")),
                source=text_or_none(each.get("source")),
                start_line=_from_one(start.get("line")),
                start_col=_from_one(start.get("character")),
                end_line=_from_one(end.get("line")),
                end_col=_from_one(end.get("character")),
                severity=_severity(each.get("severity")),
            )


def _path(uri: Any) -> str | None:
    if not isinstance(uri, str) or not uri:
        return None
    for scheme in _SCHEMES:
        if uri.startswith(scheme):
            return unquote(uri.removeprefix(scheme)) or None
    return uri


def _from_one(value: Any) -> int | None:
    number = count_or_none(value)
    return None if number is None else number + 1


def _severity(value: Any) -> LintSeverity | None:
    if isinstance(value, str):
        return _SEVERITIES.get(value.lower())
    return _SEVERITIES.get(value) if type(value) is int else None
