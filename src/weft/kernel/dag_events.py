"""The agent DAG's kinds: what an agent asked, was told, did and had.

Where the seed's field has another name here: `event_id` is the hash of the event and never inside it, `run_id` is the
turn id in `stream`, `agent_id` is `actor`, `message_ref` and `output_ref` are the message itself with its `id`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import UNSET, UnsetType

from weft.kernel.enums import (
    AgentRole,
    EventClass,
    InterruptionReason,
    RunExit,
    RunReason,
    ToolCallStatus,
    TurnType,
)
from weft.kernel.events import Event
from weft.kernel.fields import (
    Content,
    Digest,
    ErrorFact,
    EventRef,
    ExtRef,
    FileFact,
    ForkPoint,
    LintFact,
    MessageFact,
    Name,
    Named,
    NodeId,
    RequestInput,
    Ulid,
    Usage,
    VolumePlan,
)


class ModelRequest(Event, frozen=True, gc=False, kw_only=True, tag="model_request"):
    """A model was asked, with which parameters and input."""

    about: ClassVar[str] = "A model is asked. Without `input`, what it was sent was not observed."
    category: ClassVar[EventClass] = EventClass.INTENT

    model: Named
    correlation_id: Ulid
    provider: Named | UnsetType = UNSET
    params: Content | UnsetType = UNSET
    input: RequestInput | UnsetType = UNSET
    tools_spec: Content | UnsetType = UNSET
    attempt: int | UnsetType = UNSET


class ModelResponse(Event, frozen=True, gc=False, kw_only=True, tag="model_response"):
    """A model answered, with usage and the response message."""

    about: ClassVar[str] = "A model answered."
    category: ClassVar[EventClass] = EventClass.OBSERVATION

    correlation_id: Ulid
    request_id: Digest | UnsetType = UNSET
    output: MessageFact | UnsetType = UNSET
    model: Named | UnsetType = UNSET
    usage: Usage | UnsetType = UNSET
    finish_reason: Named | UnsetType = UNSET
    reasoning_ref: Ulid | UnsetType = UNSET
    stream_ref: ExtRef | UnsetType = UNSET
    latency_ms: int | UnsetType = UNSET


class HistoryAppend(Event, frozen=True, gc=False, kw_only=True, tag="history_append"):
    """A message became part of a run."""

    about: ClassVar[str] = "A message entered a history."
    category: ClassVar[EventClass] = EventClass.OBSERVATION

    list: Named
    message: MessageFact
    admitted: Ulid | UnsetType = UNSET
    """The message of the session's inbox that this is."""
    untrusted: bool | UnsetType = UNSET


class ToolCallRequested(Event, frozen=True, gc=False, kw_only=True, tag="tool_call"):
    """A tool call was requested, with its arguments."""

    about: ClassVar[str] = "A tool is to be run."
    category: ClassVar[EventClass] = EventClass.INTENT

    tool: Named
    call_id: Content
    args: Content
    correlation_id: Ulid
    server: Named | UnsetType = UNSET
    number: int | UnsetType = UNSET
    requested_by: EventRef | UnsetType = UNSET
    message: Ulid | UnsetType = UNSET


class ToolResult(Event, frozen=True, gc=False, kw_only=True, tag="tool_result"):
    """A tool call ended, with its result or error."""

    about: ClassVar[str] = (
        "A tool ended; `call` is the event that asked for it. `sent` is what models are sent in the place of the"
        " result, or of the error's message: `secret_rules` found secrets, which are marked there. `untrusted`: a"
        " stranger may have written what it gave."
    )
    category: ClassVar[EventClass] = EventClass.OBSERVATION

    call: EventRef
    call_id: Content
    status: ToolCallStatus
    correlation_id: Ulid
    result: Content | UnsetType = UNSET
    error: ErrorFact | UnsetType = UNSET
    sent: Content | UnsetType = UNSET
    """What models are sent in the place of the result, or of the message of the error: secrets are marked in it."""
    secret_rules: Named | UnsetType = UNSET
    """The rules that found them."""
    spawned: Ulid | UnsetType = UNSET
    awaited: tuple[Ulid, ...] | UnsetType = UNSET
    """The turns of workers whose answers it brings."""
    duration_ms: int | UnsetType = UNSET
    files: tuple[FileFact, ...] | UnsetType = UNSET
    lints: tuple[LintFact, ...] | UnsetType = UNSET
    untrusted: bool | UnsetType = UNSET

    @property
    def shown_result(self) -> str | UnsetType:
        """The content that whoever reads the turn is shown as its result: what models are sent."""
        return self.result if self.sent is UNSET or self.error is not UNSET else self.sent

    @property
    def shown_error(self) -> str | UnsetType:
        """The same of the message of its error."""
        if self.error is UNSET:
            return UNSET
        return self.error.message if self.sent is UNSET else self.sent


class McpResourceUpdated(Event, frozen=True, gc=False, kw_only=True, tag="mcp.resource_updated"):
    about: ClassVar[str] = "An MCP server said that a resource changed."
    category: ClassVar[EventClass] = EventClass.OBSERVATION

    server: Named
    uri: Content
    etag: Content | UnsetType = UNSET
    hash: Content | UnsetType = UNSET
    summary: Content | UnsetType = UNSET


class McpResourceListChanged(Event, frozen=True, gc=False, kw_only=True, tag="mcp.resource_list_changed"):
    about: ClassVar[str] = "An MCP server said that its list of resources changed."
    category: ClassVar[EventClass] = EventClass.OBSERVATION

    server: Named


class Interruption(Event, frozen=True, gc=False, kw_only=True, tag="interruption"):
    """A run was interrupted, and why."""

    about: ClassVar[str] = "Something under way was cut short; `affects` names the open calls."
    category: ClassVar[EventClass] = EventClass.TRANSITION

    reason: InterruptionReason
    affects: tuple[EventRef, ...]


class Substitution(Event, frozen=True, gc=False, kw_only=True, tag="substitution"):
    """Later readers should take one event in place of another."""

    about: ClassVar[str] = "Later readers should take one event in place of another."
    category: ClassVar[EventClass] = EventClass.TRANSITION

    original_event: EventRef
    replacement_event: EventRef
    reason: Content | UnsetType = UNSET


class AgentForked(Event, frozen=True, gc=False, kw_only=True, tag="agent_forked"):
    """A session began at an event of a turn; its head stands there."""

    about: ClassVar[str] = "A new session began at an event of a turn; its head stands there."
    category: ClassVar[EventClass] = EventClass.PROVENANCE

    to_branch: Ulid
    at_event: EventRef
    at_turn: Ulid
    from_branch: Ulid | UnsetType = UNSET
    volume_plan: tuple[VolumePlan, ...] | UnsetType = UNSET


class RunStarted(Event, frozen=True, gc=False, kw_only=True, tag="run_started"):
    """A run began: its session, fork point, agent and circumstances."""

    about: ClassVar[str] = "A turn begins; `fork` is the event of its parent that it grows from, absent for a root."
    category: ClassVar[EventClass] = EventClass.TRANSITION

    turn_type: TurnType
    role: AgentRole
    fork: ForkPoint | UnsetType = UNSET
    session: Ulid | UnsetType = UNSET
    reason: RunReason | UnsetType = UNSET
    compaction: Ulid | UnsetType = UNSET
    toolset: Named | UnsetType = UNSET
    tools: tuple[Named, ...] | UnsetType = UNSET
    permissions_granted: Content | UnsetType = UNSET
    thinking_config: Content | UnsetType = UNSET
    effective_config: Content | UnsetType = UNSET
    workspace: Content | UnsetType = UNSET
    source_event: Content | UnsetType = UNSET
    origin: Name | UnsetType = UNSET
    mapping: Name | UnsetType = UNSET
    source: Digest | UnsetType = UNSET
    native: Content | UnsetType = UNSET


class RunFinished(Event, frozen=True, gc=False, kw_only=True, tag="run_finished"):
    """A run ended, and how."""

    about: ClassVar[str] = "A turn ended; its id is the thread digest."
    category: ClassVar[EventClass] = EventClass.TRANSITION

    exit: RunExit
    response: Ulid | UnsetType = UNSET
    usage: Usage | UnsetType = UNSET
    error: ErrorFact | UnsetType = UNSET
    permissions_used: Content | UnsetType = UNSET
    summary_ref: ExtRef | UnsetType = UNSET


class SnapshotMaterialized(Event, frozen=True, gc=False, kw_only=True, tag="snapshot_materialized"):
    about: ClassVar[str] = "A summary or transcript was made for showing (a Materialization, a cache only)."
    category: ClassVar[EventClass] = EventClass.PROVENANCE

    materialization: NodeId
    content_ref: ExtRef
    run: Ulid | UnsetType = UNSET


DagEvent = (
    ModelRequest
    | ModelResponse
    | HistoryAppend
    | ToolCallRequested
    | ToolResult
    | McpResourceUpdated
    | McpResourceListChanged
    | Interruption
    | Substitution
    | AgentForked
    | RunStarted
    | RunFinished
    | SnapshotMaterialized
)
