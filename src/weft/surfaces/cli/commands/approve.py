"""`weft approve`: a person allows a tool call."""

from __future__ import annotations

import click

from weft.surfaces.cli.arguments import complete_approvals
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command


@weft_command("approve")
@click.argument("id", required=False, shell_complete=complete_approvals)
@click.option("--session-scope", is_flag=True, help="The same use of the tool needs no answer in this session again.")
@click.option("--rule", is_flag=True, help="Allow it once, and propose a policy that allows it from then on.")
@click.option("--reason", metavar="TEXT", help="Why.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask; needed where nobody is at a terminal.")
def command(call: Call, id: str | None, session_scope: bool, rule: bool, reason: str | None, yes: bool) -> None:
    """Approve a tool call that waits for a person.

    It is shown whole first, and asked about. The answer counts for exactly what was shown, once: if
    anything of it changes before it runs, it does not run. Without ID what waits is listed, and nothing is allowed.
    """
    from weft.surfaces.cli.approval_call import ApprovalAnswer, decide
    from weft.surfaces.cli.approval_list import named_approval

    if session_scope and rule:
        raise click.UsageError("--session-scope and --rule exclude each other")
    scope = "session" if session_scope else "rule" if rule else "once"
    with call.writing() as ledger:
        approval = named_approval(call, ledger, id)
        decide(call, ledger, approval, ApprovalAnswer(is_granted=True, scope=scope, reason=reason), is_sure=yes)
