"""`weft settle`: one head again for a session that several ledgers moved."""

from __future__ import annotations

import click

from weft.kernel.errors import NotApplicable
from weft.kernel.typed_names import shell_word
from weft.surfaces.cli import arguments
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.history import short
from weft.surfaces.cli.screen import Line, Span


@weft_command("settle")
@arguments.session()
@click.option("--to", metavar="REV", shell_complete=arguments.complete_labels, help="At this turn.")
@click.option("--ours", is_flag=True, help="Where it stands here.")
@click.option("--theirs", is_flag=True, help="Where the other ledger's branch stands.")
@click.option("--fork", metavar="LABEL", help="Where it stands here; the other branch becomes a session of its own.")
@click.option("--reason", metavar="TEXT", help="Why, for the reflog.")
def command(
    call: Call, session: str, to: str | None, ours: bool, theirs: bool, fork: str | None, reason: str | None
) -> None:
    """Settle a session that several ledgers moved: join its branches.

    Without an option the branches are shown. Settling is one more move, which names the ends of all branches; every
    ledger follows it with its next pull. No turn is lost.
    """
    if (to is not None) + theirs + (ours or fork is not None) > 1:
        raise click.UsageError("choose one of --to, --ours, --theirs and --fork")
    if to is None and not (ours or theirs or fork):
        return _show(call, session)
    with call.writing() as ledger:
        settled = ledger.merges.settle(session, to=to, ours=ours, theirs=theirs, fork=fork, reason=reason)
    stands = "no turn" if settled.head is None else short(settled.head)
    call.answer(settled, [Span(settled.label, "label"), " stands at ", Span(stands, "id")])
    call.note("other ledgers follow with their next pull")
    return None


def _show(call: Call, session: str) -> None:
    with call.reading() as ledger:
        opened, branches = ledger.session(session), ledger.merges.branches(session)
    if not branches:
        raise NotApplicable(f"session {opened.label!r} has one branch", "nothing is to be settled")
    if call.json:
        call.documents(branches)
        return
    call.screen.show(*_line(opened.label, opened.head))
    for branch in branches:
        call.screen.show(*_line(branch.name, branch.head))
    call.note(f"choose: `weft settle {shell_word(opened.label)} --ours`, --theirs, --to REV or --fork LABEL")


def _line(name: str, head: str | None) -> Line:
    return [Span(name, "label"), " stands at ", Span("no turn" if head is None else short(head), "id")]
