"""Carries out what is wanted of resources, and records what came of it.

Wishes stand in the ledger, so a controller asks what is open and does it: whoever died in the middle left the wish
open, and the next one does it again under the same key. A restore that fails is undone where it had made something new,
and that is recorded beside the failure. A restore over a resource that nobody waited for keeps what is there first, and
is left undone where the resource was worked with since.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from msgspec import Struct

from weft.kernel.enums import ResourceCapability, ResourceKind, ResourceLiveness, RestoreOutcome, SnapshotState
from weft.kernel.errors import Damaged, NotApplicable, NotFound, Unsupported, WeftError
from weft.ledger.api import (
    Failure,
    Ledger,
    NewResource,
    NewSnapshot,
    Resource,
    ResourceLog,
    Restore,
    Snapshot,
)
from weft.runtime.resources.claims import Claim, ClaimingDriver, ClaimKind, Claims
from weft.runtime.resources.directory_driver import new_folder
from weft.runtime.resources.drivers import Description, Driver, Drivers, RestoredPlace

MOST_LETTERS = 200
"""Of the name of a copy: copies of copies would have ever longer ones."""


class Reconciled(Struct, frozen=True, kw_only=True):
    """What a controller did."""

    snapshots: tuple[Snapshot, ...] = ()
    restores: tuple[Restore, ...] = ()
    busy: tuple[str, ...] = ()
    """Ids of resources that somebody else works on."""
    left: tuple[str, ...] = ()
    """What was to be removed and could not be, for people; it is tried again."""


class ResourceController:
    """Acts on the resources of one ledger, in the name of whoever the ledger acts for."""

    def __init__(self, ledger: Ledger, drivers: Drivers) -> None:
        self._ledger, self.drivers = ledger, drivers
        self.log = ResourceLog(ledger)
        self.notes: dict[str, tuple[str, ...]] = {}
        """What restores of this controller could not make equal, for people, by the ids of the restores."""

    # --- one resource -----------------------------------------------------------------------------------------------

    def add(self, driver: Driver, place: str, *, name: str | None = None, session: str | None = None) -> Resource:
        """Declare what is at a place, with its parts and its handle. What is declared already is described anew."""
        self._ledger.trust.ensure("act on a resource")
        found = driver.describe(place)
        new = _new_resource(driver, found, name, session)
        known = self.log.find_at(driver.kind, found.place)
        resource = self.log.declare(new) if known is None else self.log.describe(known.id, new)
        self._add_parts(driver, resource, found, session)
        handle = found.handle
        if handle is not None:
            self.log.open_handle(resource.id, handle.provider, handle.provider_id, capabilities=handle.capabilities)
        return self._ledger.resources.get(resource.id)

    def _add_parts(self, driver: Driver, resource: Resource, found: Description, session: str | None) -> None:
        known = {self._ledger.resources.get(part.resource).place: part.resource for part in resource.parts}
        for part in found.parts:
            if part.place in known:
                continue
            made = self.log.find_at(part.kind, part.place) or self.log.declare(
                NewResource(
                    name=part.name,
                    kind=part.kind,
                    place=part.place,
                    capabilities=part.capabilities,
                    imperative=part.imperative,
                    session=session,
                )
            )
            self.log.add_part(resource.id, made.id, role=part.part.value)
            if part.mount is not None:
                self.log.mount(made.id, part.mount, mode="ro" if part.is_read_only else "rw", container=resource.id)

    def probe(self, resource: Resource) -> ResourceLiveness:
        """Look whether it is there, and record what was seen. Handles of what is dead are closed."""
        self._ledger.trust.ensure("look at a resource")
        status = self.drivers.of(resource.kind).probe(resource.place)
        self.log.record_probe(resource.id, status.value)
        if status is ResourceLiveness.DEAD:
            for handle in resource.handles:
                self.log.close_handle(resource.id, handle.id, reason="it is not there any more")
        return status

    def snapshot(self, resource: Resource, *, run: str | None = None) -> Snapshot:
        """Ask for a snapshot and take it at once. Raises NotApplicable while somebody else works on the resource."""
        self._ledger.trust.ensure("take a snapshot")
        wish = self._ledger.resources.snapshot(self.log.request_snapshot(resource.id, run=run))
        taken = self._take(wish)
        if taken is None:
            raise NotApplicable(f"somebody else works on {resource.name!r}", "the snapshot is taken after them")
        return taken

    def restore(self, snapshot: Snapshot, *, place: str | None = None, session: str | None = None) -> Restore:
        """Ask for a restore and do it at once; the wish stays open while somebody else works on the resource."""
        self._ledger.trust.ensure("restore a snapshot")
        if place is not None:
            place = self.absolute_place(self._ledger.resources.get(snapshot.resource), place)
        return self.finish_restore(self.log.request_restore(snapshot.id, place=place, session=session).id)

    def finish_restore(self, restore: str) -> Restore:
        """Carry out a wish, by its id; it stays open while somebody else works on the resource."""
        self._ledger.trust.ensure("restore a snapshot")
        wish = self.log.restore(restore)
        return self._bring_back(wish) or wish

    def absolute_place(self, resource: Resource, place: str) -> str:
        """Where a copy goes, as it is written down: whoever carries the wish out may stand in another folder. Raises
        NotApplicable where it would lie in what it is a copy of."""
        if resource.kind not in (ResourceKind.DIRECTORY, ResourceKind.FILE):
            return place
        target = new_folder(place)
        if resource.kind is ResourceKind.DIRECTORY and target.is_relative_to(resource.place):
            raise NotApplicable(f"{target} lies in {resource.place}, of which it would be a copy", "name one beside it")
        return str(target)

    def discard(self, resource: Resource) -> Resource:
        """Let nobody own it any more; what Weft made is kept and then removed, what was there before stays."""
        self._ledger.trust.ensure("discard a resource")
        if not resource.is_made:
            return self._ledger.resources.discard(resource.id)
        driver = self.drivers.of(resource.kind)
        if resource.can(ResourceCapability.SNAPSHOT) and driver.probe(resource.place) is ResourceLiveness.ALIVE:
            kept = self.snapshot(resource)
            if kept.state is not SnapshotState.OK:
                raise NotApplicable(f"{resource.place} cannot be kept before it is removed: {kept.error}")
        claims = driver.claims if isinstance(driver, ClaimingDriver) else None
        if claims is not None:
            claims.put(Claim(key=resource.id, kind=ClaimKind.REMOVAL, place=resource.place))
        try:
            gone = self._ledger.resources.discard(resource.id)
        except WeftError:
            if claims is not None:
                claims.drop(resource.id)
            raise
        driver.remove(resource)
        if claims is not None:
            claims.drop(resource.id)
        return gone

    def forget(self, snapshots: Sequence[Snapshot], reason: str) -> None:
        """Throw away what snapshots kept, and with them those of no turn that hold the same, such as what was kept
        before an undo. What snapshots of other turns hold stays."""
        self._ledger.trust.ensure("throw snapshots away")
        gone = {(one.external_kind, one.external_id): one for one in snapshots if one.external_kind is not None}
        beside = self.log.kept_beside([reference for _, reference in gone if reference is not None])
        for one in {one.id: one for one in (*snapshots, *beside)}.values():
            if one.state is SnapshotState.OK:
                self.log.discard_snapshot(one.id, reason=reason)
        for (kind, reference), one in gone.items():
            driver = self.drivers.of(self._ledger.resources.get(one.resource).kind)
            if reference not in self.log.held_references(str(kind)):
                driver.forget_snapshot(one)

    # --- all that is open -------------------------------------------------------------------------------------------

    def reconcile(self) -> Reconciled:
        """Carry out every open wish that nobody else is at."""
        self._ledger.trust.ensure("act on resources")
        left = [why for driver in self.drivers.all() for why in self._tidy_up(driver)]
        snapshots, restores = self.log.pending()
        taken = [(wish.resource, self._take(wish, is_late=True)) for wish in snapshots]
        done = [(self._resource_of(wish), self._bring_back(wish, is_late=True)) for wish in restores]
        return Reconciled(
            snapshots=tuple(one for _, one in taken if one is not None),
            restores=tuple(one for _, one in done if one is not None),
            busy=tuple(dict.fromkeys(id for id, one in (*taken, *done) if one is None)),
            left=tuple(left),
        )

    def _resource_of(self, wish: Restore) -> str:
        return self._ledger.resources.snapshot(wish.snapshot).resource

    def _tidy_up(self, driver: Driver) -> Iterator[str]:
        """Finish what somebody left who died after the ledger had recorded what came of it; what cannot be is told."""
        if not isinstance(driver, ClaimingDriver):
            return
        claims: Claims = driver.claims
        try:
            noted = claims.all()
        except Damaged as error:
            yield str(error)
            return
        for claim in noted:
            try:
                is_settled = self._is_settled(driver, claim)
            except NotFound:
                continue  # of another ledger, or not for whoever acts
            except WeftError as error:
                yield str(error)
            else:
                if is_settled:
                    claims.drop(claim.key)

    def _is_settled(self, driver: Driver, claim: Claim) -> bool:
        """Whether nobody needs the note any more."""
        if claim.kind is ClaimKind.RESTORE:
            return self.log.restore(claim.key).outcome is not None
        resource = self._ledger.resources.get(claim.key)
        is_used_anew = self.log.find_at(resource.kind.value, resource.place) is not None
        if resource.owner is None and resource.is_own and resource.is_made and not is_used_anew:
            driver.remove(resource)
        return True

    @contextmanager
    def _held(self, resource: str) -> Iterator[bool]:
        lease = self.log.hold(resource)
        try:
            yield lease is not None
        finally:
            if lease is not None:
                self.log.let_go(lease)

    def _take(self, wish: Snapshot, *, is_late: bool = False) -> Snapshot | None:
        """None while somebody else works on the resource. One that is taken late is none of the turn's files: who
        knows what has changed since."""
        with self._held(wish.resource) as is_ours:
            if not is_ours:
                return None
            present = self._ledger.resources.snapshot(wish.id)
            if present.state is not SnapshotState.REQUESTED:
                return present
            resource = self._ledger.resources.get(wish.resource)
            outcome = self._try_taking(resource, wish.id)
            run = None if is_late else wish.run
            return self.log.record_snapshot(resource.id, outcome, snapshot=wish.id, run=run)

    def _try_taking(self, resource: Resource, key: str) -> NewSnapshot | Failure:
        try:
            return self.drivers.of(resource.kind).snapshot(resource, key)
        except (WeftError, OSError) as error:
            return _failure(error)

    def _bring_back(self, wish: Restore, *, is_late: bool = False) -> Restore | None:
        snapshot = self._ledger.resources.snapshot(wish.snapshot)
        with self._held(snapshot.resource) as is_ours:
            if not is_ours:
                return None
            present = self.log.restore(wish.id)
            if present.outcome is not None:
                return present
            resource = self._ledger.resources.get(snapshot.resource)
            refused = self._why_not(present, resource, is_late=is_late)
            if refused is not None:
                return self.log.record_restore(wish.id, "error", failure=refused)
            done = self._try_restoring(present, snapshot, resource)
            driver = self.drivers.of(resource.kind) if self.drivers.has(resource.kind) else None
            if isinstance(driver, ClaimingDriver):
                driver.claims.drop(wish.id)
            return done

    def _why_not(self, wish: Restore, resource: Resource, *, is_late: bool) -> Failure | None:
        """Why a restore over a resource is not carried out; what is there is kept where nobody did so just before."""
        if wish.new_resource is not None:
            return None
        if resource.owner is None:
            return Failure("discarded", f"{resource.name!r} is discarded")
        if self.log.is_superseded(wish.id):
            return Failure("superseded", f"{resource.name!r} was worked with, restored or given to another since")
        if not is_late or not resource.can(ResourceCapability.SNAPSHOT) or not self.drivers.has(resource.kind):
            return None
        kept = self._try_taking(resource, wish.id)
        self.log.record_snapshot(resource.id, kept)
        return (
            Failure("not_kept", f"what is there now cannot be kept: {kept.message}")
            if isinstance(kept, Failure)
            else None
        )

    def _try_restoring(self, wish: Restore, snapshot: Snapshot, resource: Resource) -> Restore:
        if not self.drivers.has(resource.kind) or not snapshot.restorable:
            why = f"a {resource.kind} cannot be restored here"
            return self.log.record_restore(wish.id, "unsupported", failure=Failure("unsupported", why))
        driver = self.drivers.of(resource.kind)
        try:
            restored = driver.restore(resource, snapshot, wish.place, wish.id)
            self.notes[wish.id] = restored.notes
            new = None if wish.new_resource is None else self._restored_resource(driver, resource, wish, restored)
        except (WeftError, OSError) as error:
            return self._record_failure(driver, wish, error)
        return self.log.record_restore(wish.id, RestoreOutcome.OK.value, new=new)

    def _restored_resource(
        self, driver: Driver, resource: Resource, wish: Restore, restored: RestoredPlace
    ) -> NewResource:
        found = driver.describe(restored.place)
        owner = wish.owner.name if wish.owner is not None and wish.owner.kind == "session" else None
        return NewResource(
            name=f"{resource.name}-{owner}"[:MOST_LETTERS] if owner else found.name,
            kind=resource.kind,
            place=found.place,
            capabilities=found.capabilities,
            imperative=found.imperative,
            is_made=True,
            metadata=found.metadata,
        )

    def _record_failure(self, driver: Driver, wish: Restore, error: WeftError | OSError) -> Restore:
        try:
            undone = None if wish.place is None else driver.undo_restore(wish.place, wish.id)
        except (WeftError, OSError) as fault:
            undone = f"what was begun could not be undone: {fault}"
        outcome = RestoreOutcome.UNSUPPORTED if isinstance(error, Unsupported) else RestoreOutcome.ERROR
        return self.log.record_restore(wish.id, outcome.value, failure=_failure(error), compensation=undone)


def _failure(error: WeftError | OSError) -> Failure:
    return Failure(type(error).__name__, str(error))


def _new_resource(driver: Driver, found: Description, name: str | None, session: str | None) -> NewResource:
    return NewResource(
        name=name or found.name,
        kind=driver.kind,
        place=found.place,
        capabilities=found.capabilities,
        imperative=found.imperative,
        session=session,
        metadata=found.metadata,
    )
