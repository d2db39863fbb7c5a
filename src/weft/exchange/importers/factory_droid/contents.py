"""Blocks of messages: words, thoughts, images, documents, calls and their outcomes."""

from __future__ import annotations

import re
from typing import Any

from msgspec import UNSET

from weft.exchange.importers.factory_droid.kinds import REMINDER, blocks, own_words
from weft.exchange.importers.transcript import NativeCall
from weft.exchange.importers.values import mapping, present, sequence, text, whole
from weft.kernel.enums import FileKind, ToolCallStatus
from weft.ledger.model import FileNote, ImagePart, Part, ReasoningPart, TextPart

KNOWN = frozenset({"text", "thinking", "redacted_thinking", "tool_use", "tool_result", "image", "document"})
WRITERS = frozenset({"Edit", "MultiEdit", "Create", "Write", "ApplyPatch", "NotebookEdit"})
SEARCHERS = frozenset({"LS", "Grep", "Glob"})
PATHS = ("file_path", "path", "directory_path", "folder", "notebook_path")
PATCHED = re.compile(r"^\*\*\* (?:(?:Add|Update|Delete) File|Move to): (.+)$", re.MULTILINE)
REFUSED = re.compile(
    r"(?:Error: )?(?:Tool execution|Request|Permission|Command) (?:was )?(?:cancel|reject|denied)", re.IGNORECASE
)


def parts(message: dict[str, Any], is_prompt: bool) -> list[Part]:
    """A prompt without the tool's reminders; those stand beside it."""
    found: list[Part] = []
    for block in blocks(message):
        kind = block.get("type")
        words = text(block.get("text")) if kind == "text" else None
        if words is not None and not (is_prompt and own_words(block) is None):
            found.append(TextPart(words))
        elif kind == "thinking" and (thought := text(block.get("thinking")) or text(block.get("text"))):
            found.append(ReasoningPart(thought))
        elif kind == "image" and (url := _image(block)) is not None:
            found.append(ImagePart(url))
    return found


def _image(block: dict[str, Any]) -> str | None:
    source = mapping(block.get("source"))
    data, url = text(source.get("data")), text(source.get("url"))
    if data is None:
        return url
    return data if data.startswith("data:") else f"data:{text(source.get('media_type')) or 'image/png'};base64,{data}"


def reminders(message: dict[str, Any]) -> list[str]:
    found = (text(block.get("text")) for block in blocks(message) if block.get("type") == "text")
    return [words for words in found if words is not None and words.lstrip().startswith(REMINDER)]


def documents(message: dict[str, Any]) -> tuple[list[dict[str, Any]], list[FileNote]]:
    """What is attached beside images, without the contents that the verbatim copy has, and where it lies."""
    sources = [mapping(block.get("source")) for block in blocks(message) if block.get("type") == "document"]
    told = [
        present(name=each.get("name"), type=each.get("media_type"), path=each.get("path")) or {} for each in sources
    ]
    notes = [FileNote(kind=FileKind.ATTACHED, path=path) for each in sources if (path := text(each.get("path")))]
    return told, notes


def others(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Blocks of kinds that nobody knows."""
    return [block for block in blocks(message) if block and block.get("type") not in KNOWN]


def calls(message: dict[str, Any], at: int | None) -> list[NativeCall]:
    return [_call(block, at) for block in blocks(message) if block.get("type") == "tool_use"]


def _call(block: dict[str, Any], at: int | None) -> NativeCall:
    return NativeCall(
        id=text(block.get("id")) or "",
        name=text(block.get("name")) or "",
        arguments=block.get("input"),
        at=at,
        detail=present(namespace=block.get("namespace"), script=block.get("script_execution")),
    )


def outcomes(message: dict[str, Any]) -> list[dict[str, Any]]:
    return [block for block in blocks(message) if block.get("type") == "tool_result"]


def settled(call: NativeCall, block: dict[str, Any], at: int | None) -> dict[str, Any]:
    """The fields of a call that its outcome changes."""
    result = plain(block.get("content", UNSET))
    failed = block.get("is_error") is True or block.get("isError") is True
    words = result if isinstance(result, str) else ""
    status = ToolCallStatus.OK
    if failed:
        status = ToolCallStatus.CANCELED if REFUSED.match(words) else ToolCallStatus.ERROR
    return {
        "result": result,
        "error": words or "error" if failed else None,
        "status": status,
        "done": at,
        "files": () if failed else files(call.name, call.arguments),
    }


def plain(result: Any) -> Any:
    """Blocks of text alone are the text that they hold."""
    found = [mapping(each) for each in sequence(result)]
    if found and all(block.get("type") == "text" and isinstance(block.get("text"), str) for block in found):
        return "\n".join(block["text"] for block in found)
    return result


def files(name: str, arguments: Any) -> tuple[FileNote, ...]:
    told = mapping(arguments)
    path = next((found for key in PATHS if (found := text(told.get(key)))), None)
    if name in WRITERS:
        patch = next((words for key in ("input", "patch") if isinstance(words := told.get(key), str)), "")
        paths = [path] if path else [each.strip() for each in PATCHED.findall(patch)]
        return tuple(FileNote(kind=FileKind.WRITTEN, path=each) for each in dict.fromkeys(paths))
    if path is None:
        return ()
    if name == "Read":
        start, limit = whole(told.get("offset")), whole(told.get("limit"))
        first = None if start is None else start + 1  # droid counts lines from 0
        last = None if limit is None else (first or 1) + limit - 1
        return (FileNote(kind=FileKind.READ, path=path, line_start=first, line_end=last),)
    return (FileNote(kind=FileKind.REFERENCED, path=path),) if name in SEARCHERS else ()
