"""Bubbles as messages and calls, with what stands beside a prompt: files and selections, images, rules, diagnostics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct, field

from weft.exchange.importers.cursor.bubbles import (
    Bubble,
    begun_at,
    bubble_call,
    bubble_error,
    bubble_images,
    bubble_model,
    bubble_text,
    bubble_thoughts,
    bubble_tokens,
    call_identity,
    code_blocks,
    thought_signature,
)
from weft.exchange.importers.cursor.encodings import image_url, path_of
from weft.exchange.importers.port import NativeCall, NativeMessage
from weft.exchange.importers.records.values import mapping, present, sequence, text, whole
from weft.kernel.enums import FileKind, LintSeverity, MessageRole, MessageSource
from weft.ledger.model import FileNote, ImagePart, LintNote, Part, ReasoningPart, TextPart

INJECTED = (
    "cursorRules", "cursorCommands", "selections", "terminalSelections", "terminalFiles", "selectedDocs",
    "selectedCommits", "selectedPullRequests", "quotes", "externalLinks", "notepads", "folderSelections",
    "attachedCodeChunks", "codebaseContextChunks", "attachedFoldersListDirResults", "gitDiffs", "commits",
    "pullRequests", "humanChanges", "knowledgeItems", "webReferences", "docsReferences", "aiWebSearchResults",
    "projectLayouts", "summarizedComposers", "consoleLogs", "uiElementPicked", "pastChats",
    "documentationSelections", "recentlyViewedFiles", "diffsSinceLastApply", "deletedFiles", "todos",
)  # fmt: skip
"""Lists that Cursor puts into the context of a prompt, in the bubble, its `context` or the request made of it."""
LINTS = ("multiFileLinterErrors", "approximateLintErrors", "lints")
SEVERITIES = {1: LintSeverity.ERROR, 2: LintSeverity.WARNING, 3: LintSeverity.INFO, 4: LintSeverity.HINT}


def injected_context(*places: dict[str, Any]) -> dict[str, Any] | None:
    """By name, what any of the places holds; the first that holds it tells."""
    found = {name: next((value for place in places if (value := place.get(name))), None) for name in INJECTED}
    return {name: value for name, value in found.items() if value} or None


def context_images(*places: dict[str, Any]) -> tuple[list[ImagePart], list[FileNote]]:
    """Those whose bytes are here, and the paths of those that lie elsewhere."""
    parts: dict[str, ImagePart] = {}
    paths: dict[str, FileNote] = {}
    images = (each for place in places for name in ("images", "selectedImages") for each in sequence(place.get(name)))
    for image in map(mapping, images):
        url = next(
            (
                url
                for name in ("data", "image", "url")
                if (url := image_url(image.get(name), text(image.get("mimeType"))))
            ),
            None,
        )
        path = path_of(image.get("path"))
        if url is not None:
            parts[url] = ImagePart(url)
        if path is not None:
            paths[path] = FileNote(kind=FileKind.ATTACHED, path=path)
    return list(parts.values()), list(paths.values())


def context_files(bubble: dict[str, Any], *places: dict[str, Any]) -> list[FileNote]:
    """Files that a prompt brings along, with the lines of those of which only some were selected."""
    notes = [note for place in places for note in _attached(place)]
    notes += [
        _file_note(FileKind.ATTACHED, chunk, chunk)
        for chunk in map(mapping, sequence(bubble.get("attachedCodeChunks")))
    ]
    notes += [
        FileNote(kind=FileKind.REFERENCED, path=path)
        for file in sequence(bubble.get("relevantFiles"))
        if (path := path_of(file))
    ]
    return list(dict.fromkeys(note for note in notes if note is not None))


def _attached(place: dict[str, Any]) -> Iterator[FileNote | None]:
    for selection in map(mapping, sequence(place.get("fileSelections"))):
        yield _file_note(FileKind.ATTACHED, selection, {})
    for selection in map(mapping, sequence(place.get("selections"))):
        yield _file_note(FileKind.ATTACHED, selection, selection.get("range"))
    for selection in map(mapping, sequence(place.get("folderSelections"))):
        yield _file_note(FileKind.REFERENCED, selection, {})


def _file_note(kind: FileKind, fields: dict[str, Any], lines: Any) -> FileNote | None:
    path = path_of(fields.get("uri")) or text(fields.get("relativeWorkspacePath")) or text(fields.get("relativePath"))
    if path is None:
        return None
    start, end = lines_of(lines)
    count = len(sequence(fields.get("lines")))
    if start is not None and end is None and count:
        end = start + count - 1
    return FileNote(kind=kind, path=path, line_start=start, line_end=end)


def lines_of(value: Any) -> tuple[int | None, int | None]:
    """Of a range as the editor writes it: its lines count from 1."""
    range = mapping(value)
    starts, ends = (
        ("selectionStartLineNumber", "startLineNumber", "startLine"),
        ("positionLineNumber", "endLineNumber", "endLine"),
    )
    start, end = (next((line for name in names if (line := whole(range.get(name)))), None) for names in (starts, ends))
    if start is not None and end is not None and end < start:  # selected from below
        start, end = end, start
    return start, end


def context_lints(*places: dict[str, Any]) -> tuple[LintNote, ...]:
    """Diagnostics, by file or one by one."""
    notes = [
        note
        for place in places
        for name in LINTS
        for each in map(mapping, sequence(place.get(name)))
        for note in _lint_notes(each)
    ]
    return tuple(dict.fromkeys(notes))


def _lint_notes(fields: dict[str, Any]) -> list[LintNote]:
    path = text(fields.get("relativeWorkspacePath")) or path_of(fields.get("uri"))
    several = sequence(fields.get("errors")) or sequence(fields.get("lints")) or sequence(fields.get("diagnostics"))
    return [note for each in map(mapping, several or [fields]) if (note := _lint(path, each)) is not None]


def _lint(path: str | None, fields: dict[str, Any]) -> LintNote | None:
    message = text(fields.get("message"))
    if message is None:
        return None
    range = mapping(fields.get("range")) or fields
    start, end = (mapping(range.get(name)) for name in ("startPosition", "endPosition"))
    first, last = lines_of(range)
    return LintNote(
        path=path,
        message=message,
        source=text(fields.get("source")),
        start_line=whole(start.get("line")) or first,
        start_col=whole(start.get("column")) or whole(range.get("startColumn")),
        end_line=whole(end.get("line")) or last,
        end_col=whole(end.get("column")) or whole(range.get("endColumn")),
        severity=_severity(fields.get("severity")),
    )


def _severity(value: Any) -> LintSeverity | None:
    if isinstance(value, str):
        return next((each for each in LintSeverity if each.value in value.lower()), None)
    return SEVERITIES.get(whole(value) or 0)


APPLIED = frozenset({"accepted", "applied"})
GENERATED = ("isCapabilityIteration", "skipRendering", "isSimulatedMsg")
"""Marks of a prompt that no person wrote."""


class Setting(Struct):
    """What holds for every bubble of a session."""

    model: str | None = None
    is_subagent: bool = False
    applied: dict[tuple[str, int], str] = field(default_factory=dict)
    """What became of each suggested version of a file, by path and number."""


def is_prompt(bubble: Bubble) -> bool:
    """Does a turn begin here? A user's bubble may also hold nothing but the outcome of a tool."""
    return bubble.role == "user" and not (mapping(bubble.value.get("toolFormerData")) and not bubble_text(bubble.value))


def message_text(bubble: Bubble) -> str:
    return bubble_text(bubble.value)


def is_empty(bubble: Bubble) -> bool:
    """Nothing was said or attached: the box for the next prompt, kept as one."""
    value = bubble.value
    places = (value, mapping(value.get("context")))
    pictured = any(context_images(*places))
    return not (bubble_text(value) or pictured or context_files(value, *places) or value.get("toolFormerData"))


def bubble_identity(bubble: Bubble) -> list[Any]:
    """What makes the identity of a bubble."""
    value = bubble.value
    former = mapping(value.get("toolFormerData"))
    images = [part.url for part in context_images(value, mapping(value.get("context")))[0]]
    identity = [bubble.role, bubble.id, bubble_text(value), bubble_thoughts(value), images]
    return [*identity, call_identity(former)] if former else identity


def prompt_message(bubble: Bubble, setting: Setting) -> NativeMessage:
    value, request = bubble.value, bubble.request
    places = (value, mapping(value.get("context")), request)
    images, paths = context_images(value, mapping(value.get("context")))
    words = bubble_text(value)
    parts: list[Part] = [TextPart(words)] if words else []
    return NativeMessage(
        role=MessageRole.USER,
        parts=(*parts, *images),
        native=bubble.id,
        at=begun_at(value),
        source=_source(value, setting),
        context=injected_context(*places),
        metadata=_response_metadata(value),
        files=tuple(dict.fromkeys((*context_files(value, *places[:2]), *paths))),
        lints=context_lints(*places),
    )


def _source(value: dict[str, Any], setting: Setting) -> MessageSource:
    if any(value.get(name) is True for name in GENERATED):
        return MessageSource.EVENT
    return MessageSource.AGENT if setting.is_subagent else MessageSource.HUMAN


def is_spoken(bubble: Bubble) -> bool:
    """Is it more than a call: does it have words, thoughts, costs or a failure of its own?"""
    value = bubble.value
    contents = (bubble_text(value), bubble_thoughts(value), bubble_images(value), bubble_tokens(value))
    return any(contents) or bubble_error(value) is not None


def response_message(bubble: Bubble, setting: Setting) -> NativeMessage:
    value = bubble.value
    words = bubble_text(value)
    parts: list[Part] = [ReasoningPart(thought) for thought in bubble_thoughts(value)]
    parts += [TextPart(words)] if words else []
    parts += [ImagePart(url) for url in bubble_images(value)]
    return NativeMessage(
        role=MessageRole.ASSISTANT,
        parts=tuple(parts),
        native=bubble.id,
        at=begun_at(value),
        model=bubble_model(value) or setting.model,
        tokens=bubble_tokens(value),
        metadata=_response_metadata(value),
        files=suggested_files(value, setting),
        lints=context_lints(value),
    )


def message_call(bubble: Bubble) -> NativeCall | None:
    former = mapping(bubble.value.get("toolFormerData"))
    return bubble_call(former, bubble.id, begun_at(bubble.value)) if former else None


def suggested_files(value: dict[str, Any], setting: Setting) -> tuple[FileNote, ...]:
    """Files of which an answer wrote a version: written where that was accepted, named where not."""
    notes: dict[str, FileNote] = {}
    for block in code_blocks(value):
        path = path_of(block.get("uri"))
        if path is None:
            continue
        status = setting.applied.get((path, whole(block.get("version")) or 0)) or text(block.get("status")) or ""
        is_written = status in APPLIED or (path in notes and notes[path].kind == FileKind.WRITTEN)
        notes[path] = FileNote(kind=FileKind.WRITTEN if is_written else FileKind.REFERENCED, path=path)
    return tuple(notes.values())


def _response_metadata(value: dict[str, Any]) -> dict[str, Any] | None:
    return present(
        request=text(value.get("requestId")),
        usage=text(value.get("usageUuid")),
        server=text(value.get("serverBubbleId")),
        checkpoint=text(value.get("checkpointId")),
        checkpoint_after=text(value.get("afterCheckpointId")),
        thinking_ms=value.get("thinkingDurationMs"),
        signature=thought_signature(value),
        turn_ms=value.get("turnDurationMs"),
        capability=value.get("capabilityType"),
        refunded=True if value.get("isRefunded") is True else None,
        tokens_so_far=value.get("tokenCountUpUntilHere"),
        error=value.get("errorDetails"),
    )
