"""Cursor's tools: their numbers, which of them touch files, and where their arguments name these."""

from __future__ import annotations

import re
from typing import Any

from weft.exchange.importers.cursor.values import path_of
from weft.exchange.importers.values import mapping, sequence, whole
from weft.kernel.enums import FileKind
from weft.ledger.model import FileNote

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
PATCHED = re.compile(r"^\*\*\* (?:(?:Add|Update|Delete) File|Move to): (.+)$", re.MULTILINE)


def plain(name: str) -> str:
    """A tool under whichever of its spellings: `read_file_v2`, `ReadFile`."""
    return re.sub(r"[^a-z]|_v\d+$", "", re.sub(r"_?[vV]\d+$", "", name).lower())


def name_of(tool: Any) -> str | None:
    number = whole(tool)
    return None if number is None or number <= 0 else NAMES.get(number, f"tool:{number}")


def files(name: str, *told: Any) -> tuple[FileNote, ...]:
    """What a call that went well did to files, from its arguments as the model or Cursor wrote them."""
    kind, arguments = plain(name), [mapping(each) for each in told]
    if kind in WRITERS:
        paths = _paths(arguments) or _patched(told)
        return tuple(FileNote(kind=FileKind.WRITTEN, path=path) for path in paths)
    if kind in READERS:
        start, end = _lines(arguments)
        return tuple(
            FileNote(kind=FileKind.READ, path=path, line_start=start, line_end=end) for path in _paths(arguments)
        )
    if kind in SEARCHERS:
        return tuple(FileNote(kind=FileKind.REFERENCED, path=path) for path in _paths(arguments))
    return ()


def _paths(told: list[dict[str, Any]]) -> list[str]:
    """The first that is named; several only where a call names several files at once."""
    for arguments in told:
        if found := next((path for key in PATHS if (path := path_of(arguments.get(key)))), None):
            return [found]
        if several := [path for each in sequence(arguments.get("paths")) if (path := path_of(each))]:
            return several
    return []


def _patched(told: tuple[Any, ...]) -> list[str]:
    texts = [
        words
        for each in told
        for words in (each, mapping(each).get("patch"), mapping(each).get("input"))
        if isinstance(words, str)
    ]
    return list(dict.fromkeys(path.strip() for words in texts for path in PATCHED.findall(words)))


def _lines(told: list[dict[str, Any]]) -> tuple[int | None, int | None]:
    if any(each.get(name) is True for each in told for name in ("readEntireFile", "should_read_entire_file")):
        return None, None
    start = _first(told, STARTS)
    end, limit = _first(told, ENDS), _first(told, ("limit",))
    if start is not None and end is None and limit is not None:
        end = start + limit - 1
    return start, end


def _first(told: list[dict[str, Any]], names: tuple[str, ...]) -> int | None:
    found = (whole(each.get(name)) for each in told for name in names)
    return next((number for number in found if number is not None and number > 0), None)
