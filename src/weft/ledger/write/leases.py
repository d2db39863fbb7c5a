"""One writer per session: (session, owner, epoch, beat).

Whoever begins a turn takes the lease; every step renews it (beat + 1) and is refused once another epoch has begun.
A contender that sees the same beat for one TTL on its own clock, or whose system says that the owner is dead, takes
epoch + 1; the turn left behind becomes `failed`: addressable, headless.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from msgspec import Struct

from weft.kernel.enums import InterruptionReason, RunExit
from weft.kernel.errors import LeaseLost, SessionBusy
from weft.ledger.arguments import checked_seconds
from weft.ledger.model import NewError
from weft.ledger.views.rows import SessionRow, TurnRow
from weft.ledger.write.append import Append, LedgerWriter
from weft.ledger.write.turn_events import TurnEvents
from weft.store.owners import is_dead

T = TypeVar("T")
POLL_SECONDS = 0.02


class Lease(Struct, frozen=True):
    session: int
    owner: str
    epoch: int


class Patience:
    """How long a contender will wait. What it has seen of others' beats is remembered by the desk across calls."""

    def __init__(self, writer: LedgerWriter, wait: float, ttl: float) -> None:
        self._clock, self._ttl, self._seen = writer.clock, ttl, writer.seen_beats
        wait = checked_seconds(wait, "wait")
        self._until = writer.clock.monotonic() + wait if wait else 0.0

    def judge_stale(self, key: int, owner: str, epoch: int, beat: int) -> bool:
        if is_dead(owner):
            return True
        now = self._clock.monotonic()
        if self._seen.get(key, (0, 0, 0.0))[:2] != (epoch, beat):
            self._seen[key] = (epoch, beat, now)
        return now - self._seen[key][2] >= self._ttl

    def keep_trying(self, attempt: Callable[[], T]) -> T:
        while True:
            try:
                return attempt()
            except SessionBusy:
                if self._clock.monotonic() >= self._until:
                    raise
            self._clock.sleep(POLL_SECONDS)


def ensure_free(append: Append, session: SessionRow, patience: Patience) -> int:
    """The epoch of a session that nobody holds. Takes it from a dead or silent owner; raises SessionBusy otherwise."""
    free = append.view.memory.free_epochs
    known = free.get(session.n)
    if known is None:
        row = append.sql.one("SELECT owner, epoch, beat, turn FROM lease WHERE session = ?", (session.n,))
        known = free[session.n] = 0 if row is None else _freed(append, session, patience, *row)
    return known


def _freed(append: Append, session: SessionRow, patience: Patience, *lease: Any) -> int:
    owner, epoch, beat, turn = lease
    if turn is None:
        return int(epoch)
    if not patience.judge_stale(session.n, owner, epoch, beat):
        raise SessionBusy(session.label, turn, owner)
    fail_abandoned(append, append.view.turn(turn))
    append.sql.run("UPDATE lease SET turn = NULL, epoch = epoch + 1 WHERE session = ?", (session.n,))
    return int(epoch) + 1


def take(append: Append, key: int, epoch: int, owner: str, turn: str) -> Lease:
    """A turn of a session is held under the session's number, any other under minus its own arrival number."""
    append.sql.run(
        "INSERT INTO lease(session, owner, epoch, beat, turn) VALUES (?, ?, ?, 0, ?) ON CONFLICT (session)"
        " DO UPDATE SET owner = excluded.owner, epoch = excluded.epoch, beat = 0, turn = excluded.turn",
        (key, owner, epoch + 1, turn),
    )
    append.view.memory.free_epochs.pop(key, None)
    return Lease(key, owner, epoch + 1)


def renew(append: Append, lease: Lease, turn: str) -> None:
    row = append.sql.one("SELECT owner, epoch, turn FROM lease WHERE session = ?", (lease.session,))
    if row != (lease.owner, lease.epoch, turn):
        raise LeaseLost(turn)
    append.sql.run("UPDATE lease SET beat = beat + 1 WHERE session = ?", (lease.session,))


def release(append: Append, lease: Lease) -> None:
    _free(append, lease.session)


def _free(append: Append, key: int) -> None:
    """A session's row stays, with its epoch; that of a turn without a session was for this turn alone."""
    if key < 0:
        append.sql.run("DELETE FROM lease WHERE session = ?", (key,))
    else:
        append.sql.run("UPDATE lease SET turn = NULL WHERE session = ?", (key,))


def fail_abandoned(
    append: Append,
    turn: TurnRow,
    reason: InterruptionReason = InterruptionReason.CRASH,
    message: str = "its writer went silent",
) -> None:
    """Close a turn whose writer is gone."""
    if turn.closed:
        return
    turn_events = TurnEvents(
        append, turn.id, actor=turn.persona, prev=turn.digest, messages=turn.messages, scope=turn.root
    )
    turn_events.interruption(reason, open_calls(append, turn))
    turn_events.finish(RunExit.ERROR, error=NewError(code="lease_lost", message=message))


def open_calls(append: Append, turn: TurnRow) -> tuple[str, ...]:
    rows = append.sql.all("SELECT event FROM tool_call WHERE turn = ? AND outcome IS NULL ORDER BY seq", (turn.n,))
    return tuple(bytes(event).hex() for (event,) in rows)


def sweep_dead(writer: LedgerWriter) -> int:
    """At start: fail the turns whose writers are provably gone. Returns how many."""
    with writer.store.read() as txn:
        held = txn.sql.all("SELECT session, owner FROM lease WHERE turn IS NOT NULL")
    dead = [session for session, owner in held if is_dead(owner)]
    return sum(writer.write(partial(_sweep, session)) for session in dead)


def give_up(writer: LedgerWriter) -> None:
    """At the end: fail the turns that this ledger began and nobody ended, so that their sessions are free at once."""
    for key, turn in writer.give_all_up():
        writer.write(partial(_give_up, key, turn))


def _give_up(key: int, turn: str, append: Append) -> None:
    row = append.sql.one("SELECT turn FROM lease WHERE session = ?", (key,))
    if row == (turn,):
        fail_abandoned(append, append.view.turn(turn), InterruptionReason.SHUTDOWN, "the ledger was closed")
        _free(append, key)
        append.seal()


def _sweep(session: int, append: Append) -> int:
    row = append.sql.one("SELECT owner, turn FROM lease WHERE session = ? AND turn IS NOT NULL", (session,))
    if row is None or not is_dead(row[0]):
        return 0
    fail_abandoned(append, append.view.turn(row[1]))
    append.sql.run("UPDATE lease SET epoch = epoch + 1 WHERE session = ?", (session,))
    _free(append, session)
    append.seal()
    return 1
