"""Bubbles, as every generation of Cursor calls a message: what was said, when, by which model, at
what cost.

Values as Cursor keeps them (JSON in texts and blobs, sometimes twice encoded), and bubbles as
messages and calls, with what stands beside a prompt.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from msgspec import UNSET, Struct, field

from weft.exchange.importers.foreign_values import json_value, mapping, millis, present, sequence, text, whole_number
from weft.exchange.importers.native_turns import patched_paths
from weft.exchange.importers.port import NativeCall, NativeMessage, Tokens
from weft.kernel.contents import text_bytes
from weft.kernel.enums import FileKind, LintSeverity, MessageRole, MessageSource, ToolCallStatus
from weft.ledger.model import FileNote, ImagePart, LintNote, Part, ReasoningPart, TextPart

# --- Values as Cursor keeps them: JSON in texts and blobs, sometimes twice encoded; URIs of VS Code; images as bytes.

ENCODED_TIMES = 2
"""How often a value may have been encoded over again."""
IMAGE_SIGNATURES = {
    b"\x89PNG": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
    b"RIFF": "image/webp",
}
LARGEST_IMAGE_BYTES = 32 * 1024 * 1024


def decode_json_value(value: Any) -> Any:
    """The JSON value in a row; raises ValueError where there is none."""
    for _ in range(ENCODED_TIMES):
        if not isinstance(value, str | bytes):
            break
        value = json_value(value if isinstance(value, bytes) else text_bytes(value))
        if not (isinstance(value, str) and value.lstrip().startswith(("{", "["))):
            break
    return value


def value_in_text(value: Any) -> Any:
    """What a field holds that should be JSON in a text: its value, or the text itself where it is none."""
    if not isinstance(value, str):
        return value
    try:
        return decode_json_value(value) if value.strip() else None
    except ValueError:
        return value


def path_of(uri: Any) -> str | None:
    """The path that a URI names, in any of the forms in which VS Code writes them."""
    if isinstance(uri, str):
        return _path_of_text(uri)
    fields = mapping(uri)
    return text(fields.get("fsPath")) or text(fields.get("_fsPath")) or text(fields.get("path"))


def _path_of_text(uri: str) -> str | None:
    if not uri.startswith(("file:", "vscode-remote:")):
        return uri or None
    try:
        path = unquote(urlsplit(uri).path)
    except ValueError:
        return uri
    has_drive = len(path) > 2 and path[0] == "/" and path[2] == ":"
    return path[1:] if has_drive else path or None


def image_url(data: Any, mime: str | None = None) -> str | None:
    """An image as a data URL, from whatever its bytes were written as."""
    if isinstance(data, str) and data.startswith(("data:image/", "https://")):
        return data
    data_bytes = _bytes(data)
    if not data_bytes:
        return None
    media_type = next((kind for sign, kind in IMAGE_SIGNATURES.items() if data_bytes.startswith(sign)), mime)
    return f"data:{media_type or 'application/octet-stream'};base64,{base64.b64encode(data_bytes).decode()}"


def _bytes(data: Any) -> bytes | None:
    """Base64, hex beside its type, a list of numbers, or the object that JavaScript makes of one."""
    try:
        if isinstance(data, str):
            return base64.b64decode(data, validate=True)
        if isinstance(data, Mapping) and isinstance(data.get("hex"), str):
            return bytes.fromhex(data["hex"])
        if isinstance(data, Mapping):
            data = sequence(data.get("data")) or [data[str(index)] for index in range(len(data))]
        numbers = sequence(data)[:LARGEST_IMAGE_BYTES]
        return bytes(numbers) if all(isinstance(number, int) for number in numbers) else None
    except (KeyError, ValueError, TypeError, binascii.Error):
        return None


VARINT, EIGHT, BYTES, FOUR = 0, 1, 2, 5


def wire_fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Each field with its number; raises ValueError where the bytes are no such message."""
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        number, kind = key >> 3, key & 7
        if number == 0:
            raise ValueError("a field without a number")
        if kind == VARINT:
            value, position = _varint(data, position)
            yield number, value
            continue
        size = 8 if kind == EIGHT else 4 if kind == FOUR else None
        if kind == BYTES:
            size, position = _varint(data, position)
        if size is None or position + size > len(data):
            raise ValueError("a field of no known kind or size")
        yield number, data[position : position + size]
        position += size


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(data) and shift < 64:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position
    raise ValueError("a number without an end")


# --- Bubbles, as every generation of Cursor calls a message: what was said, when, by which model, at what cost.

USER = frozenset({"1", "user", "human"})
ASSISTANT = frozenset({"2", "ai", "assistant", "bot"})
EPOCH = 1_000_000_000_000
"""Times below are counted from when a window was opened."""


class Bubble(Struct):
    """One bubble, and what Cursor put beside it when it was sent."""

    id: str | None
    value: dict[str, Any]
    role: str | None = None
    """`user` or `assistant`; None where its type is another."""
    request: dict[str, Any] = field(default_factory=dict)
    number: int = 0
    """Its place among the records that are kept of its session."""


def role_of(value: dict[str, Any], header: dict[str, Any] | None = None) -> str | None:
    raw_kind = value.get("type", mapping(header).get("type"))
    if isinstance(raw_kind, bool):
        return None
    kind = str(raw_kind).lower()
    return "user" if kind in USER else "assistant" if kind in ASSISTANT else None


def bubble_text(value: dict[str, Any]) -> str:
    """Its text; where only the editor's form of it was kept, the words of that."""
    return text(value.get("text")) or text(value.get("rawText")) or rich_words(value.get("richText"))


def rich_words(rich: Any) -> str:
    """The words of the editor's tree of nodes, block by block."""
    try:
        tree = decode_json_value(rich) if isinstance(rich, str) and rich.lstrip().startswith("{") else None
    except ValueError:
        return ""
    lines: list[str] = []
    waiting = [(mapping(mapping(tree).get("root")), 0)]
    while waiting:
        node, depth = waiting.pop()
        if depth > 50:
            continue
        if isinstance(node.get("text"), str):
            lines[-1:] = [(lines[-1] if lines else "") + node["text"]]
        elif node.get("type") in ("paragraph", "linebreak", "code", "listitem", "heading", "quote") and lines:
            lines.append("")
        children = [(mapping(child), depth + 1) for child in sequence(node.get("children"))]
        waiting.extend(reversed(children))
    return "\n".join(lines).strip()


def bubble_thoughts(value: dict[str, Any]) -> list[str]:
    own_thought = _thought(value.get("thinking"))
    if own_thought is not None:
        return [own_thought]
    return [thought for block in sequence(value.get("allThinkingBlocks")) if (thought := _thought(block)) is not None]


def _thought(value: Any) -> str | None:
    fields = mapping(value)
    return text(value) or text(fields.get("text")) or text(fields.get("thinking"))


def thought_signature(value: dict[str, Any]) -> str | None:
    return text(mapping(value.get("thinking")).get("signature"))


def bubble_images(value: dict[str, Any]) -> list[str]:
    """Images that an answer holds."""
    fields = (mapping(image) for image in sequence(value.get("images")))
    return [
        url
        for image in fields
        if (url := image_url(image.get("data") or image.get("url"), text(image.get("mimeType"))))
    ]


def bubble_tokens(value: dict[str, Any]) -> Tokens | None:
    """As counted; Cursor writes noughts where it has not counted."""
    fields = mapping(value.get("tokenCount"))
    input_tokens, output_tokens = whole_number(fields.get("inputTokens")), whole_number(fields.get("outputTokens"))
    return Tokens(input=input_tokens, output=output_tokens) if input_tokens or output_tokens else None


def bubble_model(value: dict[str, Any]) -> str | None:
    name = text(value.get("modelType")) or text(mapping(value.get("modelInfo")).get("modelName"))
    return None if name == "default" else name


def begun_at(value: dict[str, Any]) -> int | None:
    timing = mapping(value.get("timingInfo"))
    times = (value.get("createdAt"), timing.get("clientRpcSendTime"), timing.get("clientStartTime"))
    return _first_time(times)


def ended_at(value: dict[str, Any]) -> int | None:
    timing = mapping(value.get("timingInfo"))
    return _first_time((timing.get("clientEndTime"), timing.get("clientSettleTime")))


def _first_time(values: tuple[Any, ...]) -> int | None:
    times = (millis(value) for value in values)
    return next((time for time in times if time is not None and time >= EPOCH), None)


def bubble_error(value: dict[str, Any]) -> str | None:
    details = value.get("errorDetails")
    if not details:
        return None
    fields = mapping(details)
    texts = (text(details), text(fields.get("message")), text(fields.get("title")), text(fields.get("error")))
    return next((words for words in texts if words), "error")


NAMES = {
    1: "read_semsearch_files", 3: "ripgrep_search", 5: "read_file", 6: "list_dir", 7: "edit_file", 8: "file_search",
    9: "codebase_search", 11: "delete_file", 12: "reapply", 15: "run_terminal_cmd", 16: "fetch_rules",
    18: "web_search", 19: "mcp", 23: "search_symbols", 24: "background_composer_followup", 25: "knowledge_base",
    26: "fetch_pull_request", 27: "deep_search", 28: "create_diagram", 29: "fix_lints", 30: "read_lints",
    31: "go_to_definition", 32: "task", 33: "await_task", 34: "todo_read", 35: "todo_write", 38: "edit_file_v2",
    39: "list_dir_v2", 40: "read_file_v2", 41: "ripgrep_raw_search", 42: "glob_file_search", 43: "create_plan",
    44: "list_mcp_resources", 45: "read_mcp_resource", 46: "read_project", 47: "update_project", 48: "task_v2",
    49: "call_mcp_tool", 50: "apply_agent_diff", 51: "ask_question", 52: "switch_mode", 53: "generate_image",
    54: "computer_use", 55: "write_shell_stdin", 57: "web_fetch",
}  # fmt: skip
"""By the number that a call, or the list of tools at hand, has instead of a name."""
READERS = frozenset({"read", "readfile", "readnotebook"})
WRITERS = frozenset(
    {
        "edit", "editfile", "write", "writefile", "searchreplace", "strreplace", "multiedit", "multistrreplace",
        "reapply", "applypatch", "deletefile", "delete", "editnotebook", "createfile", "applyagentdiff",
    }
)  # fmt: skip
SEARCHERS = frozenset(
    {"listdir", "ls", "grep", "ripgrepsearch", "ripgreprawsearch", "grepsearch", "glob", "globfilesearch"}
)
SPAWNERS = frozenset({"task", "subagent", "agent"})
PATHS = (
    "targetFile", "target_file", "path", "file_path", "filePath", "relativeWorkspacePath", "effectiveUri",
    "target_notebook", "targetNotebook", "directoryPath", "relative_workspace_path", "targetDirectory",
    "target_directory",
)  # fmt: skip
STARTS = ("startLineOneIndexed", "start_line_one_indexed", "startLine", "start_line", "offset")
ENDS = ("endLineOneIndexedInclusive", "end_line_one_indexed_inclusive", "endLine", "end_line")


def plain_name(name: str) -> str:
    """A tool under whichever of its spellings: `read_file_v2`, `ReadFile`."""
    return re.sub(r"[^a-z]|_v\d+$", "", re.sub(r"_?[vV]\d+$", "", name).lower())


def tool_name(tool: Any) -> str | None:
    number = whole_number(tool)
    return None if number is None or number <= 0 else NAMES.get(number, f"tool:{number}")


def tool_files(name: str, *value: Any) -> tuple[FileNote, ...]:
    """What a call that went well did to files, from its arguments as the model or Cursor wrote them."""
    kind, arguments = plain_name(name), [mapping(item) for item in value]
    if kind in WRITERS:
        paths = _argument_paths(arguments) or _patched_paths(value)
        return tuple(FileNote(kind=FileKind.WRITTEN, path=path) for path in paths)
    if kind in READERS:
        start, end = _argument_lines(arguments)
        return tuple(
            FileNote(kind=FileKind.READ, path=path, line_start=start, line_end=end)
            for path in _argument_paths(arguments)
        )
    if kind in SEARCHERS:
        return tuple(FileNote(kind=FileKind.REFERENCED, path=path) for path in _argument_paths(arguments))
    return ()


def _argument_paths(objects: list[dict[str, Any]]) -> list[str]:
    """The first that is named; several only where a call names several files at once."""
    for arguments in objects:
        if named_path := next((path for key in PATHS if (path := path_of(arguments.get(key)))), None):
            return [named_path]
        if several := [path for value in sequence(arguments.get("paths")) if (path := path_of(value))]:
            return several
    return []


def _patched_paths(values: tuple[Any, ...]) -> list[str]:
    texts = [
        words
        for value in values
        for words in (value, mapping(value).get("patch"), mapping(value).get("input"))
        if isinstance(words, str)
    ]
    return list(dict.fromkeys(path for words in texts for path in patched_paths(words)))


def _argument_lines(objects: list[dict[str, Any]]) -> tuple[int | None, int | None]:
    if any(
        arguments.get(name) is True for arguments in objects for name in ("readEntireFile", "should_read_entire_file")
    ):
        return None, None
    start = _first_number(objects, STARTS)
    end, limit = _first_number(objects, ENDS), _first_number(objects, ("limit",))
    if start is not None and end is None and limit is not None:
        end = start + limit - 1
    return start, end


def _first_number(objects: list[dict[str, Any]], names: tuple[str, ...]) -> int | None:
    numbers = (whole_number(arguments.get(name)) for arguments in objects for name in names)
    return next((number for number in numbers if number is not None and number > 0), None)


STATUSES = {
    "completed": ToolCallStatus.OK,
    "error": ToolCallStatus.ERROR,
    "cancelled": ToolCallStatus.CANCELED,
    "canceled": ToolCallStatus.CANCELED,
    "rejected": ToolCallStatus.CANCELED,
    "aborted": ToolCallStatus.INTERRUPTED,
    "timeout": ToolCallStatus.TIMEOUT,
}
SHOWN = ("modelVisibleErrorMessage", "clientVisibleErrorMessage", "actualErrorMessage", "message", "error")
BESIDE = ("userDecision", "toolIndex", "modelCallId", "additionalData")


def bubble_call(former: dict[str, Any], bubble: str | None, time: int | None) -> NativeCall:
    name, arguments, result = call_name(former), call_arguments(former), call_result(former)
    status = _status(former, result)
    is_done = status is ToolCallStatus.OK
    return NativeCall(
        id=text(former.get("toolCallId")) or bubble or "",
        name=name,
        arguments=arguments,
        result=result,
        error=call_error(former, status),
        status=status,
        at=time,
        done=millis(former.get("endTime")),
        spawned=_spawned(name, former, result),
        detail=_detail(former, bubble),
        files=tool_files(name, value_in_text(former.get("params")), arguments) if is_done else (),
    )


def call_identity(former: dict[str, Any]) -> list[Any]:
    """What makes the identity of a call."""
    result = call_result(former)
    status = _status(former, result)
    return [
        former.get("toolCallId"),
        call_name(former),
        call_arguments(former),
        None if result is UNSET else result,
        call_error(former, status),
        status,
    ]


def call_name(former: dict[str, Any]) -> str:
    return text(former.get("name")) or tool_name(former.get("tool")) or ""


def call_arguments(former: dict[str, Any]) -> Any:
    """As the model wrote them; else as Cursor understood them."""
    raw = value_in_text(former.get("rawArgs"))
    return value_in_text(former.get("params")) if raw in (None, "", {}) else raw


def call_result(former: dict[str, Any]) -> Any:
    result = value_in_text(former.get("result"))
    return UNSET if result is None else result


def _status(former: dict[str, Any], result: Any) -> ToolCallStatus | None:
    status = STATUSES.get(str(former.get("status")))
    if mapping(None if result is UNSET else result).get("rejected") is True:
        return ToolCallStatus.CANCELED
    if status is None and former.get("status") is None and result is not UNSET:
        return ToolCallStatus.OK
    return status


def call_error(former: dict[str, Any], status: ToolCallStatus | None) -> str | None:
    """An error in words; of a call that went well there is none."""
    if status in (None, ToolCallStatus.OK):
        return None
    error = value_in_text(former.get("error"))
    words = (
        error
        if isinstance(error, str)
        else next((message for key in SHOWN if (message := text(mapping(error).get(key)))), None)
    )
    return words or text(former.get("status"))


def _spawned(name: str, former: dict[str, Any], result: Any) -> str | None:
    """The session of a subagent that this call started."""
    if plain_name(name) not in SPAWNERS:
        return None
    result_fields, beside = mapping(None if result is UNSET else result), mapping(former.get("additionalData"))
    names = (result_fields.get("agentId"), beside.get("subagentComposerId"), beside.get("composerId"))
    return next((id for candidate in names if (id := text(candidate))), None)


def _detail(former: dict[str, Any], bubble: str | None) -> dict[str, Any] | None:
    beside = {name: former.get(name) for name in BESIDE}
    has_raw = value_in_text(former.get("rawArgs")) not in (None, "", {})
    return present(bubble=bubble, params=value_in_text(former.get("params")) if has_raw else None, **beside)


def code_blocks(bubble: dict[str, Any]) -> list[dict[str, Any]]:
    return [mapping(block) for block in sequence(bubble.get("codeBlocks"))]


# --- Bubbles as messages and calls, with what stands beside a prompt: files and selections, images, rules,
# diagnostics.

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
    injected = {name: next((value for place in places if (value := place.get(name))), None) for name in INJECTED}
    return {name: value for name, value in injected.items() if value} or None


def context_images(*places: dict[str, Any]) -> tuple[list[ImagePart], list[FileNote]]:
    """Those whose bytes are here, and the paths of those that lie elsewhere."""
    parts: dict[str, ImagePart] = {}
    paths: dict[str, FileNote] = {}
    images = (
        listed_image
        for place in places
        for name in ("images", "selectedImages")
        for listed_image in sequence(place.get(name))
    )
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
    notes = [note for place in places for note in _attached_files(place)]
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


def _attached_files(place: dict[str, Any]) -> Iterator[FileNote | None]:
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
    start, end = (
        next((line for name in names if (line := whole_number(range.get(name)))), None) for names in (starts, ends)
    )
    if start is not None and end is not None and end < start:  # selected from below
        start, end = end, start
    return start, end


def context_lints(*places: dict[str, Any]) -> tuple[LintNote, ...]:
    """Diagnostics, by file or one by one."""
    notes = [
        note
        for place in places
        for name in LINTS
        for fields in map(mapping, sequence(place.get(name)))
        for note in _lint_notes(fields)
    ]
    return tuple(dict.fromkeys(notes))


def _lint_notes(fields: dict[str, Any]) -> list[LintNote]:
    path = text(fields.get("relativeWorkspacePath")) or path_of(fields.get("uri"))
    several = sequence(fields.get("errors")) or sequence(fields.get("lints")) or sequence(fields.get("diagnostics"))
    return [note for diagnostic in map(mapping, several or [fields]) if (note := _lint(path, diagnostic)) is not None]


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
        start_line=whole_number(start.get("line")) or first,
        start_col=whole_number(start.get("column")) or whole_number(range.get("startColumn")),
        end_line=whole_number(end.get("line")) or last,
        end_col=whole_number(end.get("column")) or whole_number(range.get("endColumn")),
        severity=_severity(fields.get("severity")),
    )


def _severity(value: Any) -> LintSeverity | None:
    if isinstance(value, str):
        return next((severity for severity in LintSeverity if severity.value in value.lower()), None)
    return SEVERITIES.get(whole_number(value) or 0)


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
        status = setting.applied.get((path, whole_number(block.get("version")) or 0)) or text(block.get("status")) or ""
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
