"""One writer at a time for whatever must not be written by two: a session, a turn without a session, an agent.

A lease is a row (kind, key, owner, epoch, beat, purpose). Taking it counts the epoch up; every step of the holder
renews it (beat + 1) inside its own append, and is refused once the row has another owner, epoch or purpose. A contender
that sees the same beat for one TTL on its own clock, or whose system says that the owner is dead, takes it over. The
turn that a silent or dead owner leaves behind becomes `failed`: it stays addressable, and the head does not move to it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from weft.kernel.enums import InterruptionReason, RunExit
from weft.kernel.errors import Conflict, LeaseLost
from weft.ledger.model import NewError
from weft.ledger.views.lease_rows import Lease, LeaseKind, find_lease, held_leases
from weft.ledger.views.rows import TurnRow
from weft.ledger.write.append import Append, LedgerWriter, Patience
from weft.ledger.write.turn_events import TurnEvents
from weft.store.owners import NOBODY, is_dead
from weft.store.replica_names import last_copied_event

T = TypeVar("T")
_TURN_KINDS = (LeaseKind.SESSION, LeaseKind.TURN)
"""Kinds whose purpose is a turn: it fails when its writer is gone."""


def free_epoch(append: Append, kind: LeaseKind, key: str, patience: Patience, busy: Callable[[Lease], Conflict]) -> int:
    """The epoch of what nobody holds, 0 where nobody ever did. Ends the lease of a dead or silent owner; raises what
    `busy` makes of any other."""
    lease = find_lease(append.sql, kind, key)
    if lease is None:
        return 0
    if lease.purpose is not None:
        if is_run_of_broker(append, lease) or not patience.judge_stale(lease):
            raise busy(lease)
        _abandon(append, lease)
    return lease.epoch


def is_run_of_broker(append: Append, lease: Lease) -> bool:
    """Whether it is held for a turn that took messages of an inbox: that is never failed by another writer, for a
    broker goes on with it. One that was under way when this ledger was copied is gone on with in the origin."""
    if lease.kind != LeaseKind.SESSION or lease.purpose is None:
        return False
    turn = append.view.find_turn(lease.purpose)
    is_open = turn is not None and turn.inbox is not None and not turn.closed
    return is_open and turn is not None and turn.n > last_copied_event(append.sql)


def leave_run(append: Append, lease: Lease) -> None:
    """Nobody works on a broker's turn for now; it stays open, and any broker may go on with it."""
    append.sql.run("UPDATE lease SET owner = ? WHERE kind = ? AND key = ?", (NOBODY, lease.kind, lease.key))


def take(append: Append, kind: LeaseKind, key: str, epoch: int, owner: str, purpose: str) -> Lease:
    """Hold what is free at `epoch`, under the next one."""
    append.sql.run(
        "INSERT INTO lease(kind, key, owner, epoch, beat, purpose) VALUES (?, ?, ?, ?, 0, ?) ON CONFLICT (kind, key)"
        " DO UPDATE SET owner = excluded.owner, epoch = excluded.epoch, beat = 0, purpose = excluded.purpose",
        (kind.value, key, owner, epoch + 1, purpose),
    )
    append.view.memory.free_epochs.pop(key, None)
    return Lease(kind, key, owner, epoch + 1, 0, purpose)


def renew(append: Append, lease: Lease) -> None:
    """One more beat; raises LeaseLost where the lease was taken over or ended."""
    if not _is_current(append, lease):
        raise LeaseLost(lease.purpose or lease.key)
    append.sql.run("UPDATE lease SET beat = beat + 1 WHERE kind = ? AND key = ?", (lease.kind, lease.key))


def release(append: Append, lease: Lease) -> None:
    """End a lease that was renewed in this append."""
    end_lease(append, LeaseKind(lease.kind), lease.key)


def end_lease(append: Append, kind: LeaseKind, key: str) -> None:
    """Nobody holds it any more, whoever did. The row stays with its epoch, so that no later lease equals this one;
    that of a turn without a session was for this turn alone, and goes."""
    if kind is LeaseKind.TURN:
        append.sql.run("DELETE FROM lease WHERE kind = ? AND key = ?", (kind.value, key))
    else:
        append.sql.run("UPDATE lease SET purpose = NULL WHERE kind = ? AND key = ?", (kind.value, key))


def _is_current(append: Append, lease: Lease) -> bool:
    row = find_lease(append.sql, LeaseKind(lease.kind), lease.key)
    return row is not None and (row.owner, row.epoch, row.purpose) == (lease.owner, lease.epoch, lease.purpose)


def _abandon(
    append: Append,
    lease: Lease,
    reason: InterruptionReason = InterruptionReason.CRASH,
    message: str = "its writer went silent",
) -> None:
    """End a lease whose holder will write no more, and fail the turn that it was held for."""
    if lease.kind in _TURN_KINDS and lease.purpose is not None:
        fail_abandoned(append, append.view.turn(lease.purpose), reason, message)
    end_lease(append, LeaseKind(lease.kind), lease.key)


def fail_abandoned(append: Append, turn: TurnRow, reason: InterruptionReason, message: str) -> None:
    """Close a turn whose writer is gone."""
    if turn.closed:
        return
    with append.by_the_ledger():
        turn_events = TurnEvents(
            append, turn.id, actor=turn.persona, prev=turn.digest, messages=turn.messages, scope=turn.root
        )
    turn_events.interruption(reason, open_calls(append, turn))
    turn_events.finish(RunExit.ERROR, error=NewError(code="lease_lost", message=message))


def open_calls(append: Append, turn: TurnRow) -> tuple[str, ...]:
    rows = append.sql.all("SELECT event FROM tool_call WHERE turn = ? AND outcome IS NULL ORDER BY seq", (turn.n,))
    return tuple(bytes(event).hex() for (event,) in rows)


def sweep_dead(writer: LedgerWriter) -> int:
    """At start: end the leases whose owners are provably gone. Returns how many."""
    with writer.store.read() as txn:
        leases = held_leases(txn.sql)
    return sum(writer.write(partial(_sweep, lease)) for lease in leases if is_dead(lease.owner))


def _sweep(lease: Lease, append: Append) -> int:
    if not _is_current(append, lease) or is_run_of_broker(append, lease):
        return 0
    _abandon(append, lease)
    append.seal()
    return 1


def give_up(writer: LedgerWriter) -> None:
    """At the end: end the leases that this ledger took and nobody released, so that others need not wait."""
    for lease in writer.give_all_up():
        writer.write(partial(_give_up, lease))


def _give_up(lease: Lease, append: Append) -> None:
    if not _is_current(append, lease):
        return
    if is_run_of_broker(append, lease):
        leave_run(append, lease)
        return
    _abandon(append, lease, InterruptionReason.SHUTDOWN, "the ledger was closed")
    append.seal()
