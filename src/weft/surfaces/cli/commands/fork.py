"""`weft fork`: a new session that stands at any turn."""

from __future__ import annotations

import click

from weft.kernel.shell_words import shell_line
from weft.surfaces.cli import arguments
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.history import short
from weft.surfaces.cli.screen import Span


@weft_command("fork")
@arguments.rev()
@click.argument("label", required=False)
@click.option("--label", "named", metavar="LABEL", help="The new session's label, instead of the argument.")
@click.option("--persona", metavar="NAME", help="The agent that the new session belongs to.")
def command(call: Call, rev: str, label: str | None, named: str | None, persona: str | None) -> None:
    """Start a new session at any turn.

    REV is a turn, or the digest of an event inside one; nothing is copied.
    """
    if (label is None) == (named is None):
        raise click.UsageError("give the new session one label: `weft fork REV LABEL`")
    with call.writing() as ledger:
        forked = ledger.fork(rev, label=str(label or named), persona=persona)
    call.answer(forked, [Span(forked.label, "label"), " stands at ", Span(short(str(forked.head)), "id")])
    chat, resume = (f"`weft {shell_line((command, forked.label))}`" for command in ("chat", "resume"))
    call.note(f"go on there with {chat}, or in Claude Code or Codex with {resume}")
