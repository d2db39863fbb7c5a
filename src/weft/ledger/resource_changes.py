"""Facts about resources: declared, owned, divided into parts, attached, mounted, handled,
looked at; snapshots and restores (the wish before the effect, the outcome after it); a fork and
what becomes of its resources, a head that goes back with its files, each as one fact; and the lease
by which one at a time acts on a resource.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import UNSET, Struct
from msgspec.structs import replace

from weft.kernel.enums import (
    HandleCapability,
    MountMode,
    MoveReason,
    OwnershipReason,
    ResourceCapability,
    ResourceLiveness,
    RestoreOutcome,
    SessionStatus,
    SnapshotOutcome,
    SnapshotState,
    SubresourcePart,
    VolumeMode,
)
from weft.kernel.errors import Action, Conflict, HeadMoved, InvalidInput, LeaseLost, NotApplicable, NotFound
from weft.kernel.events import (
    AgentForked,
    ErrorFact,
    Event,
    EventRef,
    ExtRef,
    ResourceScope,
    UnknownEvent,
    VolumePlan,
    resource_stream,
)
from weft.kernel.ledger_events import (
    CompensationRecorded,
    HandleClosed,
    HandleOpened,
    ResourceAttached,
    ResourceDeclared,
    ResourceDetached,
    ResourceLivenessProbe,
    ResourceMounted,
    ResourceOwned,
    ResourceUnmounted,
    RestoreAttempted,
    RestoreRequested,
    SessionMoved,
    SnapshotCreated,
    SnapshotDiscarded,
    SnapshotRequested,
    SubresourceAdded,
    SubresourceRemoved,
)
from weft.ledger.arguments import checked_length, checked_text
from weft.ledger.model import DEFAULT_AGENT
from weft.ledger.read.access import READ_SESSION
from weft.ledger.read.sessions import head_event
from weft.ledger.resource_reading import (
    CHANGE_RESOURCE,
    READ_RESOURCE,
    KeptState,
    NewResource,
    NewSnapshot,
    Owner,
    PlannedResource,
    Resource,
    ResourceFailure,
    ResourceRestore,
    ResourceUse,
    Snapshot,
    free_name,
    is_begun,
    is_kept_in,
    load_resource,
    load_restore,
    load_snapshot,
    may_use_resource,
    standing_at,
)
from weft.ledger.views.programs import ATTACHED, MOUNTED
from weft.ledger.views.rows import (
    HISTORY,
    HistoryRow,
    Lease,
    LeaseKind,
    SessionRow,
    decoded,
    find_lease,
    held_leases,
    load_session,
    load_turn,
)
from weft.ledger.write.sessions import NewFork, OpenFork, begin_fork, require_session, stream_of
from weft.ledger.write.transaction import Append, EventStream, LeasePatience, LedgerWriter
from weft.ledger.write.turn_events import ensure_free, free_epoch, is_run_of_broker, load_parent, release, renew, take
from weft.store.port import ReadTxn
from weft.store.replicas import is_written_here
from weft.store.sql import Sql

# --- Facts about resources: declared, owned, divided into parts, attached, mounted, handled, looked at.


def stream_of_resource(append: Append, id: str) -> EventStream:
    name = resource_stream(id)
    tip = append.sql.fetch_row("SELECT last FROM stream_tip WHERE stream = ?", (name,))
    return append.stream(name, bytes(tip[0]).hex() if tip else None)


def require_resource(append: Append, name: str) -> Resource:
    """A resource of this ledger that whoever acts may change."""
    txn = ReadTxn(append.sql, append.txn.facts)
    resource = load_resource(txn, checked_text(name, "resource"))
    if not may_use_resource(append.access, txn, resource, CHANGE_RESOURCE):
        if not may_use_resource(append.access, txn, resource, READ_RESOURCE):
            raise NotFound("resource", name, Action.LIST_RESOURCES)
        raise append.refusal(CHANGE_RESOURCE, f"change the resource {resource.name!r}")
    if not resource.is_own:
        raise NotApplicable(f"resource {resource.name!r} was declared by another ledger", "act on it there")
    return resource


def require_standing(append: Append, name: str) -> Resource:
    """One that somebody owns."""
    resource = require_resource(append, name)
    if resource.owner is None:
        raise NotApplicable(f"resource {resource.name!r} is discarded")
    return resource


def scope_of_owner(owner: Owner | None) -> ResourceScope | None:
    if owner is None:
        return None
    return ResourceScope(**{owner.kind: owner.id})


# --- declared and owned ----------------------------------------------------------------------------------------------


def declare(writer: LedgerWriter, new: NewResource) -> str:
    """A new resource with its first owner; its id. Where one stands at its place, which somebody else may have declared
    just now, it is that one."""
    writer.ensure_allowed(CHANGE_RESOURCE)

    def work(append: Append) -> str:
        standing = standing_at(ReadTxn(append.sql, append.txn.facts), new.kind, new.place, new.machine)
        if standing is not None:
            return require_resource(append, standing.id).id
        owner = _first_owner(append, new.session)
        id = add_declared(append, append.ulids.mint(), new, owner, OwnershipReason.DECLARED)
        append.seal()
        return id

    return writer.write(work)


def _first_owner(append: Append, session: str | None) -> Owner:
    if session is None:
        return Owner("agent", append.acting_ids[0])
    return Owner("session", require_session(append, session, CHANGE_RESOURCE).id)


def add_declared(append: Append, id: str, new: NewResource, owner: Owner | None, why: OwnershipReason) -> str:
    stream = stream_of_resource(append, id)
    _add_description(append, stream, new, scope_of_owner(owner))
    stream.add(ResourceOwned, resource_ref=id, owner=scope_of_owner(owner), before=None, why=why)
    return id


def _add_description(append: Append, stream: EventStream, new: NewResource, scope: ResourceScope | None) -> None:
    name = checked_length(checked_text(new.name, "name"), "name")
    place = checked_text(new.place, "place")
    if not name.strip() or not place:
        raise InvalidInput("a resource needs a name and a place", "give both")
    stream.add(
        ResourceDeclared,
        name=append.put_text(name, "name"),
        resource_kind=new.kind,
        capabilities=tuple(sorted(new.capabilities)),
        place=append.put_text(place, "place"),
        imperative=new.imperative or UNSET,
        made=new.is_made or UNSET,
        scope=UNSET if scope is None else scope,
        metadata=UNSET if new.metadata is None else append.put_json(new.metadata, "metadata"),
        machine=UNSET if new.machine is None else new.machine,
    )


def describe(writer: LedgerWriter, name: str, new: NewResource) -> None:
    """Say anew what a resource is; owner, uses and snapshots stay."""

    def work(append: Append) -> None:
        resource = require_resource(append, name)
        scope = ResourceScope(**resource.scope) if resource.scope else None
        _add_description(append, stream_of_resource(append, resource.id), new, scope)
        append.seal()

    writer.write(work)


def add_owned(
    append: Append, resource: Resource, owner: Owner | None, why: OwnershipReason, reason: str | None = None
) -> None:
    """Another owner, or none; whoever had it attached to write has it no more, and where there is none, nobody uses
    it."""
    stream = stream_of_resource(append, resource.id)
    stream.add(
        ResourceOwned,
        resource_ref=resource.id,
        owner=scope_of_owner(owner),
        before=scope_of_owner(resource.owner),
        why=why,
        reason=UNSET if reason is None else append.put_text(reason, "reason"),
    )
    for use in resource.uses:
        is_owners = owner is not None and (use.user.kind, use.user.id) == (owner.kind, owner.id)
        if use.way == MOUNTED and owner is None:
            stream.add(ResourceUnmounted, resource_ref=resource.id, **{use.user.kind: use.user.id})
        is_ended = use.way == ATTACHED and not is_owners and (owner is None or use.mode is MountMode.RW)
        if is_ended:
            stream.add(ResourceDetached, resource_ref=resource.id, **_attachment_fields(use.user))


def migrate(writer: LedgerWriter, name: str, session: str, former: str | None = None) -> None:
    """Another session owns the resource, where such a resource can change hands; with `former`, only while that one
    owns it."""

    def work(append: Append) -> None:
        resource = require_standing(append, name)
        if not resource.can(ResourceCapability.MIGRATE):
            raise NotApplicable(
                f"unsupported: a {resource.kind} such as {resource.name!r} cannot change hands",
                "take a snapshot and restore it for the other session",
            )
        owner = Owner("session", require_session(append, session, CHANGE_RESOURCE).id)
        present = resource.owner
        if present is not None and owner.id == present.id:
            raise NotApplicable(f"{session!r} owns {resource.name!r} already", Action.LIST_RESOURCES)
        if former is not None and present is not None:
            expected = require_session(append, former, READ_SESSION)
            if present.id != expected.id:
                name_of_owner = present.name or present.id
                raise NotApplicable(f"{resource.name!r} belongs to {name_of_owner!r}, not to {former!r}", "ask there")
        add_owned(append, resource, owner, OwnershipReason.MIGRATE)
        append.seal()

    writer.write(work)


def take_over(writer: LedgerWriter, name: str, session: str) -> None:
    """A session that works with a resource owns it from now on, whoever did before. NotApplicable for the other branch
    of a fork that kept it with its owner: that one is told so by `migrate` alone."""

    def work(append: Append) -> None:
        resource = require_resource(append, name)
        row = require_session(append, session, CHANGE_RESOURCE)
        owner = Owner("session", row.id)
        keeper = other_keeper(ReadTxn(append.sql, append.txn.facts), resource, row)
        if keeper is not None:
            raise NotApplicable(
                f"a fork kept {resource.name!r} with session {keeper.label!r}: {row.label!r} changes it once it"
                " is migrated",
                Action.MIGRATE_RESOURCE.of(resource=resource.name, session=row.label),
            )
        add_owned(append, resource, owner, OwnershipReason.MIGRATE)
        append.seal()

    writer.write(work)


def other_keeper(txn: ReadTxn, resource: Resource, session: SessionRow) -> SessionRow | None:
    """The session that owns a resource, where it and this one are the branches of a fork whose plan kept it."""
    present = resource.owner
    owner = None if present is None or present.kind != "session" else load_session(txn.sql, present.id)
    if owner is None or owner.id == session.id or owner.status == SessionStatus.DELETED.value:
        return None
    pairs = ((owner, session), (session, owner))
    return owner if any(_kept_at_fork(txn, branch, origin.id, resource.id) for branch, origin in pairs) else None


def _kept_at_fork(txn: ReadTxn, branch: SessionRow, origin: str, resource: str) -> bool:
    """Whether a session began as a fork of another one whose plan kept the resource."""
    query = "SELECT n FROM history WHERE session = ? AND why = 'fork' ORDER BY k LIMIT 1"
    for (n,) in txn.sql.fetch_rows(query, (branch.n,)):
        line = txn.facts.line(n)
        event = None if line is None else decoded(n, line)
        if isinstance(event, AgentForked) and event.to_branch == branch.id and event.from_branch == origin:
            plan = event.volume_plan or ()
            return any(planned.resource == resource and planned.mode is VolumeMode.KEEP for planned in plan)
    return False


def discard(writer: LedgerWriter, name: str, reason: str | None = None) -> None:
    """Nobody owns or uses the resource any more; the reason says why what Weft made of it is left where it is."""

    def work(append: Append) -> None:
        resource = require_resource(append, name)
        add_discarded(append, resource, reason)
        append.seal()

    writer.write(work)


def add_discarded(append: Append, resource: Resource, reason: str | None = None) -> None:
    if resource.owner is None:
        raise NotApplicable(f"resource {resource.name!r} is discarded already")
    stream = stream_of_resource(append, resource.id)
    for handle in resource.handles:
        stream.add(HandleClosed, handle=handle.id, resource_ref=resource.id)
    add_owned(append, resource, None, OwnershipReason.DISCARD, reason)


# --- parts and handles -----------------------------------------------------------------------------------------------


def add_part(writer: LedgerWriter, name: str, part_name: str, part: SubresourcePart) -> None:
    def work(append: Append) -> None:
        resource, inner = require_standing(append, name), require_standing(append, part_name)
        if inner.id == resource.id:
            raise InvalidInput("a resource is no part of itself", "name another one")
        stream_of_resource(append, resource.id).add(
            SubresourceAdded, resource_ref=resource.id, part_ref=inner.id, part=part
        )
        append.seal()

    writer.write(work)


def remove_part(writer: LedgerWriter, name: str, part_name: str) -> None:
    def work(append: Append) -> None:
        resource, inner = require_resource(append, name), require_resource(append, part_name)
        if inner.id not in {part.resource for part in resource.parts}:
            raise NotApplicable(f"{inner.name!r} is no part of {resource.name!r}")
        stream_of_resource(append, resource.id).add(SubresourceRemoved, resource_ref=resource.id, part_ref=inner.id)
        append.seal()

    writer.write(work)


def open_handle(
    writer: LedgerWriter, name: str, provider: str, provider_id: str, capabilities: tuple[HandleCapability, ...]
) -> str:
    """Its id. One that is open for the same thing is given again."""

    def work(append: Append) -> str:
        resource = require_standing(append, name)
        for handle in resource.handles:
            if (handle.provider, handle.provider_id) == (provider, provider_id):
                return handle.id
        id = append.ulids.mint()
        stream_of_resource(append, resource.id).add(
            HandleOpened,
            handle=id,
            resource_ref=resource.id,
            provider=append.named(provider, "provider"),
            provider_id=append.put_text(checked_text(provider_id, "provider_id"), "provider_id"),
            capabilities=tuple(sorted(capabilities)),
        )
        append.seal()
        return id

    return writer.write(work)


def close_handle(writer: LedgerWriter, name: str, handle: str, reason: str | None) -> None:
    def work(append: Append) -> None:
        resource = require_resource(append, name)
        if handle not in {one.id for one in resource.handles}:
            raise NotFound("open handle", handle)
        stream_of_resource(append, resource.id).add(
            HandleClosed,
            handle=handle,
            resource_ref=resource.id,
            reason=UNSET if reason is None else append.put_text(reason, "reason"),
        )
        append.seal()

    writer.write(work)


# --- uses and liveness -----------------------------------------------------------------------------------------------


def attach(writer: LedgerWriter, name: str, mode: MountMode, session: str | None, run: str | None) -> None:
    """To a session, a run, or else whoever acts. To write it is attached to its owner alone; read-only also to others,
    where it can be shared."""

    def work(append: Append) -> None:
        resource = require_standing(append, name)
        user = _owner_of_use(append, session, run)
        _ensure_attachable(append, resource, mode, user)
        stream_of_resource(append, resource.id).add(
            ResourceAttached, resource_ref=resource.id, mode=mode, **_attachment_fields(user)
        )
        append.seal()

    writer.write(work)


def detach(writer: LedgerWriter, name: str, session: str | None, run: str | None) -> None:
    def work(append: Append) -> None:
        resource = require_resource(append, name)
        user = _owner_of_use(append, session, run)
        if not any(_is_use(use, ATTACHED, user) for use in resource.uses):
            raise NotApplicable(f"{resource.name!r} is not attached there")
        stream_of_resource(append, resource.id).add(
            ResourceDetached, resource_ref=resource.id, **_attachment_fields(user)
        )
        append.seal()

    writer.write(work)


def _owner_of_use(append: Append, session: str | None, run: str | None) -> Owner:
    if run is not None:
        turn = append.view.find_turn(run)
        if turn is None:
            raise NotFound("turn", run)
        append.access.ensure_turn("turn:record", turn, run)
        return Owner("run", turn.id)
    if session is not None:
        return Owner("session", require_session(append, session, READ_SESSION).id)
    return Owner("agent", append.acting_ids[0])


def _ensure_attachable(append: Append, resource: Resource, mode: MountMode, user: Owner) -> None:
    owner = resource.owner
    assert owner is not None, "resources without an owner are refused"
    turn = append.view.find_turn(user.id) if user.kind == "run" else None
    session = None if turn is None or turn.session is None else append.view.session_of_number(turn.session)
    ids = {user.id} | ({session.id} if session is not None else set())
    if owner.id in ids or (owner.kind == "agent" and user.kind == "agent" and owner.id == DEFAULT_AGENT):
        return
    if mode is MountMode.RW:
        name = owner.name or owner.id
        raise NotApplicable(f"{resource.name!r} belongs to {name!r}, who alone writes to it", "attach it read-only")
    if not resource.can(ResourceCapability.SHARE):
        raise NotApplicable(
            f"unsupported: a {resource.kind} such as {resource.name!r} cannot be shared", "take a snapshot of it"
        )


def _is_use(use: ResourceUse, way: str, user: Owner) -> bool:
    return (use.way, use.user.kind, use.user.id) == (way, user.kind, user.id)


def _attachment_fields(user: Owner) -> dict[str, Any]:
    return {user.kind: user.id} if user.kind in ("session", "run", "agent") else {}


def mount(
    writer: LedgerWriter, name: str, path: str, mode: MountMode, *, run: str | None = None, container: str | None = None
) -> None:
    """A run, or a container that is a resource, sees the resource under a path."""

    def work(append: Append) -> None:
        resource = require_standing(append, name)
        stream_of_resource(append, resource.id).add(
            ResourceMounted,
            resource_ref=resource.id,
            mount=append.put_text(checked_text(path, "path"), "path"),
            mode=mode,
            **_mounting_fields(append, run, container),
        )
        append.seal()

    writer.write(work)


def unmount(writer: LedgerWriter, name: str, *, run: str | None = None, container: str | None = None) -> None:
    def work(append: Append) -> None:
        resource = require_resource(append, name)
        fields = _mounting_fields(append, run, container)
        (kind, id), *_ = fields.items()
        if not any(_is_use(use, MOUNTED, Owner(kind, id)) for use in resource.uses):
            raise NotApplicable(f"{resource.name!r} is not mounted there")
        stream_of_resource(append, resource.id).add(ResourceUnmounted, resource_ref=resource.id, **fields)
        append.seal()

    writer.write(work)


def _mounting_fields(append: Append, run: str | None, container: str | None) -> dict[str, str]:
    if (run is None) == (container is None):
        raise InvalidInput("a mount is a run's or a container's", "name one of them")
    if run is not None:
        return {"run": _owner_of_use(append, None, run).id}
    assert container is not None
    return {"container": require_resource(append, container).id}


def record_probe(writer: LedgerWriter, name: str, status: ResourceLiveness) -> None:
    def work(append: Append) -> None:
        resource = require_resource(append, name)
        stream_of_resource(append, resource.id).add(ResourceLivenessProbe, resource_ref=resource.id, status=status)
        append.seal()

    writer.write(work)


# --- One at a time acts on a resource: the lease that sessions and agents have, with the resource's id as its key.

WORK = "work"


class _Held(Conflict):
    """Somebody else holds it; never leaves this module."""


class BusyResource(Struct, frozen=True):
    """That nobody may act on a resource now, and who does, for people."""

    who: str


def hold(
    writer: LedgerWriter, name: str, owner: str, patience: LeasePatience, *, in_place: bool = False
) -> Lease | BusyResource:
    """The lease of a resource, where nobody else who is alive has it; to change it in place, also where no turn works
    with it."""

    def work(append: Append) -> Lease:
        resource = require_resource(append, name)
        epoch = free_epoch(append, LeaseKind.RESOURCE, resource.id, patience, lambda _: _Held("somebody else"))
        if in_place:
            _ensure_no_turn(append, resource, patience)
        lease = take(append, LeaseKind.RESOURCE, resource.id, epoch, owner, WORK)
        writer.hold(lease)
        return lease

    try:
        return writer.write(work)
    except _Held as error:
        return BusyResource(str(error))


def _ensure_no_turn(append: Append, resource: Resource, patience: LeasePatience) -> None:
    """No turn of its owner is under way, nor one that may have changed it, whoever owns it since."""
    owner = None if resource.owner is None else resource.owner.id
    for lease in held_leases(append.sql, LeaseKind.SESSION):
        is_concerned = lease.key == owner or is_kept_in(append.sql, lease.purpose or "", resource.id)
        if is_concerned and (is_run_of_broker(append, lease) or not patience.judge_stale(lease)):
            session = load_session(append.sql, lease.key)
            raise _Held(f"session {lease.key if session is None else session.label!r}")


def is_worked_on(sql: Sql, resource: str, patience: LeasePatience) -> bool:
    """Whether somebody who is alive acts on a resource."""
    lease = find_lease(sql, LeaseKind.RESOURCE, resource)
    return lease is not None and lease.purpose is not None and not patience.judge_stale(lease)


def renew_hold(writer: LedgerWriter, lease: Lease) -> bool:
    """Say that its holder is alive; False where it was taken over."""
    try:
        writer.write(lambda append: renew(append, lease))
    except LeaseLost:
        return False
    return True


def let_go(writer: LedgerWriter, lease: Lease) -> None:
    """End it, where it is still held."""

    def work(append: Append) -> None:
        renew(append, lease)
        release(append, lease)

    try:
        writer.write(work)
    except LeaseLost:
        pass  # whoever has it now keeps it
    finally:
        writer.let_go(lease)


# --- Snapshots and restores: the wish is written before the effect, the outcome after it, each once.


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
    taken: NewSnapshot | ResourceFailure,
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
    taken: NewSnapshot | ResourceFailure,
    *,
    snapshot: str | None = None,
    run: str | None = None,
    is_before: bool = False,
) -> str:
    resource = require_resource(append, name)
    ensure_own_turn(append, run)
    if snapshot is not None:
        known = append.sql.fetch_row(
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
    if append.sql.fetch_row("SELECT 1 FROM resource WHERE id = ?", (state.resource,)) is None:
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
    taken: NewSnapshot | ResourceFailure,
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
    if isinstance(taken, ResourceFailure):
        stream.add(SnapshotCreated, outcome=SnapshotOutcome.ERROR, error=_error_fact(append, taken), **common)
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


def _error_fact(append: Append, failure: ResourceFailure) -> ErrorFact:
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
    return _add_restore_wish(append, snapshot, resource, place, owner)


def _add_restore_wish(
    append: Append, snapshot: Snapshot, resource: Resource, place: str | None, owner: Owner | None
) -> str:
    id = append.ulids.mint()
    owner = owner or resource.owner or Owner("agent", append.acting_ids[0])
    new: dict[str, object] = {"owner": scope_of_owner(owner)}
    if place is not None:
        new["new_resource_ref"] = append.ulids.mint()
        new["place"] = append.put_text(checked_text(place, "place"), "place")
    stream_of_resource(append, resource.id).add(RestoreRequested, snapshot_ref=snapshot.id, restore=id, **new)
    return id


def record_unsupported_restore(writer: LedgerWriter, snapshot: str, failure: ResourceFailure) -> ResourceRestore:
    """A wish for what cannot be restored, and that it was not: in one transaction, so that nobody tries it."""

    def work(append: Append) -> ResourceRestore:
        found = _own_snapshot(append, snapshot)
        id = _add_restore_wish(append, found, require_resource(append, found.resource), None, None)
        stream_of_resource(append, found.resource).add(
            RestoreAttempted,
            snapshot_ref=found.id,
            outcome=RestoreOutcome.UNSUPPORTED,
            restore=id,
            resource_ref=found.resource,
            error=_error_fact(append, failure),
        )
        append.seal()
        return load_restore(ReadTxn(append.sql, append.txn.facts), id)

    return writer.write(work)


def record_restore(
    writer: LedgerWriter,
    restore: str,
    outcome: RestoreOutcome,
    *,
    new: NewResource | None = None,
    failure: ResourceFailure | None = None,
    compensation: str | None = None,
) -> ResourceRestore:
    """The outcome of a wish, and in the same transaction the resource that came of it, with its owner and a name that
    no other has; or what was undone after a failure. An outcome that is known already stays as it is."""

    def work(append: Append) -> ResourceRestore:
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
            error=UNSET if failure is None else _error_fact(append, failure),
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


# --- A fork and what becomes of its resources, as one fact: the session, who owns what, and the copies that are
# wanted.


class ResourceFork(Struct, frozen=True, kw_only=True):
    """A session that began at a turn, and the restores that its copies of resources will come from."""

    session: str
    """Its id."""
    restores: tuple[str, ...]


class _Decision(Struct, frozen=True):
    """One line of a plan with what it names."""

    planned: PlannedResource
    resource: Resource
    snapshot: Snapshot | None


def fork_with_resources(writer: LedgerWriter, new: NewFork, plan: Sequence[PlannedResource]) -> ResourceFork:
    def work(append: Append) -> ResourceFork:
        decisions = [_decide_planned(append, planned) for planned in plan]
        ids = [decision.resource.id for decision in decisions]
        if len(set(ids)) != len(ids):
            raise InvalidInput("the plan names a resource twice", "decide about each resource once")
        _ensure_given_by_owner(append, new, decisions)
        fork = begin_fork(append, new)
        session = fork.add(tuple(_volume_plan(append, fork, decision) for decision in decisions))
        restores = [_carry_out(append, fork, decision) for decision in decisions]
        append.seal()
        return ResourceFork(session=session, restores=tuple(id for id in restores if id is not None))

    return writer.write(work)


def _decide_planned(append: Append, planned: PlannedResource) -> _Decision:
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


def _volume_plan(append: Append, fork: OpenFork, decision: _Decision) -> VolumePlan:
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


# --- A head that goes back and the files that go back with it, as one fact: the move, and what is to be restored.

UNDO, REDO = "undo", "redo"
_ROWS_AT_ONCE = 32


class UndoneMove(Struct, frozen=True, kw_only=True):
    """An undo that can be taken back: its event, where the head stood before it, and what the files were like."""

    event: str
    turn: str
    at_event: str | None
    kept: tuple[str, ...]


def last_undone(txn: ReadTxn, session: SessionRow) -> UndoneMove | None:
    """The undo that the next redo takes back; None where there is none since the head was last moved otherwise. An undo
    of another ledger is such another move: the snapshots that it names are its word alone."""
    redone: set[str] = set()
    for row in _moves_backwards(txn, session):
        event = _event_of(txn, row)
        if not isinstance(event, SessionMoved) or not is_written_here(txn.sql, row.n, event.replica):
            return None
        id = txn.facts.event_id(row.n).hex()
        if event.redoes is not UNSET:
            redone.add(event.redoes.event_id)
        elif event.undoes is UNSET:
            return None
        elif id not in redone:
            kept = () if event.kept is UNSET else event.kept
            return UndoneMove(event=id, turn=event.undoes, at_event=_stood_at(txn, session, row), kept=kept)
    return None


def _moves_backwards(txn: ReadTxn, session: SessionRow) -> Iterator[HistoryRow]:
    before = session.moves
    query = f"{HISTORY.select} WHERE session = ? AND k < ? ORDER BY k DESC LIMIT ?"
    while rows := [HistoryRow(*values) for values in txn.sql.fetch_rows(query, (session.n, before, _ROWS_AT_ONCE))]:
        yield from rows
        before = rows[-1].k


def _event_of(txn: ReadTxn, row: HistoryRow) -> Event | UnknownEvent | None:
    line = txn.facts.line(row.n)
    return None if line is None else decoded(row.n, line)


def _stood_at(txn: ReadTxn, session: SessionRow, undo: HistoryRow) -> str | None:
    """The event inside its turn that the head stood at before an undo."""
    row = txn.sql.fetch_row("SELECT turn, events FROM history WHERE session = ? AND k = ?", (session.n, undo.k - 1))
    turn = None if row is None or row[1] is None else load_turn(txn.sql, row[0])
    return None if row is None or turn is None else head_event(txn.facts, turn, row[1])


def undo_with_files(
    writer: LedgerWriter,
    name: str,
    *,
    expected: str,
    to: str | None,
    kept: Sequence[str],
    snapshots: Sequence[str],
    held: Sequence[Lease],
    patience: LeasePatience,
) -> tuple[str, ...]:
    """Take the turn back that a head stands at, and wish that these snapshots be restored over their resources, of
    which `kept` tells what they are like now. `held` are the leases
    under which that will be done. The ids of the wishes."""

    def work(append: Append) -> tuple[str, ...]:
        session = _free_session(append, name, expected, patience)
        _renew_leases(append, held)
        turn = None if to is None else load_parent(append, to)
        stream_of(append, session).add(
            SessionMoved,
            to=None if turn is None else turn.id,
            before=session.head,
            why=MoveReason.MOVE,
            at=UNSET if turn is None or turn.closed else turn.digest,
            reason=append.put_text(UNDO, "reason"),
            undoes=expected,
            kept=tuple(kept) or UNSET,
        )
        return _wished_snapshots(append, snapshots)

    return patience.keep_trying(lambda: writer.write(work))


def redo_with_files(
    writer: LedgerWriter,
    name: str,
    undone: UndoneMove,
    *,
    kept: Sequence[str],
    held: Sequence[Lease],
    patience: LeasePatience,
) -> tuple[str, ...]:
    """Take an undo back: the head stands where it stood, and what was kept then is to be restored. The ids of the
    wishes. Raises NotApplicable where it is not the undo that can be taken back any more."""

    def work(append: Append) -> tuple[str, ...]:
        session = require_session(append, name, "session:move")
        ensure_free(append, session, patience)
        _renew_leases(append, held)
        if last_undone(ReadTxn(append.sql, append.txn.facts), session) != undone:
            raise NotApplicable(f"session {session.label!r} was moved in between", "look where it stands")
        turn = load_parent(append, undone.turn)
        at = undone.at_event or (None if turn.closed else turn.digest)
        stream_of(append, session).add(
            SessionMoved,
            to=turn.id,
            before=session.head,
            why=MoveReason.MOVE,
            at=UNSET if at is None else at,
            reason=append.put_text(REDO, "reason"),
            redoes=EventRef(undone.event),
            kept=tuple(kept) or UNSET,
        )
        return _wished_snapshots(append, undone.kept)

    return patience.keep_trying(lambda: writer.write(work))


def _free_session(append: Append, name: str, expected: str, patience: LeasePatience) -> SessionRow:
    session = require_session(append, name, "session:move")
    ensure_free(append, session, patience)
    if session.head != expected:
        raise HeadMoved(session.label, expected, session.head)
    return session


def _renew_leases(append: Append, leases: Sequence[Lease]) -> None:
    """Whoever is about to act still may."""
    for lease in leases:
        renew(append, lease)


def _wished_snapshots(append: Append, snapshots: Sequence[str]) -> tuple[str, ...]:
    txn = ReadTxn(append.sql, append.txn.facts)
    wishes = tuple(add_restore_request(append, load_snapshot(txn, name), None, None) for name in snapshots)
    append.seal()
    return wishes
