"""The kinds of records in a session file, and what each is to its turns."""

from __future__ import annotations

from enum import Enum, auto
from typing import Any

from weft.exchange.importers.values import mapping, text


class Standing(Enum):
    """What a record is to the turns of its session."""

    PROMPT = auto()
    """A user's message: a turn begins."""
    INJECTED = auto()
    """Put into the context by others: it belongs to the turn under way, or begins one if none is."""
    ANSWER = auto()
    """A response or a tool's result."""
    COMPACTION = auto()
    SETTING = auto()
    """Changes what later turns run with."""
    SESSION = auto()
    """Tells of the session."""
    ASIDE = auto()
    """Known, and said by nothing but the verbatim copy."""
    UNKNOWN = auto()


ROLES = {
    "user": Standing.PROMPT,
    "assistant": Standing.ANSWER,
    "toolResult": Standing.ANSWER,
    "bashExecution": Standing.INJECTED,
    "pythonExecution": Standing.INJECTED,
    "fileMention": Standing.INJECTED,
    "custom": Standing.INJECTED,
    "hookMessage": Standing.INJECTED,
    "branchSummary": Standing.INJECTED,
    "compactionSummary": Standing.INJECTED,
    "developer": Standing.INJECTED,
    "system": Standing.INJECTED,
}

TYPES = {
    "custom_message": Standing.INJECTED,
    "branch_summary": Standing.INJECTED,
    "session_init": Standing.INJECTED,
    "compaction": Standing.COMPACTION,
    "model_change": Standing.SETTING,
    "thinking_level_change": Standing.SETTING,
    "mode_change": Standing.SETTING,
    "service_tier_change": Standing.SETTING,
    "active_tools_change": Standing.SETTING,
    "reset_boundary": Standing.SETTING,
    "session": Standing.SESSION,
    "session_info": Standing.SESSION,
    "title": Standing.SESSION,
    "title_change": Standing.SESSION,
    "label": Standing.SESSION,
    "model_usage": Standing.SESSION,
    "custom": Standing.ASIDE,
    "archive": Standing.ASIDE,
    "credential_pin": Standing.ASIDE,
    "ttsr_injection": Standing.ASIDE,
}

CORE_CUSTOM = frozenset({"tool_execution_start", "session_exit"})
"""`custom` records that oh-my-pi itself writes and that tell of calls or the session."""

CONTENT = frozenset({Standing.PROMPT, Standing.INJECTED, Standing.ANSWER, Standing.COMPACTION})


def classify(value: dict[str, Any]) -> tuple[str, Standing]:
    """A record's kind, as it is counted, and what it is to the turns."""
    kind = text(value.get("type")) or "untyped"
    if kind == "message":
        role = text(mapping(value.get("message")).get("role")) or "none"
        return f"message.{role}", ROLES.get(role, Standing.UNKNOWN)
    if kind == "custom" and (custom := text(value.get("customType"))) in CORE_CUSTOM:
        return f"custom.{custom}", Standing.SESSION
    return kind, TYPES.get(kind, Standing.UNKNOWN)
