"""The lines that Codex prints, each as the entries that a rollout has for the same."""

from __future__ import annotations

from typing import Any

from weft.exchange.importers.codex.kinds import EVENTS as ROLLOUT_EVENTS
from weft.exchange.importers.codex.kinds import Entry, Sort
from weft.exchange.importers.codex.values import present
from weft.exchange.importers.jsonl import Record
from weft.exchange.importers.values import mapping, sequence, text

OPENINGS = frozenset({"thread.started", "thread.resumed", "session.created"})
MESSAGES = frozenset({"agent_message", "assistant_message", "reasoning"})
NOTES = frozenset({"todo_list", "plan", "error"})
CALLS = {
    "command_execution": ("command",),
    "file_change": ("changes",),
    "mcp_tool_call": ("arguments",),
    "collab_tool_call": ("prompt", "receiver_thread_ids"),
    "web_search": ("query", "action"),
}
"""Items that are tool calls, and what of them is an argument."""
_ENDS = {"collab_tool_call": "collabagenttoolcall"}
_BEGINNINGS = {
    "exec_command_begin": ("exec_command", ("command", "cwd")),
    "patch_apply_begin": ("apply_patch", ("changes",)),
    "mcp_tool_call_begin": ("", ()),
    "web_search_begin": ("web_search", ("query",)),
}
_CLOSINGS = frozenset({"exec_command_end", "patch_apply_end", "mcp_tool_call_end", "web_search_end"})
EVENTS = ROLLOUT_EVENTS.keys() | _BEGINNINGS.keys()
_COUNTED_FLAT = "input_tokens"


def thread_of(value: dict[str, Any]) -> str | None:
    """The thread that a run is of, where this line tells."""
    if text(value.get("type")) in OPENINGS:
        return text(value.get("thread_id")) or text(value.get("session_id"))
    message = mapping(value.get("msg"))
    return text(message.get("session_id")) if message.get("type") == "session_configured" else None


class Lines:
    """The lines of one run, in their order."""

    def __init__(self, session: str, thread: str | None) -> None:
        self._session, self._thread = session, thread
        self._begun: set[str] = set()
        self._patches: dict[str, Any] = {}
        self._settings: dict[str, Any] = {}

    def entries(self, record: Record) -> list[Entry]:
        """The first stands for the line where records are counted."""
        value, top = record.value, record.value.get("type")
        if isinstance(value.get("msg"), dict):
            found = self._event(record, value["msg"])
        elif not isinstance(top, str):
            found = self._opening(record)
        elif top.startswith("item.") and isinstance(value.get("item"), dict):
            found = self._item(record, top.removeprefix("item."), value["item"])
        else:
            found = self._line(record, top)
        for extra in found[1:]:
            extra.kind = ""
        return found

    def _meta(self, record: Record, kind: str, told: dict[str, Any]) -> Entry:
        told = present(session_id=self._thread, cwd=told.get("cwd"), timestamp=told.get("timestamp"))
        return _entry(record, kind, Sort.META, "session", {"id": self._session, **told})

    def _line(self, record: Record, top: str) -> list[Entry]:
        value = record.value
        if top in OPENINGS:
            return [self._meta(record, top, value)]
        if top == "turn.completed":
            return [_entry(record, top, Sort.END, top, {}), _entry(record, top, Sort.USAGE, top, value)]
        sort = {"turn.started": Sort.START, "turn.failed": Sort.END, "error": Sort.ERROR}.get(top, Sort.UNKNOWN)
        return [_entry(record, top[:80], sort, top, value)]

    def _opening(self, record: Record) -> list[Entry]:
        """Before there were threads: the settings of a run, and its prompt."""
        value = record.value
        if isinstance(value.get("prompt"), str):
            said = {"role": "user", "content": [{"type": "input_text", "text": value["prompt"]}]}
            return [_entry(record, "prompt", Sort.USER, "message", said)]
        if "workdir" not in value:
            return [_entry(record, "untyped", Sort.UNKNOWN, "untyped", value)]
        names = {"workdir": "cwd", "provider": "model_provider", "approval": "approval_policy"}
        names |= {"sandbox": "sandbox_policy"}
        self._settings = {names.get(name, name): fact for name, fact in value.items()}
        return [_entry(record, "settings", Sort.SETTINGS, "turn_context", self._settings)]

    def _item(self, record: Record, stage: str, item: dict[str, Any]) -> list[Entry]:
        name = text(item.get("type")) or text(item.get("item_type")) or "untyped"
        kind, is_whole = f"item.{stage}/{name}"[:80], stage == "completed"
        if name in CALLS:
            return self._call(record, kind, name, item, is_whole)
        if name in MESSAGES or name in NOTES:
            sort, told = _said(name, item.get("text")) if name in MESSAGES else (Sort.NOTE, item)
            return [_entry(record, kind, sort if is_whole else Sort.SILENT, name, told)]
        return [_entry(record, kind, Sort.UNKNOWN, name, item)]

    def _call(self, record: Record, kind: str, name: str, item: dict[str, Any], is_whole: bool) -> list[Entry]:
        """An item begins and ends, or ends without having begun."""
        id, found = text(item.get("id")) or "", []
        given = {part: item[part] for part in CALLS[name] if item.get(part) is not None}
        if id not in self._begun:
            self._begun.add(id)
            told = {"call_id": id, "name": text(item.get("tool")) or name, "namespace": item.get("server")}
            told["arguments"] = item.get("arguments") if name == "mcp_tool_call" else given
            found.append(_entry(record, kind, Sort.CALL, name, told))
        if is_whole:
            self._begun.discard(id)
            rest = {part: fact for part, fact in item.items() if part not in given and part != "item_type"}
            if name == "file_change":
                rest["changes"] = _by_path(item.get("changes"))
            if name == "collab_tool_call":
                rest |= present(tool=(text(item.get("tool")) or "").replace("_", ""))
                rest |= present(receiver_thread_ids=item.get("receiver_thread_ids"))
            end = _ENDS.get(name, name.replace("_", ""))
            found.append(_entry(record, kind, Sort.SETTLED, end, {**rest, "call_id": id}))
        return found or [_entry(record, kind, Sort.SILENT, name, item)]

    def _event(self, record: Record, event: dict[str, Any]) -> list[Entry]:
        """What a rollout has as `event_msg`; its end is not printed, so that its beginning says nothing."""
        name = text(event.get("type")) or "untyped"
        kind = f"msg/{name}"[:80]
        if name == "session_configured":
            told = self._settings | present(model=event.get("model"))
            settings = _entry(record, kind, Sort.SETTINGS, "turn_context", told)
            return [self._meta(record, kind, event), settings]
        if name in ("agent_message", "agent_reasoning"):
            sort, told = _said(name, event.get("message") or event.get("text"))
            return [_entry(record, kind, sort, name, told)]
        if name in _BEGINNINGS:
            return [self._begin(record, kind, name, event)]
        if name in _CLOSINGS:
            return [self._end(record, kind, name, event)]
        if name == "token_count" and _COUNTED_FLAT in event:
            event = {"info": {"last_token_usage": event}}
        sort = Sort.SILENT if name in ("task_started", "turn_started") else ROLLOUT_EVENTS.get(name, Sort.UNKNOWN)
        return [_entry(record, kind, sort, name, event)]

    def _begin(self, record: Record, kind: str, name: str, event: dict[str, Any]) -> Entry:
        tool, parts = _BEGINNINGS[name]
        asked = mapping(event.get("invocation"))
        id = text(event.get("call_id")) or ""
        told: dict[str, Any] = {"call_id": id, "name": text(asked.get("tool")) or tool}
        if name == "patch_apply_begin":
            self._patches[id] = event.get("changes")
        given = {part: event[part] for part in parts if event.get(part) is not None}
        told |= {"namespace": asked.get("server"), "arguments": asked.get("arguments") if asked else given}
        return _entry(record, kind, Sort.CALL, name, told)

    def _end(self, record: Record, kind: str, name: str, event: dict[str, Any]) -> Entry:
        shown = [event.get(part) for part in ("aggregated_output", "formatted_output")]
        shown.append("".join(filter(None, (text(event.get("stdout")), text(event.get("stderr"))))) or None)
        told = {part: fact for part, fact in event.items() if part != "invocation"}
        told |= present(aggregated_output=next((words for words in shown if isinstance(words, str)), None))
        if name == "patch_apply_end":
            told |= present(changes=self._patches.pop(text(event.get("call_id")) or "", None))
        return _entry(record, kind, Sort.SETTLED, name, told)


def _entry(record: Record, kind: str, sort: Sort, name: str, value: dict[str, Any]) -> Entry:
    return Entry(record.line, record.offset, record.end, kind, sort, name, value)


def _said(name: str, words: Any) -> tuple[Sort, dict[str, Any]]:
    if name in ("reasoning", "agent_reasoning"):
        return Sort.THOUGHT, {"summary": words}
    return Sort.SAID, {"role": "assistant", "content": words}


def _by_path(changes: Any) -> dict[str, Any]:
    """As a rollout tells them: an update as a diff, a file that was added or deleted as its text."""
    found: dict[str, Any] = {}
    for change in map(mapping, sequence(changes)):
        kind = text(change.get("kind")) or text(mapping(change.get("kind")).get("type"))
        if (path := text(change.get("path"))) is not None:
            diff = text(change.get("diff"))
            found[path] = present(type=kind, **{"unified_diff" if kind == "update" else "content": diff})
    return found
