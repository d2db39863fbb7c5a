"""`weft approvals`: the tool calls that wait for a person."""

from __future__ import annotations

import click

from weft.surfaces.cli import arguments
from weft.surfaces.cli.approval_list import EVERY_STATE, NOTHING_WAITS, all_approvals, show_approvals
from weft.surfaces.cli.approval_text import approval_lines
from weft.surfaces.cli.arguments import complete_approvals
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command


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
        show_approvals(call, approvals, now_ms)
    else:
        call.note(
            "nobody was asked about a tool call" if is_every else f"{NOTHING_WAITS}; --all lists what was answered"
        )
