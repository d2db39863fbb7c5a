"""A head that goes back and the files that go back with it, as one fact: the move, and what is to be restored."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET

from weft.kernel.enums import MoveReason
from weft.kernel.errors import HeadMoved
from weft.kernel.ledger_events import SessionMoved
from weft.ledger.resources.reading import load_snapshot
from weft.ledger.resources.snapshots import add_restore_request
from weft.ledger.sessions.heads import require_session, stream_of
from weft.ledger.write.append import Append, LedgerWriter, Patience
from weft.ledger.write.placement import ensure_free, load_parent
from weft.store.port import ReadTxn

REDO = "redo"
_UNDO = "undo"


def undo_reason(kept: Sequence[str]) -> str:
    """Why a head went back: `undo`, and the snapshots of what was there until then."""
    return " ".join((_UNDO, *kept))


def kept_by_undo(reason: str | None) -> tuple[str, ...] | None:
    """The snapshots that the reason of a move names; None where it was no undo."""
    word, *kept = (reason or "").split(" ")
    return tuple(kept) if word == _UNDO else None


def move_with_files(
    writer: LedgerWriter,
    session: str,
    *,
    expected: str | None,
    to: str | None,
    reason: str,
    snapshots: Sequence[str],
    patience: Patience,
) -> tuple[str, ...]:
    """Move a head that stands at `expected`, and wish that these snapshots be restored over their resources. The ids
    of the wishes."""

    def work(append: Append) -> tuple[str, ...]:
        row = require_session(append, session, "session:move")
        ensure_free(append, row, patience)
        if row.head != expected:
            raise HeadMoved(row.label, expected, row.head)
        turn = None if to is None else load_parent(append, to)
        stream_of(append, row).add(
            SessionMoved,
            to=None if turn is None else turn.id,
            before=row.head,
            why=MoveReason.MOVE,
            at=UNSET if turn is None or turn.closed else turn.digest,
            reason=append.put_text(reason, "reason"),
        )
        txn = ReadTxn(append.sql, append.txn.facts)
        wishes = [add_restore_request(append, load_snapshot(txn, name), None, None) for name in snapshots]
        append.seal()
        return tuple(wishes)

    return patience.keep_trying(lambda: writer.write(work))
