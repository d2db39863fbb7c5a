"""`weft retry`: a failed turn is tried again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from weft.surfaces.cli import arguments
from weft.surfaces.cli.broker_call import deliver
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.figures import counted
from weft.surfaces.cli.questions import ask, is_person_there
from weft.surfaces.cli.screen import Span

if TYPE_CHECKING:
    from weft.ledger.api import Ledger
    from weft.ledger.model import ToolCall

ARGUMENT_CHARACTERS = 80


@weft_command("retry")
@arguments.rev("turn")
@click.option("--afresh", is_flag=True, help="Beside the failed turn, without its results: its effects repeat.")
@click.option("--yes", is_flag=True, help="Do not ask before effects are repeated.")
@click.option("--no-wait", is_flag=True, help="Leave it in the inbox; a broker answers it.")
@arguments.key_option
def command(call: Call, turn: str, afresh: bool, yes: bool, no_wait: bool, key: str | None) -> None:
    """Try a failed turn again.

    What it was asked is sent once more, and answered by a child of the failed turn: the model sees what its tools gave.
    With --afresh the new turn begins where the failed one began; the tool calls that it may repeat are listed first.
    Where something else was said since, it goes on in a fork.
    """
    with call.reading() as ledger:
        failed = ledger.turn(turn)
        calls = _effects(ledger, failed.id) if afresh and failed.status == "failed" else []
    if calls:
        _confirm(call, calls, yes)
    deliver(call, lambda ledger: ledger.inbox.retry(failed.id, afresh=afresh, key=key), is_awaited=not no_wait)


def _effects(ledger: Ledger, turn: str) -> list[ToolCall]:
    """The tool calls that ran, or may have run."""
    return [one for one in ledger.tool_calls(turn) if one.status != "denied"]


def _confirm(call: Call, calls: list[ToolCall], yes: bool) -> None:
    for one in calls:
        arguments_text = str(one.arguments)[:ARGUMENT_CHARACTERS]
        call.note(Span(f"{one.name} ", "tool"), f"{arguments_text}  ", Span(one.status, "dim"))
    if yes:
        return
    if not is_person_there(call):
        raise click.UsageError(f"{counted(len(calls), 'tool call')} may run again: --yes does so")
    ask(f"run {counted(len(calls), 'tool call')} again?")
