"""What the events of resources and of approval policies mean for the agent graph.

The same events decide here as in the views of resources and policies: what another ledger adds to the stream of a
resource, or decides about a policy that it did not propose, opens and closes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import UNSET

from weft.kernel import approval_events as approvals
from weft.kernel import resource_events as events
from weft.kernel.enums import RestoreOutcome, SnapshotOutcome
from weft.ledger.views.edge_rules import Before, Change, EdgeClosed, EdgeOpened, named, present, rule
from weft.ledger.views.edge_types import EdgeType
from weft.ledger.views.resources import attachment_user, mount_user, owner_columns

_KEYS = {"session": "session", "agent": "program", "run": "run", "container": "resource"}
"""What the views call whoever owns or uses a resource, and as what it is a node."""


def _user_key(user: tuple[str, str]) -> str:
    return f"{_KEYS[user[0]]}:{user[1]}"


@rule(events.ResourceOwned)
def _resource_owned(before: Before, event: events.ResourceOwned) -> Iterator[Change]:
    if not before.may_describe(event.resource_ref, event):
        return
    resource = f"resource:{event.resource_ref}"
    for edge in before.standing(EdgeType.OWNS_RESOURCE, target=resource):
        yield EdgeClosed(edge.id)
    kind, owner = owner_columns(event.owner)
    if kind is not None and owner is not None:
        yield EdgeOpened(EdgeType.OWNS_RESOURCE, _user_key((kind, owner)), resource, {"why": event.why.value})


@rule(events.SubresourceAdded)
def _subresource_added(before: Before, event: events.SubresourceAdded) -> Iterator[Change]:
    if not before.may_describe(event.resource_ref, event):
        return
    whole, part = f"resource:{event.resource_ref}", f"resource:{event.part_ref}"
    if not any(edge.target == part for edge in before.standing(EdgeType.HAS_SUBRESOURCE, source=whole)):
        yield EdgeOpened(EdgeType.HAS_SUBRESOURCE, whole, part, {"part": event.part.value})


@rule(events.SubresourceRemoved)
def _subresource_removed(before: Before, event: events.SubresourceRemoved) -> Iterator[Change]:
    if before.may_describe(event.resource_ref, event):
        part = f"resource:{event.part_ref}"
        for edge in before.standing(EdgeType.HAS_SUBRESOURCE, source=f"resource:{event.resource_ref}"):
            if edge.target == part:
                yield EdgeClosed(edge.id)


@rule(events.HandleOpened)
def _handle_opened(before: Before, event: events.HandleOpened) -> Iterator[Change]:
    handle = f"handle:{event.handle}"
    if before.may_describe(event.resource_ref, event) and not before.was_ever(EdgeType.HANDLE_OF, source=handle):
        provider = {"provider": named(event.provider)}
        yield EdgeOpened(EdgeType.HANDLE_OF, handle, f"resource:{event.resource_ref}", provider)


@rule(events.HandleClosed)
def _handle_closed(before: Before, event: events.HandleClosed) -> Iterator[Change]:
    if before.may_describe(event.resource_ref, event):
        for edge in before.standing(EdgeType.HANDLE_OF, source=f"handle:{event.handle}"):
            if edge.target == f"resource:{event.resource_ref}":
                yield EdgeClosed(edge.id)


@rule(events.ResourceAttached, events.ResourceDetached)
def _attachment(before: Before, event: events.ResourceAttached | events.ResourceDetached) -> Iterator[Change]:
    """Another attachment to the same user takes the place of the one before."""
    if not before.may_describe(event.resource_ref, event):
        return
    resource, user = f"resource:{event.resource_ref}", _user_key(attachment_user(event))
    for edge in before.standing(EdgeType.ATTACHED_TO, target=user):
        if edge.source == resource:
            yield EdgeClosed(edge.id)
    if isinstance(event, events.ResourceAttached):
        yield EdgeOpened(EdgeType.ATTACHED_TO, resource, user, {"mode": event.mode.value})


@rule(events.ResourceMounted, events.ResourceUnmounted)
def _mount(before: Before, event: events.ResourceMounted | events.ResourceUnmounted) -> Iterator[Change]:
    user = mount_user(event)
    if user is None or not before.may_describe(event.resource_ref, event):
        return
    resource, source = f"resource:{event.resource_ref}", _user_key(user)
    for edge in before.standing(EdgeType.MOUNTS_RESOURCE, source=source):
        if edge.target == resource:
            yield EdgeClosed(edge.id)
    if isinstance(event, events.ResourceMounted):
        attributes = {"mode": event.mode.value, "mount": {"content": event.mount}}
        yield EdgeOpened(EdgeType.MOUNTS_RESOURCE, source, resource, attributes)


@rule(events.SnapshotCreated)
def _snapshot_created(before: Before, event: events.SnapshotCreated) -> Iterator[Change]:
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


@rule(events.SnapshotDiscarded)
def _snapshot_discarded(before: Before, event: events.SnapshotDiscarded) -> Iterator[Change]:
    if before.may_describe(event.resource_ref, event):
        for edge in before.standing(EdgeType.SNAPSHOT_OF, source=f"snapshot:{event.snapshot_ref}"):
            if edge.target == f"resource:{event.resource_ref}":
                yield EdgeClosed(edge.id)


@rule(events.RestoreAttempted)
def _restore_attempted(before: Before, event: events.RestoreAttempted) -> Iterator[Change]:
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


@rule(approvals.PolicyProposed)
def _policy_proposed(before: Before, event: approvals.PolicyProposed) -> Iterator[Change]:
    policy = f"policy:{event.policy_ref}"
    if not before.was_ever(EdgeType.PROPOSES_POLICY, target=policy):
        yield EdgeOpened(EdgeType.PROPOSES_POLICY, f"event:{before.n}", policy, present(agent=event.agent))


@rule(approvals.PolicyRejected)
def _policy_rejected(before: Before, event: approvals.PolicyRejected) -> Iterator[Change]:
    """A refused policy is no proposal any more, and is not active either."""
    if before.may_decide_on(event.policy_ref, event, UNSET):
        for type in (EdgeType.PROPOSES_POLICY, EdgeType.ACTIVATES_POLICY):
            for edge in before.standing(type, target=f"policy:{event.policy_ref}"):
                yield EdgeClosed(edge.id)


@rule(approvals.PolicyActivated)
def _policy_activated(before: Before, event: approvals.PolicyActivated) -> Iterator[Change]:
    if before.may_decide_on(event.policy_ref, event, event.digest):
        yield from _activation(before, event.policy_ref)


@rule(approvals.PolicyRolledBack)
def _policy_rolled_back(before: Before, event: approvals.PolicyRolledBack) -> Iterator[Change]:
    if before.may_decide_on(event.to, event, event.digest):
        yield from _activation(before, event.to)


def _activation(before: Before, policy: str) -> Iterator[Change]:
    """One policy is active, of one agent or of all: the other one is not any longer, and this is no proposal."""
    for beside in before.policies_beside(policy):
        for edge in before.standing(EdgeType.ACTIVATES_POLICY, target=f"policy:{beside}"):
            yield EdgeClosed(edge.id)
    for edge in before.standing(EdgeType.PROPOSES_POLICY, target=f"policy:{policy}"):
        yield EdgeClosed(edge.id)
    agent = before.agent_of_policy(policy)
    attributes = None if agent is None else {"agent": agent}
    yield EdgeOpened(EdgeType.ACTIVATES_POLICY, f"event:{before.n}", f"policy:{policy}", attributes)
