"""What a record of a rollout is: one table for every kind that Codex has written, in all three generations.

A: one JSON file, `{"session": …, "items": [ResponseItem]}`. B: JSON lines, the first of them the session, the rest bare
ResponseItems and `record_type` lines. C: JSON lines `{"timestamp", "type", "payload"}`. All become the same entries.
"""

from __future__ import annotations

from enum import IntEnum, auto
from typing import Any

from msgspec import Struct

from weft.exchange.importers.values import mapping, sequence, text


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
    SAID = auto()
    THOUGHT = auto()
    CALL = auto()
    SAID_EVENT = auto()
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


ANSWERS = frozenset({Sort.SAID, Sort.THOUGHT, Sort.CALL})
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
    "agent_message": Sort.SAID_EVENT,
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
    "agentmessage": Sort.SAID_EVENT,
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
        return Sort.SAID
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
