"""The kinds of events, and what each is to the turns of its session."""

from __future__ import annotations

from enum import Enum, auto


class Standing(Enum):
    PROMPT = auto()
    LEADING = auto()
    """Written before the prompt that it belongs to."""
    INJECTED = auto()
    """Given to the model by the tool itself: part of the turn under way, or the beginning of one."""
    ANSWER = auto()
    BESIDE = auto()
    """Tells of the turn under way."""
    END = auto()
    """A response and its calls are complete."""
    COMPACTION = auto()
    SETTING = auto()
    """Changes what later turns run with."""
    SESSION = auto()
    """Tells of the session."""
    AGENT = auto()
    """Tells of a subagent."""
    ASIDE = auto()
    """Known, and said by nothing but the verbatim copy."""
    UNKNOWN = auto()


KINDS = {
    "user.message": Standing.PROMPT,
    "system.message": Standing.LEADING,
    "system.notification": Standing.INJECTED,
    "skill.invoked": Standing.INJECTED,
    "assistant.message": Standing.ANSWER,
    "assistant.reasoning": Standing.ANSWER,
    "assistant.usage": Standing.BESIDE,
    "tool.user_requested": Standing.ANSWER,
    "tool.execution_start": Standing.ANSWER,
    "tool.execution_complete": Standing.ANSWER,
    "abort": Standing.BESIDE,
    "session.error": Standing.BESIDE,
    "session.shutdown": Standing.BESIDE,
    "session.truncation": Standing.BESIDE,
    "session.task_complete": Standing.BESIDE,
    "permission.requested": Standing.BESIDE,
    "permission.completed": Standing.BESIDE,
    "assistant.turn_end": Standing.END,
    "session.idle": Standing.END,
    "session.compaction_complete": Standing.COMPACTION,
    "session.model_change": Standing.SETTING,
    "session.mode_changed": Standing.SETTING,
    "session.permissions_changed": Standing.SETTING,
    "session.auto_mode_resolved": Standing.SETTING,
    "session.start": Standing.SESSION,
    "session.resume": Standing.SESSION,
    "session.context_changed": Standing.SESSION,
    "session.title_changed": Standing.SESSION,
    "session.snapshot_rewind": Standing.SESSION,
    "subagent.started": Standing.AGENT,
    "subagent.completed": Standing.AGENT,
    "subagent.failed": Standing.AGENT,
    "assistant.turn_start": Standing.ASIDE,
    "assistant.intent": Standing.ASIDE,
    "assistant.message_delta": Standing.ASIDE,
    "assistant.reasoning_delta": Standing.ASIDE,
    "assistant.streaming_delta": Standing.ASIDE,
    "tool.execution_partial_result": Standing.ASIDE,
    "tool.execution_progress": Standing.ASIDE,
    "hook.start": Standing.ASIDE,
    "hook.end": Standing.ASIDE,
    "session.info": Standing.ASIDE,
    "session.warning": Standing.ASIDE,
    "session.handoff": Standing.ASIDE,
    "session.usage_info": Standing.ASIDE,
    "session.usage_checkpoint": Standing.ASIDE,
    "session.compaction_start": Standing.ASIDE,
    "session.plan_changed": Standing.ASIDE,
    "session.workspace_file_changed": Standing.ASIDE,
    "session.remote_steerable_changed": Standing.ASIDE,
    "subagent.selected": Standing.ASIDE,
    "subagent.deselected": Standing.ASIDE,
    "pending_messages.modified": Standing.ASIDE,
}

IN_TURNS = frozenset({
    Standing.PROMPT, Standing.LEADING, Standing.INJECTED, Standing.ANSWER, Standing.BESIDE, Standing.COMPACTION,
})  # fmt: skip
"""What turns are made of."""
