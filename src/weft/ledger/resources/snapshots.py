"""Snapshots and restores: the wish is written before the effect, the outcome after it, each once.

Whoever carries a wish out may die between the two: the wish stays open, and the next one finds it and does it again.
"""

from __future__ import annotations

from msgspec import UNSET
from msgspec.structs import replace

from weft.kernel.enums import OwnershipReason, ResourceCapability, RestoreOutcome, SnapshotOutcome, SnapshotState
from weft.kernel.errors import NotApplicable, NotFound
from weft.kernel.fields import ErrorFact, EventRef, ExtRef
from weft.kernel.resource_events import (
    CompensationRecorded,
    RestoreAttempted,
    RestoreRequested,
    SnapshotCreated,
    SnapshotDiscarded,
    SnapshotRequested,
)
from weft.ledger.arguments import checked_text
from weft.ledger.resources.model import Failure, KeptState, NewResource, NewSnapshot, Owner, Restore, Snapshot
from weft.ledger.resources.reading import CHANGE_RESOURCE, free_name
from weft.ledger.resources.recording import (
    add_declared,
    require_resource,
    require_standing,
    scope_of_owner,
    stream_of_resource,
)
from weft.ledger.resources.snapshot_reading import is_begun, load_restore, load_snapshot
from weft.ledger.sessions.heads import require_session
from weft.ledger.write.append import Append, LedgerWriter
from weft.store.port import ReadTxn


def request_snapshot(writer: LedgerWriter, name: str, run: str | None, method: str | None = None) -> str:
    """The id of a snapshot that is wanted."""

    def work(append: Append) -> str:
        resource = require_standing(append, name)
        if not resource.can(ResourceCapability.SNAPSHOT):
            raise NotApplicable(f"unsupported: no snapshot can be taken of a {resource.kind}")
        ensure_own_turn(append, run)
        id = append.ulids.mint()
        stream_of_resource(append, resource.id).add(
            SnapshotRequested,
            resource_ref=resource.id,
            snapshot_ref=id,
            run=UNSET if run is None else run,
            method=UNSET if method is None else append.named(method, "method"),
        )
        append.seal()
        return id

    return writer.write(work)


def record_snapshot(
    writer: LedgerWriter,
    resource: str,
    taken: NewSnapshot | Failure,
    *,
    snapshot: str | None = None,
    run: str | None = None,
    is_before: bool = False,
) -> str:
    """The outcome of a wish, or a snapshot that was taken without one; its id. An outcome that is known already stays
    as it is."""

    def work(append: Append) -> str:
        id = add_snapshot(append, resource, taken, snapshot=snapshot, run=run, is_before=is_before)
        append.seal()
        return id

    return writer.write(work)


def add_snapshot(
    append: Append,
    name: str,
    taken: NewSnapshot | Failure,
    *,
    snapshot: str | None = None,
    run: str | None = None,
    is_before: bool = False,
) -> str:
    resource = require_resource(append, name)
    ensure_own_turn(append, run)
    if snapshot is not None:
        known = append.sql.one(
            "SELECT state FROM resource_snapshot WHERE id = ? AND resource = ?", (snapshot, resource.id)
        )
        if known is None:
            raise NotApplicable(f"nobody asked for snapshot {snapshot} of {resource.name!r}")
        if known[0] != SnapshotState.REQUESTED:
            return snapshot
    return _add_outcome(append, resource.id, snapshot or append.ulids.mint(), taken, run=run, is_before=is_before)


def ensure_own_turn(append: Append, run: str | None) -> None:
    """Whose files a turn's are, is said by whoever may write to the turn."""
    if run is None:
        return
    turn = append.view.find_turn(run)
    if turn is None:
        raise NotFound("turn", run)
    append.access.ensure_turn("turn:record", turn, run)


def add_kept_state(append: Append, state: KeptState, run: str, after: str) -> None:
    """What was kept around a call of a tool, as part of its turn: whoever runs the turn has the right to it. A turn has
    one beginning: another one is left out."""
    if append.sql.one("SELECT 1 FROM resource WHERE id = ?", (state.resource,)) is None:
        return
    if state.is_before and is_begun(append.sql, run, state.resource):
        return
    _add_outcome(
        append, state.resource, append.ulids.mint(), state.taken, run=run, after=after, is_before=state.is_before
    )


def _add_outcome(
    append: Append,
    resource: str,
    id: str,
    taken: NewSnapshot | Failure,
    *,
    run: str | None,
    after: str | None = None,
    is_before: bool = False,
) -> str:
    stream = stream_of_resource(append, resource)
    common = {
        "resource_ref": resource,
        "snapshot_ref": id,
        "run": UNSET if run is None else run,
        "after": UNSET if after is None else EventRef(after),
        "before": is_before or UNSET,
    }
    if isinstance(taken, Failure):
        stream.add(SnapshotCreated, outcome=SnapshotOutcome.ERROR, error=_error(append, taken), **common)
        return id
    stream.add(
        SnapshotCreated,
        outcome=SnapshotOutcome.OK,
        method=append.named(taken.method, "method"),
        external_ref=ExtRef(
            append.named(taken.external_kind, "kind"), append.put_text(checked_text(taken.external_id, "id"), "id")
        ),
        consistency=taken.consistency,
        size_bytes=UNSET if taken.size_bytes is None else taken.size_bytes,
        restorable=taken.restorable,
        inferred=taken.is_inferred or UNSET,
        skipped=UNSET if not taken.skipped else append.put_json(taken.skipped, "skipped"),
        **common,
    )
    return id


def _error(append: Append, failure: Failure) -> ErrorFact:
    return ErrorFact(code=append.named(failure.code, "code"), message=append.put_text(failure.message, "message"))


def discard_snapshot(writer: LedgerWriter, name: str, reason: str | None) -> None:
    """What it kept is gone, or about to be."""

    def work(append: Append) -> None:
        snapshot = _own_snapshot(append, name)
        if snapshot.state is SnapshotState.DISCARDED:
            raise NotApplicable(f"snapshot {snapshot.id} is discarded already")
        stream_of_resource(append, snapshot.resource).add(
            SnapshotDiscarded,
            resource_ref=snapshot.resource,
            snapshot_ref=snapshot.id,
            reason=UNSET if reason is None else append.put_text(reason, "reason"),
        )
        append.seal()

    writer.write(work)


def _own_snapshot(append: Append, name: str) -> Snapshot:
    """A snapshot of a resource that whoever acts may change."""
    snapshot = load_snapshot(ReadTxn(append.sql, append.txn.facts), checked_text(name, "snapshot"))
    require_resource(append, snapshot.resource)
    return snapshot


# --- restores --------------------------------------------------------------------------------------------------------


def request_restore(writer: LedgerWriter, snapshot: str, place: str | None, session: str | None) -> str:
    """The id of a wish. Without a place it goes over the resource that the snapshot was taken of; else it becomes a new
    resource there, which the session owns, or else whoever owns the first one."""

    def work(append: Append) -> str:
        found = _own_snapshot(append, snapshot)
        owner = None if session is None else Owner("session", require_session(append, session, CHANGE_RESOURCE).id)
        id = add_restore_request(append, found, place, owner)
        append.seal()
        return id

    return writer.write(work)


def add_restore_request(append: Append, snapshot: Snapshot, place: str | None, owner: Owner | None) -> str:
    if snapshot.state is not SnapshotState.OK:
        raise NotApplicable(f"snapshot {snapshot.id} is {snapshot.state}: it holds nothing to restore")
    resource = require_resource(append, snapshot.resource)
    if place is None and resource.owner is None:
        raise NotApplicable(f"resource {resource.name!r} is discarded", "restore it beside")
    id = append.ulids.mint()
    owner = owner or resource.owner or Owner("agent", append.acting_ids[0])
    new: dict[str, object] = {"owner": scope_of_owner(owner)}
    if place is not None:
        new["new_resource_ref"] = append.ulids.mint()
        new["place"] = append.put_text(checked_text(place, "place"), "place")
    stream_of_resource(append, resource.id).add(RestoreRequested, snapshot_ref=snapshot.id, restore=id, **new)
    return id


def record_restore(
    writer: LedgerWriter,
    restore: str,
    outcome: RestoreOutcome,
    *,
    new: NewResource | None = None,
    failure: Failure | None = None,
    compensation: str | None = None,
) -> Restore:
    """The outcome of a wish, and in the same transaction the resource that came of it, with its owner and a name that
    no other has; or what was undone after a failure. An outcome that is known already stays as it is."""

    def work(append: Append) -> Restore:
        txn = ReadTxn(append.sql, append.txn.facts)
        wish = load_restore(txn, restore)
        if wish.outcome is not None:
            return wish
        snapshot = _own_snapshot(append, wish.snapshot)
        made = new if wish.new_resource is not None and outcome is RestoreOutcome.OK else None
        stream = stream_of_resource(append, snapshot.resource)
        attempted = stream.add(
            RestoreAttempted,
            snapshot_ref=snapshot.id,
            outcome=outcome,
            restore=wish.id,
            new_resource_ref=UNSET if made is None or wish.new_resource is None else wish.new_resource,
            resource_ref=snapshot.resource,
            error=UNSET if failure is None else _error(append, failure),
        )
        if made is not None and wish.new_resource is not None:
            made = replace(made, name=free_name(txn, made.name))
            add_declared(append, wish.new_resource, made, wish.owner, OwnershipReason.RESTORE)
        if compensation is not None:
            stream.add(
                CompensationRecorded,
                of=EventRef(attempted),
                outcome="undone",
                details=append.put_text(compensation, "details"),
            )
        append.seal()
        return load_restore(txn, restore)

    return writer.write(work)
