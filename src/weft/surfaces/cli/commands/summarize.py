"""`weft summarize`: what a branch found, told on another session."""

from __future__ import annotations

import click

from weft.kernel.contents import decode_utf8
from weft.surfaces.cli import arguments
from weft.surfaces.cli.arguments import complete_labels, expected_head, expected_option, key_option, read_input
from weft.surfaces.cli.call import Call, undo
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.history import short
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.wire.sessions import SummaryTurn

NO_TEXT = "no summary was given: use --text or --file, or pipe it in"


@weft_command("summarize")
@arguments.rev("branch")
@click.option(
    "--into", metavar="SESSION", required=True, shell_complete=complete_labels, help="The session that is told."
)
@click.option("--text", metavar="TEXT", help="The summary.")
@click.option("--file", metavar="FILE", type=click.Path(), help="Read the summary from here; - is standard input.")
@expected_option
@key_option
def command(
    call: Call, branch: str, into: str, text: str | None, file: str | None, expected: str | None, key: str | None
) -> None:
    """Tell a session what another branch found.

    BRANCH is a session or a turn. The summary becomes a turn of the session, which names the branch by its last turn;
    without --text it is read from standard input. Nothing is moved or rewritten.
    """
    if text is not None and file is not None:
        raise click.UsageError("give the summary once: --text or --file")
    summary = decode_utf8(read_input(file, NO_TEXT), "summary").rstrip("\n") if text is None else text
    with call.writing() as ledger:
        turn = ledger.merges.summarize(
            branch, into=into, text=summary, expected=expected_head(ledger, expected), key=key
        )
        label, (origin, *_) = ledger.session(into).label, ledger.merges.provenance(turn.id)
    if call.json:
        call.document(SummaryTurn(turn=turn, source_id=origin.source_id, left_id=origin.left_id))
        return
    line: Line = [Span(short(turn.id), "id"), " on ", Span(label, "label"), " sums up the branch to "]
    line = [*line, Span(short(origin.source_id), "id")]
    if origin.left_id is not None:
        line = [*line, ", which left at ", Span(short(origin.left_id), "id")]
    call.screen.show(*line)
    call.note(undo("restore", label))
