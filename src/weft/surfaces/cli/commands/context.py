"""`weft context`: exactly what an agent saw, or would see."""

from __future__ import annotations

from collections.abc import Iterator

import click

from weft.ledger.api import Context
from weft.surfaces.cli import arguments
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.default_session import named_or_latest, place_in_latest, require_named_or_latest
from weft.surfaces.cli.figures import counted
from weft.surfaces.cli.history import short
from weft.surfaces.cli.rendering.transcript import Transcript
from weft.surfaces.cli.screen import Line, Span


@weft_command("context")
@arguments.rev(required=False)
@arguments.session_option("What the next turn of this session would see. Default: the latest.")
def command(call: Call, rev: str | None, session: str | None) -> None:
    """Show what an agent saw at a turn, or would see next.

    With REV: what the agent was given before it answered that turn. Without: what the session's next turn would be
    given before its own query.
    """
    if rev is not None and session is not None:
        raise click.UsageError("REV and --session exclude each other")
    with call.reading() as ledger:
        if rev is None and session is None:
            session = (require_named_or_latest if call.json else named_or_latest)(call, ledger, None, with_turn=False)
            if session is None:
                return
        place = None if rev is None else place_in_latest(call, ledger, rev)
        context = ledger.context(place, session=session)
    if call.json:
        call.document(context)
    elif context.messages:
        call.screen.page(_lines(context, call.screen.columns))
    else:
        call.note("the context is empty: nothing has been said there yet")


def _lines(context: Context, columns: int) -> Iterator[Line]:
    counts = [counted(len(context.messages), "message")]
    if context.compaction is not None:
        counts.append(f"after compaction {short(context.compaction)}")
    if context.observed:
        counts.append("as the model request recorded it")
    yield [Span(", ".join(counts), "dim")]
    yield []
    yield from Transcript(full=True, columns=columns).lines(context.messages)
