"""`weft reject`: a person refuses a tool call."""

from __future__ import annotations

import click

from weft.surfaces.cli.arguments import complete_approvals
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command


@weft_command("reject")
@click.argument("id", required=False, shell_complete=complete_approvals)
@click.option("--abort", is_flag=True, help="End the agent's turn, too.")
@click.option("--reason", metavar="TEXT", help="Why; the model is told.")
def command(call: Call, id: str | None, abort: bool, reason: str | None) -> None:
    """Reject a tool call that waits for a person.

    It never runs. The model is told so and goes on; with --abort its turn ends. Without ID what waits is listed.
    """
    from weft.surfaces.cli.approval_call import ApprovalAnswer, decide
    from weft.surfaces.cli.approval_list import named_approval

    with call.writing() as ledger:
        approval = named_approval(call, ledger, id)
        decide(call, ledger, approval, ApprovalAnswer(is_granted=False, abort=abort, reason=reason), is_sure=True)
