"""A provider's response and its tool calls, gathered from the items that Codex writes one by one.

Codex names no response. One is an unbroken run of what a model gives (messages, reasoning, calls): a tool result, any
message of another role, a compaction or the turn's end begins another. This rests on the items alone, so a copy without
reports of usage is grouped alike; over the corpus no run ever held more than one report.

A call's outcome is its output, and the events that tell more of it than the model was given. A non-zero exit code alone
is no error: programs use it to say "nothing found". A call failed if Codex itself says so: `status` of an end event is
failed, `success` is false, an MCP result is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from msgspec import UNSET, Struct, field

from weft.exchange.importers.codex.contents import Content, content_of, thought_parts, thoughts_of
from weft.exchange.importers.codex.entries import Entry
from weft.exchange.importers.port import NativeCall, NativeMessage, Tokens
from weft.exchange.importers.records.builder import PendingCall
from weft.exchange.importers.records.file_notes import hunk_lines, patched_paths
from weft.exchange.importers.records.values import mapping, object_in_text, sequence, text, whole, without_none
from weft.kernel.enums import FileKind, MessageRole, ToolCallStatus
from weft.ledger.model import FileNote, Part

_MESSAGE_FIELDS = frozenset(
    "type id role content phase status timestamp internal_chat_message_metadata_passthrough metadata".split()
)


class Call(PendingCall, kw_only=True):
    """A tool call while its outcome is still coming in; its detail is an object."""

    identity: list[Any]
    """Kind, ids, name and arguments as written, then its output."""

    def finished(self) -> NativeCall:
        self.detail, self.files = self.detail or None, tuple(dict.fromkeys(self.files))
        return super().finished()


_NAMES = {
    "local_shell_call": "local_shell",
    "web_search_call": "web_search",
    "tool_search_call": "tool_search",
    "image_generation_call": "image_generation",
}
_ITEM_STATUSES = {
    "completed": ToolCallStatus.OK,
    "failed": ToolCallStatus.ERROR,
    "incomplete": ToolCallStatus.INTERRUPTED,
}


def call_of(entry: Entry, at: int | None) -> Call:
    item = entry.value
    item_id, call_id = text(item.get("id")), text(item.get("call_id"))
    name = text(item.get("name")) or _NAMES.get(entry.name, "")
    raw = _raw_arguments(entry.name, item)
    namespace = text(item.get("namespace"))
    call = Call(
        id=call_id or item_id or "",
        name=name,
        arguments=object_in_text(raw) if isinstance(raw, str) and entry.name != "custom_tool_call" else raw,
        identity=["call", entry.name, item_id, call_id, namespace, name, raw],
        at=at,
        detail=without_none(namespace=namespace),
    )
    if entry.name in ("web_search_call", "image_generation_call"):
        _settle_at_once(call, item)
    return call


def _raw_arguments(kind: str, item: dict[str, Any]) -> Any:
    if kind == "custom_tool_call":
        return item.get("input")
    if kind in ("local_shell_call", "web_search_call"):
        return item.get("action")
    if kind == "image_generation_call":
        return without_none(revised_prompt=text(item.get("revised_prompt")))
    return item.get("arguments")


def _settle_at_once(call: Call, item: dict[str, Any]) -> None:
    """The provider ran it by itself: no output item follows."""
    call.status = _ITEM_STATUSES.get(text(item.get("status")) or "")
    if text(item.get("result")) is not None:
        call.result = item["result"]
    call.identity.append([call.status, None if call.result is UNSET else call.result])


class Response(Struct, kw_only=True):
    """A run of a model's items."""

    at: int | None
    literal_time: str | None
    model: str | None
    provider: str | None
    plain: list[Any]
    """Its identity, one list that grows with it."""
    native: str | None = None
    parts: list[Part] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)
    tokens: Tokens | None = None
    thought: list[str] = field(default_factory=list)
    """The texts of its last reasoning item: the next one may begin by repeating them."""
    named_by_text: bool = False

    def say(self, entry: Entry) -> None:
        item = entry.value
        content = content_of(item.get("content"))
        self.add_content(content)
        self.plain.append(["message", text(item.get("id")), content.plain])
        self._name(text(item.get("id")), by_text=True)
        if (phase := text(item.get("phase"))) is not None:
            self.notes["phase"] = phase
        if strange := {key: value for key, value in item.items() if key not in _MESSAGE_FIELDS and value is not None}:
            self.notes.setdefault("fields", {}).update(strange)

    def say_event(self, words: str) -> None:
        """A text that only an event holds."""
        content = content_of(words)
        self.add_content(content)
        self.plain.append(["message", None, content.plain])

    def add_content(self, content: Content) -> None:
        self.parts += content.parts
        if content.strange:
            self.notes.setdefault("blocks", []).extend(content.strange)
        if content.sealed:
            self.notes["encrypted_letters"] = self.notes.get("encrypted_letters", 0) + content.sealed

    def think(self, entry: Entry) -> None:
        item = entry.value
        texts = thoughts_of(item)
        known = len(self.thought) if texts[: len(self.thought)] == self.thought else 0
        self.thought = texts
        self.parts += thought_parts(texts[known:])
        self.plain.append(["reasoning", text(item.get("id")), texts])
        self._name(text(item.get("id")))
        if sealed := text(item.get("encrypted_content")):
            self.notes.setdefault("encrypted_reasoning_letters", []).append(len(sealed))

    def think_event(self, texts: list[str]) -> None:
        self.parts += thought_parts(texts)
        self.plain.append(["reasoning", None, texts])

    def call(self, call: Call, item: dict[str, Any]) -> None:
        self.calls.append(call)
        self.plain.append(call.identity)
        self._name(text(item.get("id")))

    def _name(self, id: str | None, by_text: bool = False) -> None:
        """The id of its message; of its first item, where it has none."""
        if id is not None and (self.native is None or (by_text and not self.named_by_text)):
            self.native, self.named_by_text = id, by_text

    def items(self, context: dict[str, Any] | None) -> list[NativeMessage | NativeCall]:
        message = NativeMessage(
            role=MessageRole.ASSISTANT,
            parts=tuple(self.parts),
            native=self.native,
            at=self.at,
            literal_time=self.literal_time,
            model=self.model,
            provider=self.provider,
            tokens=self.tokens,
            context=context,
            metadata=self.notes or None,
        )
        return [message, *(call.finished() for call in self.calls)]


def names_of(item: dict[str, Any]) -> list[str]:
    return [name for name in (text(item.get("id")), text(item.get("call_id"))) if name is not None]


_EXIT = re.compile(r"(?:Process exited with code|Exit code:) (-?\d{1,10})\b")
_WALL = re.compile(r"Wall time:? (\d{1,9}(?:\.\d{1,9})?) seconds")
_META = re.compile(r'"exit_code":\s*(-?\d{1,10})')
_TOOK = re.compile(r'"duration_seconds":\s*(\d{1,9}(?:\.\d{1,9})?)')
_UPDATED = "Success. Updated the following files:\n"
_END_STATUSES = {"failed": ToolCallStatus.ERROR, "declined": ToolCallStatus.CANCELED}
_COMMON = frozenset({"type", "call_id", "turn_id", "id"})
_REPEATED = _COMMON | {"stdout", "stderr", "formatted_output", "aggregated_output", "result"}
_SIGN_LETTERS = 400


def duration_ms(value: Any) -> int | None:
    """A length of time as Codex writes it: `{"secs", "nanos"}`."""
    parts = mapping(value)
    secs, nanos = whole(parts.get("secs")), whole(parts.get("nanos"))
    return None if secs is None else secs * 1000 + (nanos or 0) // 1_000_000


def take_output(call: Call, entry: Entry, at: int | None) -> None:
    """The output item: what the model was given back."""
    item = entry.value
    output = item.get("tools") if entry.name == "tool_search_output" else item.get("output", item.get("content"))
    if call.result is not UNSET:
        call.detail.setdefault("further_outputs", []).append(output)
        call.identity.append(["output", text(item.get("id")), output])
        return
    call.result, call.done = output, at
    call.identity.append(["output", text(item.get("id")), output])
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
        return next((words for key in ("content", "output", "text") if (words := text(output.get(key)))), "")
    return "\n".join(words for block in sequence(output) if (words := text(mapping(block).get("text"))))


def _measure(call: Call, words: str) -> None:
    """Exit code and time, which the output's first lines tell, in older versions a JSON object around it."""
    if words.startswith('{"output"'):
        exit_code, took = _META.search(words[-_SIGN_LETTERS:]), _TOOK.search(words[-_SIGN_LETTERS:])
    else:
        exit_code, took = _EXIT.search(words[:_SIGN_LETTERS]), _WALL.search(words[:_SIGN_LETTERS])
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
        for path in patched_paths(patch or ""):
            _note_file(call, FileKind.WRITTEN, path, cwd)


def _updated(call: Call, words: str, cwd: str | None) -> None:
    output = text(mapping(object_in_text(words)).get("output")) or words
    folder = text(mapping(call.arguments).get("workdir")) or cwd
    for line in output.partition(_UPDATED)[2].splitlines():
        if line[:2] not in ("A ", "M ", "D "):
            break
        _note_file(call, FileKind.WRITTEN, line[2:], folder)


def _note_file(call: Call, kind: FileKind, path: Any, cwd: str | None, lines: tuple[int, int] | None = None) -> None:
    name = text(path)
    if name is not None:
        start, end = lines or (None, None)
        call.files += (FileNote(kind=kind, path=full_path(name, cwd), line_start=start, line_end=end),)


def full_path(path: str, cwd: str | None) -> str:
    """As written, under the folder it was written in."""
    is_full = path.startswith(("/", "~", "\\")) or path[1:3] in (":\\", ":/") or "://" in path[:12]
    return path if is_full or not cwd else f"{cwd.rstrip('/')}/{path.removeprefix('./')}"


def take_event(call: Call, entry: Entry, is_own: bool) -> None:
    """An end event. One of a call that ran inside another (`exec-…`) tells of files, not of the outer call's end."""
    event = entry.value
    new_fields = {name: fact for name, fact in event.items() if name not in _REPEATED and fact is not None}
    if not is_own and (shown := text(event.get("aggregated_output"))) is not None:
        new_fields["aggregated_output"] = shown
    call.detail.setdefault("events", []).append({"event": entry.name, **new_fields})
    taker = _TAKERS.get(entry.name)
    if taker is not None:
        taker(call, event, is_own)


def take_end(call: Call, entry: Entry) -> None:
    """The one record of a printed run that holds a call's output and how it went."""
    item = entry.value
    output = item.get("aggregated_output", item.get("result"))
    status = text(item.get("status"))
    call.status = ToolCallStatus.OK if status in (None, "completed") else _END_STATUSES.get(status)
    if output is not None:
        call.result = output
        call.identity.append(["output", None, output])
    take_event(call, entry, is_own=True)


def _end(call: Call, event: dict[str, Any], is_own: bool) -> None:
    if not is_own:
        return
    status = _END_STATUSES.get((text(event.get("status")) or "").lower())
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
            _note_file(call, FileKind.READ, command.get("path") or command.get("name"), cwd)


def _patch(call: Call, event: dict[str, Any], is_own: bool) -> None:
    _end(call, event, is_own)
    failed = event.get("success") is False or (text(event.get("status")) or "").lower() in _END_STATUSES
    if failed:
        return
    for path, change in mapping(event.get("changes")).items():
        _change(call, path, mapping(change))


def _change(call: Call, path: str, change: dict[str, Any]) -> None:
    moved = text(change.get("move_path"))
    diff = text(change.get("unified_diff"))
    if moved is not None:
        _note_file(call, FileKind.WRITTEN, path, None)
    target = moved or path
    hunks = hunk_lines(diff or "")
    for first, last in hunks:
        _note_file(call, FileKind.WRITTEN, target, None, (max(first, 1), max(last, 1)))
    added = text(change.get("content")) if change.get("type") == "add" else None
    if not hunks:
        lines = (1, added.count("\n") + (not added.endswith("\n"))) if added else None
        _note_file(call, FileKind.WRITTEN, target, None, lines)


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
    _note_file(call, FileKind.WRITTEN, event.get("saved_path"), None)


def _view(call: Call, event: dict[str, Any], is_own: bool) -> None:
    _note_file(call, FileKind.READ, event.get("path"), None)


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
        _note_file(call, FileKind.READ, mapping(call.arguments).get("path"), cwd)
    if not any(note.kind == FileKind.WRITTEN for note in call.files):
        _written(call, words, cwd)
    if call.name == "spawn_agent" and call.spawned is None:
        call.spawned = text(mapping(object_in_text(words)).get("agent_id"))
    if call.status == ToolCallStatus.ERROR and call.error is None:
        call.error = words or None
    if call.status is not None and (call.result is UNSET or call.status != ToolCallStatus.OK):
        call.identity.append(["status", call.status, call.error])
