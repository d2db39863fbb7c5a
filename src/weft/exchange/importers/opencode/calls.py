"""Tool parts and file parts: calls with outcomes, files and diagnostics; images, and files that a prompt brings."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from msgspec import UNSET

from weft.exchange.importers.port import NativeCall
from weft.exchange.importers.records.file_notes import patched_paths
from weft.exchange.importers.records.values import mapping, millis, present, sequence, text, whole
from weft.kernel.enums import FileKind, LintSeverity, ToolCallStatus
from weft.ledger.model import FileNote, ImagePart, LintNote

PASTED = frozenset({"clipboard"})
"""What an image is called that never was a file."""


def attached_image(part: dict[str, Any]) -> ImagePart | None:
    url, mime = text(part.get("url")), text(part.get("mime")) or ""
    if url is None or not url.startswith("data:"):
        return None
    return ImagePart(url) if mime.startswith("image/") or url.startswith("data:image/") else None


def file_identity(part: dict[str, Any]) -> list[Any]:
    return [part.get("mime"), part.get("filename"), part.get("url")]


def file_description(part: dict[str, Any]) -> dict[str, Any] | None:
    """Of a file that is no image: what it is; its content is in the verbatim copy alone if it was given by value."""
    url = text(part.get("url")) or ""
    return present(mime=part.get("mime"), filename=part.get("filename"), url=None if url.startswith("data:") else url)


def attached_note(part: dict[str, Any]) -> FileNote | None:
    source = mapping(part.get("source"))
    path, start, end = _location(text(part.get("url")) or "")
    path = path or text(source.get("path")) or text(source.get("uri")) or text(part.get("filename"))
    if path is None or path in PASTED:
        return None
    if start is None and source.get("type") == "symbol":  # a language server's lines count from 0
        range = mapping(source.get("range"))
        first, last = (whole(mapping(range.get(name)).get("line")) for name in ("start", "end"))
        start, end = (None if line is None else line + 1 for line in (first, last))
    return FileNote(kind=FileKind.ATTACHED, path=path, line_start=start, line_end=end)


def _location(url: str) -> tuple[str | None, int | None, int | None]:
    """The path of a file URL and the lines that its query names."""
    if not url.startswith("file:"):
        return None, None, None
    try:
        parts = urlsplit(url)
        asked = parse_qs(parts.query)
    except ValueError:
        return None, None, None
    start, end = (_line_number(asked.get(name, [""])[0]) for name in ("start", "end"))
    return unquote(parts.path) or None, start, end


def _line_number(words: str) -> int | None:
    return int(words) if words.isdecimal() and len(words) < 10 else None


WRITERS = frozenset({"edit", "write", "multiedit", "patch", "apply_patch"})
SEARCHERS = frozenset({"grep", "glob", "list"})
PATHS = ("filePath", "path", "file_path")
NUMBERED = re.compile(r"<(?:content|file)>\s*0*([0-9]{1,9})(?:\||:)")
"""The first line number that the read tool printed."""
SEVERITIES = {1: LintSeverity.ERROR, 2: LintSeverity.WARNING, 3: LintSeverity.INFO, 4: LintSeverity.HINT}
REPEATED = frozenset({"preview", "display", "diagnostics", "filediff", "sessionId", "parentSessionId"})
"""What a tool's metadata repeat of its result, or what has a place of its own."""


def tool_call(part: dict[str, Any]) -> NativeCall:
    state = mapping(part.get("state"))
    metadata, time = mapping(state.get("metadata")), mapping(state.get("time"))
    name, arguments = text(part.get("tool")) or "", call_arguments(state)
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
        files=call_files(name, mapping(arguments), state, metadata) if status is ToolCallStatus.OK else (),
        lints=call_lints(metadata.get("diagnostics")),
    )


def call_identity(part: dict[str, Any]) -> list[Any]:
    """What makes the identity of a call, in the order that `call` takes it from."""
    state = mapping(part.get("state"))
    made = [part.get("callID"), part.get("tool"), call_arguments(state), state.get("status")]
    if state.get("status") == "completed":
        return [*made, state.get("output"), attachments(state)]
    metadata = mapping(state.get("metadata"))
    return [*made, state.get("error"), metadata.get("output") if metadata.get("interrupted") is True else None]


def call_arguments(state: dict[str, Any]) -> Any:
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
    raw_error = state.get("error")
    error = raw_error if isinstance(raw_error, str) else "error"
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


def call_files(
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
        match = NUMBERED.search(output[:400]) if isinstance(output, str) else None
        start = int(match[1]) if match else None
    return FileNote(kind=FileKind.READ, path=path, line_start=start, line_end=end)


def _written(arguments: dict[str, Any], metadata: dict[str, Any]) -> list[str]:
    words = [text(arguments.get(key)) for key in PATHS]
    for file in map(mapping, sequence(metadata.get("files"))):
        words += [text(file.get("filePath")), text(file.get("movePath"))]
    if not any(words):
        patch = text(arguments.get("patchText")) or ""
        words += patched_paths(patch)
    if not any(words):
        words.append(text(mapping(metadata.get("filediff")).get("file")))
    return list(dict.fromkeys(path for path in words if path))


def call_lints(diagnostics: Any) -> tuple[LintNote, ...]:
    """As language servers tell them, by file; their lines and columns count from 0, ours from 1."""
    return tuple(
        _lint(path, each) for path, found in mapping(diagnostics).items() for each in map(mapping, sequence(found))
    )


def _lint(path: str, fields: dict[str, Any]) -> LintNote:
    start, end = (mapping(mapping(fields.get("range")).get(name)) for name in ("start", "end"))
    return LintNote(
        path=path,
        message=text(fields.get("message")),
        source=text(fields.get("source")),
        start_line=_from_one(start.get("line")),
        start_col=_from_one(start.get("character")),
        end_line=_from_one(end.get("line")),
        end_col=_from_one(end.get("character")),
        severity=SEVERITIES.get(whole(fields.get("severity")) or 0),
    )


def _from_one(number: Any) -> int | None:
    counted = whole(number)
    return None if counted is None else counted + 1
