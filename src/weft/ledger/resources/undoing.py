"""A head that goes back and the files that go back with it, as one fact: the move, and what is to be restored.

An undo names the turn that it takes back and the snapshots of what was there until then; a redo names the undo that it
takes back. Several undos are taken back the other way round, the last one first. Any other move of the head, and any
new turn, ends that: what was undone before it is not redone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import UNSET, Struct

from weft.kernel.enums import MoveReason
from weft.kernel.errors import HeadMoved, NotApplicable
from weft.kernel.events import Event, UnknownEvent
from weft.kernel.fields import EventRef
from weft.kernel.ledger_events import SessionMoved
from weft.ledger.read.sessions import head_event
from weft.ledger.resources.snapshot_reading import load_snapshot
from weft.ledger.resources.snapshots import add_restore_request
from weft.ledger.sessions.heads import require_session, stream_of
from weft.ledger.views.lease_rows import Lease
from weft.ledger.views.recorded_events import decoded
from weft.ledger.views.rows import HISTORY, HistoryRow, SessionRow, load_turn
from weft.ledger.write.append import Append, LedgerWriter, Patience
from weft.ledger.write.leases import renew
from weft.ledger.write.placement import ensure_free, load_parent
from weft.store.authorship import is_written_here
from weft.store.port import ReadTxn

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
    while rows := [HistoryRow(*values) for values in txn.sql.all(query, (session.n, before, _ROWS_AT_ONCE))]:
        yield from rows
        before = rows[-1].k


def _event_of(txn: ReadTxn, row: HistoryRow) -> Event | UnknownEvent | None:
    line = txn.facts.line(row.n)
    return None if line is None else decoded(row.n, line)


def _stood_at(txn: ReadTxn, session: SessionRow, undo: HistoryRow) -> str | None:
    """The event inside its turn that the head stood at before an undo."""
    row = txn.sql.one("SELECT turn, events FROM history WHERE session = ? AND k = ?", (session.n, undo.k - 1))
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
    patience: Patience,
) -> tuple[str, ...]:
    """Take the turn back that a head stands at, and wish that these snapshots be restored over their resources, of
    which `kept` tells what they are like now. `held` are the leases
    under which that will be done. The ids of the wishes."""

    def work(append: Append) -> tuple[str, ...]:
        session = _free_session(append, name, expected, patience)
        _renew(append, held)
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
        return _wished(append, snapshots)

    return patience.keep_trying(lambda: writer.write(work))


def redo_with_files(
    writer: LedgerWriter,
    name: str,
    undone: UndoneMove,
    *,
    kept: Sequence[str],
    held: Sequence[Lease],
    patience: Patience,
) -> tuple[str, ...]:
    """Take an undo back: the head stands where it stood, and what was kept then is to be restored. The ids of the
    wishes. Raises NotApplicable where it is not the undo that can be taken back any more."""

    def work(append: Append) -> tuple[str, ...]:
        session = require_session(append, name, "session:move")
        ensure_free(append, session, patience)
        _renew(append, held)
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
        return _wished(append, undone.kept)

    return patience.keep_trying(lambda: writer.write(work))


def _free_session(append: Append, name: str, expected: str, patience: Patience) -> SessionRow:
    session = require_session(append, name, "session:move")
    ensure_free(append, session, patience)
    if session.head != expected:
        raise HeadMoved(session.label, expected, session.head)
    return session


def _renew(append: Append, leases: Sequence[Lease]) -> None:
    """Whoever is about to act still may."""
    for lease in leases:
        renew(append, lease)


def _wished(append: Append, snapshots: Sequence[str]) -> tuple[str, ...]:
    txn = ReadTxn(append.sql, append.txn.facts)
    wishes = tuple(add_restore_request(append, load_snapshot(txn, name), None, None) for name in snapshots)
    append.seal()
    return wishes
