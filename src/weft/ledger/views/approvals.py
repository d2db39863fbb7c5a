"""What events mean for tool calls that were decided on: decisions, requests to people and their answers.

An answer counts once, and only where the ledger that asked wrote it: one that comes late, twice or from elsewhere
changes nothing here.
"""

from __future__ import annotations

from msgspec import UNSET

from weft.kernel import approval_events as approvals
from weft.kernel.clock import ms_from_iso
from weft.kernel.enums import ApprovalState
from weft.kernel.events import Event
from weft.ledger.views.inbox import PARKED, unpark
from weft.ledger.views.projector import RUN, Moment, Projector, handles, plain
from weft.ledger.views.rows import TurnRow

OPEN, GRANTED, DENIED = ApprovalState.OPEN.value, ApprovalState.GRANTED.value, ApprovalState.DENIED.value


@handles(approvals.ToolDecided, RUN)
def _tool_decided(view: Projector, moment: Moment, event: approvals.ToolDecided) -> None:
    row: TurnRow = moment.row
    if not _is_of_its_ledger(view, row, event):
        return
    request = None
    if event.grant is not UNSET:
        found = view.sql.one(
            "SELECT request FROM approval WHERE answer = ? AND turn = ?", (event.grant.event_id, row.id)
        )
        request = found[0] if found else None
        view.sql.run("UPDATE approval SET used = 1 WHERE request = ?", (request,))
    view.sql.run(
        "INSERT INTO tool_decision(n, turn, call, decision, source, bound, policy, approval, rationale, decided_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            moment.n,
            row.id,
            bytes.fromhex(event.call.event_id),
            event.decision.value,
            event.by.value,
            plain(event.bound),
            plain(event.policy),
            request,
            view.number(event.rationale),
            moment.when,
        ),
    )


@handles(approvals.ApprovalRequested, RUN)
def _approval_requested(view: Projector, moment: Moment, event: approvals.ApprovalRequested) -> None:
    row: TurnRow = moment.row
    if not _is_of_its_ledger(view, row, event):
        return
    view.sql.run(
        "INSERT INTO approval(request, n, turn, session, call, bound, state, replica, rationale, shown, subjects,"
        " requested_at, expires_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            moment.event_id.hex(),
            moment.n,
            row.id,
            row.session,
            bytes.fromhex(event.call.event_id),
            event.bound,
            OPEN,
            plain(event.replica),
            view.number(event.rationale),
            view.number(event.shown),
            view.number(event.subjects),
            moment.when,
            None if event.expires is UNSET else ms_from_iso(event.expires),
        ),
    )


def _is_of_its_ledger(view: Projector, row: TurnRow, event: Event) -> bool:
    """Whether the ledger that runs the turn wrote this. What another one adds to its stream changes nothing."""
    run = view.sql.one("SELECT replica FROM open_run WHERE turn = ?", (row.id,))
    return run is not None and run[0] == plain(event.replica)


@handles(approvals.ApprovalGranted, RUN)
def _approval_granted(view: Projector, moment: Moment, event: approvals.ApprovalGranted) -> None:
    _answer(view, moment, event, GRANTED)


@handles(approvals.ApprovalDenied, RUN)
def _approval_denied(view: Projector, moment: Moment, event: approvals.ApprovalDenied) -> None:
    _answer(view, moment, event, DENIED)


def _answer(
    view: Projector, moment: Moment, event: approvals.ApprovalGranted | approvals.ApprovalDenied, state: str
) -> None:
    row: TurnRow = moment.row
    request = event.request.event_id
    asked = view.sql.one("SELECT replica, bound, state FROM approval WHERE request = ? AND turn = ?", (request, row.id))
    if asked is None or asked[0] != plain(event.replica) or asked[2] != OPEN:
        return
    scope = None
    if isinstance(event, approvals.ApprovalGranted):
        if event.bound != asked[1]:
            return
        scope = plain(event.scope)
    view.sql.run(
        "UPDATE approval SET state = ?, answer = ?, answered_by = ?, answered_at = ?, scope = ?, reason = ?"
        " WHERE request = ?",
        (state, moment.event_id.hex(), event.actor, moment.when, scope, view.number(event.reason), request),
    )
    if row.inbox == PARKED:
        unpark(view, row)


def close_approvals(view: Projector, turn: str, call: str | None = None) -> None:
    """A call, or its whole turn, is over: what was still asked, or allowed and not used, is void."""
    view.sql.run(
        "UPDATE approval SET state = ? WHERE turn = ? AND state IN (?, ?) AND used = 0"
        + ("" if call is None else " AND call = ?"),
        (ApprovalState.VOID.value, turn, OPEN, GRANTED, *(() if call is None else (bytes.fromhex(call),))),
    )
