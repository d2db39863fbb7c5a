"""What stands beside a prompt: files and selections, images, rules, diagnostics of the editor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from weft.exchange.importers.cursor.values import image_url, path_of
from weft.exchange.importers.values import mapping, sequence, text, whole
from weft.kernel.enums import FileKind, LintSeverity
from weft.ledger.model import FileNote, ImagePart, LintNote

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


def injected(*places: dict[str, Any]) -> dict[str, Any] | None:
    """By name, what any of the places holds; the first that holds it tells."""
    found = {name: next((value for place in places if (value := place.get(name))), None) for name in INJECTED}
    return {name: value for name, value in found.items() if value} or None


def images(*places: dict[str, Any]) -> tuple[list[ImagePart], list[FileNote]]:
    """Those whose bytes are here, and the paths of those that lie elsewhere."""
    parts: dict[str, ImagePart] = {}
    paths: dict[str, FileNote] = {}
    told = (each for place in places for name in ("images", "selectedImages") for each in sequence(place.get(name)))
    for image in map(mapping, told):
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


def files(bubble: dict[str, Any], *places: dict[str, Any]) -> list[FileNote]:
    """Files that a prompt brings along, with the lines of those of which only some were selected."""
    found = [note for place in places for note in _attached(place)]
    found += [
        _note(FileKind.ATTACHED, chunk, chunk) for chunk in map(mapping, sequence(bubble.get("attachedCodeChunks")))
    ]
    found += [
        FileNote(kind=FileKind.REFERENCED, path=path)
        for each in sequence(bubble.get("relevantFiles"))
        if (path := path_of(each))
    ]
    return list(dict.fromkeys(note for note in found if note is not None))


def _attached(place: dict[str, Any]) -> Iterator[FileNote | None]:
    for each in map(mapping, sequence(place.get("fileSelections"))):
        yield _note(FileKind.ATTACHED, each, {})
    for each in map(mapping, sequence(place.get("selections"))):
        yield _note(FileKind.ATTACHED, each, each.get("range"))
    for each in map(mapping, sequence(place.get("folderSelections"))):
        yield _note(FileKind.REFERENCED, each, {})


def _note(kind: FileKind, told: dict[str, Any], lines: Any) -> FileNote | None:
    path = path_of(told.get("uri")) or text(told.get("relativeWorkspacePath")) or text(told.get("relativePath"))
    if path is None:
        return None
    start, end = lines_of(lines)
    count = len(sequence(told.get("lines")))
    if start is not None and end is None and count:
        end = start + count - 1
    return FileNote(kind=kind, path=path, line_start=start, line_end=end)


def lines_of(told: Any) -> tuple[int | None, int | None]:
    """Of a range as the editor writes it: its lines count from 1."""
    range = mapping(told)
    starts, ends = (
        ("selectionStartLineNumber", "startLineNumber", "startLine"),
        ("positionLineNumber", "endLineNumber", "endLine"),
    )
    start, end = (next((line for name in names if (line := whole(range.get(name)))), None) for names in (starts, ends))
    if start is not None and end is not None and end < start:  # selected from below
        start, end = end, start
    return start, end


def lints(*places: dict[str, Any]) -> tuple[LintNote, ...]:
    """Diagnostics, by file or one by one."""
    found = [
        note
        for place in places
        for name in LINTS
        for each in map(mapping, sequence(place.get(name)))
        for note in _lints(each)
    ]
    return tuple(dict.fromkeys(found))


def _lints(told: dict[str, Any]) -> list[LintNote]:
    path = text(told.get("relativeWorkspacePath")) or path_of(told.get("uri"))
    several = sequence(told.get("errors")) or sequence(told.get("lints")) or sequence(told.get("diagnostics"))
    return [note for each in map(mapping, several or [told]) if (note := _lint(path, each)) is not None]


def _lint(path: str | None, told: dict[str, Any]) -> LintNote | None:
    message = text(told.get("message"))
    if message is None:
        return None
    range = mapping(told.get("range")) or told
    start, end = (mapping(range.get(name)) for name in ("startPosition", "endPosition"))
    first, last = lines_of(range)
    return LintNote(
        path=path,
        message=message,
        source=text(told.get("source")),
        start_line=whole(start.get("line")) or first,
        start_col=whole(start.get("column")) or whole(range.get("startColumn")),
        end_line=whole(end.get("line")) or last,
        end_col=whole(end.get("column")) or whole(range.get("endColumn")),
        severity=_severity(told.get("severity")),
    )


def _severity(told: Any) -> LintSeverity | None:
    if isinstance(told, str):
        return next((each for each in LintSeverity if each.value in told.lower()), None)
    return SEVERITIES.get(whole(told) or 0)
