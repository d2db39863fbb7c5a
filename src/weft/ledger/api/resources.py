"""Resources of a ledger: what is told of them, and the facts that whoever acts on them records."""

from __future__ import annotations

from collections.abc import Sequence

from weft.kernel.enums import (
    HandleCapability,
    MountMode,
    ResourceKind,
    ResourceLiveness,
    RestoreOutcome,
    SubresourcePart,
)
from weft.ledger import resource_changes, resource_reading
from weft.ledger.api.base import LedgerPart, lease_seconds_of, owner_of, patience_of
from weft.ledger.arguments import checked_count, checked_member, checked_text
from weft.ledger.read.revisions import require
from weft.ledger.resource_changes import BusyResource, ResourceFork, UndoneMove
from weft.ledger.resource_reading import (
    KeptReference,
    NewResource,
    NewSnapshot,
    PlannedResource,
    Resource,
    ResourceFailure,
    ResourceRestore,
    Snapshot,
)
from weft.ledger.views.rows import Lease, load_turn
from weft.ledger.write.sessions import NewFork
from weft.ledger.write.transaction import LedgerWriter, requires
from weft.store.replicas import last_copied_event, own_names

CHANGE = resource_reading.CHANGE_RESOURCE


class Resources(LedgerPart):
    """`ledger.resources`: directories, files, volumes, containers, images and uris beside the conversations."""

    def get(self, resource: str) -> Resource:
        """By its id or the end of it, its name, or its place."""
        with self._store.read() as txn:
            return resource_reading.load_resource(txn, checked_text(resource, "resource"))

    def snapshots(self, resource: str, *, limit: int = 100) -> list[Snapshot]:
        """Of one resource, the newest first."""
        name, most = checked_text(resource, "resource"), checked_count(limit, "limit")
        with self._store.read() as txn:
            return resource_reading.listed_snapshots(txn, resource_reading.load_resource(txn, name).id, most)

    def snapshot(self, snapshot: str) -> Snapshot:
        with self._store.read() as txn:
            return resource_reading.load_snapshot(txn, checked_text(snapshot, "snapshot"))

    def snapshots_of_turn(self, turn: str) -> list[Snapshot]:
        """What resources were like after a turn: of each the last snapshot, taken in it or in the nearest turn
        before it that has one of that resource."""
        id = self._ledger.resolve(checked_text(turn, "turn"))
        with self._store.read() as txn:
            row = load_turn(txn.sql, id)
            return [] if row is None else resource_reading.snapshots_of_turn(txn, row)

    def snapshots_before_turn(self, turn: str) -> list[Snapshot]:
        """What resources were like before a turn changed them."""
        id = self._ledger.resolve(checked_text(turn, "turn"))
        with self._store.read() as txn:
            row = load_turn(txn.sql, id)
            return [] if row is None else resource_reading.snapshots_before_turn(txn, row)

    @requires(CHANGE)
    def migrate(self, resource: str, *, session: str, former: str | None = None) -> Resource:
        """Let another session own it; NotApplicable where it cannot change hands, or where `former` is named and does
        not own it by now."""
        resource_changes.migrate(self._writer, resource, session, former)
        return _changed_resource(self._writer, resource)

    @requires(CHANGE)
    def discard(self, resource: str) -> Resource:
        """Let nobody own or use it any more. What it is stays where it is."""
        resource_changes.discard(self._writer, resource)
        return _changed_resource(self._writer, resource)

    @requires(CHANGE)
    def attach(
        self, resource: str, *, mode: str = "rw", session: str | None = None, run: str | None = None
    ) -> Resource:
        """Attach it to a session, a run, or whoever acts: to write to its owner alone, read-only to others too where it
        can be shared."""
        resource_changes.attach(self._writer, resource, checked_member(MountMode, mode, "mode"), session, run)
        return _changed_resource(self._writer, resource)

    @requires(CHANGE)
    def detach(self, resource: str, *, session: str | None = None, run: str | None = None) -> Resource:
        resource_changes.detach(self._writer, resource, session, run)
        return _changed_resource(self._writer, resource)

    def list(
        self, *, session: str | None = None, kind: str | None = None, include_discarded: bool = False
    ) -> list[Resource]:
        """Those that somebody owns, the oldest first; with a session, its own."""
        of_kind = None if kind is None else checked_member(ResourceKind, kind, "kind")
        with self._store.read() as txn:
            owner = None if session is None else require(txn, session).id
            return resource_reading.listed_resources(txn, session=owner, kind=of_kind, is_discarded=include_discarded)


class ResourceLog(LedgerPart):
    """The facts that whoever acts on resources records, in the name of whoever `ledger` acts for; no public verb gives
    them away, for each says that something was done."""

    def find_at(self, kind: str, place: str, machine: str | None = None) -> Resource | None:
        """The resource of this ledger at a place of a machine."""
        with self._store.read() as txn:
            found = resource_reading.standing_at(
                txn, checked_member(ResourceKind, kind, "kind"), checked_text(place, "place"), machine
            )
            may_read = found is not None and resource_reading.may_read(txn, found)
            return found if may_read else None

    def kept_from(self, session: str) -> list[Resource]:
        """What a fork kept with the other branch than this session."""
        with self._store.read() as txn:
            row = require(txn, session)
            found = resource_reading.listed_resources(txn)
            return [each for each in found if resource_changes.other_keeper(txn, each, row) is not None]

    def own_ids(self) -> tuple[str, ...]:
        """The id that this ledger goes by, then those that it went by, the newest first; none of a ledger that it is a
        copy of."""
        with self._store.read() as txn:
            copied = last_copied_event(txn.sql)
            former = {id: n for id, n in own_names(txn.sql).items() if n is not None and n > copied}
        return (self._ledger.replica, *sorted(former, key=former.__getitem__, reverse=True))

    def restore(self, restore: str) -> ResourceRestore:
        """A wish that a snapshot be restored, and what came of it."""
        with self._store.read() as txn:
            return resource_reading.load_restore(txn, checked_text(restore, "restore"))

    def is_superseded(self, restore: str) -> bool:
        """Whether the resource that a wish would go over was worked with, restored or given to another since."""
        with self._store.read() as txn:
            return resource_reading.is_superseded(
                txn, resource_reading.load_restore(txn, checked_text(restore, "restore"))
            )

    def pending(self) -> tuple[list[Snapshot], list[ResourceRestore]]:
        """Snapshots and restores that are wanted and not carried out yet, the oldest first."""
        with self._store.read() as txn:
            return resource_reading.pending_snapshots(txn), resource_reading.pending_restores(txn)

    def hold(self, resource: str, *, in_place: bool = False) -> Lease | BusyResource:
        """The right to act on it, alone, where nobody else who is alive has it; to change it in place, also where no
        turn works with it."""
        owner, patience = owner_of(self._ledger), patience_of(self._ledger)
        return resource_changes.hold(self._writer, resource, owner, patience, in_place=in_place)

    def is_worked_on(self, resource: str) -> bool:
        """Whether somebody who is alive acts on it."""
        with self._store.read() as txn:
            found = resource_reading.load_resource(txn, checked_text(resource, "resource"))
            return resource_changes.is_worked_on(txn.sql, found.id, patience_of(self._ledger))

    @property
    def lease_seconds(self) -> float:
        """So long a lease is good that nobody renews."""
        return lease_seconds_of(self._ledger)

    def renew(self, lease: Lease) -> bool:
        """Say that its holder is alive; False where it was taken over."""
        return resource_changes.renew_hold(self._writer, lease)

    def let_go(self, lease: Lease) -> None:
        resource_changes.let_go(self._writer, lease)

    def declare(self, new: NewResource) -> Resource:
        """Record that a resource exists, with its owner; the one that stands at its place already, if any."""
        return _changed_resource(self._writer, resource_changes.declare(self._writer, new))

    def describe(self, resource: str, new: NewResource) -> Resource:
        """Say anew what a resource is; owner, uses and snapshots stay."""
        resource_changes.describe(self._writer, resource, new)
        return _changed_resource(self._writer, resource)

    def discard(self, resource: str, *, reason: str | None = None) -> Resource:
        """Record that nobody owns it any more, and why what Weft made of it is left where it is, if it is."""
        resource_changes.discard(self._writer, resource, reason)
        return _changed_resource(self._writer, resource)

    def take_over(self, resource: str, session: str) -> None:
        """A session that works with it owns it from now on."""
        resource_changes.take_over(self._writer, resource, session)

    def taken_in(self, turn: str) -> list[Snapshot]:
        """Every snapshot of a turn, by its id, that still holds something."""
        with self._store.read() as txn:
            return resource_reading.taken_in(txn, turn)

    def tried_in(self, turn: str) -> list[Snapshot]:
        """Every snapshot that is one of a turn's files, by its id, whatever came of it."""
        with self._store.read() as txn:
            return resource_reading.tried_in(txn, turn)

    def kept_beside(self, references: Sequence[str]) -> list[Snapshot]:
        """Snapshots of no turn with one of these external ids."""
        with self._store.read() as txn:
            return resource_reading.kept_beside(txn, references)

    def is_held(self, kind: str, reference: str) -> bool:
        """Whether a snapshot still holds something under an external id, of one kind of reference."""
        with self._store.read() as txn:
            return resource_reading.is_held(txn, kind, reference)

    def kept_references(self) -> list[KeptReference]:
        """How what snapshots hold is found again, also of those of other ledgers; the oldest first."""
        self._writer.ensure_whole("ledger:read")
        with self._store.read() as txn:
            return resource_reading.kept_references(txn)

    def is_quiet(self) -> bool:
        """Whether nobody records a turn, acts on a resource, or has wished for that."""
        self._writer.ensure_whole("ledger:read")
        with self._store.read() as txn:
            return resource_reading.is_quiet(txn)

    def replica_of(self, resource: str) -> str | None:
        """The other ledger that declared it, by its replica id; None where that is this one."""
        with self._store.read() as txn:
            return resource_reading.replica_of_resource(txn, resource_reading.load_resource(txn, resource).id)

    def is_begun(self, turn: str, resource: str) -> bool:
        """Whether what a resource was like before a turn changed it is recorded, by both ids."""
        with self._store.read() as txn:
            return resource_reading.is_begun(txn.sql, turn, resource)

    def mount(
        self, resource: str, path: str, *, mode: str = "rw", run: str | None = None, container: str | None = None
    ) -> Resource:
        """Record that a run, or a container, sees it under a path."""
        resource_changes.mount(
            self._writer, resource, path, checked_member(MountMode, mode, "mode"), run=run, container=container
        )
        return _changed_resource(self._writer, resource)

    def unmount(self, resource: str, *, run: str | None = None, container: str | None = None) -> Resource:
        resource_changes.unmount(self._writer, resource, run=run, container=container)
        return _changed_resource(self._writer, resource)

    def add_part(self, resource: str, part: str, *, role: str) -> Resource:
        """Record that another resource is a part of this one."""
        resource_changes.add_part(self._writer, resource, part, checked_member(SubresourcePart, role, "role"))
        return _changed_resource(self._writer, resource)

    def remove_part(self, resource: str, part: str) -> Resource:
        resource_changes.remove_part(self._writer, resource, part)
        return _changed_resource(self._writer, resource)

    def open_handle(self, resource: str, provider: str, provider_id: str, *, capabilities: Sequence[str] = ()) -> str:
        """Record through what it is acted on; the handle's id."""
        able = tuple(checked_member(HandleCapability, word, "capability") for word in capabilities)
        return resource_changes.open_handle(self._writer, resource, provider, provider_id, able)

    def close_handle(self, resource: str, handle: str, *, reason: str | None = None) -> Resource:
        resource_changes.close_handle(self._writer, resource, handle, reason)
        return _changed_resource(self._writer, resource)

    def record_probe(self, resource: str, status: str) -> Resource:
        """Record whether it was found alive."""
        resource_changes.record_probe(self._writer, resource, checked_member(ResourceLiveness, status, "status"))
        return _changed_resource(self._writer, resource)

    def request_snapshot(self, resource: str, *, run: str | None = None, method: str | None = None) -> str:
        """Record that a snapshot is wanted, taken in one way of several; its id."""
        return resource_changes.request_snapshot(self._writer, resource, run, method)

    def record_snapshot(
        self,
        resource: str,
        taken: NewSnapshot | ResourceFailure,
        *,
        snapshot: str | None = None,
        run: str | None = None,
        is_before: bool = False,
    ) -> Snapshot:
        """Record what came of a wish, or a snapshot that was taken without one."""
        id = resource_changes.record_snapshot(
            self._writer, resource, taken, snapshot=snapshot, run=run, is_before=is_before
        )
        with self._writer.store.read() as txn:
            return resource_reading.load_snapshot(txn, id)

    def discard_snapshot(self, snapshot: str, *, reason: str | None = None) -> None:
        """Record that what a snapshot kept is gone."""
        resource_changes.discard_snapshot(self._writer, snapshot, reason)

    def request_restore(
        self, snapshot: str, *, place: str | None = None, session: str | None = None
    ) -> ResourceRestore:
        """Record that a snapshot is to be restored: over its resource, or as a new one at a place, for a session."""
        id = resource_changes.request_restore(self._writer, snapshot, place, session)
        return self.restore(id)

    def record_unsupported_restore(self, snapshot: str, failure: ResourceFailure) -> ResourceRestore:
        """Record that a snapshot was to be restored over its resource and cannot be. Nothing is tried."""
        return resource_changes.record_unsupported_restore(self._writer, snapshot, failure)

    def record_restore(
        self,
        restore: str,
        outcome: str,
        *,
        new: NewResource | None = None,
        failure: ResourceFailure | None = None,
        compensation: str | None = None,
    ) -> ResourceRestore:
        """Record what came of a restore, with the resource that it made, or with what was undone after a failure."""
        return resource_changes.record_restore(
            self._writer,
            restore,
            checked_member(RestoreOutcome, outcome, "outcome"),
            new=new,
            failure=failure,
            compensation=compensation,
        )

    def last_undone(self, session: str) -> UndoneMove | None:
        """The undo that can be taken back next; None where another move or a turn came after it."""
        with self._store.read() as txn:
            return resource_changes.last_undone(txn, require(txn, session))

    def undo(
        self,
        session: str,
        *,
        expected: str,
        to: str | None,
        kept: Sequence[str],
        snapshots: Sequence[str],
        held: Sequence[Lease] = (),
    ) -> tuple[str, ...]:
        """Take back the turn that a head stands at, and wish that snapshots be restored over their resources, in one
        transaction; the wishes. `held` are the leases under which that will be done."""
        self._writer.ensure_allowed("session:move")
        return resource_changes.undo_with_files(
            self._writer,
            session,
            expected=expected,
            to=to,
            kept=kept,
            snapshots=snapshots,
            held=held,
            patience=patience_of(self._ledger),
        )

    def redo(
        self, session: str, undone: UndoneMove, *, kept: Sequence[str], held: Sequence[Lease] = ()
    ) -> tuple[str, ...]:
        """Take an undo back, with its files, in one transaction; the wishes. `held` are the leases under which that
        will be done."""
        self._writer.ensure_allowed("session:move")
        patience = patience_of(self._ledger)
        return resource_changes.redo_with_files(self._writer, session, undone, kept=kept, held=held, patience=patience)

    def fork(
        self,
        at: str,
        plan: Sequence[PlannedResource],
        *,
        label: str,
        session: str | None = None,
        persona: str | None = None,
    ) -> ResourceFork:
        """A new session at a turn, and what becomes of resources, in one transaction. Copies are wished for."""
        self._writer.ensure_allowed("session:create")
        point = self._ledger.point(at)
        new = NewFork(
            turn=point.turn_id,
            event=point.event_id,
            label=label,
            source=session or point.session,
            persona=persona,
        )
        return resource_changes.fork_with_resources(self._writer, new, plan)


def _changed_resource(writer: LedgerWriter, resource: str) -> Resource:
    """A resource that was just changed, for whoever changed it, whether they may read it or not."""
    with writer.store.read() as txn:
        return resource_reading.load_resource(txn, resource)
