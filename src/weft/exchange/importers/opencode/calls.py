"""Tool parts as calls: outcome, files, diagnostics, and what opencode keeps about them."""

from __future__ import annotations

import re
from typing import Any

from msgspec import UNSET

from weft.exchange.importers.transcript import NativeCall
from weft.exchange.importers.values import mapping, millis, present, sequence, text, whole
from weft.kernel.enums import FileKind, LintSeverity, ToolCallStatus
from weft.ledger.model import FileNote, LintNote

WRITERS = frozenset({"edit", "write", "multiedit", "patch", "apply_patch"})
SEARCHERS = frozenset({"grep", "glob", "list"})
PATHS = ("filePath", "path", "file_path")
PATCHED = re.compile(r"^\*\*\* (?:(?:Add|Update|Delete) File|Move to): (.+)$", re.MULTILINE)
NUMBERED = re.compile(r"<(?:content|file)>\s*0*([0-9]{1,9})(?:\||:)")
"""The first line number that the read tool printed."""
SEVERITIES = {1: LintSeverity.ERROR, 2: LintSeverity.WARNING, 3: LintSeverity.INFO, 4: LintSeverity.HINT}
REPEATED = frozenset({"preview", "display", "diagnostics", "filediff", "sessionId", "parentSessionId"})
"""What a tool's metadata repeat of its result, or what has a place of its own."""


def call(part: dict[str, Any]) -> NativeCall:
    state = mapping(part.get("state"))
    metadata, time = mapping(state.get("metadata")), mapping(state.get("time"))
    name, arguments = text(part.get("tool")) or "", given(state)
    error, status = _failure(state, metadata)
    return NativeCall(
        id=text(part.get("callID")) or "",
        name=name,
        arguments=arguments,
        result=_result(state, metadata),
        error=error,
        status=status,
        at=millis(time.get("start")),
        done=millis(time.get("end")),
        spawned=text(metadata.get("sessionId")) or text(metadata.get("sessionID")),
        detail=_detail(state, metadata),
        files=files(name, mapping(arguments), state, metadata) if status is ToolCallStatus.OK else (),
        lints=lints(metadata.get("diagnostics")),
    )


def reduced(part: dict[str, Any]) -> list[Any]:
    """What makes the identity of a call, in the order that `call` takes it from."""
    state = mapping(part.get("state"))
    made = [part.get("callID"), part.get("tool"), given(state), state.get("status")]
    if state.get("status") == "completed":
        return [*made, state.get("output"), attachments(state)]
    metadata = mapping(state.get("metadata"))
    return [*made, state.get("error"), metadata.get("output") if metadata.get("interrupted") is True else None]


def given(state: dict[str, Any]) -> Any:
    """The arguments; while they are still written, their text so far."""
    arguments = state.get("input")
    return state.get("raw") if not arguments and text(state.get("raw")) else arguments


def attachments(state: dict[str, Any]) -> list[Any]:
    found = map(mapping, sequence(state.get("attachments")))
    return [present(mime=file.get("mime"), filename=file.get("filename"), url=file.get("url")) or {} for file in found]


def _result(state: dict[str, Any], metadata: dict[str, Any]) -> Any:
    if state.get("status") == "completed":
        attached = attachments(state)
        output = state.get("output", UNSET)
        return {"output": None if output is UNSET else output, "attachments": attached} if attached else output
    if metadata.get("interrupted") is True and isinstance(metadata.get("output"), str):
        return metadata["output"]
    return UNSET


def _failure(state: dict[str, Any], metadata: dict[str, Any]) -> tuple[str | None, ToolCallStatus | None]:
    status = state.get("status")
    if status == "completed":
        return None, ToolCallStatus.OK
    if status != "error":
        return None, None
    told = state.get("error")
    error = told if isinstance(told, str) else "error"
    if metadata.get("interrupted") is True or error == "Tool execution aborted":
        return error, ToolCallStatus.INTERRUPTED
    if error.startswith("The user rejected permission"):
        return error, ToolCallStatus.CANCELED
    return error, ToolCallStatus.ERROR


def _detail(state: dict[str, Any], metadata: dict[str, Any]) -> dict[str, Any] | None:
    output, todos = state.get("output"), mapping(state.get("input")).get("todos")
    beside = {
        name: value
        for name, value in metadata.items()
        if name not in REPEATED
        and not (name == "output" and value == output)
        and not (name == "todos" and value == todos)
        and not (name == "truncated" and value is False)
    }
    difference = mapping(metadata.get("filediff"))
    changed = present(additions=difference.get("additions"), deletions=difference.get("deletions"))
    compacted = mapping(state.get("time")).get("compacted")
    return present(title=text(state.get("title")), metadata=beside, changed=changed, pruned_at=compacted)


def files(
    name: str, arguments: dict[str, Any], state: dict[str, Any], metadata: dict[str, Any]
) -> tuple[FileNote, ...]:
    if name in WRITERS:
        return tuple(FileNote(kind=FileKind.WRITTEN, path=path) for path in _written(arguments, metadata))
    path = next((path for key in PATHS if (path := text(arguments.get(key))) is not None), None)
    if path is None:
        return ()
    if name == "read":
        return (_read(path, state, metadata),)
    if name in SEARCHERS:
        return (FileNote(kind=FileKind.REFERENCED, path=path),)
    return ()


def _read(path: str, state: dict[str, Any], metadata: dict[str, Any]) -> FileNote:
    shown = mapping(metadata.get("display"))
    if shown.get("type") == "directory":
        return FileNote(kind=FileKind.REFERENCED, path=path)
    start, end = whole(shown.get("lineStart")), whole(shown.get("lineEnd"))
    arguments = mapping(state.get("input"))
    if start is None and ("offset" in arguments or "limit" in arguments):
        output = state.get("output")
        found = NUMBERED.search(output[:400]) if isinstance(output, str) else None
        start = int(found[1]) if found else None
    return FileNote(kind=FileKind.READ, path=path, line_start=start, line_end=end)


def _written(arguments: dict[str, Any], metadata: dict[str, Any]) -> list[str]:
    found = [text(arguments.get(key)) for key in PATHS]
    for file in map(mapping, sequence(metadata.get("files"))):
        found += [text(file.get("filePath")), text(file.get("movePath"))]
    if not any(found):
        patch = text(arguments.get("patchText")) or ""
        found += [path.strip() for path in PATCHED.findall(patch)]
    if not any(found):
        found.append(text(mapping(metadata.get("filediff")).get("file")))
    return list(dict.fromkeys(path for path in found if path))


def lints(diagnostics: Any) -> tuple[LintNote, ...]:
    """As language servers tell them, by file; their lines and columns count from 0, ours from 1."""
    return tuple(
        _lint(path, each) for path, found in mapping(diagnostics).items() for each in map(mapping, sequence(found))
    )


def _lint(path: str, told: dict[str, Any]) -> LintNote:
    start, end = (mapping(mapping(told.get("range")).get(name)) for name in ("start", "end"))
    return LintNote(
        path=path,
        message=text(told.get("message")),
        source=text(told.get("source")),
        start_line=_from_one(start.get("line")),
        start_col=_from_one(start.get("character")),
        end_line=_from_one(end.get("line")),
        end_col=_from_one(end.get("character")),
        severity=SEVERITIES.get(whole(told.get("severity")) or 0),
    )


def _from_one(number: Any) -> int | None:
    counted = whole(number)
    return None if counted is None else counted + 1
