"""`weft compact`: a summary that stands for a session's past."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from weft.kernel.contents import decode_utf8
from weft.kernel.enums import CompactionTrigger
from weft.kernel.errors import InvalidInput
from weft.surfaces.cli import arguments
from weft.surfaces.cli.arguments import read_input
from weft.surfaces.cli.call import Call, undo
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.history import short
from weft.surfaces.cli.screen import Span

if TYPE_CHECKING:
    from weft.ledger.api import Ledger


@weft_command("compact")
@arguments.session(default="main")
@click.option("--summary", metavar="TEXT", help="The summary; else it is read from standard input.")
@click.option("--through", metavar="REV", help="The last turn that the summary stands for. Default: the head.")
@click.option("--first-kept", metavar="REV", help="The first turn that stays in the context in full.")
@click.option("--model", metavar="NAME", default="unknown", help="Who wrote the summary.")
@click.option("--use", metavar="REV", help="Switch to this compaction of the thread instead of recording one.")
@click.option("--undo", "back", is_flag=True, help="Switch to no compaction: the whole history is seen again.")
def command(
    call: Call,
    session: str,
    summary: str | None,
    through: str | None,
    first_kept: str | None,
    model: str,
    use: str | None,
    back: bool,
) -> None:
    """Summarise a session's past, or switch between summaries.

    A compaction is a turn of its own: nothing is lost, the next turns see the summary instead of what lies before it.
    """
    if use is not None or back:
        if (use is not None and back) or summary is not None or through or first_kept:
            raise click.UsageError("--use and --undo stand alone")
        with call.writing() as ledger:
            _choose(call, ledger, session, use)
        return
    text = _text(summary)
    with call.writing() as ledger:
        compaction = ledger.compactions.record(
            summary=text,
            session=ledger.session(session).label,
            model=model,
            through=None if through is None else ledger.resolve(through),
            first_kept=None if first_kept is None else ledger.resolve(first_kept),
            trigger=CompactionTrigger.MANUAL,
        )
    call.answer(compaction, [Span(str(compaction.session), "label"), " compacted by turn ", Span(compaction.id, "id")])
    call.note(undo("compact", str(compaction.session), "--undo"))


def _choose(call: Call, ledger: Ledger, session: str, use: str | None) -> None:
    chosen = None if use is None else ledger.resolve(use)
    ledger.compactions.choose(session, chosen)
    opened = ledger.session(session)
    context = " sees its whole history" if chosen is None else f" goes by compaction {short(chosen)}"
    call.answer(opened, [Span(opened.label, "label"), context])


def _text(summary: str | None) -> str:
    if summary is None:
        data = read_input(None, "no summary was given: pipe it in, or use --summary")
        summary = decode_utf8(data, "the summary")
    if not summary.strip():
        raise InvalidInput("the summary is empty", "write what the agent must still know")
    return summary
