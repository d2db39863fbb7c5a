"""`weft substitute`: a message or a tool's result is shown with other words."""

from __future__ import annotations

from pathlib import Path

import click

from weft.surfaces.cli import arguments
from weft.surfaces.cli.arguments import STANDARD, read_input
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.screen import Line, Span

DIGITS = 12


@weft_command("substitute")
@arguments.rev("event")
@click.option("--with", "words", metavar="TEXT|@FILE|-", help="What is shown instead; - is standard input.")
@click.option("--with-event", metavar="EVENT", help="Show what another event of the same kind says.")
@click.option("--undo", is_flag=True, help="Show what was recorded again.")
@click.option("--reason", metavar="TEXT", help="Why; it stands beside the words.")
def command(call: Call, event: str, words: str | None, with_event: str | None, undo: bool, reason: str | None) -> None:
    """Substitute what is shown of a message or a tool's result.

    EVENT is the beginning of an event's id, the id of a message or of a tool call, or a turn, for its answer. From now
    on contexts, exports, search and `weft show` have the other words, marked as such, and the next request of a session
    sends them. What was recorded stays: the turn keeps its digest, and --original of show, context and export shows it.

    \b
    weft substitute main --with "It is 42." --reason "the answer was off by one"
    weft substitute 3f9c2ab --with @corrected.md
    weft substitute main --undo
    """
    if sum((words is not None, with_event is not None, undo)) != 1:
        raise click.UsageError("say what is shown instead: one of --with, --with-event and --undo")
    text = None if words is None else _words(words)
    with call.writing() as ledger:
        if text is not None:
            note = ledger.substitute(event, text, reason=reason)
        else:
            note = ledger.substitute(event, with_event=event if undo else with_event, reason=reason)
    original, replacement = (Span(id[:DIGITS], "id") for id in (note.original, note.replacement))
    line: Line = ["event ", original, " is shown as ", replacement]
    call.answer(
        note, line if note.replacement != note.original else ["event ", original, " is shown as it was recorded"]
    )


def _words(words: str) -> str:
    if words == STANDARD:
        data = read_input(None, "--with - reads standard input: pipe the words in")
    elif words.startswith("@"):
        data = Path(words[1:]).read_bytes()
    else:
        return words
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise click.UsageError(f"what {words} gives is not UTF-8") from None
