"""The records of a rollout as entries: one table for every kind that Codex has written, in all three generations.

A: one JSON file, `{"session": …, "items": [ResponseItem]}`. B: JSON lines, the first of them the session, the rest bare
ResponseItems and `record_type` lines. C: JSON lines `{"timestamp", "type", "payload"}`. All become the same entries.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from enum import IntEnum, auto
from hashlib import sha256
from typing import Any

from msgspec import Struct

from weft.exchange.importers.limits import SOURCE_LIMITS
from weft.exchange.importers.port import Report, Source
from weft.exchange.importers.records.jsonl import BOM, LINE_LIMIT, Reached, first_objects, records
from weft.exchange.importers.records.values import canonical_escaped, json_fault, mapping, sequence, text
from weft.kernel.foreign_input import check_json


class Sort(IntEnum):
    """What an entry does to the turn that it belongs to."""

    META = auto()
    SETTINGS = auto()
    START = auto()
    END = auto()
    ABORT = auto()
    PROMPT_EVENT = auto()
    """Tells that a person wrote a prompt; the prompt itself is a USER entry beside it."""
    USER = auto()
    NOTICE = auto()
    """A message of the user's role that something else than a person wrote for the agent to act on."""
    INJECTED = auto()
    """What Codex put beside a prompt: rules, environment, skills."""
    AGENT = auto()
    ANSWER_TEXT = auto()
    THOUGHT = auto()
    CALL = auto()
    ANSWER_TEXT_EVENT = auto()
    THOUGHT_EVENT = auto()
    OUTPUT = auto()
    TOOL_TEXT = auto()
    OUTCOME = auto()
    SETTLED = auto()
    """The end of a call with all that is told of it, as Codex prints it."""
    TOKENS = auto()
    USAGE = auto()
    COMPACTED = auto()
    COMPACTED_NOTE = auto()
    ROLLBACK = auto()
    ERROR = auto()
    TITLE = auto()
    WORLD = auto()
    TOOLS = auto()
    NOTE = auto()
    """Kept with the turn as it is."""
    SILENT = auto()
    """Known, and says nothing that a turn holds."""
    UNKNOWN = auto()


ANSWERS = frozenset({Sort.ANSWER_TEXT, Sort.THOUGHT, Sort.CALL})
"""What a provider's response consists of."""

TOP = {
    "session_meta": Sort.META,
    "turn_context": Sort.SETTINGS,
    "compacted": Sort.COMPACTED,
    "world_state": Sort.WORLD,
    "inter_agent_communication": Sort.AGENT,
    "inter_agent_communication_metadata": Sort.SILENT,
    "token_usage_record": Sort.USAGE,
    "security_risk_score": Sort.NOTE,
    "realtime_item": Sort.SILENT,
}
ITEMS = {
    "reasoning": Sort.THOUGHT,
    "function_call": Sort.CALL,
    "custom_tool_call": Sort.CALL,
    "local_shell_call": Sort.CALL,
    "web_search_call": Sort.CALL,
    "tool_search_call": Sort.CALL,
    "image_generation_call": Sort.CALL,
    "function_call_output": Sort.OUTPUT,
    "custom_tool_call_output": Sort.OUTPUT,
    "mcp_tool_call_output": Sort.OUTPUT,
    "local_shell_call_output": Sort.OUTPUT,
    "tool_search_output": Sort.OUTPUT,
    "agent_message": Sort.AGENT,
    "additional_tools": Sort.TOOLS,
    "ghost_snapshot": Sort.SILENT,
    "compaction": Sort.SILENT,
    "compaction_summary": Sort.SILENT,
    "compaction_trigger": Sort.SILENT,
    "context_compaction": Sort.SILENT,
    "other": Sort.SILENT,
}
EVENTS = {
    "task_started": Sort.START,
    "turn_started": Sort.START,
    "task_complete": Sort.END,
    "turn_complete": Sort.END,
    "turn_aborted": Sort.ABORT,
    "user_message": Sort.PROMPT_EVENT,
    "agent_message": Sort.ANSWER_TEXT_EVENT,
    "agent_reasoning": Sort.THOUGHT_EVENT,
    "agent_reasoning_raw_content": Sort.THOUGHT_EVENT,
    "agent_reasoning_section_break": Sort.SILENT,
    "token_count": Sort.TOKENS,
    "exec_command_end": Sort.OUTCOME,
    "patch_apply_end": Sort.OUTCOME,
    "mcp_tool_call_end": Sort.OUTCOME,
    "web_search_end": Sort.OUTCOME,
    "image_generation_end": Sort.OUTCOME,
    "view_image_tool_call": Sort.OUTCOME,
    "dynamic_tool_call_request": Sort.OUTCOME,
    "dynamic_tool_call_response": Sort.OUTCOME,
    "collab_agent_spawn_end": Sort.OUTCOME,
    "collab_agent_interaction_end": Sort.OUTCOME,
    "collab_waiting_end": Sort.OUTCOME,
    "collab_close_end": Sort.OUTCOME,
    "collab_resume_end": Sort.OUTCOME,
    "sub_agent_activity": Sort.OUTCOME,
    "guardian_assessment": Sort.OUTCOME,
    "context_compacted": Sort.COMPACTED_NOTE,
    "thread_rolled_back": Sort.ROLLBACK,
    "error": Sort.ERROR,
    "stream_error": Sort.NOTE,
    "warning": Sort.NOTE,
    "thread_name_updated": Sort.TITLE,
    "thread_settings_applied": Sort.SETTINGS,
    "thread_goal_updated": Sort.NOTE,
    "entered_review_mode": Sort.NOTE,
    "exited_review_mode": Sort.NOTE,
    "plan_update": Sort.NOTE,
    "turn_diff": Sort.NOTE,
    "undo_completed": Sort.SILENT,
    "background_event": Sort.SILENT,
    "shutdown_complete": Sort.SILENT,
    "session_configured": Sort.SILENT,
}
THREAD_ITEMS = {
    "usermessage": Sort.PROMPT_EVENT,
    "agentmessage": Sort.ANSWER_TEXT_EVENT,
    "reasoning": Sort.THOUGHT_EVENT,
    "commandexecution": Sort.OUTCOME,
    "filechange": Sort.OUTCOME,
    "mcptoolcall": Sort.OUTCOME,
    "dynamictoolcall": Sort.OUTCOME,
    "collabagenttoolcall": Sort.OUTCOME,
    "subagentactivity": Sort.OUTCOME,
    "websearch": Sort.OUTCOME,
    "imageview": Sort.OUTCOME,
    "imagegeneration": Sort.OUTCOME,
    "contextcompaction": Sort.COMPACTED_NOTE,
    "plan": Sort.NOTE,
    "hookprompt": Sort.NOTE,
    "sleep": Sort.NOTE,
    "enteredreviewmode": Sort.NOTE,
    "exitedreviewmode": Sort.NOTE,
    "extension": Sort.NOTE,
}
"""Items of `item_completed`, which the newest history writes in place of the events."""

INJECTIONS = (
    "# agents.md instructions",
    "<environment_context>",
    "<user_instructions>",
    "<instructions>",
    "<permissions instructions>",
    "<collaboration_mode>",
    "<model_switch>",
    "<multi_agent_mode>",
    "<personality_spec>",
    "<realtime_conversation>",
    "<recommended_plugins>",
    "<plugins_instructions>",
    "<skills_instructions>",
    "<apps_instructions>",
    "<app-context>",
    "<skill>",
    "<goal_context>",
    "<codex_internal_context",
    "<additional_context",
    "<extension_context",
    "<context_window",
    "<token_budget",
    "<rollout_budget>",
    "<turn_aborted>",
)
"""How the texts begin that Codex puts beside a prompt in the user's role, in small letters."""
NOTICES = ("<subagent_notification>", "<user_shell_command>", "<hook_prompt")
_NAME = 80
"""Letters of a kind that are shown."""
_LONGEST = max(map(len, (*INJECTIONS, *NOTICES)))


class Entry(Struct, gc=False):
    """One record: where it lies, what it is, and its payload."""

    line: int
    offset: int
    end: int
    kind: str
    """As the report counts it; empty where another entry of the same record is counted."""
    sort: Sort
    name: str
    """The payload's own type."""
    value: dict[str, Any]
    turn: str | None = None
    at: Any = None
    """Its time as written."""
    ordinal: Any = None


def entry_of(line: int, offset: int, end: int, record: dict[str, Any]) -> Entry:
    """An entry of a record of generation B or C, told apart by its own shape."""
    top, payload = record.get("type"), record.get("payload")
    if not isinstance(top, str):
        return _untyped(line, offset, end, record)
    if not isinstance(payload, dict):
        bare = top == "response_item" or top in ITEMS or top == "message"
        if not bare:
            return Entry(line, offset, end, top[:_NAME], Sort.UNKNOWN, top, record)
        entry = item_entry(line, offset, end, record)
        entry.at = record.get("timestamp")
        return entry
    if top == "response_item":
        entry = item_entry(line, offset, end, payload)
        entry.kind = f"response_item/{entry.kind}"[:_NAME]
    elif top == "event_msg":
        entry = _event(line, offset, end, payload)
    else:
        sort = TOP.get(top, Sort.UNKNOWN)
        entry = Entry(line, offset, end, top[:_NAME], sort, top, payload, text(payload.get("turn_id")))
    entry.at = record.get("timestamp") or payload.get("timestamp")
    entry.ordinal = record.get("ordinal")
    return entry


def _untyped(line: int, offset: int, end: int, record: dict[str, Any]) -> Entry:
    """The first line of generation B, and its lines of state."""
    if "record_type" in record:
        name = f"record_type/{record['record_type']!s:.40}"
        known = record["record_type"] == "state"
        return Entry(line, offset, end, name, Sort.SILENT if known else Sort.UNKNOWN, name, record)
    if text(record.get("id")) and "timestamp" in record:
        return Entry(line, offset, end, "session", Sort.META, "session", record, at=record.get("timestamp"))
    return Entry(line, offset, end, "untyped", Sort.UNKNOWN, "untyped", record)


def item_entry(line: int, offset: int, end: int, item: dict[str, Any]) -> Entry:
    """A ResponseItem, the same in all generations."""
    name = item.get("type")
    if not isinstance(name, str) or name == "response_item":
        name = "message" if isinstance(item.get("role"), str) else "untyped"
    sort = _message(item) if name == "message" else ITEMS.get(name, Sort.UNKNOWN)
    return Entry(line, offset, end, name[:_NAME], sort, name, item, _turn_of_item(item))


def _turn_of_item(item: dict[str, Any]) -> str | None:
    passed = item.get("internal_chat_message_metadata_passthrough") or item.get("metadata")
    return text(passed.get("turn_id")) if isinstance(passed, dict) else None


def _message(item: dict[str, Any]) -> Sort:
    role = item.get("role")
    if role == "assistant":
        return Sort.ANSWER_TEXT
    if role in ("developer", "system"):
        return Sort.INJECTED
    if role == "user":
        return _user(item.get("content"))
    return Sort.TOOL_TEXT if role in ("tool", "function") else Sort.UNKNOWN


def _user(content: Any) -> Sort:
    for block in sequence(content):
        words = block.get("text") if isinstance(block, dict) else block
        if isinstance(words, str):
            begins = words.lstrip()[:_LONGEST].lower()
            if begins.startswith(INJECTIONS):
                return Sort.INJECTED
            if begins.startswith(NOTICES):
                return Sort.NOTICE
    return Sort.USER


def _event(line: int, offset: int, end: int, payload: dict[str, Any]) -> Entry:
    name = payload.get("type")
    if not isinstance(name, str):
        return Entry(line, offset, end, "event_msg/untyped", Sort.UNKNOWN, "untyped", payload)
    turn = text(payload.get("turn_id")) or text(payload.get("turnId"))
    if name != "item_completed":
        sort = EVENTS.get(name, Sort.UNKNOWN)
        return Entry(line, offset, end, f"event_msg/{name}"[:_NAME], sort, name, payload, turn)
    item = mapping(payload.get("item"))
    name = text(item.get("type")) or "untyped"
    sort = THREAD_ITEMS.get(name.lower(), Sort.UNKNOWN)
    return Entry(line, offset, end, f"event_msg/item_completed/{name}"[:_NAME], sort, name.lower(), item, turn)


def digest(value: Any) -> str:
    return sha256(canonical_escaped(value)).hexdigest()[:32]


_EXACT = ("utf-8", "surrogateescape")
_GENERATION_A = re.compile(rb'\s*\{\s*"(?:session|items)"\s*:\s*[{\[]')
_CUT_META = re.compile(rb'\{[^{}]{0,200}"type"\s*:\s*"session_meta"[^{}]{0,200}"payload"\s*:\s*\{')
_ITEM_SIGNS = {
    "message": lambda item: isinstance(item.get("role"), str) and _has_blocks(item.get("content")),
    "reasoning": lambda item: "summary" in item,
}


def _has_blocks(content: Any) -> bool:
    kinds = ("input_text", "output_text", "input_image")
    return any(mapping(block).get("type") in kinds for block in sequence(content))


def is_rollout(head: bytes) -> bool:
    """Does a file that begins like this hold a session of Codex?"""
    if is_generation_a(head):
        return True
    objects = first_objects(head)
    if not objects:
        return _CUT_META.match(head.removeprefix(BOM)) is not None
    if any(value.get("type") == "session_meta" and isinstance(value.get("payload"), dict) for value in objects):
        return True
    return sum(map(_is_sign, objects)) * 2 >= len(objects)


def is_generation_a(head: bytes) -> bool:
    """`{"session": {"id", "timestamp", "instructions"}, "items": [...]}`; long instructions may hide the items."""
    start = head.removeprefix(BOM)
    if _GENERATION_A.match(start) is None:
        return False
    items = re.search(rb'"items"\s*:\s*\[', start)
    return items is not None or re.search(rb'"instructions"\s*:\s*"', start[:400]) is not None


def _is_sign(record: dict[str, Any]) -> bool:
    top, payload = text(record.get("type")), record.get("payload")
    if isinstance(payload, dict):
        if top == "event_msg":
            return text(payload.get("type")) in EVENTS or payload.get("type") == "item_completed"
        return top in TOP or (top == "response_item" and ("role" in payload or text(payload.get("type")) in ITEMS))
    if top is None:
        return record.get("record_type") == "state" or {"id", "timestamp", "instructions"} <= record.keys()
    if top in _ITEM_SIGNS:
        return _ITEM_SIGNS[top](record)
    return top == "response_item" or (top in ITEMS and ("call_id" in record or "action" in record))


def entries(source: Source, report: Report, reached: Reached) -> Iterator[Entry]:
    """All of them, or those of the lines behind the place that was reached."""
    if is_generation_a(source.head):
        reached.is_torn = True
        yield from _of_one_object(source, report)
        return
    for record in records(source, report, reached):
        yield entry_of(record.line, record.offset, record.end, record.value)


def _of_one_object(source: Source, report: Report) -> Iterator[Entry]:
    """Generation A. Values are decoded one by one, so that a cut or damaged file gives all that is whole in it."""
    with source.path.open("rb") as file:
        data = file.read(LINE_LIMIT)
    check_json(data, SOURCE_LIMITS)
    scanner = _Scanner(data.removeprefix(BOM).decode(*_EXACT), len(data) - len(data.removeprefix(BOM)))
    try:
        for name, line, start, end, value in scanner.members():
            report.found += 1
            if not isinstance(value, dict):
                report.damaged += 1
                report.problem(line, f"a JSON {type(value).__name__} as {name}, not an object")
            elif name == "session":
                yield Entry(line, start, end, "session", Sort.META, "session", value, at=value.get("timestamp"))
            else:
                yield item_entry(line, start, end, value)
    except (ValueError, RecursionError) as error:
        report.found += 1
        report.damaged += 1
        report.problem(None, f"not JSON to its end: {json_fault(error):.200}")


class _Scanner:
    """Walks `{"session": …, "items": [ … ]}` value by value, with the place of each in the file's bytes."""

    def __init__(self, text: str, skipped: int) -> None:
        self._text, self._at = text, 0
        self._decoder = json.JSONDecoder(parse_constant=str)
        self._known_at, self._known_byte, self._known_line = 0, skipped, 1

    def members(self) -> Iterator[tuple[str, int, int, int, Any]]:
        """Name, line, where it begins and ends, and value of the session and of each item."""
        self._take("{")
        while not self._ends("}"):
            name = self._value()[3]
            self._take(":")
            if name == "items" and self._peek() == "[":
                self._take("[")
                while not self._ends("]"):
                    yield "items", *self._value()
            elif name == "session":
                yield "session", *self._value()
            else:
                self._value()

    def _value(self) -> tuple[int, int, int, Any]:
        self._peek()
        start = self._byte(self._at)
        line = self._known_line
        value, self._at = self._decoder.raw_decode(self._text, self._at)
        return line, start, self._byte(self._at), value

    def _byte(self, at: int) -> int:
        passed = self._text[self._known_at : at]
        self._known_line += passed.count("\n")
        self._known_byte += len(passed.encode(*_EXACT))
        self._known_at = at
        return self._known_byte

    def _peek(self) -> str:
        while self._text[self._at : self._at + 1].isspace():
            self._at += 1
        return self._text[self._at : self._at + 1]

    def _take(self, sign: str) -> None:
        if self._peek() != sign:
            raise ValueError(f"{sign!r} expected at character {self._at}, found {self._peek()!r}")
        self._at += 1

    def _ends(self, bracket: str) -> bool:
        """Past the comma before another member, or past the bracket at the end."""
        if self._peek() == ",":
            self._at += 1
        if self._peek() != bracket:
            return False
        self._at += 1
        return True
