"""A fork and what becomes of its resources, as one fact: the session, who owns what, and the copies that are wanted.

The copies themselves are made afterwards, from wishes that stand in the log: whoever dies in between leaves them there.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, Struct

from weft.kernel.enums import OwnershipReason, SnapshotState, VolumeMode
from weft.kernel.errors import InvalidInput, NotApplicable
from weft.kernel.fields import ExtRef, VolumePlan
from weft.ledger.read.access import READ_SESSION
from weft.ledger.resources.model import Owner, PlannedResource, Resource, Snapshot
from weft.ledger.resources.recording import add_discarded, add_owned, require_resource
from weft.ledger.resources.snapshot_reading import load_snapshot
from weft.ledger.resources.snapshots import add_restore_request
from weft.ledger.sessions.heads import NewFork, OpenFork, begin_fork, require_session
from weft.ledger.write.append import Append, LedgerWriter
from weft.ledger.write.placement import load_parent
from weft.store.port import ReadTxn


class Fork(Struct, frozen=True, kw_only=True):
    """A session that began at a turn, and the restores that its copies of resources will come from."""

    session: str
    """Its id."""
    restores: tuple[str, ...]


class _Decision(Struct, frozen=True):
    """One line of a plan with what it names."""

    planned: PlannedResource
    resource: Resource
    snapshot: Snapshot | None


def fork_with_resources(writer: LedgerWriter, new: NewFork, plan: Sequence[PlannedResource]) -> Fork:
    def work(append: Append) -> Fork:
        decisions = [_decide(append, planned) for planned in plan]
        ids = [decision.resource.id for decision in decisions]
        if len(set(ids)) != len(ids):
            raise InvalidInput("the plan names a resource twice", "decide about each resource once")
        _ensure_given_by_owner(append, new, decisions)
        fork = begin_fork(append, new)
        session = fork.add(tuple(_fact(append, fork, decision) for decision in decisions))
        restores = [_carry_out(append, fork, decision) for decision in decisions]
        append.seal()
        return Fork(session=session, restores=tuple(id for id in restores if id is not None))

    return writer.write(work)


def _decide(append: Append, planned: PlannedResource) -> _Decision:
    resource = require_resource(append, planned.resource)
    if resource.owner is None:
        raise NotApplicable(f"resource {resource.name!r} is discarded", "leave it out of the plan")
    if planned.mode is not VolumeMode.SNAPSHOT:
        return _Decision(planned, resource, None)
    if planned.snapshot is None or planned.place is None:
        raise InvalidInput(f"the plan names no snapshot, or no place, for {resource.name!r}", "name both")
    snapshot = load_snapshot(ReadTxn(append.sql, append.txn.facts), planned.snapshot)
    if snapshot.resource != resource.id:
        raise InvalidInput(f"snapshot {snapshot.id} is not one of {resource.name!r}", "name one of its own")
    if snapshot.state is not SnapshotState.OK or not snapshot.restorable:
        raise NotApplicable(f"unsupported: snapshot {snapshot.id} cannot be restored", "keep or discard the resource")
    return _Decision(planned, resource, snapshot)


def _ensure_given_by_owner(append: Append, new: NewFork, decisions: Sequence[_Decision]) -> None:
    """A fork gives away what the session owns that it comes from. What another one has taken over, perhaps since the
    plan was made, is not its own to give."""
    turn = load_parent(append, new.turn)
    made_by = None if turn.session is None else append.view.session_of_number(turn.session)
    origin = made_by if new.source is None else require_session(append, new.source, READ_SESSION)
    for decision in decisions:
        owner, planned = decision.resource.owner, decision.planned
        is_taken = planned.mode is VolumeMode.KEEP and planned.is_kept_by_fork
        is_given = planned.mode is VolumeMode.DISCARD or is_taken
        is_anothers = owner is not None and owner.kind == "session" and (origin is None or owner.id != origin.id)
        if is_given and is_anothers and owner is not None:
            verb = "discarded" if planned.mode is VolumeMode.DISCARD else "taken over"
            raise NotApplicable(
                f"resource {decision.resource.name!r} belongs to session {owner.name or owner.id!r}: it is not {verb}",
                "keep it where it is, or copy it",
            )


def _fact(append: Append, fork: OpenFork, decision: _Decision) -> VolumePlan:
    snapshot, mode = decision.snapshot, decision.planned.mode
    kept_by: str | None = None
    if mode is VolumeMode.KEEP:
        owner = decision.resource.owner
        assert owner is not None, "resources without an owner are refused"
        is_session = owner.kind == "session"
        kept_by = fork.session.id if decision.planned.is_kept_by_fork else owner.id if is_session else None
    reference = None
    if snapshot is not None and snapshot.external_kind is not None and snapshot.external_id is not None:
        reference = ExtRef(append.named(snapshot.external_kind, "kind"), append.put_text(snapshot.external_id, "id"))
    return VolumePlan(
        resource=decision.resource.id,
        mode=mode,
        kept_by=UNSET if kept_by is None else kept_by,
        snapshot_ref=UNSET if reference is None else reference,
    )


def _carry_out(append: Append, fork: OpenFork, decision: _Decision) -> str | None:
    """What can be decided at once; of a copy the wish, whose id is given."""
    planned, owner = decision.planned, Owner("session", fork.session.id)
    if planned.mode is VolumeMode.DISCARD:
        add_discarded(append, decision.resource, planned.why_left)
    elif planned.mode is VolumeMode.KEEP and planned.is_kept_by_fork:
        add_owned(append, decision.resource, owner, OwnershipReason.FORK)
    elif decision.snapshot is not None:
        return add_restore_request(append, decision.snapshot, planned.place, owner)
    return None
