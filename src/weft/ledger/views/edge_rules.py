"""What each event means for the agent graph: which edges it opens, and which it closes.

Every rule is a function of the event and of what stood before it (`Before`); none of them writes. Edges hold no text: a
content stands in an attribute as its reference, `{"content": REF}`, and is resolved by whoever shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from msgspec import UNSET, Struct

from weft.kernel import conversation_events as rooms
from weft.kernel import dag_events as dag
from weft.kernel import ledger_events as own
from weft.kernel import program_events as programs
from weft.kernel.events import Event, UnknownEvent
from weft.kernel.fields import EventRef, Named, Words
from weft.kernel.program_kinds import PROGRAM_KINDS
from weft.ledger.views import edge_types as kinds
from weft.ledger.views.edge_types import EdgeType, node_key

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


class Before(Protocol):
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


Rule = Callable[[Before, Any], Iterable[Change]]
RULES: dict[type, Rule] = {}


def rule(*events: type) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        for event in events:
            RULES[event] = function
        return function

    return register


def changes(before: Before, event: Event | UnknownEvent) -> Iterator[Change]:
    """All that an event means for the graph."""
    stream = event.stream
    if stream[:4] == "run:":
        attributes = {"seq": before.next_in_run(stream[4:], is_first=event.prev is None)}
        yield EdgeOpened(EdgeType.RUN_HAS_EVENT, stream, f"event:{before.n}", attributes)
    applied = RULES.get(type(event))
    if applied is not None:
        yield from applied(before, event)


def once(
    before: Before, type: EdgeType, source: str, target: str, attributes: Attributes | None = None
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


@rule(dag.RunStarted)
def _run_started(before: Before, event: dag.RunStarted) -> Iterator[Change]:
    run = event.stream
    if run[:4] != "run:":
        return
    yield EdgeOpened(EdgeType.AGENT_HAS_RUN, f"program:{event.actor}", run)
    if event.session is not UNSET:
        yield EdgeOpened(EdgeType.SESSION_HAS_RUN, f"session:{event.session}", run)
    if event.fork is not UNSET:
        yield EdgeOpened(EdgeType.DERIVED_FROM, run, f"run:{event.fork.turn}")


@rule(dag.HistoryAppend)
def _history_append(before: Before, event: dag.HistoryAppend) -> Iterator[Change]:
    message = f"message:{event.message.id}"
    yield EdgeOpened(EdgeType.EVENT_PRODUCES, f"event:{before.n}", message)
    if event.stream[:4] == "run:":
        yield EdgeOpened(EdgeType.APPENDED_TO_HISTORY, event.stream, message, {"list": named(event.list)})
    if event.admitted is not UNSET and event.admitted != event.message.id:
        yield EdgeOpened(EdgeType.DERIVED_FROM, message, f"message:{event.admitted}")


@rule(dag.ModelRequest)
def _model_request(before: Before, event: dag.ModelRequest) -> Iterator[Change]:
    if event.input is UNSET:
        return
    here = f"event:{before.n}"
    for entry in dict.fromkeys(event.input.then):
        target = before.thing(entry.event_id) if isinstance(entry, EventRef) else f"message:{entry}"
        yield EdgeOpened(EdgeType.EVENT_CONSUMES, here, target)
    if event.input.base is not None:
        yield EdgeOpened(EdgeType.DERIVED_FROM, here, before.event(event.input.base))


@rule(dag.ModelResponse)
def _model_response(before: Before, event: dag.ModelResponse) -> Iterator[Change]:
    here, generation = f"event:{before.n}", f"generation:{before.n}"
    yield EdgeOpened(EdgeType.EVENT_PRODUCES, here, generation)
    if event.output is not UNSET:
        yield EdgeOpened(EdgeType.EVENT_PRODUCES, here, f"message:{event.output.id}")
    if event.request_id is not UNSET:
        yield EdgeOpened(EdgeType.DERIVED_FROM, generation, before.event(event.request_id))


@rule(dag.ToolCallRequested)
def _tool_call(before: Before, event: dag.ToolCallRequested) -> Iterator[Change]:
    asked = event.requested_by
    caller = f"event:{before.n}" if asked is UNSET else before.thing(asked.event_id)
    yield EdgeOpened(EdgeType.CALLS_TOOL, caller, f"tool_call:{before.n}")


@rule(dag.ToolResult)
def _tool_result(before: Before, event: dag.ToolResult) -> Iterator[Change]:
    call, result, here = before.thing(event.call.event_id), f"tool_result:{before.n}", f"event:{before.n}"
    yield EdgeOpened(EdgeType.EVENT_PRODUCES, here, result)
    yield EdgeOpened(EdgeType.EVENT_CONSUMES, here, call)
    yield EdgeOpened(EdgeType.RETURNS_RESULT, call, result, {"status": event.status.value})
    for turn in dict.fromkeys(event.awaited or ()):
        yield EdgeOpened(EdgeType.DERIVED_FROM, result, f"run:{turn}")
    if event.spawned is not UNSET:
        yield from once(before, EdgeType.FORKED_FROM, f"session:{event.spawned}", before.event(event.call.event_id))


@rule(dag.McpResourceUpdated)
def _mcp_resource_updated(before: Before, event: dag.McpResourceUpdated) -> Iterator[Change]:
    attributes = {"server": named(event.server), "uri": {"content": event.uri}}
    yield EdgeOpened(EdgeType.MCP_RESOURCE_UPDATED, f"event:{before.n}", node_key(kinds.URI, event.uri), attributes)


@rule(dag.Interruption)
def _interruption(before: Before, event: dag.Interruption) -> Iterator[Change]:
    for affected in dict.fromkeys(event.affects):
        target = before.event(affected.event_id)
        yield EdgeOpened(EdgeType.INTERRUPTS, f"event:{before.n}", target, {"reason": event.reason.value})


@rule(dag.Substitution)
def _substitution(before: Before, event: dag.Substitution) -> Iterator[Change]:
    replacement, original = event.replacement_event.event_id, event.original_event.event_id
    yield EdgeOpened(EdgeType.SUBSTITUTES, before.event(replacement), before.event(original))


@rule(dag.SnapshotMaterialized)
def _snapshot_materialized(before: Before, event: dag.SnapshotMaterialized) -> Iterator[Change]:
    shown = node_key(kinds.MATERIALIZATION, event.materialization)
    yield EdgeOpened(EdgeType.EVENT_PRODUCES, f"event:{before.n}", shown)
    if event.run is not UNSET:
        yield EdgeOpened(EdgeType.DERIVED_FROM, shown, f"run:{event.run}")


@rule(own.CompactionRecorded)
def _compaction_recorded(before: Before, event: own.CompactionRecorded) -> Iterator[Change]:
    summary = f"summary:{before.n}"
    yield EdgeOpened(EdgeType.EVENT_PRODUCES, f"event:{before.n}", summary)
    attributes = present(turns=event.turns_summarized, first_kept=event.first_kept)
    yield EdgeOpened(EdgeType.SUMMARIZES, summary, f"run:{event.summarized_through}", attributes)


@rule(own.TurnLinked)
def _turn_linked(before: Before, event: own.TurnLinked) -> Iterator[Change]:
    yield EdgeOpened(EdgeType.DERIVED_FROM, f"run:{event.child}", f"run:{event.parent}", {"why": event.why.value})


@rule(own.TurnSuperseded)
def _turn_superseded(before: Before, event: own.TurnSuperseded) -> Iterator[Change]:
    yield EdgeOpened(EdgeType.DERIVED_FROM, f"run:{event.by}", f"run:{event.turn}", {"why": event.why.value})


@rule(own.TurnRetried)
def _turn_retried(before: Before, event: own.TurnRetried) -> Iterator[Change]:
    yield EdgeOpened(EdgeType.DERIVED_FROM, f"run:{event.turn}", f"run:{event.of}", {"why": "retry"})


# --- sessions -----------------------------------------------------------------------------------------------------


@rule(own.SessionCreated)
def _session_created(before: Before, event: own.SessionCreated) -> Iterator[Change]:
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


@rule(dag.AgentForked)
def _agent_forked(before: Before, event: dag.AgentForked) -> Iterator[Change]:
    session, source = f"session:{event.to_branch}", present(from_branch=event.from_branch)
    yield EdgeOpened(EdgeType.FORKED_FROM, session, before.event(event.at_event.event_id), source)
    yield EdgeOpened(EdgeType.FORKED_FROM, session, f"run:{event.at_turn}", source)


@rule(own.Sighting)
def _sighting(before: Before, event: own.Sighting) -> Iterator[Change]:
    """What a source tells of a session: its turns, whose subagent it is, and which sessions the calls of a turn began.
    Where the sources of several sessions hold a turn, each of them has it."""
    if not before.is_imported(event.session):
        return
    session = f"session:{event.session}"
    if event.turn is UNSET:
        if event.parent is not UNSET:
            agent = before.agent_of(event.parent) or before.agent_of(event.session) or event.actor
            yield from once(before, EdgeType.SPAWNED_FROM, session, f"program:{agent}")
            yield from once(before, EdgeType.FORKED_FROM, session, f"session:{event.parent}")
        return
    run = f"run:{event.turn}"
    if all(edge.source != session for edge in before.standing(EdgeType.SESSION_HAS_RUN, target=run)):
        yield EdgeOpened(EdgeType.SESSION_HAS_RUN, session, run)
    for call in event.calls or ():
        if call.spawned is not UNSET:
            yield from once(before, EdgeType.FORKED_FROM, f"session:{call.spawned}", run)


@rule(own.MessageAdmitted)
def _message_admitted(before: Before, event: own.MessageAdmitted) -> Iterator[Change]:
    message = f"message:{event.message}"
    yield EdgeOpened(EdgeType.EVENT_PRODUCES, f"event:{before.n}", message)
    for earlier in (event.posted, event.again):
        if earlier is not UNSET and earlier != event.message:
            yield EdgeOpened(EdgeType.DERIVED_FROM, message, f"message:{earlier}")
    if event.worker is not UNSET:
        yield EdgeOpened(EdgeType.DERIVED_FROM, message, f"run:{event.worker}")


@rule(rooms.MessagePosted)
def _message_posted(before: Before, event: rooms.MessagePosted) -> Iterator[Change]:
    message = f"message:{event.message}"
    yield EdgeOpened(EdgeType.EVENT_PRODUCES, f"event:{before.n}", message)
    if event.turn is not UNSET:
        yield EdgeOpened(EdgeType.DERIVED_FROM, message, f"run:{event.turn}")


# --- programs -----------------------------------------------------------------------------------------------------


def _refers(before: Before, event: Any) -> Iterator[Change]:
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
    for target, field, version in wanted:
        yield EdgeOpened(EdgeType.REFERS_TO, event.stream, target, present(field=field, version=version))


for _facts in PROGRAM_KINDS.values():
    for _event in (_facts.created, _facts.configured):
        if _event is not own.SessionCreated:
            rule(_event)(_refers)
rule(programs.SessionConfigured)(_refers)
