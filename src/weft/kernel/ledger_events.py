"""The ledger's own kinds of event: sessions and their heads, compactions, the inbox, imports,
erasure, tags; and the kinds that tell of resources: who owns one, how it is kept and brought
back.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import UNSET, UnsetType

from weft.kernel.enums import (
    AgentRole,
    AliasReason,
    CompactionTrigger,
    EventClass,
    HandleCapability,
    LinkReason,
    MessageSource,
    MountMode,
    MoveReason,
    OwnershipReason,
    QueueMode,
    ResourceCapability,
    ResourceKind,
    ResourceLiveness,
    RestoreOutcome,
    SessionStatus,
    SnapshotConsistency,
    SnapshotOutcome,
    SubresourcePart,
    SupersedeReason,
    SystemAgentKind,
)
from weft.kernel.events import (
    Content,
    Digest,
    ErrorFact,
    Event,
    EventRef,
    ExtRef,
    FileFact,
    Name,
    Named,
    NodeId,
    PartFact,
    Reference,
    ResourceScope,
    SeenCall,
    SeenCompaction,
    SeenMessage,
    Time,
    Ulid,
)

# --- The ledger's own kinds: sessions and their heads, compactions, the inbox, imports, erasure, tags.


class AgentCreated(Event, frozen=True, gc=False, kw_only=True, tag="agent_created"):
    """An agent was named for the first time."""

    about: ClassVar[str] = "An agent (a persona) got its id; without `config` it was named before anybody described it."
    category: ClassVar[EventClass] = EventClass.TRANSITION

    name: Content
    config: Content | UnsetType = UNSET
    references: tuple[Reference, ...] | UnsetType = UNSET
    applied: bool | UnsetType = UNSET
    system_kind: SystemAgentKind | UnsetType = UNSET
    """What it is for, where the system made it."""


class SessionCreated(Event, frozen=True, gc=False, kw_only=True, tag="session_created"):
    """A session was created, and from where."""

    about: ClassVar[str] = "A session exists, without a head yet."
    category: ClassVar[EventClass] = EventClass.TRANSITION

    label: Content
    persona: Name | Ulid
    routing_key: Content | UnsetType = UNSET
    origin: Name | UnsetType = UNSET
    origin_session_id: Content | UnsetType = UNSET
    parent_session: Ulid | UnsetType = UNSET
    parent_turn: Ulid | UnsetType = UNSET
    spawn_tool_call: Content | UnsetType = UNSET
    task_description: Content | UnsetType = UNSET
    spawned_by: EventRef | UnsetType = UNSET
    """The tool call of this ledger that started it: the session is a worker's."""
    role: AgentRole | UnsetType = UNSET
    constraints: Content | UnsetType = UNSET
    """What a worker may do at most, beside what its spawner may."""


class SessionMoved(Event, frozen=True, gc=False, kw_only=True, tag="session_moved"):
    """A session's head moved, from where to where and why."""

    about: ClassVar[str] = (
        "A session's head moved; `to` is null after a reset, `at` names an event inside the turn. `undoes` is the turn"
        " that an undo took back, `redoes` the undo that was taken back, `kept` what the files were like until then."
    )
    category: ClassVar[EventClass] = EventClass.TRANSITION

    to: Ulid | None
    before: Ulid | None
    why: MoveReason
    at: Digest | UnsetType = UNSET
    reason: Content | UnsetType = UNSET
    tips: tuple[EventRef, ...] | UnsetType = UNSET
    undoes: Ulid | UnsetType = UNSET
    redoes: EventRef | UnsetType = UNSET
    kept: tuple[Ulid, ...] | UnsetType = UNSET


class SessionArchived(Event, frozen=True, gc=False, kw_only=True, tag="session_archived"):
    """A session was archived, deleted, or taken back."""

    about: ClassVar[str] = "A session was archived, deleted (the pointer, never a turn) or made active again."
    category: ClassVar[EventClass] = EventClass.TRANSITION

    status: SessionStatus
    reason: Content | UnsetType = UNSET


class SessionRenamed(Event, frozen=True, gc=False, kw_only=True, tag="session_renamed"):
    """A session got another label."""

    about: ClassVar[str] = "A session got another label."
    category: ClassVar[EventClass] = EventClass.TRANSITION

    label: Content


class AliasAdded(Event, frozen=True, gc=False, kw_only=True, tag="alias_added"):
    """A session got another name."""

    about: ClassVar[str] = "Another name leads to this session; never to another alias."
    category: ClassVar[EventClass] = EventClass.TRANSITION

    alias: Content
    reason: AliasReason


class CompactionRecorded(Event, frozen=True, gc=False, kw_only=True, tag="compaction_recorded"):
    """A run is a compaction; what it stands for and what it keeps."""

    about: ClassVar[str] = "A compaction turn's summary, its range and what it cost."
    category: ClassVar[EventClass] = EventClass.PROVENANCE

    summary: Content
    summarized_through: Ulid
    compaction_type: Name
    """One of `CompactionType`, or what a strategy of somebody else calls itself."""
    model: Named
    first_kept: Ulid | UnsetType = UNSET
    turns_summarized: int | UnsetType = UNSET
    provider: Named | UnsetType = UNSET
    tokens_before: int | UnsetType = UNSET
    tokens_after: int | UnsetType = UNSET
    summary_tokens: int | UnsetType = UNSET
    summarization_input_tokens: int | UnsetType = UNSET
    summarization_output_tokens: int | UnsetType = UNSET
    duration_ms: int | UnsetType = UNSET
    trigger: CompactionTrigger | UnsetType = UNSET
    metadata: Content | UnsetType = UNSET


class CompactionChosen(Event, frozen=True, gc=False, kw_only=True, tag="compaction_chosen"):
    """A session uses this compaction from now on, or none."""

    about: ClassVar[str] = "A session uses this compaction from now on; null: none, the whole history."
    category: ClassVar[EventClass] = EventClass.INTENT

    compaction: Ulid | None


class MessageAdmitted(Event, frozen=True, gc=False, kw_only=True, tag="message_admitted"):
    """The event that a message entered a session's inbox."""

    about: ClassVar[str] = "A message entered a session's inbox."
    category: ClassVar[EventClass] = EventClass.INTENT

    message: Ulid
    parts: tuple[PartFact, ...]
    source: MessageSource | UnsetType = UNSET
    key: Content | UnsetType = UNSET
    mode: QueueMode | UnsetType = UNSET
    priority: int | UnsetType = UNSET
    context: Content | UnsetType = UNSET
    metadata: Content | UnsetType = UNSET
    files: tuple[FileFact, ...] | UnsetType = UNSET
    overrides: Content | UnsetType = UNSET
    """How the model is to be asked for this message: what goes over the session's own configuration."""
    route: Content | UnsetType = UNSET
    """What the sender asked for, and how it led to this session."""
    source_event: Content | UnsetType = UNSET
    again: Ulid | UnsetType = UNSET
    """The dead message that this one repeats."""
    posted: Ulid | UnsetType = UNSET
    """The message of a conversation that reached the session's agent."""
    worker: Ulid | UnsetType = UNSET
    """The turn of a worker whose answer it brings to the session that spawned it."""
    trigger: Ulid | UnsetType = UNSET
    """The trigger that sent it."""
    untrusted: bool | UnsetType = UNSET


class MessageCancelled(Event, frozen=True, gc=False, kw_only=True, tag="message_cancelled"):
    """The event with which a message leaves an inbox without a turn."""

    about: ClassVar[str] = "A message left the inbox without a turn, by command."
    category: ClassVar[EventClass] = EventClass.TRANSITION

    message: Ulid
    reason: Content | UnsetType = UNSET


class MessageDead(Event, frozen=True, gc=False, kw_only=True, tag="message_dead"):
    about: ClassVar[str] = "A message failed for good and waits for a person."
    category: ClassVar[EventClass] = EventClass.TRANSITION

    message: Ulid
    attempts: int
    error: ErrorFact | UnsetType = UNSET


class RunParked(Event, frozen=True, gc=False, kw_only=True, tag="run_parked"):
    """The event that a turn waits for the outcome of calls, or until a time."""

    about: ClassVar[str] = (
        "A turn waits for the outcome of these calls, or until a time; nobody works on it meanwhile. An outcome of one"
        " of them, or the time, lets it go on."
    )
    category: ClassVar[EventClass] = EventClass.TRANSITION

    calls: tuple[EventRef, ...]
    until: Time | UnsetType = UNSET
    why: Content | UnsetType = UNSET
    awaits: tuple[Ulid, ...] | UnsetType = UNSET
    """The sessions of the workers whose answers one of the calls waits for."""
    any: bool | UnsetType = UNSET
    """Whether the answer of one of them is enough."""


class WorkersAnswered(Event, frozen=True, gc=False, kw_only=True, tag="workers_answered"):
    """The workers have answered that a call of a parked turn waited for."""

    about: ClassVar[str] = "The workers have answered that a call of a parked turn waited for: the turn goes on."
    category: ClassVar[EventClass] = EventClass.OBSERVATION

    call: EventRef
    turns: tuple[Ulid, ...]
    """Their turns."""


class TurnLinked(Event, frozen=True, gc=False, kw_only=True, tag="turn_linked"):
    """A turn is linked to another one, such as the turn that it was picked from."""

    about: ClassVar[str] = "Two turns of different chains belong together."
    category: ClassVar[EventClass] = EventClass.PROVENANCE

    child: Ulid
    parent: Ulid
    why: LinkReason
    call: EventRef | UnsetType = UNSET


class TurnSuperseded(Event, frozen=True, gc=False, kw_only=True, tag="turn_superseded"):
    """Another version of an imported turn is current."""

    about: ClassVar[str] = "An imported turn was read again and has a newer form."
    category: ClassVar[EventClass] = EventClass.PROVENANCE

    turn: Ulid
    by: Ulid
    why: SupersedeReason
    round: int | UnsetType = UNSET
    """Where a version came back that another had replaced: how often that happened among them. The highest counts."""


class Sighting(Event, frozen=True, gc=False, kw_only=True, tag="sighting"):
    """What one source says of an imported turn or session."""

    about: ClassVar[str] = (
        "What a source tells of an imported turn, or without `turn` of its session, beside what was said:"
        " all that is not its identity. `raw` is a stretch of the source itself, compressed."
    )
    category: ClassVar[EventClass] = EventClass.PROVENANCE

    origin: Name
    session: Ulid
    turn: Ulid | UnsetType = UNSET
    started: int | UnsetType = UNSET
    ended: int | UnsetType = UNSET
    literal_time: Content | UnsetType = UNSET
    title: Content | UnsetType = UNSET
    workspace: Content | UnsetType = UNSET
    git_branch: Content | UnsetType = UNSET
    version: Content | UnsetType = UNSET
    role: AgentRole | UnsetType = UNSET
    agent: Named | UnsetType = UNSET
    parent: Ulid | UnsetType = UNSET
    spawn_call: Content | UnsetType = UNSET
    task: Content | UnsetType = UNSET
    toolset: Named | UnsetType = UNSET
    tools: Content | UnsetType = UNSET
    permissions: Content | UnsetType = UNSET
    config: Content | UnsetType = UNSET
    metadata: Content | UnsetType = UNSET
    messages: tuple[SeenMessage, ...] | UnsetType = UNSET
    calls: tuple[SeenCall, ...] | UnsetType = UNSET
    compaction: SeenCompaction | UnsetType = UNSET
    archived: bool | UnsetType = UNSET
    file: Content | UnsetType = UNSET
    offset: int | UnsetType = UNSET
    end: int | UnsetType = UNSET
    raw: Content | UnsetType = UNSET


class TurnRetried(Event, frozen=True, gc=False, kw_only=True, tag="turn_retried"):
    about: ClassVar[str] = "A failed turn is tried again, as its child or afresh beside it."
    category: ClassVar[EventClass] = EventClass.PROVENANCE

    turn: Ulid
    of: Ulid
    afresh: bool


class ContentErased(Event, frozen=True, gc=False, kw_only=True, tag="content_erased"):
    """The tombstone of a content: who erased it, when and why."""

    about: ClassVar[str] = (
        "The tombstone of a content: its bytes and salt are gone. `turn` or `session` say what was erased as a whole;"
        " `remainder` is what is shown in its place, where only part of it had to go."
    )
    category: ClassVar[EventClass] = EventClass.TRANSITION

    content: Digest
    reason: Content
    turn: Ulid | UnsetType = UNSET
    session: Ulid | UnsetType = UNSET
    remainder: Content | UnsetType = UNSET


class NodeTagged(Event, frozen=True, gc=False, kw_only=True, tag="node_tagged"):
    """A node got a tag."""

    about: ClassVar[str] = "A node got tags."
    category: ClassVar[EventClass] = EventClass.TRANSITION

    node: NodeId
    tags: tuple[Content, ...]


class NodeUntagged(Event, frozen=True, gc=False, kw_only=True, tag="node_untagged"):
    """A node lost a tag."""

    about: ClassVar[str] = "A node lost tags."
    category: ClassVar[EventClass] = EventClass.TRANSITION

    node: NodeId
    tags: tuple[Content, ...]


class NodeEmbedded(Event, frozen=True, gc=False, kw_only=True, tag="node_embedded"):
    about: ClassVar[str] = "A node's text was embedded; the vector itself is local."
    category: ClassVar[EventClass] = EventClass.OBSERVATION

    node: NodeId
    model: Named
    dimensions: int
    text: Content | UnsetType = UNSET


LedgerEvent = (
    AgentCreated
    | SessionCreated
    | SessionMoved
    | SessionArchived
    | SessionRenamed
    | AliasAdded
    | CompactionRecorded
    | CompactionChosen
    | MessageAdmitted
    | MessageCancelled
    | MessageDead
    | RunParked
    | WorkersAnswered
    | TurnLinked
    | TurnSuperseded
    | Sighting
    | TurnRetried
    | ContentErased
    | NodeTagged
    | NodeUntagged
    | NodeEmbedded
)


# --- The kinds that tell of resources: what exists beside a conversation, who owns it, how it is kept and brought
# back.


class ResourceDeclared(Event, frozen=True, gc=False, kw_only=True, tag="resource_declared"):
    about: ClassVar[str] = (
        "A resource exists, or is described anew. `imperative`: what it is cannot be brought back; `place` is where it"
        " is found: a path, a uri, a name in an engine; `machine`: the machine that has the place, where several share"
        " a ledger; `made`: Weft made it, so Weft may remove it."
    )
    category: ClassVar[EventClass] = EventClass.TRANSITION

    name: Content
    resource_kind: ResourceKind
    capabilities: tuple[ResourceCapability, ...]
    place: Content
    imperative: bool | UnsetType = UNSET
    made: bool | UnsetType = UNSET
    scope: ResourceScope | UnsetType = UNSET
    metadata: Content | UnsetType = UNSET
    machine: Ulid | UnsetType = UNSET


class ResourceOwned(Event, frozen=True, gc=False, kw_only=True, tag="resource_owned"):
    about: ClassVar[str] = (
        "A resource has another owner, one at a time: a session (that is, a branch), an agent or a run; null: nobody,"
        " it was discarded. `reason`: why what Weft made was left where it is."
    )
    category: ClassVar[EventClass] = EventClass.TRANSITION

    resource_ref: NodeId
    owner: ResourceScope | None
    before: ResourceScope | None
    why: OwnershipReason
    reason: Content | UnsetType = UNSET


class SubresourceAdded(Event, frozen=True, gc=False, kw_only=True, tag="subresource_added"):
    about: ClassVar[str] = "A resource is a part of another one, about which a fork decides by itself."
    category: ClassVar[EventClass] = EventClass.OBSERVATION

    resource_ref: NodeId
    part_ref: NodeId
    part: SubresourcePart


class SubresourceRemoved(Event, frozen=True, gc=False, kw_only=True, tag="subresource_removed"):
    about: ClassVar[str] = "A resource is no longer a part of another one."
    category: ClassVar[EventClass] = EventClass.OBSERVATION

    resource_ref: NodeId
    part_ref: NodeId


class HandleOpened(Event, frozen=True, gc=False, kw_only=True, tag="handle_opened"):
    about: ClassVar[str] = "A resource can be acted on through its provider, as long as the handle is open."
    category: ClassVar[EventClass] = EventClass.OBSERVATION

    handle: NodeId
    resource_ref: NodeId
    provider: Named
    provider_id: Content
    capabilities: tuple[HandleCapability, ...] | UnsetType = UNSET


class HandleClosed(Event, frozen=True, gc=False, kw_only=True, tag="handle_closed"):
    about: ClassVar[str] = "A handle is good for nothing any more."
    category: ClassVar[EventClass] = EventClass.OBSERVATION

    handle: NodeId
    resource_ref: NodeId
    reason: Content | UnsetType = UNSET


class ResourceAttached(Event, frozen=True, gc=False, kw_only=True, tag="resource_attached"):
    about: ClassVar[str] = "A resource was attached to an agent, a session or a run."
    category: ClassVar[EventClass] = EventClass.OBSERVATION

    resource_ref: NodeId
    mode: MountMode
    run: Ulid | UnsetType = UNSET
    session: Ulid | UnsetType = UNSET
    agent: Name | Ulid | UnsetType = UNSET


class ResourceDetached(Event, frozen=True, gc=False, kw_only=True, tag="resource_detached"):
    about: ClassVar[str] = "A resource was detached."
    category: ClassVar[EventClass] = EventClass.OBSERVATION

    resource_ref: NodeId
    run: Ulid | UnsetType = UNSET
    session: Ulid | UnsetType = UNSET
    agent: Name | Ulid | UnsetType = UNSET


class ResourceMounted(Event, frozen=True, gc=False, kw_only=True, tag="resource_mounted"):
    about: ClassVar[str] = "A run or a container sees a resource under a path."
    category: ClassVar[EventClass] = EventClass.OBSERVATION

    resource_ref: NodeId
    mount: Content
    mode: MountMode
    run: Ulid | UnsetType = UNSET
    container: NodeId | UnsetType = UNSET


class ResourceUnmounted(Event, frozen=True, gc=False, kw_only=True, tag="resource_unmounted"):
    about: ClassVar[str] = "A run or a container sees a resource no longer."
    category: ClassVar[EventClass] = EventClass.OBSERVATION

    resource_ref: NodeId
    run: Ulid | UnsetType = UNSET
    container: NodeId | UnsetType = UNSET


class ResourceLivenessProbe(Event, frozen=True, gc=False, kw_only=True, tag="resource_liveness_probe"):
    about: ClassVar[str] = "A resource was looked at; advisory."
    category: ClassVar[EventClass] = EventClass.OBSERVATION

    resource_ref: NodeId
    status: ResourceLiveness


class SnapshotRequested(Event, frozen=True, gc=False, kw_only=True, tag="snapshot_requested"):
    about: ClassVar[str] = "A snapshot of a resource is wanted; `method` says how, where whoever wants it does."
    category: ClassVar[EventClass] = EventClass.INTENT

    resource_ref: NodeId
    snapshot_ref: NodeId
    run: Ulid | UnsetType = UNSET
    method: Named | UnsetType = UNSET


class SnapshotCreated(Event, frozen=True, gc=False, kw_only=True, tag="snapshot_created"):
    about: ClassVar[str] = (
        "A snapshot of a resource was taken, or failed; `run` is the turn after which it shows the resource, `after`"
        " the event; with `before` it shows what was there before the turn changed anything. `inferred`: it was put"
        " together from what a source tells, and `skipped` says what is not in it."
    )
    category: ClassVar[EventClass] = EventClass.OBSERVATION

    resource_ref: NodeId
    snapshot_ref: NodeId
    outcome: SnapshotOutcome
    error: ErrorFact | UnsetType = UNSET
    method: Named | UnsetType = UNSET
    external_ref: ExtRef | UnsetType = UNSET
    consistency: SnapshotConsistency | UnsetType = UNSET
    size_bytes: int | UnsetType = UNSET
    restorable: bool | UnsetType = UNSET
    run: Ulid | UnsetType = UNSET
    after: EventRef | UnsetType = UNSET
    before: bool | UnsetType = UNSET
    inferred: bool | UnsetType = UNSET
    skipped: Content | UnsetType = UNSET


class SnapshotDiscarded(Event, frozen=True, gc=False, kw_only=True, tag="snapshot_discarded"):
    about: ClassVar[str] = "What a snapshot kept is gone; it cannot be restored any more."
    category: ClassVar[EventClass] = EventClass.TRANSITION

    resource_ref: NodeId
    snapshot_ref: NodeId
    reason: Content | UnsetType = UNSET


class RestoreRequested(Event, frozen=True, gc=False, kw_only=True, tag="restore_requested"):
    about: ClassVar[str] = (
        "A snapshot is to be restored: over the resource that it was taken of, or as a new one with this id, at this"
        " place and for this owner."
    )
    category: ClassVar[EventClass] = EventClass.INTENT

    snapshot_ref: NodeId
    new_resource_ref: NodeId | UnsetType = UNSET
    place: Content | UnsetType = UNSET
    owner: ResourceScope | UnsetType = UNSET
    restore: Ulid | UnsetType = UNSET
    """The id of this wish, which the outcome names."""


class RestoreAttempted(Event, frozen=True, gc=False, kw_only=True, tag="restore_attempted"):
    about: ClassVar[str] = "A snapshot was to be restored; `unsupported` where that cannot be done."
    category: ClassVar[EventClass] = EventClass.OBSERVATION

    snapshot_ref: NodeId
    outcome: RestoreOutcome
    new_resource_ref: NodeId | UnsetType = UNSET
    resource_ref: NodeId | UnsetType = UNSET
    error: ErrorFact | UnsetType = UNSET
    restore: Ulid | UnsetType = UNSET


class CompensationRecorded(Event, frozen=True, gc=False, kw_only=True, tag="compensation_recorded"):
    about: ClassVar[str] = "An effect was undone after a failure."
    category: ClassVar[EventClass] = EventClass.OBSERVATION

    of: EventRef
    outcome: Named
    details: Content | UnsetType = UNSET


ResourceEvent = (
    ResourceDeclared
    | ResourceOwned
    | SubresourceAdded
    | SubresourceRemoved
    | HandleOpened
    | HandleClosed
    | ResourceAttached
    | ResourceDetached
    | ResourceMounted
    | ResourceUnmounted
    | ResourceLivenessProbe
    | SnapshotRequested
    | SnapshotCreated
    | SnapshotDiscarded
    | RestoreRequested
    | RestoreAttempted
    | CompensationRecorded
)
