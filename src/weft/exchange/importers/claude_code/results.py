"""Outcomes of tool calls: what the model was given back, what the tool kept beside it, and which files it touched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from msgspec import UNSET

from weft.exchange.importers.claude_code.content import Block, count_or_none, object_or_empty, storable, text_or_none
from weft.exchange.importers.claude_code.kinds import INTERRUPTED, JsonObject
from weft.kernel.enums import FileKind, ToolCallStatus
from weft.ledger.model import FileNote

_REJECTED: Final = ("The user doesn't want to proceed with this tool use", "The user doesn't want to take this action")
_TIMED_OUT: Final = ("Command timed out after", "Error: Command timed out after")
_LONG: Final = 32
_BEFORE: Final = frozenset({"originalFile", "originalFileContents", "oldTodos"})
"""How things were before a call: the patch tells what changed."""

Outcome = tuple[Any, str | None, ToolCallStatus]


def outcome(block: Block) -> Outcome:
    """Result, error and status, told by what the model was given alone."""
    content = block.get("content")
    text = plain_text(content)
    if text.startswith(_REJECTED):
        return UNSET, text, ToolCallStatus.CANCELED
    if text.startswith(INTERRUPTED):
        return UNSET, text, ToolCallStatus.INTERRUPTED
    if block.get("is_error") is not True:
        return (UNSET if content is None else storable(content)), None, ToolCallStatus.OK
    status = ToolCallStatus.TIMEOUT if text.startswith(_TIMED_OUT) else ToolCallStatus.ERROR
    has_more = isinstance(content, list) and not all(_is_text(part) for part in content)
    return (storable(content) if has_more else UNSET), text, status


def plain_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(part["text"] for part in content if _is_text(part))
    return ""


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def lean_detail(detail: Any, arguments: Any, given: Any) -> Any:
    """What the tool kept about the outcome, without how things were before and what arguments or result say already."""
    text = plain_text(given)
    if isinstance(detail, str):
        return None if not detail or detail in text or text in detail else detail
    if detail is None or (isinstance(detail, list) and detail == given):
        return None
    if not isinstance(detail, dict):
        return storable(detail)
    said = [text, given, *object_or_empty(arguments).values()]
    lean = {key: value for key, value in detail.items() if key not in _BEFORE and not _is_said(value, said)}
    if isinstance(file := lean.get("file"), dict):
        lean["file"] = {key: value for key, value in file.items() if key not in ("content", "base64", "cells")}
    return storable(lean) or None


def _is_said(value: Any, said: list[Any]) -> bool:
    if isinstance(value, str):
        return len(value) > _LONG and (value in said or value.strip() in said)
    return isinstance(value, list | dict) and bool(value) and value in said


def touched_files(name: str, arguments: Any, detail: Any) -> tuple[FileNote, ...]:
    """The files that a call which ended well has read, written or found."""
    finder = _FINDERS.get(name)
    return tuple(finder(object_or_empty(arguments), object_or_empty(detail))) if finder else ()


def file_note(kind: FileKind, path: Any, start: Any = None, end: Any = None) -> list[FileNote]:
    """A note, where the path is one; lines count from 1."""
    if not isinstance(path, str) or not path:
        return []
    first, last = count_or_none(start), count_or_none(end)
    if not first or (last is not None and last < first):
        last = None
    return [FileNote(kind=kind, path=path, line_start=first or None, line_end=last)]


def _read(arguments: JsonObject, detail: JsonObject) -> list[FileNote]:
    file = object_or_empty(detail.get("file"))
    path = file.get("filePath") or arguments.get("file_path") or arguments.get("notebook_path")
    start, lines = count_or_none(file.get("startLine")), count_or_none(file.get("numLines"))
    if not file:
        start, lines = count_or_none(arguments.get("offset")), count_or_none(arguments.get("limit"))
    return file_note(FileKind.READ, path, start, start + lines - 1 if start and lines else None)


def _written(arguments: JsonObject, detail: JsonObject) -> list[FileNote]:
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
    hunk = object_or_empty(hunk)
    start, size, lines = count_or_none(hunk.get("newStart")), count_or_none(hunk.get("newLines")), hunk.get("lines")
    if start is None or size is None:
        return None
    end = start + size - 1
    if isinstance(lines, list) and all(isinstance(line, str) for line in lines):
        leading = next((n for n, line in enumerate(lines) if line[:1] != " "), 0)
        trailing = next((n for n, line in enumerate(reversed(lines)) if line[:1] not in (" ", "\\")), 0)
        start, end = start + leading, end - trailing
    return max(start, 1), max(start, end, 1)


def _found(arguments: JsonObject, detail: JsonObject) -> list[FileNote]:
    names = detail.get("filenames")
    return [note for name in names for note in file_note(FileKind.REFERENCED, name)] if isinstance(names, list) else []


def _listed(arguments: JsonObject, detail: JsonObject) -> list[FileNote]:
    return file_note(FileKind.REFERENCED, arguments.get("path"))


_FINDERS: Final[dict[str, Callable[[JsonObject, JsonObject], list[FileNote]]]] = {
    "Read": _read,
    "NotebookRead": _read,
    "Edit": _written,
    "MultiEdit": _written,
    "Write": _written,
    "NotebookEdit": _written,
    "Grep": _found,
    "Glob": _found,
    "LS": _listed,
}


def spawned_agent(detail: Any) -> str | None:
    """The subagent that a call started."""
    return text_or_none(detail.get("agentId")) if isinstance(detail, dict) else None
