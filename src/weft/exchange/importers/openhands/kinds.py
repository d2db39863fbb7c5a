"""The kinds of events, and what each is to the turns of a conversation."""

from __future__ import annotations

from enum import Enum, auto
from typing import Any

from weft.exchange.importers.values import text


class Standing(Enum):
    """What an event is to the turns."""

    MAPPED = auto()
    """A turn or its session is made of it."""
    ASIDE = auto()
    """Known, and said by nothing but the verbatim copy."""
    UNKNOWN = auto()


CALLS = frozenset(
    {
        "read", "write", "edit", "run", "run_ipython", "browse", "browse_interactive", "call_tool_mcp", "delegate",
        "think", "finish", "reject", "task_tracking", "push", "send_pr", "loop_recovery",
    }
)  # fmt: skip
"""V0: actions that are tool calls."""
ACTIONS = CALLS | {"message", "system", "recall", "condensation", "change_agent_state"}
QUIET_ACTIONS = frozenset({"null", "start", "pause", "resume", "stop", "condensation_request"})
OBSERVATIONS = frozenset(
    {
        "read", "write", "edit", "browse", "run", "run_ipython", "chat", "delegate", "message", "error", "success",
        "think", "agent_state_changed", "user_rejected", "recall", "mcp", "download", "task_tracking", "loop_detection",
    }
)  # fmt: skip
QUIET_OBSERVATIONS = frozenset({"null", "condense", "llm_response"})
EVENTS = frozenset(
    {
        "SystemPromptEvent", "MessageEvent", "ActionEvent", "ObservationEvent", "AgentErrorEvent",
        "UserRejectObservation", "Condensation", "ConversationStateUpdateEvent", "ConversationErrorEvent", "PauseEvent",
        "InterruptEvent", "ACPToolCallEvent",
    }
)  # fmt: skip
"""V1."""
QUIET_EVENTS = frozenset(
    {
        "CondensationRequest", "CondensationSummaryEvent", "TokenEvent", "LLMCompletionLogEvent", "HookExecutionEvent",
        "StreamingDeltaEvent", "ServerErrorEvent", "ResumeTranscriptEvent",
    }
)  # fmt: skip
DONE = frozenset({"finished", "awaiting_user_input", "stopped", "error", "rejected", "idle", "stuck", "deleting"})
"""States in which no more of the turn is to come."""
TOLD_KEYS = frozenset({"stats", "execution_status", "agent_status", "full_state"})


def is_v1(event: dict[str, Any]) -> bool:
    return isinstance(event.get("kind"), str)


def classify(event: dict[str, Any]) -> tuple[str, Standing]:
    """An event's kind, as it is counted, and what becomes of it."""
    if is_v1(event):
        kind = str(event["kind"])
        if kind == "ConversationStateUpdateEvent":
            key = text(event.get("key")) or "none"
            return f"{kind}.{key}", Standing.MAPPED if key in TOLD_KEYS else Standing.ASIDE
        return kind, _standing(kind, EVENTS, QUIET_EVENTS)
    if (action := text(event.get("action"))) is not None:
        return f"action.{action}", _standing(action, ACTIONS, QUIET_ACTIONS)
    if (observed := text(event.get("observation"))) is not None:
        return f"observation.{observed}", _standing(observed, OBSERVATIONS, QUIET_OBSERVATIONS)
    return "untyped", Standing.UNKNOWN


def _standing(kind: str, mapped: frozenset[str], quiet: frozenset[str]) -> Standing:
    return Standing.MAPPED if kind in mapped else Standing.ASIDE if kind in quiet else Standing.UNKNOWN
