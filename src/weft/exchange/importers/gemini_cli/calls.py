"""Tool calls: their outcome, the files they touched and what Gemini CLI keeps beside the result."""

from __future__ import annotations

import re
from typing import Any

from msgspec import UNSET, Struct

from weft.exchange.importers.transcript import NativeCall
from weft.exchange.importers.values import mapping, millis, present, sequence, text, whole
from weft.kernel.enums import FileKind, ToolCallStatus
from weft.ledger.model import FileNote

STATUSES = {
    "success": ToolCallStatus.OK,
    "completed": ToolCallStatus.OK,
    "error": ToolCallStatus.ERROR,
    "cancelled": ToolCallStatus.CANCELED,
}
READERS = frozenset({"read_file", "read_many_files"})
WRITERS = frozenset({"write_file", "replace", "edit"})
SEARCHERS = frozenset({"list_directory", "glob", "grep_search", "search_file_content"})
PATHS = ("file_path", "absolute_path", "path", "dir_path")
SHOWN_TWICE = frozenset({"originalContent", "newContent"})
"""Of a shown change: whole files, of which the change is told beside."""
HUNK = re.compile(r"^@@ -\d+(?:,\d+)? \+([0-9]{1,9})(?:,([0-9]{1,9}))? @@", re.MULTILINE)


class Call(Struct):
    """A call whose outcome may still be found."""

    id: str
    name: str
    arguments: Any
    told: dict[str, Any]
    """As its message records it; empty where the message only asks for it."""
    response: Any = None
    """From a message of its own, where the call's record has none."""

    def made(self) -> NativeCall:
        outcome = self.told.get("result")
        result = outcome if outcome is not None else self.response
        status = STATUSES.get(text(self.told.get("status")) or "")
        plain, error = outcome_of(result)
        if status is None and self.response is not None:
            status = ToolCallStatus.OK if error is None else ToolCallStatus.ERROR
        failed = status in (ToolCallStatus.ERROR, ToolCallStatus.CANCELED)
        if failed and error is None:
            error = plain if isinstance(plain, str) else text(self.told.get("resultDisplay"))
            plain = UNSET if error == plain else plain
        return NativeCall(
            id=self.id,
            name=self.name,
            arguments=self.arguments,
            result=plain,
            error=error if failed else None,
            status=status,
            done=millis(self.told.get("timestamp")) if status is not None else None,
            spawned=text(self.told.get("agentId")),
            detail=detail(self.told),
            files=() if failed else files(self.name, mapping(self.arguments), self.told),
        )


def call_of(told: dict[str, Any], *, is_record: bool) -> Call:
    name, id = text(told.get("name")) or "", text(told.get("id")) or ""
    return Call(id, name, told.get("args"), told if is_record else {})


def reduced(told: dict[str, Any]) -> list[Any]:
    status = text(told.get("status"))
    return ["call", told.get("id"), told.get("name"), told.get("args"), told.get("result"), status]


def outcome_of(result: Any) -> tuple[Any, str | None]:
    """What the model was given back, as a text where it is one; and the error, where it says so."""
    if result is None:
        return UNSET, None
    parts = result if isinstance(result, list) else [result]
    if len(parts) != 1:
        return result, None
    response = mapping(mapping(parts[0]).get("functionResponse")).get("response")
    if not isinstance(response, dict):
        return result, None
    if set(response) == {"output"} and isinstance(response["output"], str):
        return response["output"], None
    if set(response) == {"error"} and isinstance(response["error"], str):
        return UNSET, response["error"]
    return response, None


def detail(told: dict[str, Any]) -> Any:
    shown = told.get("resultDisplay")
    if isinstance(shown, dict):
        shown = {name: value for name, value in shown.items() if name not in SHOWN_TWICE}
    return present(shown=shown, agent=told.get("agentId"))


def files(name: str, arguments: dict[str, Any], told: dict[str, Any]) -> tuple[FileNote, ...]:
    path = next((found for key in PATHS if (found := text(arguments.get(key))) is not None), None)
    if name == "read_many_files":
        named = [*sequence(arguments.get("paths")), *sequence(arguments.get("include"))]
        return tuple(FileNote(kind=FileKind.READ, path=each) for each in named if _is_path(each))
    if path is None:
        return ()
    if name in READERS:
        return (_read(path, arguments),)
    if name in WRITERS:
        return _written(path, mapping(told.get("resultDisplay")))
    return (FileNote(kind=FileKind.REFERENCED, path=path),) if name in SEARCHERS and _is_path(path) else ()


def _is_path(path: Any) -> bool:
    return isinstance(path, str) and bool(path) and not set(path) & set("*?{[")


def _read(path: str, arguments: dict[str, Any]) -> FileNote:
    """Lines count from one in newer versions; `offset` counts from nought."""
    start, end = whole(arguments.get("start_line")), whole(arguments.get("end_line"))
    offset, limit = whole(arguments.get("offset")), whole(arguments.get("limit"))
    if start is None and offset is not None:
        start = offset + 1
    if end is None and limit is not None:
        end = (start or 1) + limit - 1
    return FileNote(kind=FileKind.READ, path=path, line_start=start, line_end=end)


def _written(path: str, shown: dict[str, Any]) -> tuple[FileNote, ...]:
    """With the lines of each place that was changed, where the change was shown."""
    path = text(shown.get("filePath")) or path
    found = HUNK.findall(text(shown.get("fileDiff")) or "")
    if not found:
        return (FileNote(kind=FileKind.WRITTEN, path=path),)
    spans = [(int(start), int(count or 1)) for start, count in found]
    return tuple(
        FileNote(kind=FileKind.WRITTEN, path=path, line_start=start, line_end=start + count - 1 if count else start)
        for start, count in spans
    )
