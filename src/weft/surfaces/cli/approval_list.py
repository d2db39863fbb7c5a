"""The tool calls that wait for a person, as a list."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from weft.kernel.clock import SystemClock
from weft.kernel.errors import NotApplicable
from weft.surfaces.cli.screen import Span, local_time
from weft.surfaces.cli.work.approvals import age_of, short_id, state_of

if TYPE_CHECKING:
    from weft.ledger.api import Approval, Ledger
    from weft.surfaces.cli.command_line import Call

PAGE_APPROVALS = 200
EVERY_STATE = ("open", "granted", "denied", "void")
NOTHING_WAITS = "no tool call waits"


def named_approval(call: Call, ledger: Ledger, id: str | None) -> Approval:
    """The request of this id. Without one nothing is chosen: what waits is listed, and UsageError raised; or
    NotApplicable, where nothing waits."""
    if id is not None:
        return ledger.approvals.get(id)
    approvals = list(all_approvals(ledger, None, EVERY_STATE[:1]))
    if not approvals:
        raise NotApplicable(NOTHING_WAITS, "`weft approvals --all` lists what was answered")
    if call.json:
        call.documents(approvals)
    else:
        show_approvals(call, approvals, SystemClock().now_ms())
    raise click.UsageError("name the tool call that is meant")


def all_approvals(ledger: Ledger, session: str | None, states: tuple[str, ...]) -> Iterator[Approval]:
    """Page after page, the oldest first."""
    after = 0
    while page := ledger.approvals.list(session=session, states=states, limit=PAGE_APPROVALS, after=after):
        yield from page
        after = page[-1].n


def show_approvals(call: Call, approvals: list[Approval], now_ms: int) -> None:
    rows: list[list[Span | str]] = [
        [
            Span(short_id(approval), "id"),
            state_of(approval, now_ms),
            Span(approval.agent, "label"),
            approval.session or "",
            Span(approval.tool, "tool"),
            age_of(approval, now_ms),
            "" if approval.expires_at is None else local_time(approval.expires_at),
            approval.rationale or "",
        ]
        for approval in approvals
    ]
    header = ["approval", "state", "agent", "session", "tool", "age", "expires", "why"]
    call.screen.table(rows, header, spare=["expires", "age", "state", "session"])
    if any(state_of(approval, now_ms).text == "open" for approval in approvals):
        call.note("`weft approve ID` shows and allows one, `weft reject ID` refuses it")
