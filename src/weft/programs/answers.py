"""Answers of people to what they were asked: the first that was given or taken over here counts.

The view of requests follows every answer in the order of arrival. An answer that another ledger wrote is told as what
that ledger says, and leaves the request open here.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from weft.ledger.views.rows import RequestRow
from weft.store.port import ReadTxn
from weft.store.replicas import AuthoredEvent, authored_event

STATUS_OF = {"human_approved": "approved", "human_rejected": "rejected"}


class ForeignAnswer(Struct, frozen=True):
    """An answer that another ledger wrote, and that nobody here has taken over."""

    event: AuthoredEvent
    status: str
    at: int
    actor: str


def counted_request(txn: ReadTxn, row: RequestRow) -> tuple[RequestRow, ForeignAnswer | None]:
    """The request as it stands here, and what others say was answered where it is open here."""
    if row.status not in STATUS_OF.values():
        return row, None
    answers = txn.sql.all(
        "SELECT n, kind, at, actor, reason FROM program_history"
        " WHERE program = ? AND kind IN ('human_approved', 'human_rejected') ORDER BY n",
        (row.human,),
    )
    foreign: ForeignAnswer | None = None
    for n, kind, at, actor, reason in answers:
        event = authored_event(txn, n)
        if event is None or event.fields.get("request") != row.id:  # None: it is being written right now
            continue
        if event.counts:
            return replace(row, status=STATUS_OF[kind], decided_at=at, reason=reason), None
        foreign = foreign or ForeignAnswer(event, STATUS_OF[kind], at, actor)
    if foreign is None:
        return row, None
    return replace(row, status="pending", decided_at=None, reason=None), foreign
