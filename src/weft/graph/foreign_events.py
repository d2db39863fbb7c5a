"""Events of other programs that belong to no run: resources, snapshots, policies, forks, notices of MCP servers.

Each is written as an event of another ledger would be: it is seen in the graph, and decides nothing here. That ledger
has a name of its own for each origin. Ids of other programs become ids that their words and the import secret give, so
the same file gives the same events again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from weft.kernel import events as kernel_events
from weft.kernel import ledger_events
from weft.kernel.contents import ImportSecret
from weft.kernel.enums import (
    MountMode,
    ResourceCapability,
    ResourceKind,
    ResourceLiveness,
    RestoreOutcome,
    SnapshotConsistency,
    SnapshotOutcome,
)
from weft.kernel.events import ErrorFact, Event, EventRef, ExtRef, ResourceScope, ledger_stream, resource_stream
from weft.ledger.imports.imported_turns import EncodedEvents, EventDraft, named
from weft.ledger.model import IMPORTED_AGENT

UNKNOWN_SOURCE = "# The source of this policy is not known here: another program told that it was activated."

# --- The shapes of the agent graph's schema.


class ApartShape(Struct, kw_only=True):
    """What every event beside runs has."""

    ts: str
    agent_id: str | UnsetType = UNSET
    event_id: str | UnsetType = UNSET
    session_id: str | UnsetType = UNSET
    run_id: str | UnsetType = UNSET


class EventShape(Struct):
    event_id: str


class OutsideShape(Struct):
    kind: str
    id: str


class ErrorShape(Struct):
    message: str
    code: str | UnsetType = UNSET
    details: Any = UNSET


class _McpUpdated(ApartShape):
    server: str
    uri: str
    etag: str | UnsetType = UNSET
    hash: str | UnsetType = UNSET
    summary: str | UnsetType = UNSET


class _McpListChanged(ApartShape):
    server: str


class _Forked(ApartShape):
    from_branch: str
    to_branch: str
    at_event: EventShape


class _Substituted(ApartShape):
    original_event: EventShape
    replacement_event: EventShape
    reason: str | UnsetType = UNSET


class _Materialized(ApartShape):
    content_ref: OutsideShape
    materialization: str | UnsetType = UNSET


class _PolicyProposed(ApartShape):
    policy_ref: str
    source: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    docstring: str | UnsetType = UNSET
    notes: str | UnsetType = UNSET


class _PolicyActivated(ApartShape):
    policy_ref: str
    notes: str | UnsetType = UNSET


class _OfResource(ApartShape):
    resource_ref: str


class ScopeShape(Struct):
    """For whom a resource is there."""

    agent_id: str | UnsetType = UNSET
    run_id: str | UnsetType = UNSET
    session_id: str | UnsetType = UNSET


class _Declared(ApartShape):
    resource_kind: ResourceKind
    name: str
    resource_id: str
    capabilities: list[ResourceCapability] = msgspec.field(default_factory=list)
    place: str | UnsetType = UNSET
    imperative: bool | UnsetType = UNSET
    scope: ScopeShape | UnsetType = UNSET


class _Attached(_OfResource):
    mode: MountMode


class _Probed(_OfResource):
    status: ResourceLiveness


class _Snapshot(_OfResource):
    snapshot_ref: str
    outcome: SnapshotOutcome
    error: ErrorShape | UnsetType = UNSET
    method: str | UnsetType = UNSET
    external_ref: OutsideShape | UnsetType = UNSET
    consistency: SnapshotConsistency | UnsetType = UNSET
    size_bytes: int | UnsetType = UNSET
    restorable: bool | UnsetType = UNSET


class _Restored(ApartShape):
    snapshot_ref: str
    outcome: RestoreOutcome
    new_resource_ref: str | UnsetType = UNSET
    error: ErrorShape | UnsetType = UNSET


SHAPES: dict[str, type[ApartShape]] = {
    "mcp.resource_updated": _McpUpdated,
    "mcp.resource_list_changed": _McpListChanged,
    "agent_forked": _Forked,
    "substitution": _Substituted,
    "snapshot_materialized": _Materialized,
    "policy_proposed": _PolicyProposed,
    "policy_activated": _PolicyActivated,
    "resource_declared": _Declared,
    "resource_attached": _Attached,
    "resource_detached": _OfResource,
    "resource_liveness_probe": _Probed,
    "snapshot_created": _Snapshot,
    "restore_attempted": _Restored,
}
"""The kinds beside runs that are seen in the graph."""


# --- What runs were made of them: the ids that they have here.


class ForeignIds(Struct):
    """What events of other programs are called here, where they are known."""

    turns: dict[str, str]
    """By their run ids."""
    events: dict[str, tuple[str, str]]
    """By event ids: the id here, and the turn."""
    sessions: set[str]
    """The sessions that are here, by their names."""
    find_resource: Callable[[str], bool]
    find_policy: Callable[[str], bool]

    def add_events(self, names: Sequence[str | None], ids: Sequence[str], turn: str) -> None:
        """The events of a turn; of one that an older mapping made, or that grew, others may be here."""
        if len(names) == len(ids):
            self.events |= {name: (id, turn) for name, id in zip(names, ids, strict=True) if name is not None}


# --- The events.


class ForeignEvents:
    """Makes events of one origin's lines, each with what it needs beside it."""

    def __init__(self, secret: ImportSecret, origin: str, ids: ForeignIds) -> None:
        self._secret, self._origin, self._ids = secret, origin, ids
        self._replica = self._own_id("replica", "")
        self._declared: dict[str, _Declared] = {}
        self._begun: set[str] = set()
        """Resources and policies that are there by now."""
        self._makers: Mapping[type, Callable[[EventDraft, Any], Event | None]] = {
            _McpUpdated: self._mcp_updated,
            _McpListChanged: self._mcp_list_changed,
            _Forked: self._forked,
            _Substituted: self._substituted,
            _Materialized: self._materialized,
            _PolicyProposed: self._policy_proposed,
            _PolicyActivated: self._policy_activated,
            _Attached: self._attached,
            _OfResource: self._detached,
            _Probed: self._probed,
            _Snapshot: self._snapshot,
            _Restored: self._restored,
        }

    def declare(self, shape: ApartShape) -> None:
        """A line that describes a resource counts for all lines that name it, wherever it stands."""
        if isinstance(shape, _Declared):
            self._declared.setdefault(shape.resource_id, shape)

    def branch_of(self, shape: ApartShape) -> str | None:
        """The session that begins with a fork, if it can be said where."""
        is_known = isinstance(shape, _Forked) and shape.at_event.event_id in self._ids.events
        return shape.to_branch if isinstance(shape, _Forked) and is_known else None

    def made_of(self, shape: ApartShape, name: str, at: str) -> Iterator[EncodedEvents]:
        """The events of a line that is called `name`: first what it names and nothing has told of. None where it names
        what is not known, such as an event of a run that is not here. `at` is its time, spelled as ours are."""
        for resource in self._resources_of(shape):
            yield from self._begin("resource", resource, self._ids.find_resource, self._declaration)
        if isinstance(shape, _PolicyActivated):
            yield from self._begin("policy", shape.policy_ref, self._ids.find_policy, self._unknown_policy)
        maker = self._makers.get(type(shape))
        if maker is None:
            return
        draft = EventDraft(self._secret)
        event = maker(draft, shape)
        if event is not None:
            stream = ledger_stream(self._own_id("event", name))
            draft.add_event(msgspec.structs.replace(event, stream=stream, ts=at))
            yield draft.encoded()

    def _own_id(self, what: str, native: str) -> str:
        return self._secret.node_id(what, native)

    @property
    def _envelope(self) -> dict[str, Any]:
        """Stream and time are set once the event is made."""
        return {"stream": "", "prev": None, "actor": IMPORTED_AGENT, "replica": self._replica}

    def _resources_of(self, shape: ApartShape) -> Iterator[str]:
        if isinstance(shape, _OfResource):
            yield shape.resource_ref
        elif isinstance(shape, _Declared):
            yield shape.resource_id
        elif isinstance(shape, _Restored) and shape.new_resource_ref is not UNSET:
            yield shape.new_resource_ref

    def _begin(
        self, what: str, native: str, is_known: Callable[[str], bool], make: Callable[[EventDraft, str], Event]
    ) -> Iterator[EncodedEvents]:
        id = self._own_id(what, native)
        if id in self._begun or is_known(id):
            return
        self._begun.add(id)
        draft = EventDraft(self._secret)
        draft.add_event(make(draft, native))
        yield draft.encoded()

    def _declaration(self, draft: EventDraft, native: str) -> Event:
        told = self._declared.get(native)
        name = native if told is None else told.name
        return ledger_events.ResourceDeclared(
            **{**self._envelope, "stream": resource_stream(self._own_id("resource", native))},
            name=draft.put_text(name),
            resource_kind=ResourceKind.URI if told is None else told.resource_kind,
            capabilities=() if told is None else tuple(told.capabilities),
            place=draft.put_text(native if told is None else told.place or native),
            imperative=UNSET if told is None else told.imperative,
            scope=UNSET if told is None else self._scope(told),
        )

    def _scope(self, told: _Declared) -> ResourceScope | UnsetType:
        """The turn of its run, and the session that is called so, or that the agent's runs are in."""
        if told.scope is UNSET:
            return UNSET
        session = told.scope.session_id or told.scope.agent_id
        return ResourceScope(
            run=UNSET if told.scope.run_id is UNSET else self._ids.turns.get(told.scope.run_id, UNSET),
            session=self._secret.session_id(session) if session else UNSET,
        )

    def _unknown_policy(self, draft: EventDraft, native: str) -> Event:
        stream = ledger_stream(self._own_id("proposal", native))
        return kernel_events.PolicyProposed(
            **{**self._envelope, "stream": stream},
            policy_ref=self._own_id("policy", native),
            source=draft.put_text(UNKNOWN_SOURCE),
            name=draft.put_text(native),
        )

    # --- kind by kind -----------------------------------------------------------------------------------------------

    def _turn_of(self, shape: ApartShape) -> str | UnsetType:
        return self._ids.turns.get(shape.run_id, UNSET) if shape.run_id is not UNSET else UNSET

    def _text(self, draft: EventDraft, text: str | UnsetType) -> str | UnsetType:
        return UNSET if text is UNSET else draft.put_text(text)

    def _outside(self, draft: EventDraft, shape: OutsideShape | UnsetType) -> ExtRef | UnsetType:
        return UNSET if shape is UNSET else ExtRef(kind=named(draft, shape.kind), id=draft.put_text(shape.id))

    def _error(self, draft: EventDraft, shape: ErrorShape | UnsetType) -> ErrorFact | UnsetType:
        if shape is UNSET:
            return UNSET
        return ErrorFact(code=named(draft, shape.code or "error"), message=draft.put_text(shape.message))

    def _mcp_updated(self, draft: EventDraft, shape: _McpUpdated) -> Event:
        return kernel_events.McpResourceUpdated(
            **self._envelope,
            server=named(draft, shape.server),
            uri=draft.put_text(shape.uri),
            run=self._turn_of(shape),
            etag=self._text(draft, shape.etag),
            hash=self._text(draft, shape.hash),
            summary=self._text(draft, shape.summary),
        )

    def _mcp_list_changed(self, draft: EventDraft, shape: _McpListChanged) -> Event:
        return kernel_events.McpResourceListChanged(
            **self._envelope, server=named(draft, shape.server), run=self._turn_of(shape)
        )

    def _forked(self, draft: EventDraft, shape: _Forked) -> Event | None:
        known = self._ids.events.get(shape.at_event.event_id)
        if known is None:
            return None
        event, turn = known
        owner = shape.session_id or shape.agent_id or self._origin
        left = shape.from_branch if shape.from_branch in self._ids.sessions else owner
        return kernel_events.AgentForked(
            **self._envelope,
            to_branch=self._secret.session_id(shape.to_branch),
            from_branch=self._secret.session_id(left) if left in self._ids.sessions else UNSET,
            at_event=EventRef(event),
            at_turn=turn,
        )

    def _substituted(self, draft: EventDraft, shape: _Substituted) -> Event | None:
        known = [self._ids.events.get(ref.event_id) for ref in (shape.original_event, shape.replacement_event)]
        if known[0] is None or known[1] is None:
            return None
        return kernel_events.Substitution(
            **self._envelope,
            original_event=EventRef(known[0][0]),
            replacement_event=EventRef(known[1][0]),
            reason=self._text(draft, shape.reason),
        )

    def _materialized(self, draft: EventDraft, shape: _Materialized) -> Event:
        native = shape.materialization or f"{shape.content_ref.kind}\0{shape.content_ref.id}"
        reference = self._outside(draft, shape.content_ref)
        assert isinstance(reference, ExtRef)
        return kernel_events.SnapshotMaterialized(
            **self._envelope,
            materialization=self._own_id("materialization", native),
            content_ref=reference,
            run=self._turn_of(shape),
        )

    def _policy_proposed(self, draft: EventDraft, shape: _PolicyProposed) -> Event:
        self._begun.add(self._own_id("policy", shape.policy_ref))
        return kernel_events.PolicyProposed(
            **self._envelope,
            policy_ref=self._own_id("policy", shape.policy_ref),
            source=draft.put_text(shape.source or UNKNOWN_SOURCE),
            name=draft.put_text(shape.name or shape.policy_ref),
            docstring=self._text(draft, shape.docstring),
            notes=self._text(draft, shape.notes),
        )

    def _policy_activated(self, draft: EventDraft, shape: _PolicyActivated) -> Event:
        policy = self._own_id("policy", shape.policy_ref)
        return kernel_events.PolicyActivated(
            **self._envelope, policy_ref=policy, notes=self._text(draft, shape.notes), run=self._turn_of(shape)
        )

    def _user_of(self, shape: ApartShape) -> dict[str, Any]:
        """Who has a resource: the turn of the run, else the session that the agent's runs are in."""
        turn = self._turn_of(shape)
        session = self._secret.session_id(shape.session_id or shape.agent_id or self._origin)
        return {"run": turn} if turn is not UNSET else {"session": session}

    def _resource(self, shape: _OfResource) -> str:
        return self._own_id("resource", shape.resource_ref)

    def _attached(self, draft: EventDraft, shape: _Attached) -> Event:
        return ledger_events.ResourceAttached(
            **self._envelope, resource_ref=self._resource(shape), mode=shape.mode, **self._user_of(shape)
        )

    def _detached(self, draft: EventDraft, shape: _OfResource) -> Event:
        return ledger_events.ResourceDetached(
            **self._envelope, resource_ref=self._resource(shape), **self._user_of(shape)
        )

    def _probed(self, draft: EventDraft, shape: _Probed) -> Event:
        return ledger_events.ResourceLivenessProbe(
            **self._envelope, resource_ref=self._resource(shape), status=shape.status
        )

    def _snapshot(self, draft: EventDraft, shape: _Snapshot) -> Event:
        return ledger_events.SnapshotCreated(
            **self._envelope,
            resource_ref=self._resource(shape),
            snapshot_ref=self._own_id("snapshot", shape.snapshot_ref),
            outcome=shape.outcome,
            error=self._error(draft, shape.error),
            method=UNSET if shape.method is UNSET else named(draft, shape.method),
            external_ref=self._outside(draft, shape.external_ref),
            consistency=shape.consistency,
            size_bytes=shape.size_bytes,
            restorable=shape.restorable,
            run=self._turn_of(shape),
        )

    def _restored(self, draft: EventDraft, shape: _Restored) -> Event:
        made = shape.new_resource_ref
        return ledger_events.RestoreAttempted(
            **self._envelope,
            snapshot_ref=self._own_id("snapshot", shape.snapshot_ref),
            outcome=shape.outcome,
            new_resource_ref=UNSET if made is UNSET else self._own_id("resource", made),
            error=self._error(draft, shape.error),
        )
