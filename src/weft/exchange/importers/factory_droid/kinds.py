"""The kinds of records in a droid's session file, and what each is to its turns."""

from __future__ import annotations

from enum import Enum, auto
from typing import Any

from weft.exchange.importers.values import mapping, sequence, text

REMINDER = "<system-reminder>"
HIDDEN = frozenset({"llm_only", "user_only"})
"""Whom a message is shown to, where that is not everybody: then no person wrote it."""
HUMAN = frozenset({"user", "human", "cli", "tui", "web", "desktop", "ide"})


class Standing(Enum):
    """What a record is to the turns of its session."""

    PROMPT = auto()
    """A turn begins."""
    INJECTED = auto()
    """Put into the context by the tool itself: it belongs to the prompt after it, else to the turn under way."""
    ANSWER = auto()
    """A response, or the outcomes of its calls."""
    OUTCOME = auto()
    """Tells how a turn ended."""
    COMPACTION = auto()
    SESSION = auto()
    """Tells of the session."""
    UNKNOWN = auto()


TYPES = {
    "session_start": Standing.SESSION,
    "session_settings": Standing.SESSION,
    "session_end": Standing.SESSION,
    "todo_state": Standing.SESSION,
    "agent_turn_outcome": Standing.OUTCOME,
    "compaction_state": Standing.COMPACTION,
}
ROLES = frozenset({"user", "assistant", "system", "tool"})


def kind_of(value: dict[str, Any]) -> str:
    kind = text(value.get("type")) or "none"
    return f"message.{text(mapping(value.get('message')).get('role')) or 'none'}" if kind == "message" else kind


def standing(value: dict[str, Any]) -> Standing:
    kind, message = text(value.get("type")) or "", mapping(value.get("message"))
    if kind != "message":
        return TYPES.get(kind, Standing.UNKNOWN)
    role = text(message.get("role"))
    if role not in ROLES:
        return Standing.UNKNOWN
    if role == "system":
        return Standing.INJECTED
    if role != "user" or is_outcome(message):
        return Standing.ANSWER
    return Standing.INJECTED if is_injected(message) else Standing.PROMPT


def blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message.get("content")
    listed = sequence(content) if isinstance(content, list) else [content]
    found = [{"type": "text", "text": each} if isinstance(each, str) else mapping(each) for each in listed]
    return [block if isinstance(block.get("type", ""), str) else {**block, "type": ""} for block in found]


def is_outcome(message: dict[str, Any]) -> bool:
    found = blocks(message)
    return any(block.get("type") == "tool_result" for block in found) and not any(own_words(block) for block in found)


def own_words(block: dict[str, Any]) -> str | None:
    """The text of a block that is not one of the tool's reminders."""
    words = text(block.get("text")) if block.get("type") == "text" else None
    return None if words is None or words.lstrip().startswith(REMINDER) else words


def is_injected(message: dict[str, Any]) -> bool:
    if text(message.get("visibility")) in HIDDEN or message.get("hookEventName"):
        return True
    found = blocks(message)
    return bool(found) and all(block.get("type") == "text" and own_words(block) is None for block in found)
