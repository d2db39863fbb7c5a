"""One at a time acts on a resource: the lease that sessions and agents have, with the resource's id as its key."""

from __future__ import annotations

from weft.kernel.errors import Conflict, LeaseLost
from weft.ledger.resources.recording import require_resource
from weft.ledger.views.lease_rows import Lease, LeaseKind
from weft.ledger.write.append import Append, LedgerWriter, Patience
from weft.ledger.write.leases import free_epoch, release, renew, take

WORK = "work"


class _Held(Conflict):
    """Somebody else holds it; never leaves this module."""


def hold(writer: LedgerWriter, resource: str, owner: str, patience: Patience) -> Lease | None:
    """The lease of a resource; None while somebody else who is alive has it."""
    leases: list[Lease] = []

    def work(append: Append) -> None:
        id = require_resource(append, resource).id
        epoch = free_epoch(append, LeaseKind.RESOURCE, id, patience, lambda lease: _Held(f"held by {lease.owner}"))
        lease = take(append, LeaseKind.RESOURCE, id, epoch, owner, WORK)
        writer.hold(lease)
        leases.append(lease)

    try:
        writer.write(work)
    except _Held:
        return None
    return leases[-1]


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
