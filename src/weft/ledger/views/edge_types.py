"""The types of edges in the agent graph: what they join, which event opens one, and which event ends its validity.

A node is named by a key: what kind of thing it is, a colon, and its id. Nodes that an event stands for (a generation, a
tool call, a tool result, a summary) have the arrival number of that event as their id; an event that is not in this
ledger has its hash in the place of the number.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

PROGRAM, RUN, SESSION, EVENT, MESSAGE = "program", "run", "session", "event", "message"
GENERATION, TOOL_CALL, TOOL_RESULT, SUMMARY = "generation", "tool_call", "tool_result", "summary"
RESOURCE, URI, SNAPSHOT, HANDLE, POLICY = "resource", "uri", "snapshot", "handle", "policy"
MATERIALIZATION = "materialization"
NODE_KINDS = (
    PROGRAM,
    RUN,
    SESSION,
    EVENT,
    MESSAGE,
    GENERATION,
    TOOL_CALL,
    TOOL_RESULT,
    SUMMARY,
    RESOURCE,
    URI,
    SNAPSHOT,
    HANDLE,
    POLICY,
    MATERIALIZATION,
)
EVENT_BACKED = (EVENT, GENERATION, TOOL_CALL, TOOL_RESULT, SUMMARY)
"""Kinds of nodes whose id is the arrival number of an event."""


def node_key(kind: str, id: object) -> str:
    return f"{kind}:{id}"


class EdgeType(StrEnum):
    """What an edge of the agent graph says of its two nodes."""

    AGENT_HAS_RUN = "AGENT_HAS_RUN"
    RUN_HAS_EVENT = "RUN_HAS_EVENT"
    EVENT_PRODUCES = "EVENT_PRODUCES"
    EVENT_CONSUMES = "EVENT_CONSUMES"
    APPENDED_TO_HISTORY = "APPENDED_TO_HISTORY"
    CALLS_TOOL = "CALLS_TOOL"
    RETURNS_RESULT = "RETURNS_RESULT"
    MCP_RESOURCE_UPDATED = "MCP_RESOURCE_UPDATED"
    INTERRUPTS = "INTERRUPTS"
    SUBSTITUTES = "SUBSTITUTES"
    SUMMARIZES = "SUMMARIZES"
    DERIVED_FROM = "DERIVED_FROM"
    OWNS_RESOURCE = "OWNS_RESOURCE"
    MOUNTS_RESOURCE = "MOUNTS_RESOURCE"
    HAS_SUBRESOURCE = "HAS_SUBRESOURCE"
    SNAPSHOT_OF = "SNAPSHOT_OF"
    RESTORES_TO = "RESTORES_TO"
    ATTACHED_TO = "ATTACHED_TO"
    FORKED_FROM = "FORKED_FROM"
    SPAWNED_FROM = "SPAWNED_FROM"
    ACTIVATES_POLICY = "ACTIVATES_POLICY"
    PROPOSES_POLICY = "PROPOSES_POLICY"
    AGENT_HAS_SESSION = "AGENT_HAS_SESSION"
    SESSION_HAS_RUN = "SESSION_HAS_RUN"
    REFERS_TO = "REFERS_TO"
    HANDLE_OF = "HANDLE_OF"


class EdgeFacts(Struct, frozen=True):
    """What a type of edge joins, and the kinds of event that open and close one. Without `closed_by` an edge holds for
    ever: it tells what happened."""

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    opened_by: tuple[str, ...]
    closed_by: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    is_own: bool = False
    """Whether Weft has it beside the 22 types of the agent graph's schema."""


_PROGRAM_CHANGES = (
    "agent_created",
    "agent_configured",
    "code_created",
    "code_configured",
    "provider_created",
    "provider_configured",
    "model_created",
    "model_configured",
    "task_created",
    "task_configured",
    "information_created",
    "information_updated",
    "human_created",
    "human_configured",
    "toolset_created",
    "toolset_configured",
    "trigger_created",
    "trigger_configured",
    "session_configured",
)

EDGE_FACTS: dict[EdgeType, EdgeFacts] = {
    EdgeType.AGENT_HAS_RUN: EdgeFacts((PROGRAM,), (RUN,), ("run_started",)),
    EdgeType.RUN_HAS_EVENT: EdgeFacts((RUN,), (EVENT,), ("every event of a run",), attributes=("seq",)),
    EdgeType.EVENT_PRODUCES: EdgeFacts(
        (EVENT,),
        (MESSAGE, GENERATION, TOOL_RESULT, SUMMARY, SNAPSHOT, MATERIALIZATION),
        (
            "history_append",
            "model_response",
            "tool_result",
            "compaction_recorded",
            "snapshot_created",
            "snapshot_materialized",
            "message_admitted",
            "message_posted",
        ),
    ),
    EdgeType.EVENT_CONSUMES: EdgeFacts(
        (EVENT,),
        (MESSAGE, GENERATION, TOOL_CALL, TOOL_RESULT, SUMMARY, EVENT, RESOURCE),
        ("model_request", "tool_result", "snapshot_created"),
    ),
    EdgeType.APPENDED_TO_HISTORY: EdgeFacts((RUN,), (MESSAGE,), ("history_append",), attributes=("list",)),
    EdgeType.CALLS_TOOL: EdgeFacts((GENERATION, EVENT), (TOOL_CALL,), ("tool_call",)),
    EdgeType.RETURNS_RESULT: EdgeFacts((TOOL_CALL,), (TOOL_RESULT,), ("tool_result",), attributes=("status",)),
    EdgeType.MCP_RESOURCE_UPDATED: EdgeFacts((EVENT,), (URI,), ("mcp.resource_updated",), attributes=("server", "uri")),
    EdgeType.INTERRUPTS: EdgeFacts((EVENT,), (EVENT,), ("interruption",), attributes=("reason",)),
    EdgeType.SUBSTITUTES: EdgeFacts((EVENT,), (EVENT,), ("substitution",)),
    EdgeType.SUMMARIZES: EdgeFacts((SUMMARY,), (RUN,), ("compaction_recorded",), attributes=("turns", "first_kept")),
    EdgeType.DERIVED_FROM: EdgeFacts(
        (GENERATION, EVENT, RUN, MESSAGE, TOOL_RESULT, RESOURCE, MATERIALIZATION, SNAPSHOT),
        (EVENT, RUN, MESSAGE, SNAPSHOT),
        (
            "model_request",
            "model_response",
            "run_started",
            "history_append",
            "message_admitted",
            "message_posted",
            "tool_result",
            "turn_linked",
            "turn_superseded",
            "turn_retried",
            "snapshot_created",
            "snapshot_materialized",
            "restore_attempted",
        ),
        attributes=("why",),
    ),
    EdgeType.OWNS_RESOURCE: EdgeFacts(
        (PROGRAM, SESSION, RUN), (RESOURCE,), ("resource_owned",), ("resource_owned",), ("why",)
    ),
    EdgeType.MOUNTS_RESOURCE: EdgeFacts(
        (RUN, RESOURCE),
        (RESOURCE,),
        ("resource_mounted",),
        ("resource_unmounted", "resource_mounted"),
        ("mount", "mode"),
    ),
    EdgeType.HAS_SUBRESOURCE: EdgeFacts(
        (RESOURCE,), (RESOURCE,), ("subresource_added",), ("subresource_removed",), ("part",)
    ),
    EdgeType.SNAPSHOT_OF: EdgeFacts((SNAPSHOT,), (RESOURCE,), ("snapshot_created",), ("snapshot_discarded",)),
    EdgeType.RESTORES_TO: EdgeFacts((SNAPSHOT,), (RESOURCE,), ("restore_attempted",)),
    EdgeType.ATTACHED_TO: EdgeFacts(
        (RESOURCE,),
        (RUN, SESSION, PROGRAM),
        ("resource_attached",),
        ("resource_detached", "resource_attached"),
        ("mode",),
    ),
    EdgeType.FORKED_FROM: EdgeFacts(
        (SESSION,),
        (EVENT, RUN, SESSION),
        ("agent_forked", "session_created", "tool_result", "sighting"),
        attributes=("from_branch",),
    ),
    EdgeType.SPAWNED_FROM: EdgeFacts((SESSION,), (PROGRAM,), ("session_created", "sighting")),
    EdgeType.ACTIVATES_POLICY: EdgeFacts(
        (EVENT,),
        (POLICY,),
        ("policy_activated", "policy_rolled_back"),
        ("policy_activated", "policy_rolled_back", "policy_rejected"),
        ("agent",),
    ),
    EdgeType.PROPOSES_POLICY: EdgeFacts(
        (EVENT,),
        (POLICY,),
        ("policy_proposed",),
        ("policy_activated", "policy_rolled_back", "policy_rejected"),
        ("agent",),
    ),
    EdgeType.AGENT_HAS_SESSION: EdgeFacts((PROGRAM,), (SESSION,), ("session_created",), is_own=True),
    EdgeType.SESSION_HAS_RUN: EdgeFacts((SESSION,), (RUN,), ("run_started", "sighting"), is_own=True),
    EdgeType.REFERS_TO: EdgeFacts(
        (PROGRAM, SESSION), (PROGRAM,), _PROGRAM_CHANGES, _PROGRAM_CHANGES, ("field", "version"), is_own=True
    ),
    EdgeType.HANDLE_OF: EdgeFacts(
        (HANDLE,), (RESOURCE,), ("handle_opened",), ("handle_closed",), ("provider",), is_own=True
    ),
}
SEED_TYPES = tuple(type for type, facts in EDGE_FACTS.items() if not facts.is_own)
