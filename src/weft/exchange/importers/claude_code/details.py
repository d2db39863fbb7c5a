"""What stands beside messages and calls: outcomes of calls, files that were touched or attached, diagnostics.

A call's result is what the model was given back; what the tool kept besides becomes the call's detail. Attachments
(files a person pointed at, lines selected in an editor, reminders) go into the context of the message they stand at;
files and diagnostics become notes as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final
from urllib.parse import unquote

from msgspec import UNSET

from weft.exchange.importers.claude_code.lines import INTERRUPTED, Block
from weft.exchange.importers.records.values import JsonObject, count, mapping, storable, text
from weft.kernel.enums import FileKind, LintSeverity, ToolCallStatus
from weft.ledger.model import FileNote, LintNote

_REJECTED: Final = ("The user doesn't want to proceed with this tool use", "The user doesn't want to take this action")
_TIMED_OUT: Final = ("Command timed out after", "Error: Command timed out after")
_LONG_TEXT: Final = 32
_BEFORE: Final = frozenset({"originalFile", "originalFileContents", "oldTodos"})
"""How things were before a call: the patch tells what changed."""

Outcome = tuple[Any, str | None, ToolCallStatus]


def outcome(block: Block) -> Outcome:
    """Result, error and status, told by what the model was given alone."""
    content = block.get("content")
    words = plain_text(content)
    if words.startswith(_REJECTED):
        return UNSET, words, ToolCallStatus.CANCELED
    if words.startswith(INTERRUPTED):
        return UNSET, words, ToolCallStatus.INTERRUPTED
    if block.get("is_error") is not True:
        return (UNSET if content is None else storable(content)), None, ToolCallStatus.OK
    status = ToolCallStatus.TIMEOUT if words.startswith(_TIMED_OUT) else ToolCallStatus.ERROR
    has_more = isinstance(content, list) and not all(_is_text(part) for part in content)
    return (storable(content) if has_more else UNSET), words, status


def plain_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(part["text"] for part in content if _is_text(part))
    return ""


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def lean_detail(detail: Any, arguments: Any, result: Any) -> Any:
    """What the tool kept about the outcome, without how things were before and what arguments or result say already."""
    words = plain_text(result)
    if isinstance(detail, str):
        return None if not detail or detail in words or words in detail else detail
    if detail is None or (isinstance(detail, list) and detail == result):
        return None
    if not isinstance(detail, dict):
        return storable(detail)
    repeated = [words, result, *mapping(arguments).values()]
    lean = {key: value for key, value in detail.items() if key not in _BEFORE and not _is_repeated(value, repeated)}
    if isinstance(file := lean.get("file"), dict):
        lean["file"] = {key: value for key, value in file.items() if key not in ("content", "base64", "cells")}
    return storable(lean) or None


def _is_repeated(value: Any, repeated: list[Any]) -> bool:
    if isinstance(value, str):
        return len(value) > _LONG_TEXT and (value in repeated or value.strip() in repeated)
    return isinstance(value, list | dict) and bool(value) and value in repeated


def touched_files(name: str, arguments: Any, detail: Any) -> tuple[FileNote, ...]:
    """The files that a call which ended well has read, written or found."""
    finder = _FINDERS.get(name)
    return tuple(finder(mapping(arguments), mapping(detail))) if finder else ()


def file_note(kind: FileKind, path: Any, start: Any = None, end: Any = None) -> list[FileNote]:
    """A note, where the path is one; lines count from 1."""
    if not isinstance(path, str) or not path:
        return []
    first, last = count(start), count(end)
    if not first or (last is not None and last < first):
        last = None
    return [FileNote(kind=kind, path=path, line_start=first or None, line_end=last)]


def _read_file(arguments: JsonObject, detail: JsonObject) -> list[FileNote]:
    file = mapping(detail.get("file"))
    path = file.get("filePath") or arguments.get("file_path") or arguments.get("notebook_path")
    start, lines = count(file.get("startLine")), count(file.get("numLines"))
    if not file:
        start, lines = count(arguments.get("offset")), count(arguments.get("limit"))
    return file_note(FileKind.READ, path, start, start + lines - 1 if start and lines else None)


def _written_file(arguments: JsonObject, detail: JsonObject) -> list[FileNote]:
    path = detail.get("filePath") or arguments.get("file_path") or arguments.get("notebook_path")
    patch = detail.get("structuredPatch")
    hunks = [lines for hunk in patch if (lines := _changed_lines(hunk))] if isinstance(patch, list) else []
    if hunks:
        return [note for start, end in hunks for note in file_note(FileKind.WRITTEN, path, start, end)]
    content = arguments.get("content")
    if isinstance(content, str) and detail.get("type") == "create":
        return file_note(FileKind.WRITTEN, path, 1, max(1, len(content.splitlines())))
    return file_note(FileKind.WRITTEN, path)


def _changed_lines(hunk: Any) -> tuple[int, int] | None:
    """The lines that a hunk changed, counted in the new file, without those around them."""
    hunk = mapping(hunk)
    start, size, lines = count(hunk.get("newStart")), count(hunk.get("newLines")), hunk.get("lines")
    if start is None or size is None:
        return None
    end = start + size - 1
    if isinstance(lines, list) and all(isinstance(line, str) for line in lines):
        leading = next((n for n, line in enumerate(lines) if line[:1] != " "), 0)
        trailing = next((n for n, line in enumerate(reversed(lines)) if line[:1] not in (" ", "\\")), 0)
        start, end = start + leading, end - trailing
    return max(start, 1), max(start, end, 1)


def _listed_files(arguments: JsonObject, detail: JsonObject) -> list[FileNote]:
    names = detail.get("filenames")
    return [note for name in names for note in file_note(FileKind.REFERENCED, name)] if isinstance(names, list) else []


def _listed_folder(arguments: JsonObject, detail: JsonObject) -> list[FileNote]:
    return file_note(FileKind.REFERENCED, arguments.get("path"))


_FINDERS: Final[dict[str, Callable[[JsonObject, JsonObject], list[FileNote]]]] = {
    "Read": _read_file,
    "NotebookRead": _read_file,
    "Edit": _written_file,
    "MultiEdit": _written_file,
    "Write": _written_file,
    "NotebookEdit": _written_file,
    "Grep": _listed_files,
    "Glob": _listed_files,
    "LS": _listed_folder,
}


def spawned_agent(detail: Any) -> str | None:
    """The subagent that a call started."""
    return text(detail.get("agentId")) if isinstance(detail, dict) else None


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
        file = mapping(mapping(attachment.get("content")).get("file"))
        start, lines = count(file.get("startLine")), count(file.get("numLines"))
        end = start + lines - 1 if start and lines else None
        return file_note(FileKind.ATTACHED, file.get("filePath") or path, start, end)
    if kind == "selected_lines_in_ide":
        return file_note(FileKind.ATTACHED, path, attachment.get("lineStart"), attachment.get("lineEnd"))
    if kind in ("directory", "nested_memory"):
        return file_note(FileKind.ATTACHED, path)
    return file_note(FileKind.REFERENCED, path) if isinstance(kind, str) and kind in _POINTED else []


def editor_files(words: str) -> list[FileNote]:
    """What an editor says in front of a prompt: the file that is open, or the lines that are selected."""
    if not words.startswith("<ide_"):
        return []
    if selected := _selection(words):
        return file_note(FileKind.ATTACHED, selected[3], int(selected[1]), int(selected[2]))
    opened = _opening(words)
    return file_note(FileKind.REFERENCED, opened[1]) if opened else []


def lints(attachment: JsonObject) -> Iterator[LintNote]:
    """Diagnostics. Editors count lines and columns from 0, we from 1."""
    files = attachment.get("files")
    if attachment.get("type") != "diagnostics" or not isinstance(files, list):
        return
    for file in map(mapping, files):
        path = _path(file.get("uri") or file.get("filePath"))
        diagnostics = file.get("diagnostics")
        for diagnostic in map(mapping, diagnostics if isinstance(diagnostics, list) else ()):
            span = mapping(diagnostic.get("range"))
            start, end = mapping(span.get("start")), mapping(span.get("end"))
            yield LintNote(
                path=path,
                message=text(diagnostic.get("message")),
                source=text(diagnostic.get("source")),
                start_line=_from_one(start.get("line")),
                start_col=_from_one(start.get("character")),
                end_line=_from_one(end.get("line")),
                end_col=_from_one(end.get("character")),
                severity=_severity(diagnostic.get("severity")),
            )


def _path(uri: Any) -> str | None:
    if not isinstance(uri, str) or not uri:
        return None
    for scheme in _SCHEMES:
        if uri.startswith(scheme):
            return unquote(uri.removeprefix(scheme)) or None
    return uri


def _from_one(value: Any) -> int | None:
    number = count(value)
    return None if number is None else number + 1


def _severity(value: Any) -> LintSeverity | None:
    if isinstance(value, str):
        return _SEVERITIES.get(value.lower())
    return _SEVERITIES.get(value) if type(value) is int else None
