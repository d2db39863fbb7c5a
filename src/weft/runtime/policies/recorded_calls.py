"""Recorded tool calls as a policy would have been asked about them.

What other agents call `Bash`, `run_shell_command` or `exec_command` is the tool `shell` here, and what such a call was
used on is read from its arguments. Of a tool that is not known here the name and the arguments are given as recorded,
and nothing is said of what it was used on.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Mapping, Sequence
from typing import Any

from weft.kernel.permission_subjects import command_subjects, line_subjects
from weft.ledger.model import ToolCall, Turn
from weft.runtime.policies.contract import PolicyCall, PolicyContext

SHELL = "shell"
_SHELL_NAMES = (
    "shell bash exec_command local_shell local_shell_call run_shell_command run_terminal_cmd run_in_terminal "
    "execute_command run_command shell_command container.exec functions.exec"
)
_EDIT_NAMES = (
    "edit multiedit edit_file replace str_replace str_replace_based_edit_tool notebookedit apply_diff apply_patch"
)
_NAMES = {
    SHELL: _SHELL_NAMES,
    "read": "read read_file view read_many_files notebookread",
    "write": "write write_file create create_file write_to_file",
    "edit": _EDIT_NAMES,
    "list": "list ls list_dir list_directory list_files",
    "glob": "glob file_search find_files",
    "grep": "grep grep_search search_file_content codebase_search search_files",
    "fetch_url": "fetch_url webfetch web_fetch fetch",
    "todo": "todo todowrite todo_write todoread update_plan",
}
TOOLS = {name: tool for tool, names in _NAMES.items() for name in names.split()}
"""The tools of this runtime, by what they and their like are called elsewhere, in small letters."""
READ_ONLY = frozenset({"read", "list", "glob", "grep", "todo"})
_COMMAND_FIELDS = ("cmd", "command", "script", "CommandLine")
_PATH_FIELDS = ("path", "file_path", "filePath", "absolute_path", "notebook_path", "target_file", "dir_path")
_PATCH_FIELDS = ("input", "patch", "diff")
_PATCHED_FILE = re.compile(r"^\*\*\* (?:Add File|Update File|Delete File|Move to): ([^\n]+)", re.M)
_MCP_PREFIX, _MCP_JOINT = "mcp__", "__"


def policy_call(call: ToolCall, turn: Turn, agent: str | None) -> PolicyCall:
    """Without the ids of session and turn, so that the same use of a tool is the same call wherever it was made."""
    name = tool_name(call)
    arguments = call.arguments
    context = PolicyContext(
        agent=agent,
        workspace=turn.workspace_path,
        toolset=turn.toolset_name,
        read_only=name in READ_ONLY,
        subjects=call_subjects(name, arguments, turn.workspace_path),
    )
    return PolicyCall(name=name, arguments=arguments, context=context)


def tool_name(call: ToolCall) -> str:
    """As this runtime names it: `SERVER/TOOL` for the tool of a server."""
    if call.server is not None:
        return f"{call.server}/{call.name}"
    if call.name.startswith(_MCP_PREFIX):
        server, joint, tool = call.name.removeprefix(_MCP_PREFIX).partition(_MCP_JOINT)
        if joint:
            return f"{server}/{tool}"
    return TOOLS.get(call.name.lower(), call.name)


def call_subjects(tool: str, arguments: Any, workspace: str | None) -> tuple[str, ...] | None:
    """What the call was used on, as far as its arguments tell; None where they do not."""
    fields: Mapping[str, Any] = arguments if isinstance(arguments, Mapping) else {}
    if tool == SHELL:
        return _shell_subjects(_first(fields, _COMMAND_FIELDS))
    if tool == "fetch_url":
        url = fields.get("url")
        return (url,) if isinstance(url, str) else None
    if tool not in TOOLS.values():
        return None
    path = _first(fields, _PATH_FIELDS)
    paths = [path] if isinstance(path, str) else _patched_files(arguments, fields)
    if paths:
        return tuple(_in_workspace(path, workspace) for path in paths)
    return () if tool in READ_ONLY else None


def _patched_files(arguments: Any, fields: Mapping[str, Any]) -> list[str]:
    """The files that a patch in the form of Codex names."""
    patch = arguments if isinstance(arguments, str) else _first(fields, _PATCH_FIELDS)
    return list(dict.fromkeys(map(str.strip, _PATCHED_FILE.findall(patch)))) if isinstance(patch, str) else []


def _shell_subjects(command: Any) -> tuple[str, ...] | None:
    if isinstance(command, str):
        return line_subjects(command)
    if isinstance(command, Sequence) and command and all(isinstance(word, str) for word in command):
        words = [str(word) for word in command]
        is_login_line = len(words) == 3 and words[1] == "-lc"  # as Codex has a shell run every line
        return line_subjects(words[2]) if is_login_line else command_subjects(words)
    return None


def _first(fields: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((fields[name] for name in names if name in fields), None)


def _in_workspace(path: str, workspace: str | None) -> str:
    """Relative to the workspace, where it lies there."""
    if workspace is None or not os.path.isabs(path):
        return path
    relative = os.path.relpath(path, workspace)
    return path if relative.startswith("..") else relative
