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
from weft.surfaces.cli.compaction_table import show_compactions
from weft.surfaces.cli.history import short
from weft.surfaces.cli.program_call import complete_programs, with_invocations
from weft.surfaces.cli.screen import Span

if TYPE_CHECKING:
    from weft.ledger.api import Ledger


@weft_command("compact")
@arguments.session(default="main")
@click.option("--summary", metavar="TEXT", help="The summary; else it is read from standard input.")
@click.option("--through", metavar="REV", help="The last turn that the summary stands for. Default: the head.")
@click.option("--first-kept", metavar="REV", help="The first turn that stays in the context in full.")
@click.option("--strategy", metavar="NAME", help="Have it made: summary, sliding_window, selective, or a package's.")
@click.option("--focus", metavar="TEXT", help="Have it made with a model: what its summary must tell above all.")
@click.option("--keep", metavar="N", type=click.IntRange(min=0), help="Have it made: the last N turns are kept.")
@click.option(
    "--model",
    metavar="NAME",
    shell_complete=complete_programs("model"),
    help="The model that writes the summary; beside a summary of your own, who wrote it.",
)
@click.option("--list", "listed", is_flag=True, help="Show the compactions of the thread side by side.")
@click.option("--use", metavar="REV", help="Switch to this compaction of the thread instead of recording one.")
@click.option("--undo", "back", is_flag=True, help="Switch to no compaction: the whole history is seen again.")
def command(
    call: Call,
    session: str,
    summary: str | None,
    through: str | None,
    first_kept: str | None,
    strategy: str | None,
    focus: str | None,
    keep: int | None,
    model: str | None,
    listed: bool,
    use: str | None,
    back: bool,
) -> None:
    """Summarise a session's past, or switch between summaries.

    A compaction is a turn of its own: nothing is lost, the next turns see the summary instead of what lies before it.
    With --strategy, --focus or --keep it is made here, by the session's model or --model; else the summary is yours.
    """
    by_hand = summary is not None or through is not None or first_kept is not None
    is_made = strategy is not None or focus is not None or keep is not None
    if [by_hand or is_made, listed, use is not None, back].count(True) > 1:
        raise click.UsageError("--list, --use and --undo stand alone")
    if by_hand and is_made:
        raise click.UsageError("--summary, --through and --first-kept are for a summary of your own")
    if listed:
        show_compactions(call, session)
    elif use is not None or back:
        with call.writing() as ledger:
            _choose(call, ledger, session, use)
    elif is_made:
        make_compaction(call, session, strategy, focus, keep, model)
    else:
        _record(call, session, _text(summary), through, first_kept, model)


def _record(
    call: Call, session: str, text: str, through: str | None, first_kept: str | None, model: str | None
) -> None:
    with call.writing() as ledger:
        compaction = ledger.compactions.record(
            summary=text,
            session=ledger.session(session).label,
            model=model or "unknown",
            through=None if through is None else ledger.resolve(through),
            first_kept=None if first_kept is None else ledger.resolve(first_kept),
            trigger=CompactionTrigger.MANUAL,
        )
    call.answer(compaction, [Span(str(compaction.session), "label"), " compacted by turn ", Span(compaction.id, "id")])
    call.note(undo("compact", str(compaction.session), "--undo"))


def make_compaction(
    call: Call,
    session: str,
    strategy: str | None,
    focus: str | None = None,
    keep: int | None = None,
    model: str | None = None,
    *,
    has_default_model: bool = False,
) -> None:
    """Have a compaction made and say what it took. With `has_default_model` the model that `weft chat` would choose
    writes the summary where the session has none."""
    from weft.runtime.invoke.handlers import compact_session

    with call.reading() as ledger:
        opened = ledger.session(session)
    made = with_invocations(
        call,
        call.actor,
        lambda shop: compact_session(shop, opened.id, strategy=strategy, model=model, focus=focus, keep=keep),
        has_default_model=has_default_model,
    )
    figures = f", {made.tokens_before:,} tokens before, {made.tokens_after:,} after"
    call.answer(made, [Span(opened.label, "label"), " compacted by turn ", Span(made.turn_id, "id"), figures])
    if isinstance(made.metadata, dict) and "fallback" in made.metadata:
        call.note(f"the model failed, so the summary is an extract: {made.metadata['fallback']['reason']}")
    call.note(undo("compact", opened.label, "--undo"))


def _choose(call: Call, ledger: Ledger, session: str, use: str | None) -> None:
    chosen = None if use is None else ledger.resolve(use)
    ledger.compactions.choose(session, chosen)
    opened = ledger.session(session)
    context = " sees its whole history" if chosen is None else f" goes by compaction {short(chosen)}"
    call.answer(opened, [Span(opened.label, "label"), context])


def _text(summary: str | None) -> str:
    if summary is None:
        data = read_input(None, "no summary was given: pipe it in, use --summary, or have one made with --strategy")
        summary = decode_utf8(data, "the summary")
    if not summary.strip():
        raise InvalidInput("the summary is empty", "write what the agent must still know")
    return summary
