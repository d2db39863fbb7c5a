"""What became of a tool call: its output, and the events that tell more of it than the model was given.

A non-zero exit code alone is no error: programs use it to say "nothing found". A call failed if Codex itself says so:
`status` of an end event is failed, `success` is false, an MCP result is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from msgspec import UNSET

from weft.exchange.importers.codex.kinds import Entry
from weft.exchange.importers.codex.responses import Call
from weft.exchange.importers.codex.values import duration_ms, object_text, whole
from weft.exchange.importers.values import mapping, sequence, text
from weft.kernel.enums import FileKind, ToolCallStatus
from weft.ledger.model import FileNote

_EXIT = re.compile(r"(?:Process exited with code|Exit code:) (-?\d{1,10})\b")
_WALL = re.compile(r"Wall time:? (\d{1,9}(?:\.\d{1,9})?) seconds")
_META = re.compile(r'"exit_code":\s*(-?\d{1,10})')
_TOOK = re.compile(r'"duration_seconds":\s*(\d{1,9}(?:\.\d{1,9})?)')
_UPDATED = "Success. Updated the following files:\n"
_PATCHED = re.compile(r"^\*\*\* (?:Add File|Update File|Delete File|Move to): (.{1,4096})$", re.MULTILINE)
_HUNK = re.compile(r"^@@ -\d{1,9}(?:,\d{1,9})? \+(\d{1,9})(?:,(\d{1,9}))? @@", re.MULTILINE)
_ENDS = {"failed": ToolCallStatus.ERROR, "declined": ToolCallStatus.CANCELED}
_COMMON = frozenset({"type", "call_id", "turn_id", "id"})
_REPEATED = _COMMON | {"stdout", "stderr", "formatted_output", "aggregated_output", "result"}
_LOOK = 400


def take_output(call: Call, entry: Entry, at: int | None) -> None:
    """The output item: what the model was given back."""
    item = entry.value
    output = item.get("tools") if entry.name == "tool_search_output" else item.get("output", item.get("content"))
    if call.result is not UNSET:
        call.detail.setdefault("further_outputs", []).append(output)
        call.plain.append(["output", text(item.get("id")), output])
        return
    call.result, call.done = output, at
    call.plain.append(["output", text(item.get("id")), output])
    words = output_text(output)
    if words.startswith("aborted by user") or words == "aborted":
        call.status = ToolCallStatus.INTERRUPTED
    elif mapping(output).get("success") is False:
        call.status = ToolCallStatus.ERROR
    call.status = call.status or ToolCallStatus.OK
    _measure(call, words)


def output_text(output: Any) -> str:
    """The text of an output, whatever form it has."""
    if isinstance(output, str):
        return output
    if isinstance(output, dict):
        return next((found for key in ("content", "output", "text") if (found := text(output.get(key)))), "")
    return "\n".join(found for block in sequence(output) if (found := text(mapping(block).get("text"))))


def _measure(call: Call, words: str) -> None:
    """Exit code and time, which the output's first lines tell, in older versions a JSON object around it."""
    if words.startswith('{"output"'):
        exit_code, took = _META.search(words[-_LOOK:]), _TOOK.search(words[-_LOOK:])
    else:
        exit_code, took = _EXIT.search(words[:_LOOK]), _WALL.search(words[:_LOOK])
    if exit_code:
        call.detail.setdefault("exit_code", int(exit_code[1]))
    if took:
        call.detail.setdefault("duration_ms", round(float(took[1]) * 1000))


def _written(call: Call, words: str, cwd: str | None) -> None:
    """`apply_patch` lists what it changed; where it only says that it did, its patch names the files."""
    if "Success. Updated" in words:
        _updated(call, words, cwd)
    elif call.name == "apply_patch" and call.status == ToolCallStatus.OK and not words:
        patch = call.arguments if isinstance(call.arguments, str) else text(mapping(call.arguments).get("input"))
        for path in _PATCHED.findall(patch or ""):
            _note(call, FileKind.WRITTEN, path, cwd)


def _updated(call: Call, words: str, cwd: str | None) -> None:
    told = text(mapping(object_text(words)).get("output")) or words
    folder = text(mapping(call.arguments).get("workdir")) or cwd
    for line in told.partition(_UPDATED)[2].splitlines():
        if line[:2] not in ("A ", "M ", "D "):
            break
        _note(call, FileKind.WRITTEN, line[2:], folder)


def _note(call: Call, kind: FileKind, path: Any, cwd: str | None, lines: tuple[int, int] | None = None) -> None:
    found = text(path)
    if found is not None:
        start, end = lines or (None, None)
        call.files.append(FileNote(kind=kind, path=full_path(found, cwd), line_start=start, line_end=end))


def full_path(path: str, cwd: str | None) -> str:
    """As written, under the folder it was written in."""
    is_full = path.startswith(("/", "~", "\\")) or path[1:3] in (":\\", ":/") or "://" in path[:12]
    return path if is_full or not cwd else f"{cwd.rstrip('/')}/{path.removeprefix('./')}"


def take_event(call: Call, entry: Entry, is_own: bool) -> None:
    """An end event. One of a call that ran inside another (`exec-…`) tells of files, not of the outer call's end."""
    event = entry.value
    told = {name: fact for name, fact in event.items() if name not in _REPEATED and fact is not None}
    if not is_own and (shown := text(event.get("aggregated_output"))) is not None:
        told["aggregated_output"] = shown
    call.detail.setdefault("events", []).append({"event": entry.name, **told})
    taker = _TAKERS.get(entry.name)
    if taker is not None:
        taker(call, event, is_own)


def take_end(call: Call, entry: Entry) -> None:
    """The one record of a printed run that holds a call's output and how it went."""
    item = entry.value
    output = item.get("aggregated_output", item.get("result"))
    status = text(item.get("status"))
    call.status = ToolCallStatus.OK if status in (None, "completed") else _ENDS.get(status)
    if output is not None:
        call.result = output
        call.plain.append(["output", None, output])
    take_event(call, entry, is_own=True)


def _end(call: Call, event: dict[str, Any], is_own: bool) -> None:
    if not is_own:
        return
    status = _ENDS.get((text(event.get("status")) or "").lower())
    if status is None and event.get("success") is False:
        status = ToolCallStatus.ERROR
    if status is not None:
        call.status = status
    took = duration_ms(event.get("duration"))
    if took is not None:
        call.detail["duration_ms"] = took


def _exec(call: Call, event: dict[str, Any], is_own: bool) -> None:
    _end(call, event, is_own)
    exit_code = whole(event.get("exit_code"))
    if is_own and exit_code is not None:
        call.detail["exit_code"] = exit_code
    cwd = text(event.get("cwd"))
    for command in sequence(event.get("parsed_cmd")):
        if mapping(command).get("type") == "read":
            _note(call, FileKind.READ, command.get("path") or command.get("name"), cwd)


def _patch(call: Call, event: dict[str, Any], is_own: bool) -> None:
    _end(call, event, is_own)
    failed = event.get("success") is False or (text(event.get("status")) or "").lower() in _ENDS
    if failed:
        return
    for path, change in mapping(event.get("changes")).items():
        _change(call, path, mapping(change))


def _change(call: Call, path: str, change: dict[str, Any]) -> None:
    moved = text(change.get("move_path"))
    diff = text(change.get("unified_diff"))
    if moved is not None:
        _note(call, FileKind.WRITTEN, path, None)
    target = moved or path
    hunks = [(int(hunk[1]), int(hunk[2] or 1)) for hunk in _HUNK.finditer(diff)] if diff else []
    for start, count in hunks:
        _note(call, FileKind.WRITTEN, target, None, (max(start, 1), max(start, 1) + max(count, 1) - 1))
    added = text(change.get("content")) if change.get("type") == "add" else None
    if not hunks:
        lines = (1, added.count("\n") + (not added.endswith("\n"))) if added else None
        _note(call, FileKind.WRITTEN, target, None, lines)


def _mcp(call: Call, event: dict[str, Any], is_own: bool) -> None:
    _end(call, event, is_own)
    result = mapping(event.get("result"))
    refused = result.get("Err") or event.get("error")
    failed = refused or mapping(result.get("Ok")).get("isError") is True or result.get("isError") is True
    if is_own and failed:
        call.status = ToolCallStatus.ERROR
        call.error = text(refused) or text(mapping(refused).get("message"))


def _spawn(call: Call, event: dict[str, Any], is_own: bool) -> None:
    child = text(event.get("new_thread_id"))
    if child is None and event.get("kind") == "started":
        child = text(event.get("agent_thread_id"))
    call.spawned = call.spawned or child


def _collab(call: Call, event: dict[str, Any], is_own: bool) -> None:
    _end(call, event, is_own)
    children = sequence(event.get("receiver_thread_ids"))
    if (text(event.get("tool")) or "").lower() == "spawnagent" and children:
        call.spawned = call.spawned or text(children[0])


def _image(call: Call, event: dict[str, Any], is_own: bool) -> None:
    _note(call, FileKind.WRITTEN, event.get("saved_path"), None)


def _view(call: Call, event: dict[str, Any], is_own: bool) -> None:
    _note(call, FileKind.READ, event.get("path"), None)


_TAKERS: dict[str, Callable[[Call, dict[str, Any], bool], None]] = {
    "exec_command_end": _exec,
    "commandexecution": _exec,
    "patch_apply_end": _patch,
    "filechange": _patch,
    "mcp_tool_call_end": _mcp,
    "mcptoolcall": _mcp,
    "dynamic_tool_call_response": _mcp,
    "dynamictoolcall": _mcp,
    "collab_agent_spawn_end": _spawn,
    "sub_agent_activity": _spawn,
    "subagentactivity": _spawn,
    "collabagenttoolcall": _collab,
    "image_generation_end": _image,
    "imagegeneration": _image,
    "view_image_tool_call": _view,
    "imageview": _view,
}


def settle(call: Call, cwd: str | None) -> None:
    """The last word on a call, once its turn is complete: what its output tells and no event told before."""
    words = "" if call.result is UNSET else output_text(call.result)
    if call.name == "view_image" and not call.files:
        _note(call, FileKind.READ, mapping(call.arguments).get("path"), cwd)
    if not any(note.kind == FileKind.WRITTEN for note in call.files):
        _written(call, words, cwd)
    if call.name == "spawn_agent" and call.spawned is None:
        call.spawned = text(mapping(object_text(words)).get("agent_id"))
    if call.status == ToolCallStatus.ERROR and call.error is None:
        call.error = words or None
    if call.status is not None and (call.result is UNSET or call.status != ToolCallStatus.OK):
        call.plain.append(["status", call.status, call.error])
