"""The edges of the agent graph, a lagging view: their types, which event opens one and which
ends its validity, and how the view is filled when a question about the graph is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from functools import lru_cache, partial
from hashlib import sha256
from itertools import islice
from typing import Any, Protocol

import orjson
from msgspec import UNSET, Struct, field

from weft.kernel import events as kernel_events
from weft.kernel import ledger_events
from weft.kernel import program_events as programs
from weft.kernel.clock import ms_from_iso
from weft.kernel.enums import RestoreOutcome, SnapshotOutcome
from weft.kernel.errors import Damaged, quoted
from weft.kernel.events import Event, EventRef, Named, UnknownEvent, Words
from weft.kernel.program_events import PROGRAM_KINDS
from weft.ledger.views.programs import attachment_user, mount_user, owner_columns
from weft.ledger.views.projector import plain
from weft.ledger.views.rows import decoded
from weft.ledger.views.turns import ROWS_PER_EVENT
from weft.store.fact_log import FactReader
from weft.store.port import Store, WriteTxn
from weft.store.replicas import OwnEvents
from weft.store.sql import Sql

# --- The types of edges in the agent graph: what they join, which event opens one, and which event ends its validity.

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
    EdgeType.SUMMARIZES: EdgeFacts(
        (SUMMARY,), (RUN, EVENT), ("compaction_recorded",), attributes=("turns", "first_kept")
    ),
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


# --- What each event means for the agent graph: which edges it opens, and which it closes.

Attributes = dict[str, Any]


class EdgeOpened(Struct, frozen=True, gc=False):
    """An edge that holds from the event on."""

    type: EdgeType
    source: str
    target: str
    attributes: Attributes | None = None


class EdgeClosed(Struct, frozen=True, gc=False):
    """An edge, by its number, that holds no longer."""

    edge: int


Change = EdgeOpened | EdgeClosed


class StandingEdge(Struct, frozen=True, gc=False):
    """An edge that holds before an event."""

    id: int
    source: str
    target: str
    attributes: Attributes


class StateBefore(Protocol):
    """What stood before an event."""

    n: int
    """The arrival number of the event that is asked about."""

    def thing(self, event_id: str) -> str:
        """The key of what an event stands for: a generation, a tool call, a tool result, a summary, else itself."""

    def event(self, event_id: str) -> str:
        """The key of the event itself."""

    def next_in_run(self, run: str, *, is_first: bool) -> int:
        """Which event of its run this is, counted from 0."""

    def standing(self, type: EdgeType, *, source: str | None = None, target: str | None = None) -> list[StandingEdge]:
        """The edges of this type that hold at these ends, newest first."""

    def was_ever(self, type: EdgeType, *, source: str | None = None, target: str | None = None) -> bool:
        """Whether there was such an edge, however it ended."""

    def agent_of(self, session: str) -> str | None:
        """The agent whose session this is."""

    def summarized_with(self, compaction: str, through: str) -> list[str]:
        """What a compaction summarises beside the last turn, the nearest first: the turns before it, down to those that
        stand in an earlier summary, and the event of that one."""

    def is_imported(self, session: str) -> bool:
        """Whether a session was made of what a source tells; of others no source knows anything better."""

    def counts_for_program(self) -> bool:
        """Whether this event changed the program whose stream it is in."""

    def may_describe(self, resource: str, event: Event) -> bool:
        """Whether this event decides anything about a resource."""

    def resource_of_snapshot(self, snapshot: str) -> str | None:
        """The resource that a snapshot was taken of."""

    def is_restored(self, restore: str) -> bool:
        """Whether the wish for a restore with this id ended well."""

    def may_decide_on(self, policy: str, event: Event, digest: object) -> bool:
        """Whether this event decides anything about a policy."""

    def policies_beside(self, policy: str) -> list[str]:
        """The policies of which one at a time is active, this one among them."""

    def agent_of_policy(self, policy: str) -> str | None:
        """The agent that a policy is for; None: for all."""


Rule = Callable[[StateBefore, Any], Iterable[Change]]
RULES: dict[type, Rule] = {}


def rule(*events: type) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        for event in events:
            RULES[event] = function
        return function

    return register


def changes(before: StateBefore, event: Event | UnknownEvent) -> Iterator[Change]:
    """All that an event means for the graph."""
    stream = event.stream
    if stream[:4] == "run:":
        attributes = {"seq": before.next_in_run(stream[4:], is_first=event.prev is None)}
        yield EdgeOpened(EdgeType.RUN_HAS_EVENT, stream, f"event:{before.n}", attributes)
    applied = RULES.get(type(event))
    if applied is not None:
        yield from applied(before, event)


def edge_opened_once(
    before: StateBefore, type: EdgeType, source: str, target: str, attributes: Attributes | None = None
) -> list[Change]:
    """An edge that several events may tell of, opened by the first."""
    if any(edge.target == target for edge in before.standing(type, source=source)):
        return []
    return [EdgeOpened(type, source, target, attributes)]


def named(value: Named) -> Any:
    """A name as an attribute: itself, or the reference of the content that holds it."""
    return {"content": value.content} if isinstance(value, Words) else value


def present(**attributes: Any) -> Attributes | None:
    """The attributes that are there."""
    found = {name: value for name, value in attributes.items() if value is not UNSET}
    return found or None


# --- runs ---------------------------------------------------------------------------------------------------------


@rule(kernel_events.RunStarted)
def _run_started(before: StateBefore, event: kernel_events.RunStarted) -> Iterator[Change]:
    run = event.stream
    if run[:4] != "run:":
        return
    yield EdgeOpened(EdgeType.AGENT_HAS_RUN, f"program:{event.actor}", run)
    if event.session is not UNSET:
        yield EdgeOpened(EdgeType.SESSION_HAS_RUN, f"session:{event.session}", run)
    if event.fork is not UNSET:
        yield EdgeOpened(EdgeType.DERIVED_FROM, run, f"run:{event.fork.turn}")


@rule(kernel_events.HistoryAppend)
def _history_append(before: StateBefore, event: kernel_events.HistoryAppend) -> Iterator[Change]:
    message = f"message:{event.message.id}"
    yield EdgeOpened(EdgeType.EVENT_PRODUCES, f"event:{before.n}", message)
    if event.stream[:4] == "run:":
        yield EdgeOpened(EdgeType.APPENDED_TO_HISTORY, event.stream, message, {"list": named(event.list)})
    if event.admitted is not UNSET and event.admitted != event.message.id:
        yield EdgeOpened(EdgeType.DERIVED_FROM, message, f"message:{event.admitted}")


@rule(kernel_events.ModelRequest)
def _model_request(before: StateBefore, event: kernel_events.ModelRequest) -> Iterator[Change]:
    if event.input is UNSET:
        return
    here = f"event:{before.n}"
    for entry in dict.fromkeys(event.input.then):
        target = before.thing(entry.event_id) if isinstance(entry, EventRef) else f"message:{entry}"
        yield EdgeOpened(EdgeType.EVENT_CONSUMES, here, target)
    if event.input.base is not None:
        yield EdgeOpened(EdgeType.DERIVED_FROM, here, before.event(event.input.base))


@rule(kernel_events.ModelResponse)
def _model_response(before: StateBefore, event: kernel_events.ModelResponse) -> Iterator[Change]:
    here, generation = f"event:{before.n}", f"generation:{before.n}"
    yield EdgeOpened(EdgeType.EVENT_PRODUCES, here, generation)
    if event.output is not UNSET:
        yield EdgeOpened(EdgeType.EVENT_PRODUCES, here, f"message:{event.output.id}")
    if event.request_id is not UNSET:
        yield EdgeOpened(EdgeType.DERIVED_FROM, generation, before.event(event.request_id))


@rule(kernel_events.ToolCallRequested)
def _tool_call(before: StateBefore, event: kernel_events.ToolCallRequested) -> Iterator[Change]:
    asked = event.requested_by
    caller = f"event:{before.n}" if asked is UNSET else before.thing(asked.event_id)
    yield EdgeOpened(EdgeType.CALLS_TOOL, caller, f"tool_call:{before.n}")


@rule(kernel_events.ToolResult)
def _tool_result(before: StateBefore, event: kernel_events.ToolResult) -> Iterator[Change]:
    call, result, here = before.thing(event.call.event_id), f"tool_result:{before.n}", f"event:{before.n}"
    yield EdgeOpened(EdgeType.EVENT_PRODUCES, here, result)
    yield EdgeOpened(EdgeType.EVENT_CONSUMES, here, call)
    yield EdgeOpened(EdgeType.RETURNS_RESULT, call, result, {"status": event.status.value})
    for turn in dict.fromkeys(event.awaited or ()):
        yield EdgeOpened(EdgeType.DERIVED_FROM, result, f"run:{turn}")
    if event.spawned is not UNSET:
        yield from edge_opened_once(
            before, EdgeType.FORKED_FROM, f"session:{event.spawned}", before.event(event.call.event_id)
        )


@rule(kernel_events.McpResourceUpdated)
def _mcp_resource_updated(before: StateBefore, event: kernel_events.McpResourceUpdated) -> Iterator[Change]:
    attributes = {"server": named(event.server), "uri": {"content": event.uri}}
    yield EdgeOpened(EdgeType.MCP_RESOURCE_UPDATED, f"event:{before.n}", node_key(URI, event.uri), attributes)


@rule(kernel_events.Interruption)
def _interruption_edges(before: StateBefore, event: kernel_events.Interruption) -> Iterator[Change]:
    for affected in dict.fromkeys(event.affects):
        target = before.event(affected.event_id)
        yield EdgeOpened(EdgeType.INTERRUPTS, f"event:{before.n}", target, {"reason": event.reason.value})


@rule(kernel_events.Substitution)
def _substitution_edges(before: StateBefore, event: kernel_events.Substitution) -> Iterator[Change]:
    replacement, original = event.replacement_event.event_id, event.original_event.event_id
    yield EdgeOpened(EdgeType.SUBSTITUTES, before.event(replacement), before.event(original))


@rule(kernel_events.SnapshotMaterialized)
def _snapshot_materialized(before: StateBefore, event: kernel_events.SnapshotMaterialized) -> Iterator[Change]:
    shown = node_key(MATERIALIZATION, event.materialization)
    yield EdgeOpened(EdgeType.EVENT_PRODUCES, f"event:{before.n}", shown)
    if event.run is not UNSET:
        yield EdgeOpened(EdgeType.DERIVED_FROM, shown, f"run:{event.run}")


@rule(ledger_events.CompactionRecorded)
def _compaction_recorded(before: StateBefore, event: ledger_events.CompactionRecorded) -> Iterator[Change]:
    summary = f"summary:{before.n}"
    yield EdgeOpened(EdgeType.EVENT_PRODUCES, f"event:{before.n}", summary)
    attributes = present(turns=event.turns_summarized, first_kept=event.first_kept)
    yield EdgeOpened(EdgeType.SUMMARIZES, summary, f"run:{event.summarized_through}", attributes)
    if event.stream[:4] == "run:":
        for target in before.summarized_with(event.stream[4:], event.summarized_through):
            yield EdgeOpened(EdgeType.SUMMARIZES, summary, target)


@rule(ledger_events.TurnLinked)
def _turn_linked(before: StateBefore, event: ledger_events.TurnLinked) -> Iterator[Change]:
    yield EdgeOpened(EdgeType.DERIVED_FROM, f"run:{event.child}", f"run:{event.parent}", {"why": event.why.value})


@rule(ledger_events.TurnSuperseded)
def _turn_superseded(before: StateBefore, event: ledger_events.TurnSuperseded) -> Iterator[Change]:
    yield EdgeOpened(EdgeType.DERIVED_FROM, f"run:{event.by}", f"run:{event.turn}", {"why": event.why.value})


@rule(ledger_events.TurnRetried)
def _turn_retried(before: StateBefore, event: ledger_events.TurnRetried) -> Iterator[Change]:
    yield EdgeOpened(EdgeType.DERIVED_FROM, f"run:{event.turn}", f"run:{event.of}", {"why": "retry"})


# --- sessions -----------------------------------------------------------------------------------------------------


@rule(ledger_events.SessionCreated)
def _session_created(before: StateBefore, event: ledger_events.SessionCreated) -> Iterator[Change]:
    session = event.stream
    if session[:8] != "session:":
        return
    yield EdgeOpened(EdgeType.AGENT_HAS_SESSION, f"program:{event.persona}", session)
    if event.parent_session is not UNSET:
        parent = before.agent_of(event.parent_session)
        yield EdgeOpened(EdgeType.SPAWNED_FROM, session, f"program:{parent or event.persona}")
    elif event.spawned_by is not UNSET or event.parent_turn is not UNSET:
        yield EdgeOpened(EdgeType.SPAWNED_FROM, session, f"program:{event.persona}")
    source = present(from_branch=event.parent_session)
    if event.spawned_by is not UNSET:
        yield EdgeOpened(EdgeType.FORKED_FROM, session, before.event(event.spawned_by.event_id), source)
    if event.parent_turn is not UNSET:
        yield EdgeOpened(EdgeType.FORKED_FROM, session, f"run:{event.parent_turn}", source)
    elif event.parent_session is not UNSET:
        yield EdgeOpened(EdgeType.FORKED_FROM, session, f"session:{event.parent_session}")


@rule(kernel_events.AgentForked)
def _agent_forked(before: StateBefore, event: kernel_events.AgentForked) -> Iterator[Change]:
    session, source = f"session:{event.to_branch}", present(from_branch=event.from_branch)
    yield EdgeOpened(EdgeType.FORKED_FROM, session, before.event(event.at_event.event_id), source)
    yield EdgeOpened(EdgeType.FORKED_FROM, session, f"run:{event.at_turn}", source)


@rule(ledger_events.Sighting)
def _sighting_edges(before: StateBefore, event: ledger_events.Sighting) -> Iterator[Change]:
    """What a source tells of a session: its turns, whose subagent it is, and which sessions the calls of a turn began.
    Where the sources of several sessions hold a turn, each of them has it."""
    if not before.is_imported(event.session):
        return
    session = f"session:{event.session}"
    if event.turn is UNSET:
        if event.parent is not UNSET:
            agent = before.agent_of(event.parent) or before.agent_of(event.session) or event.actor
            yield from edge_opened_once(before, EdgeType.SPAWNED_FROM, session, f"program:{agent}")
            yield from edge_opened_once(before, EdgeType.FORKED_FROM, session, f"session:{event.parent}")
        return
    run = f"run:{event.turn}"
    if all(edge.source != session for edge in before.standing(EdgeType.SESSION_HAS_RUN, target=run)):
        yield EdgeOpened(EdgeType.SESSION_HAS_RUN, session, run)
    for call in event.calls or ():
        if call.spawned is not UNSET:
            yield from edge_opened_once(before, EdgeType.FORKED_FROM, f"session:{call.spawned}", run)


@rule(ledger_events.MessageAdmitted)
def _message_admitted(before: StateBefore, event: ledger_events.MessageAdmitted) -> Iterator[Change]:
    message = f"message:{event.message}"
    yield EdgeOpened(EdgeType.EVENT_PRODUCES, f"event:{before.n}", message)
    for earlier in (event.posted, event.again):
        if earlier is not UNSET and earlier != event.message:
            yield EdgeOpened(EdgeType.DERIVED_FROM, message, f"message:{earlier}")
    if event.worker is not UNSET:
        yield EdgeOpened(EdgeType.DERIVED_FROM, message, f"run:{event.worker}")


@rule(kernel_events.MessagePosted)
def _message_posted(before: StateBefore, event: kernel_events.MessagePosted) -> Iterator[Change]:
    message = f"message:{event.message}"
    yield EdgeOpened(EdgeType.EVENT_PRODUCES, f"event:{before.n}", message)
    if event.turn is not UNSET:
        yield EdgeOpened(EdgeType.DERIVED_FROM, message, f"run:{event.turn}")


# --- programs -----------------------------------------------------------------------------------------------------


def _reference_edges(before: StateBefore, event: Any) -> Iterator[Change]:
    """The programs that a configuration names, in the place of those that the one before it named."""
    if not before.counts_for_program():
        return
    wanted = {
        (f"program:{reference.program}", reference.field.value, reference.version): reference
        for reference in event.references or ()
    }
    for edge in before.standing(EdgeType.REFERS_TO, source=event.stream):
        name = edge.target, edge.attributes.get("field"), edge.attributes.get("version", UNSET)
        if wanted.pop(name, None) is None:
            yield EdgeClosed(edge.id)
    for target, place, version in wanted:
        yield EdgeOpened(EdgeType.REFERS_TO, event.stream, target, present(field=place, version=version))


for _facts in PROGRAM_KINDS.values():
    for _event in (_facts.created, _facts.configured):
        if _event is not ledger_events.SessionCreated:
            rule(_event)(_reference_edges)
rule(programs.SessionConfigured)(_reference_edges)


# --- What the events of resources and of approval policies mean for the agent graph.

_KEYS = {"session": "session", "agent": "program", "run": "run", "container": "resource"}
"""What the views call whoever owns or uses a resource, and as what it is a node."""


def _user_key(user: tuple[str, str]) -> str:
    return f"{_KEYS[user[0]]}:{user[1]}"


@rule(ledger_events.ResourceOwned)
def _resource_owned(before: StateBefore, event: ledger_events.ResourceOwned) -> Iterator[Change]:
    if not before.may_describe(event.resource_ref, event):
        return
    resource = f"resource:{event.resource_ref}"
    for edge in before.standing(EdgeType.OWNS_RESOURCE, target=resource):
        yield EdgeClosed(edge.id)
    kind, owner = owner_columns(event.owner)
    if kind is not None and owner is not None:
        yield EdgeOpened(EdgeType.OWNS_RESOURCE, _user_key((kind, owner)), resource, {"why": event.why.value})


@rule(ledger_events.SubresourceAdded)
def _subresource_added(before: StateBefore, event: ledger_events.SubresourceAdded) -> Iterator[Change]:
    if not before.may_describe(event.resource_ref, event):
        return
    whole, part = f"resource:{event.resource_ref}", f"resource:{event.part_ref}"
    if not any(edge.target == part for edge in before.standing(EdgeType.HAS_SUBRESOURCE, source=whole)):
        yield EdgeOpened(EdgeType.HAS_SUBRESOURCE, whole, part, {"part": event.part.value})


@rule(ledger_events.SubresourceRemoved)
def _subresource_removed(before: StateBefore, event: ledger_events.SubresourceRemoved) -> Iterator[Change]:
    if before.may_describe(event.resource_ref, event):
        part = f"resource:{event.part_ref}"
        for edge in before.standing(EdgeType.HAS_SUBRESOURCE, source=f"resource:{event.resource_ref}"):
            if edge.target == part:
                yield EdgeClosed(edge.id)


@rule(ledger_events.HandleOpened)
def _handle_opened(before: StateBefore, event: ledger_events.HandleOpened) -> Iterator[Change]:
    handle = f"handle:{event.handle}"
    if before.may_describe(event.resource_ref, event) and not before.was_ever(EdgeType.HANDLE_OF, source=handle):
        provider = {"provider": named(event.provider)}
        yield EdgeOpened(EdgeType.HANDLE_OF, handle, f"resource:{event.resource_ref}", provider)


@rule(ledger_events.HandleClosed)
def _handle_closed(before: StateBefore, event: ledger_events.HandleClosed) -> Iterator[Change]:
    if before.may_describe(event.resource_ref, event):
        for edge in before.standing(EdgeType.HANDLE_OF, source=f"handle:{event.handle}"):
            if edge.target == f"resource:{event.resource_ref}":
                yield EdgeClosed(edge.id)


@rule(ledger_events.ResourceAttached, ledger_events.ResourceDetached)
def _attachment_edges(
    before: StateBefore, event: ledger_events.ResourceAttached | ledger_events.ResourceDetached
) -> Iterator[Change]:
    """Another attachment to the same user takes the place of the one before."""
    if not before.may_describe(event.resource_ref, event):
        return
    resource, user = f"resource:{event.resource_ref}", _user_key(attachment_user(event))
    for edge in before.standing(EdgeType.ATTACHED_TO, target=user):
        if edge.source == resource:
            yield EdgeClosed(edge.id)
    if isinstance(event, ledger_events.ResourceAttached):
        yield EdgeOpened(EdgeType.ATTACHED_TO, resource, user, {"mode": event.mode.value})


@rule(ledger_events.ResourceMounted, ledger_events.ResourceUnmounted)
def _mount_edges(
    before: StateBefore, event: ledger_events.ResourceMounted | ledger_events.ResourceUnmounted
) -> Iterator[Change]:
    user = mount_user(event)
    if user is None or not before.may_describe(event.resource_ref, event):
        return
    resource, source = f"resource:{event.resource_ref}", _user_key(user)
    for edge in before.standing(EdgeType.MOUNTS_RESOURCE, source=source):
        if edge.target == resource:
            yield EdgeClosed(edge.id)
    if isinstance(event, ledger_events.ResourceMounted):
        attributes = {"mode": event.mode.value, "mount": {"content": event.mount}}
        yield EdgeOpened(EdgeType.MOUNTS_RESOURCE, source, resource, attributes)


@rule(ledger_events.SnapshotCreated)
def _snapshot_created(before: StateBefore, event: ledger_events.SnapshotCreated) -> Iterator[Change]:
    """The first outcome of a snapshot counts."""
    snapshot, resource = f"snapshot:{event.snapshot_ref}", f"resource:{event.resource_ref}"
    if (
        not before.may_describe(event.resource_ref, event)
        or before.resource_of_snapshot(event.snapshot_ref) != event.resource_ref
        or before.was_ever(EdgeType.EVENT_PRODUCES, target=snapshot)
    ):
        return
    yield EdgeOpened(EdgeType.EVENT_PRODUCES, f"event:{before.n}", snapshot)
    yield EdgeOpened(EdgeType.EVENT_CONSUMES, f"event:{before.n}", resource)
    if event.outcome is SnapshotOutcome.OK:
        yield EdgeOpened(EdgeType.SNAPSHOT_OF, snapshot, resource)
        if event.after is not UNSET:
            yield EdgeOpened(EdgeType.DERIVED_FROM, snapshot, before.event(event.after.event_id))
        elif event.run is not UNSET:
            yield EdgeOpened(EdgeType.DERIVED_FROM, snapshot, f"run:{event.run}")


@rule(ledger_events.SnapshotDiscarded)
def _snapshot_discarded(before: StateBefore, event: ledger_events.SnapshotDiscarded) -> Iterator[Change]:
    if before.may_describe(event.resource_ref, event):
        for edge in before.standing(EdgeType.SNAPSHOT_OF, source=f"snapshot:{event.snapshot_ref}"):
            if edge.target == f"resource:{event.resource_ref}":
                yield EdgeClosed(edge.id)


@rule(ledger_events.RestoreAttempted)
def _restore_attempted(before: StateBefore, event: ledger_events.RestoreAttempted) -> Iterator[Change]:
    taken_of = before.resource_of_snapshot(event.snapshot_ref)
    if event.outcome is not RestoreOutcome.OK or taken_of is None or not before.may_describe(taken_of, event):
        return
    if event.restore is not UNSET and not before.is_restored(event.restore):
        return
    snapshot = f"snapshot:{event.snapshot_ref}"
    if event.new_resource_ref is UNSET:
        yield EdgeOpened(EdgeType.RESTORES_TO, snapshot, f"resource:{taken_of}")
        return
    resource = f"resource:{event.new_resource_ref}"
    yield EdgeOpened(EdgeType.RESTORES_TO, snapshot, resource)
    yield EdgeOpened(EdgeType.DERIVED_FROM, resource, snapshot)


# --- policies -----------------------------------------------------------------------------------------------------


@rule(kernel_events.PolicyProposed)
def _policy_proposed(before: StateBefore, event: kernel_events.PolicyProposed) -> Iterator[Change]:
    policy = f"policy:{event.policy_ref}"
    if not before.was_ever(EdgeType.PROPOSES_POLICY, target=policy):
        yield EdgeOpened(EdgeType.PROPOSES_POLICY, f"event:{before.n}", policy, present(agent=event.agent))


@rule(kernel_events.PolicyRejected)
def _policy_rejected(before: StateBefore, event: kernel_events.PolicyRejected) -> Iterator[Change]:
    """A refused policy is no proposal any more, and is not active either."""
    if before.may_decide_on(event.policy_ref, event, UNSET):
        for type in (EdgeType.PROPOSES_POLICY, EdgeType.ACTIVATES_POLICY):
            for edge in before.standing(type, target=f"policy:{event.policy_ref}"):
                yield EdgeClosed(edge.id)


@rule(kernel_events.PolicyActivated)
def _policy_activated(before: StateBefore, event: kernel_events.PolicyActivated) -> Iterator[Change]:
    if before.may_decide_on(event.policy_ref, event, event.digest):
        yield from _activation_edges(before, event.policy_ref)


@rule(kernel_events.PolicyRolledBack)
def _policy_rolled_back(before: StateBefore, event: kernel_events.PolicyRolledBack) -> Iterator[Change]:
    if before.may_decide_on(event.to, event, event.digest):
        yield from _activation_edges(before, event.to)


def _activation_edges(before: StateBefore, policy: str) -> Iterator[Change]:
    """One policy is active, of one agent or of all: the other one is not any longer, and this is no proposal."""
    for beside in before.policies_beside(policy):
        for edge in before.standing(EdgeType.ACTIVATES_POLICY, target=f"policy:{beside}"):
            yield EdgeClosed(edge.id)
    for edge in before.standing(EdgeType.PROPOSES_POLICY, target=f"policy:{policy}"):
        yield EdgeClosed(edge.id)
    agent = before.agent_of_policy(policy)
    attributes = None if agent is None else {"agent": agent}
    yield EdgeOpened(EdgeType.ACTIVATES_POLICY, f"event:{before.n}", f"policy:{policy}", attributes)


# --- The edges of the agent graph: a lagging view, filled when a question about the graph is asked.

VIEW = "edge"
BATCH_ROWS, BATCH_EVENTS = 512, 8192
"""Of the log, so many go into one transaction at most: writers wait for it. A row alone may have more events."""
REMEMBERED_EVENTS, REMEMBERED_RUNS = 65_536, 16_384
SUMMARIZED_TURNS = 4096
"""So many turns before the last one have an edge from their summary."""
Progress = Callable[[str, int, int], None]
_INSERT = (
    "INSERT INTO edge(id, type, source, target, attributes, valid_from) VALUES (?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (id) DO NOTHING"
)
_CLOSE = "UPDATE edge SET valid_to = ?, closed = ? WHERE id = ? AND closed IS NULL"
_THINGS: dict[type, str] = {
    kernel_events.ModelResponse: "generation",
    kernel_events.ToolCallRequested: "tool_call",
    kernel_events.ToolResult: "tool_result",
    ledger_events.CompactionRecorded: "summary",
}
"""The kinds of event that stand for a node of another kind."""
_time_ms = lru_cache(maxsize=4096)(ms_from_iso)


class EdgeMemory(Struct):
    """What the rows of a stretch of the log say, for the stretch that follows it."""

    mark: int = 0
    events: dict[str, tuple[int, str]] = field(default_factory=dict)
    """By their ids the newest events: arrival number, and as which kind of node they stand."""
    runs: dict[str, int] = field(default_factory=dict)
    """How many events runs have had."""

    def begin(self, after: int) -> None:
        """What was remembered holds only if nothing lies between, or was undone."""
        if after != self.mark:
            self.events.clear()
            self.runs.clear()
        if len(self.events) > REMEMBERED_EVENTS:
            for id in list(islice(self.events, len(self.events) - REMEMBERED_EVENTS // 2)):
                del self.events[id]
        if len(self.runs) > REMEMBERED_RUNS:
            self.runs.clear()


def catch_up(store: Store, progress: Progress | None = None) -> None:
    """Bring the view up to the newest fact, batch by batch, each a transaction of its own."""
    if not is_behind(store):
        return
    store.catch_up()  # events are found by their ids
    memory = EdgeMemory()
    while store.write(partial(advance, memory)):
        if progress is not None:
            with store.read() as txn:
                progress("graph", memory.mark, txn.facts.tip().n)
        if not is_behind(store):
            return


def is_behind(store: Store) -> bool:
    """Whoever has nothing to add takes no lock."""
    if store.read_only:
        return False
    with store.read() as txn:
        return txn.facts.watermark(VIEW) < txn.facts.tip().n


def advance(memory: EdgeMemory, txn: WriteTxn) -> bool:
    """One batch from the watermark on; True when there is more of what was there."""
    mark = txn.facts.watermark(VIEW)
    rows = txn.facts.log(mark, BATCH_ROWS)
    if not rows:
        return False
    first = rows[0].first
    taken = [row for row in rows if row.n - first < BATCH_EVENTS] or rows[:1]
    fill(txn.sql, txn.facts, mark, taken[-1].n, memory=memory)
    return len(taken) < len(rows) or len(rows) == BATCH_ROWS


def fill(
    sql: Sql,
    facts: FactReader,
    after: int,
    until: int,
    *,
    views: Sql | None = None,
    memory: EdgeMemory | None = None,
) -> None:
    """The edges of all events in (after, until], and the mark that says so. `views` has the other views, where they
    are not in the same database."""
    memory = EdgeMemory() if memory is None else memory
    memory.begin(after)
    state = GraphState(sql, views or sql, facts, memory)
    for row in facts.rows(after):
        for n, line in enumerate(row.lines(), row.first):
            if after < n <= until:
                state.take(n, row.at, line)
        if row.n >= until:
            break
    state.flush()
    memory.mark = until
    sql.run(
        "INSERT INTO watermark(view, n) VALUES (?, ?) ON CONFLICT (view) DO UPDATE SET n = excluded.n", (VIEW, until)
    )


class GraphState:
    """The graph up to an event: what the rules ask for, and where they are applied."""

    def __init__(self, sql: Sql, views: Sql, facts: FactReader, memory: EdgeMemory) -> None:
        self._sql, self._views, self._facts, self._memory = sql, views, facts, memory
        self._own = OwnEvents(facts.sql)
        self._rows: list[tuple[Any, ...]] = []
        self.n = 0

    def take(self, n: int, at: int, line: bytes) -> None:
        """One fact."""
        event = decoded(n, line)
        self.n = n
        first, when = n * ROWS_PER_EVENT, _time_ms(event.ts) if isinstance(event.ts, str) else at
        for k, change in enumerate(islice(changes(self, event), ROWS_PER_EVENT)):
            if isinstance(change, EdgeOpened):
                attributes = change.attributes
                written = None if attributes is None else _attributes_text(attributes)
                self._rows.append((first + k, change.type.value, change.source, change.target, written, when))
            else:
                self._close_edge(change, when)
        self._memory.events[sha256(line).hexdigest()] = n, thing_of(event)

    def _close_edge(self, change: EdgeClosed, when: int) -> None:
        self.flush()
        self._sql.run(_CLOSE, (when, self.n, change.edge))

    def flush(self) -> None:
        if self._rows:
            self._sql.run_many(_INSERT, self._rows)
            self._rows.clear()

    # --- what the rules ask -------------------------------------------------------------------------------------

    def _find_event(self, event_id: str) -> tuple[str, str]:
        """An event as a kind of node and its id: the arrival number if it came before, else its own id."""
        found = self._memory.events.get(event_id)
        if found is None:
            found = self._look_up(event_id)
            if found is None:
                return EVENT, event_id
            self._memory.events[event_id] = found
        return found[1], str(found[0])

    def _look_up(self, event_id: str) -> tuple[int, str] | None:
        n = self._facts.find_event(bytes.fromhex(event_id))
        line = None if n is None or n >= self.n else self._facts.line(n)
        return None if n is None or line is None else (n, thing_of(decoded(n, line)))

    def thing(self, event_id: str) -> str:
        kind, id = self._find_event(event_id)
        return f"{kind}:{id}"

    def event(self, event_id: str) -> str:
        return f"event:{self._find_event(event_id)[1]}"

    def next_in_run(self, run: str, *, is_first: bool) -> int:
        count = self._memory.runs.get(run, 0 if is_first else None)
        if count is None:
            self.flush()
            row = self._sql.fetch_row(
                "SELECT attributes FROM edge WHERE source = ? AND type = ? ORDER BY id DESC LIMIT 1",
                (f"run:{run}", EdgeType.RUN_HAS_EVENT.value),
            )
            count = 0 if row is None else int(read_attributes(row[0]).get("seq", -1)) + 1
        self._memory.runs[run] = count + 1
        return count

    def standing(self, type: EdgeType, *, source: str | None = None, target: str | None = None) -> list[StandingEdge]:
        self.flush()
        column, end = ("source", source) if target is None else ("target", target)
        rows = self._sql.fetch_rows(
            f"SELECT id, source, target, attributes FROM edge WHERE {column} = ? AND type = ? AND closed IS NULL"
            " ORDER BY id DESC",
            (end, type.value),
        )
        return [StandingEdge(id, source, target, read_attributes(text)) for id, source, target, text in rows]

    def was_ever(self, type: EdgeType, *, source: str | None = None, target: str | None = None) -> bool:
        self.flush()
        column, end = ("source", source) if target is None else ("target", target)
        query = f"SELECT 1 FROM edge WHERE {column} = ? AND type = ? LIMIT 1"
        return self._sql.fetch_row(query, (end, type.value)) is not None

    def agent_of(self, session: str) -> str | None:
        owners = self.standing(EdgeType.AGENT_HAS_SESSION, target=f"session:{session}")
        return owners[-1].source.partition(":")[2] if owners else None

    def summarized_with(self, compaction: str, through: str) -> list[str]:
        row = self._views.fetch_row("SELECT compaction, origin FROM turn WHERE id = ?", (compaction,))
        earlier, origin = (None, None) if row is None else row
        row = (
            None
            if earlier is None
            else self._views.fetch_row("SELECT through FROM compaction WHERE turn = ?", (earlier,))
        )
        covered = None if row is None else row[0]
        runs: list[str] = []
        turn = None if through == covered else self._parent_of(through)
        while turn is not None and turn != covered and len(runs) < SUMMARIZED_TURNS:
            if origin is not None and self._is_compaction(turn):  # sources do not tell which one was in effect
                earlier = turn
                break
            if turn != earlier:
                runs.append(f"run:{turn}")
            turn = self._parent_of(turn)
        return runs + self._summary_events(earlier)

    def _parent_of(self, turn: str) -> str | None:
        row = self._views.fetch_row("SELECT parent FROM turn WHERE id = ?", (turn,))
        return None if row is None else row[0]

    def _is_compaction(self, turn: str) -> bool:
        return self._views.fetch_row("SELECT 1 FROM turn WHERE id = ? AND type = 'compaction'", (turn,)) is not None

    def _summary_events(self, compaction: str | None) -> list[str]:
        """The event that recorded a compaction, if it came before."""
        if compaction is None:
            return []
        events = [edge.target for edge in self.standing(EdgeType.RUN_HAS_EVENT, source=f"run:{compaction}")]
        return [
            event
            for event in reversed(events)
            if any(made.target[:8] == "summary:" for made in self.standing(EdgeType.EVENT_PRODUCES, source=event))
        ][:1]

    def is_imported(self, session: str) -> bool:
        query = "SELECT 1 FROM session WHERE id = ? AND origin IS NOT NULL AND replica IS NULL"
        return self._views.fetch_row(query, (session,)) is not None

    def counts_for_program(self) -> bool:
        return self._views.fetch_row("SELECT 1 FROM program_history WHERE n = ?", (self.n,)) is not None

    def may_describe(self, resource: str, event: Event) -> bool:
        row = self._views.fetch_row("SELECT n, replica FROM resource WHERE id = ? AND n < ?", (resource, self.n))
        if row is None:
            return False
        return not self._own.has(row[0], row[1]) or self._own.has(self.n, plain(event.replica))

    def resource_of_snapshot(self, snapshot: str) -> str | None:
        row = self._views.fetch_row(
            "SELECT resource FROM resource_snapshot WHERE id = ? AND n <= ?", (snapshot, self.n)
        )
        return None if row is None else str(row[0])

    def is_restored(self, restore: str) -> bool:
        row = self._views.fetch_row("SELECT outcome FROM resource_restore WHERE id = ?", (restore,))
        return row is not None and row[0] == RestoreOutcome.OK.value

    def may_decide_on(self, policy: str, event: Event, digest: object) -> bool:
        row = self._views.fetch_row("SELECT replica, digest FROM policy WHERE id = ? AND n < ?", (policy, self.n))
        return row is not None and row[0] == plain(event.replica) and (digest is UNSET or digest == row[1])

    def policies_beside(self, policy: str) -> list[str]:
        rows = self._views.fetch_rows(
            "SELECT other.id FROM policy JOIN policy other ON coalesce(other.agent, '') = coalesce(policy.agent, '')"
            " AND other.replica = policy.replica WHERE policy.id = ? ORDER BY other.n",
            (policy,),
        )
        return [id for (id,) in rows]

    def agent_of_policy(self, policy: str) -> str | None:
        row = self._views.fetch_row("SELECT agent FROM policy WHERE id = ?", (policy,))
        return None if row is None else row[0]


def _attributes_text(attributes: dict[str, Any]) -> str:
    seq = attributes.get("seq")
    if seq is not None and len(attributes) == 1:  # by far the most
        return f'{{"seq":{seq}}}'
    return orjson.dumps(attributes, option=orjson.OPT_SORT_KEYS).decode()


def read_attributes(text: str | None) -> dict[str, Any]:
    """What an edge says of itself."""
    if text is None:
        return {}
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise Damaged(f"an edge of the graph cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise Damaged(f"an edge of the graph cannot be read: {quoted(text)}")
    return found


def thing_of(event: Event | UnknownEvent) -> str:
    """As which kind of node an event stands."""
    return _THINGS.get(type(event), EVENT)
