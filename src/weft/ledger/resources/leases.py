"""One at a time acts on a resource: the lease that sessions and agents have, with the resource's id as its key.

A turn takes none: it has its session's. So whoever would change a resource in place is refused while a turn works with
it, in the transaction that takes the lease; and a turn that would change something looks, once it has its session,
whether somebody holds it.
"""

from __future__ import annotations

from msgspec import Struct

from weft.kernel.errors import Conflict, LeaseLost
from weft.ledger.resources.model import Resource
from weft.ledger.resources.recording import require_resource
from weft.ledger.resources.snapshot_reading import is_kept_in
from weft.ledger.views.lease_rows import Lease, LeaseKind, find_lease, held_leases
from weft.ledger.views.rows import load_session
from weft.ledger.write.append import Append, LedgerWriter, Patience
from weft.ledger.write.leases import free_epoch, is_run_of_broker, release, renew, take
from weft.store.sql import Sql

WORK = "work"


class _Held(Conflict):
    """Somebody else holds it; never leaves this module."""


class BusyResource(Struct, frozen=True):
    """That nobody may act on a resource now, and who does, for people."""

    who: str


def hold(
    writer: LedgerWriter, name: str, owner: str, patience: Patience, *, in_place: bool = False
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


def _ensure_no_turn(append: Append, resource: Resource, patience: Patience) -> None:
    """No turn of its owner is under way, nor one that may have changed it, whoever owns it since."""
    owner = None if resource.owner is None else resource.owner.id
    for lease in held_leases(append.sql, LeaseKind.SESSION):
        is_concerned = lease.key == owner or is_kept_in(append.sql, lease.purpose or "", resource.id)
        if is_concerned and (is_run_of_broker(append, lease) or not patience.judge_stale(lease)):
            session = load_session(append.sql, lease.key)
            raise _Held(f"session {lease.key if session is None else session.label!r}")


def is_worked_on(sql: Sql, resource: str, patience: Patience) -> bool:
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
