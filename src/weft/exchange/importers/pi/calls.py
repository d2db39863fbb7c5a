"""Tool calls: their outcome, the files they touched and what the tool kept beside its result."""

from __future__ import annotations

import re
from typing import Any

from msgspec import UNSET

from weft.exchange.importers.records.builder import PendingCall
from weft.exchange.importers.records.file_notes import patched_paths
from weft.exchange.importers.records.values import mapping, millis, sequence, text, whole
from weft.kernel.enums import FileKind, LintSeverity, ToolCallStatus
from weft.ledger.model import FileNote, LintNote

READERS = frozenset({"read", "read_file", "view"})
WRITERS = frozenset({"write", "edit", "multi_edit", "write_file", "edit_file", "create_file", "apply_patch"})
SEARCHERS = frozenset({"grep", "find", "ls", "glob", "search"})
PATHS = ("path", "file_path", "filePath")
REPEATED = frozenset({"displayContent", "content", "truncation"})
"""What a tool's details repeat of its result."""

SELECTED = re.compile(r"(.+):([0-9]{1,9})(?:-([0-9]{1,9}))?")
LINT = re.compile(
    r"(?P<path>.+?):(?P<line>[0-9]{1,9}):(?P<col>[0-9]{1,9}) \[(?P<severity>[a-z]+)\] "
    r"(?:\[(?P<source>[^\]]+)\] )?(?P<what>.*)",
    re.DOTALL,
)
SEVERITIES = {severity.value: severity for severity in LintSeverity}


class Call(PendingCall):
    """A tool call of Pi that waits for the message with its result."""

    asked_by: int = 0
    """Which of its turn's items is the response that asked for it."""

    def settle(self, outcome: dict[str, Any], done: int | None) -> None:
        """Take the message with the tool's result."""
        content, details = outcome.get("content"), mapping(outcome.get("details"))
        failed = outcome.get("isError") is True
        result = plain(content)
        self.error = words(content) if failed else None
        only_error = failed and isinstance(result, str)
        self.result = UNSET if only_error or result is None else result
        self.status = status(self.error) if self.error is not None else ToolCallStatus.OK
        self.done, self.detail = done, detail(outcome)
        self.files = () if failed else files(self.name, mapping(self.arguments), details)
        self.lints = lints(details)


def call_of(block: dict[str, Any], starts: dict[str, int]) -> Call:
    id = text(block.get("id")) or ""
    return Call(id, text(block.get("name")) or "", block.get("arguments"), at=starts.get(id))


def plain(content: Any) -> Any:
    """What a tool gave back: a text where it is one, else its blocks."""
    if isinstance(content, list) and len(content) == 1:
        only = content[0]
        if isinstance(only, dict) and only.get("type") == "text" and isinstance(only.get("text"), str):
            return only["text"]
    return content


def words(content: Any) -> str:
    """The text in it."""
    if isinstance(content, str):
        return content
    texts = (block.get("text") for block in sequence(content) if isinstance(block, dict))
    return "\n".join(words for words in texts if isinstance(words, str))


def status(error: str) -> ToolCallStatus:
    end = error[-200:]
    if "Command timed out after" in end:
        return ToolCallStatus.TIMEOUT
    is_stopped = end.endswith(("Command aborted", "Operation aborted"))
    return ToolCallStatus.INTERRUPTED if is_stopped else ToolCallStatus.ERROR


def detail(outcome: dict[str, Any]) -> Any:
    details = outcome.get("details")
    if isinstance(details, dict):
        details = {name: value for name, value in details.items() if name not in REPEATED}
    if (usage := outcome.get("usage")) is not None:
        return {"details": details or None, "usage": usage}
    return details or None


def files(name: str, arguments: dict[str, Any], details: dict[str, Any]) -> tuple[FileNote, ...]:
    if name in READERS:
        return _read(arguments, details)
    if name in WRITERS:
        return tuple(FileNote(kind=FileKind.WRITTEN, path=path) for path in _written(arguments, details))
    if name in SEARCHERS and (path := _path(arguments)) is not None and not set(path) & set("*?;{"):
        return (FileNote(kind=FileKind.REFERENCED, path=path),)
    return ()


def _path(arguments: dict[str, Any]) -> str | None:
    found = next((path for name in PATHS if (path := text(arguments.get(name))) is not None), None)
    return None if found is None or "://" in found else found


def _read(arguments: dict[str, Any], details: dict[str, Any]) -> tuple[FileNote, ...]:
    path = _path(arguments)
    if path is None:
        return ()
    start, limit = whole(arguments.get("offset")), whole(arguments.get("limit"))
    end = None if limit is None else (start or 1) + limit - 1
    source = mapping(mapping(details.get("meta")).get("source"))
    if source.get("type") == "path" and (selected := SELECTED.fullmatch(path)) is not None:  # oh-my-pi: path:from-to
        path, start = selected[1], int(selected[2])
        end = int(selected[3]) if selected[3] else None
    return (FileNote(kind=FileKind.READ, path=path, line_start=start or (end and 1), line_end=end),)


def _written(arguments: dict[str, Any], details: dict[str, Any]) -> list[str]:
    path = text(details.get("resolvedPath")) or _path(arguments) or text(details.get("path"))
    if path is not None:
        return [path]
    patch = text(arguments.get("input")) or text(arguments.get("patch")) or ""
    return patched_paths(patch)


def lints(details: dict[str, Any]) -> tuple[LintNote, ...]:
    """oh-my-pi: lines such as `src/a.ts:3:7 [error] [tsserver] what is wrong`."""
    messages = mapping(details.get("diagnostics")).get("messages")
    return tuple(_lint(line) for line in sequence(messages) if isinstance(line, str))


def _lint(line: str) -> LintNote:
    match = LINT.fullmatch(line)
    if match is None:
        return LintNote(message=line)
    return LintNote(
        path=match["path"],
        message=match["what"],
        source=match["source"],
        start_line=int(match["line"]),
        start_col=int(match["col"]),
        severity=SEVERITIES.get(match["severity"]),
    )


def done_at(entry: dict[str, Any], message: dict[str, Any]) -> int | None:
    return millis(message.get("timestamp")) or millis(entry.get("timestamp"))
