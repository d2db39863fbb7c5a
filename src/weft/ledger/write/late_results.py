"""Outcomes of tool calls that come from outside: into a parked turn, which they bring back; after a turn's end into
the ledger's own stream, where they never change the turn's digest. They are marked as what a stranger may have
written."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from weft.kernel.dag_events import ToolResult
from weft.kernel.enums import ToolCallStatus
from weft.kernel.errors import AmbiguousName, NotApplicable, NotFound, SessionBusy
from weft.kernel.fields import EventRef
from weft.ledger.model import NewError, NewToolCall, repeated_id
from weft.ledger.views.inbox import PARKED
from weft.ledger.views.lease_rows import LeaseKind, find_lease
from weft.ledger.views.rows import CALL, CallRow, TurnRow
from weft.ledger.write.append import Append, LedgerWriter
from weft.ledger.write.placement import load_parent
from weft.ledger.write.turn_events import ResultNotes, TurnEvents, error_fact
from weft.store.owners import NOBODY


def record_late_result(
    writer: LedgerWriter,
    turn: str,
    call_id: str,
    result: Any,
    error: str | NewError | None,
    status: ToolCallStatus | None,
) -> None:
    """The outcome of a tool call whose turn did not wait for it, or is parked until it comes."""

    def work(append: Append) -> None:
        row = load_parent(append, turn)
        append.access.ensure_turn("turn:record", row, turn)
        if not row.closed and row.inbox != PARKED:
            raise NotApplicable(f"turn {turn} is still {row.status}", "record the result with the turn's own writer")
        call, native = _open_call(append, row, call_id)
        contents = append.contents_of(row.root)
        ended = status or (ToolCallStatus.OK if error is None else ToolCallStatus.ERROR)
        if not row.closed:
            _ensure_parked(append, row)
            events = TurnEvents(
                append, row.id, actor=row.persona, prev=row.digest, messages=row.messages, scope=row.root
            )
            outcome = NewToolCall(name="-", result=result, error=error, status=ended)
            event, notes = bytes(call.event).hex(), ResultNotes(is_untrusted=True)
            events.result(event, contents.put_text(native), outcome, call.correlation, None, notes=notes)
            append.seal()
            return
        append.ledger_stream(row.persona).add(
            ToolResult,
            call=EventRef(bytes(call.event).hex()),
            call_id=contents.put_text(native),
            status=ended,
            correlation_id=call.correlation,
            result=UNSET if result is UNSET else contents.put_json(result, "result"),
            error=UNSET if error is None else error_fact(contents, error),
            untrusted=True,
        )
        append.seal()

    writer.write(work)


def _ensure_parked(append: Append, turn: TurnRow) -> None:
    """Refuse where a broker has just taken the turn up again: it knows nothing of what others write to it."""
    session = None if turn.session is None else append.view.session_of_number(turn.session)
    lease = None if session is None else find_lease(append.sql, LeaseKind.SESSION, session.id)
    if session is not None and lease is not None and lease.owner != NOBODY:
        raise SessionBusy(session.label, turn.id, lease.owner)


def _open_call(append: Append, turn: TurnRow, call_id: str) -> tuple[CallRow, str]:
    """By our own id, which names one call, or by the provider's, which may name several: the first that waits.
    Returns the provider's id beside it."""
    rows = append.sql.all(f"{CALL.select} WHERE turn = ? ORDER BY seq", (turn.n,))
    pairs = ((call, append.txn.facts.text(call.call_id)) for call in (CallRow(*row) for row in rows))
    calls = [(call, native) for call, native in pairs if native is not None]
    ours = [pair for pair in calls if call_id in _spellings(turn, *pair)]
    same_native = [pair for pair in calls if pair[1] == call_id]
    if same_native and ours and ours[0] not in same_native:
        raise AmbiguousName(call_id, [_spellings(turn, *pair)[0] for pair in (*ours, *same_native)])
    waiting = [(call, native) for call, native in same_native or ours if call.outcome in (None, "interrupted")]
    if not (same_native or ours):
        raise NotFound("tool call", f"{turn.id}:{call_id}")
    if not waiting:
        raise NotApplicable(
            f"tool call {call_id!r} of turn {turn.id} has its result already",
            "a call has one result; record what came after it in a new turn",
        )
    return waiting[0]


def _spellings(turn: TurnRow, call: CallRow, native: str) -> tuple[str, str]:
    ours = repeated_id(native, call.repeated)
    return f"{turn.id}:{ours}", ours
