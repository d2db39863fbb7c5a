"""Tool calls: asked for in a response, begun and ended in events of their own."""

from __future__ import annotations

import re
from typing import Any

import orjson
from msgspec import UNSET, Struct

from weft.exchange.importers.transcript import NativeCall
from weft.exchange.importers.values import mapping, present, sequence, text, whole
from weft.kernel.enums import FileKind, ToolCallStatus
from weft.ledger.model import FileNote

FAILURES = {
    "timeout": ToolCallStatus.TIMEOUT,
    "rejected": ToolCallStatus.CANCELED,
    "denied": ToolCallStatus.CANCELED,
    "cancelled": ToolCallStatus.CANCELED,
    "canceled": ToolCallStatus.CANCELED,
    "aborted": ToolCallStatus.INTERRUPTED,
    "interrupted": ToolCallStatus.INTERRUPTED,
}
READERS = frozenset({"view", "read_file", "show_file"})
WRITERS = frozenset({"edit", "create", "write", "str_replace", "insert"})
SEARCHERS = frozenset({"rg", "grep", "glob"})
EDITOR = "str_replace_editor"
PATCHED = re.compile(r"^\*\*\* (?:(?:Add|Update|Delete) File|Move to): (.+)$", re.MULTILINE)
HUNK = re.compile(r"^@@ -\d+(?:,\d+)? \+([0-9]{1,9})(?:,([0-9]{1,9}))? @@", re.MULTILINE)


class Call(Struct):
    """A call whose outcome may still be found."""

    id: str
    name: str
    arguments: Any
    server: str | None = None
    began: int | None = None
    done: int | None = None
    outcome: dict[str, Any] | None = None
    is_agent: bool = False

    def made(self, session: str) -> NativeCall:
        result, error, status = outcome_of(self.outcome)
        is_well = status is ToolCallStatus.OK
        arguments = mapping(self.arguments)
        return NativeCall(
            id=self.id,
            name=self.name,
            arguments=self.arguments,
            result=result,
            error=error,
            status=status,
            at=self.began,
            done=self.done,
            spawned=f"{session}/{self.id}" if self.is_agent else None,
            detail=present(shown=shown(self.outcome), server=self.server, code=_code(self.outcome)),
            files=files(self.name, self.arguments, arguments, shown(self.outcome)) if is_well else (),
        )


def arguments_of(value: Any) -> Any:
    """Arguments are sometimes written as the JSON of themselves."""
    if not isinstance(value, str) or not value.lstrip().startswith("{"):
        return value
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        return value


def outcome_of(outcome: dict[str, Any] | None) -> tuple[Any, str | None, ToolCallStatus | None]:
    if outcome is None:
        return UNSET, None, None
    told = outcome.get("result")
    content = mapping(told).get("content", told)
    if outcome.get("success") is not False:
        return UNSET if content is None else content, None, ToolCallStatus.OK
    failure = mapping(outcome.get("error"))
    error = text(failure.get("message")) or text(outcome.get("error"))
    if error is None:
        error, content = (content if isinstance(content, str) else "failed"), None
    status = FAILURES.get(text(failure.get("code")) or "", ToolCallStatus.ERROR)
    return UNSET if content is None else content, error, status


def _code(outcome: dict[str, Any] | None) -> str | None:
    return text(mapping(mapping(outcome).get("error")).get("code"))


def shown(outcome: dict[str, Any] | None) -> str | None:
    """What the person was shown, where it is not what the model was given: a diff, for one."""
    result = mapping(mapping(outcome).get("result"))
    detailed = text(result.get("detailedContent"))
    return detailed if detailed != result.get("content") else None


def files(name: str, told: Any, arguments: dict[str, Any], diff: str | None) -> tuple[FileNote, ...]:
    if name == "apply_patch":
        patch = told if isinstance(told, str) else text(arguments.get("input")) or text(arguments.get("patch")) or ""
        paths = dict.fromkeys(path.strip() for path in PATCHED.findall(patch))
        return tuple(FileNote(kind=FileKind.WRITTEN, path=path) for path in paths)
    path = text(arguments.get("path")) or text(arguments.get("file_path"))
    command = text(arguments.get("command")) if name == EDITOR else name
    if path is None:
        found = arguments.get("paths")
        path = text(found) if name in SEARCHERS else None
    if path is None:
        return ()
    if command in READERS:
        lines = [whole(each) for each in sequence(arguments.get("view_range"))]
        start, end = (lines[0], lines[1]) if len(lines) == 2 else (None, None)
        return (FileNote(kind=FileKind.READ, path=path, line_start=start, line_end=end if (end or 0) > 0 else None),)
    if command in WRITERS:
        return _written(path, diff)
    return (FileNote(kind=FileKind.REFERENCED, path=path),) if command in SEARCHERS else ()


def _written(path: str, diff: str | None) -> tuple[FileNote, ...]:
    spans = [(int(start), int(count or 1)) for start, count in HUNK.findall(diff or "")]
    if not spans:
        return (FileNote(kind=FileKind.WRITTEN, path=path),)
    return tuple(
        FileNote(kind=FileKind.WRITTEN, path=path, line_start=start, line_end=start + max(count, 1) - 1)
        for start, count in spans
    )
