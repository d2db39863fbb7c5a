"""Bubbles, as every generation of Cursor calls a message: what was said, when, by which model, at what cost.

The tool call of a bubble and its outcome lie in one record, arguments and result as JSON in texts. Tools have numbers;
which of them touch files is known by their names, and which files by their arguments.
"""

from __future__ import annotations

import re
from typing import Any

from msgspec import UNSET, Struct, field

from weft.exchange.importers.cursor.encodings import decoded, image_url, path_of, value_in_text
from weft.exchange.importers.port import NativeCall, Tokens
from weft.exchange.importers.records.file_notes import patched_paths
from weft.exchange.importers.records.values import mapping, millis, present, sequence, text, whole
from weft.kernel.enums import FileKind, ToolCallStatus
from weft.ledger.model import FileNote

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
        tree = decoded(rich) if isinstance(rich, str) and rich.lstrip().startswith("{") else None
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
    own = _thought(value.get("thinking"))
    if own is not None:
        return [own]
    return [each for block in sequence(value.get("allThinkingBlocks")) if (each := _thought(block)) is not None]


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
    given, made = whole(fields.get("inputTokens")), whole(fields.get("outputTokens"))
    return Tokens(input=given, output=made) if given or made else None


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
    times = (millis(each) for each in values)
    return next((when for when in times if when is not None and when >= EPOCH), None)


def bubble_error(value: dict[str, Any]) -> str | None:
    details = value.get("errorDetails")
    if not details:
        return None
    fields = mapping(details)
    found = (text(details), text(fields.get("message")), text(fields.get("title")), text(fields.get("error")))
    return next((each for each in found if each), "error")


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
    number = whole(tool)
    return None if number is None or number <= 0 else NAMES.get(number, f"tool:{number}")


def tool_files(name: str, *value: Any) -> tuple[FileNote, ...]:
    """What a call that went well did to files, from its arguments as the model or Cursor wrote them."""
    kind, arguments = plain_name(name), [mapping(each) for each in value]
    if kind in WRITERS:
        paths = _argument_paths(arguments) or _patched(value)
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
        if found := next((path for key in PATHS if (path := path_of(arguments.get(key)))), None):
            return [found]
        if several := [path for each in sequence(arguments.get("paths")) if (path := path_of(each))]:
            return several
    return []


def _patched(values: tuple[Any, ...]) -> list[str]:
    texts = [
        words
        for each in values
        for words in (each, mapping(each).get("patch"), mapping(each).get("input"))
        if isinstance(words, str)
    ]
    return list(dict.fromkeys(path for words in texts for path in patched_paths(words)))


def _argument_lines(objects: list[dict[str, Any]]) -> tuple[int | None, int | None]:
    if any(each.get(name) is True for each in objects for name in ("readEntireFile", "should_read_entire_file")):
        return None, None
    start = _first_number(objects, STARTS)
    end, limit = _first_number(objects, ENDS), _first_number(objects, ("limit",))
    if start is not None and end is None and limit is not None:
        end = start + limit - 1
    return start, end


def _first_number(objects: list[dict[str, Any]], names: tuple[str, ...]) -> int | None:
    numbers = (whole(each.get(name)) for each in objects for name in names)
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


def bubble_call(former: dict[str, Any], bubble: str | None, at: int | None) -> NativeCall:
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
        at=at,
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
        else next((found for key in SHOWN if (found := text(mapping(error).get(key)))), None)
    )
    return words or text(former.get("status"))


def _spawned(name: str, former: dict[str, Any], result: Any) -> str | None:
    """The session of a subagent that this call started."""
    if plain_name(name) not in SPAWNERS:
        return None
    result_fields, beside = mapping(None if result is UNSET else result), mapping(former.get("additionalData"))
    names = (result_fields.get("agentId"), beside.get("subagentComposerId"), beside.get("composerId"))
    return next((id for each in names if (id := text(each))), None)


def _detail(former: dict[str, Any], bubble: str | None) -> dict[str, Any] | None:
    beside = {name: former.get(name) for name in BESIDE}
    has_raw = value_in_text(former.get("rawArgs")) not in (None, "", {})
    return present(bubble=bubble, params=value_in_text(former.get("params")) if has_raw else None, **beside)


def code_blocks(bubble: dict[str, Any]) -> list[dict[str, Any]]:
    return [mapping(block) for block in sequence(bubble.get("codeBlocks"))]
