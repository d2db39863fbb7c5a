"""`weft approvals`: the tool calls that wait for a person."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from weft.surfaces.cli import arguments
from weft.surfaces.cli.approval_text import age_of, approval_lines, short_id, state_of
from weft.surfaces.cli.arguments import complete_approvals
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.screen import Span
from weft.surfaces.cli.times import local_time

if TYPE_CHECKING:
    from weft.ledger.api import Approval, Ledger

PAGE_APPROVALS = 200
EVERY_STATE = ("open", "granted", "denied", "void")


@weft_command("approvals")
@click.argument("id", required=False, shell_complete=complete_approvals)
@click.option("--all", "is_every", is_flag=True, help="Those that were answered, too.")
@arguments.session_option("Only those of this session.")
def command(call: Call, id: str | None, is_every: bool, session: str | None) -> None:
    """List the tool calls that wait for approval.

    With an ID that one is shown whole: what it would do, and exactly what would run. An approval allows that once, and
    nothing else: if anything of it changes before it runs, it does not run.
    """
    from weft.kernel.clock import SystemClock

    if id is not None and (is_every or session is not None):
        raise click.UsageError("an ID stands alone")
    now_ms = SystemClock().now_ms()
    with call.reading() as ledger:
        if id is not None:
            approval = ledger.approvals.get(id)
            call.document(approval) if call.json else call.screen.page(approval_lines(approval, now_ms))
            return
        approvals = list(all_approvals(ledger, session, EVERY_STATE if is_every else EVERY_STATE[:1]))
    if call.json:
        call.documents(approvals)
    elif approvals:
        _show(call, approvals, now_ms)
    else:
        call.note(
            "nobody was asked about a tool call" if is_every else "no tool call waits; --all lists what was answered"
        )


def all_approvals(ledger: Ledger, session: str | None, states: tuple[str, ...]) -> Iterator[Approval]:
    """Page after page, the oldest first."""
    after = 0
    while page := ledger.approvals.list(session=session, states=states, limit=PAGE_APPROVALS, after=after):
        yield from page
        after = page[-1].n


def _show(call: Call, approvals: list[Approval], now_ms: int) -> None:
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
