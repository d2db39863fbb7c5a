"""`weft route`: the thread that a text belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from weft.kernel.clock import SystemClock
from weft.kernel.typed_names import shell_line
from weft.runtime.invoke.message_routes import (
    DEFAULT_ALTERNATIVES,
    DEFAULT_THRESHOLD,
    check_route_arguments,
    choose_route,
    ranked_threads,
)
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.embedding import nearest_turns
from weft.surfaces.cli.history import quoted_title, short
from weft.surfaces.cli.screen import Span
from weft.surfaces.plain_text import safe

if TYPE_CHECKING:
    from weft.runtime.invoke.message_routes import RouteAlternative, RouteChoice

HEADER = ("score", "turn", "session", "why")
SPARE = ("why", "session")
CHOSEN = "chosen"


@weft_command("route")
@click.argument("text")
@click.option("--dry-run", is_flag=True, help="Nothing is sent without it either: `weft send --smart` sends.")
@click.option(
    "--threshold",
    type=click.FloatRange(0, 1),
    default=DEFAULT_THRESHOLD,
    metavar="SHARE",
    help=f"Choose no thread that is less sure than this ({DEFAULT_THRESHOLD}).",
)
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(min=0),
    default=DEFAULT_ALTERNATIVES,
    metavar="N",
    help=f"At most N alternatives ({DEFAULT_ALTERNATIVES}).",
)
def command(call: Call, text: str, dry_run: bool, threshold: float, limit: int) -> None:
    """Find the thread that a text belongs to, and say why.

    Words are compared, and meanings where turns were embedded (`weft embed --all turn`). The confidence is the score of
    the best thread less that of the next; below the threshold no thread is chosen. Nothing is sent: `weft send --smart`
    finds the thread in the same way and sends the text there.

    \b
    weft route "the hover demo flickers again"
    """
    check_route_arguments(text, threshold, limit)
    with call.reading() as ledger:
        cosines = nearest_turns(call, ledger, text)
        related = ledger.related_turns(text, also=tuple(cosines))
        now = SystemClock().now_ms()
        choice = choose_route(related, cosines, now_ms=now, threshold=threshold, limit=limit)
    if call.json:
        call.document(choice)
        return
    if choice.turn is None:
        _show(call, choice, choice.alternatives)
        return
    _show(call, choice, ranked_threads(related, cosines, now_ms=now, limit=limit + 1))
    call.note(f"`weft {shell_line(('send', '--smart', text))}` sends it there")


def _show(call: Call, choice: RouteChoice, threads: Sequence[RouteAlternative]) -> None:
    """The choice, and a table of threads that has the chosen one first, by its score."""
    if choice.turn is None:
        call.screen.show("no thread: ", "; ".join(choice.reasons))
    else:
        where = (
            "" if choice.thread_session is None else f" {'of' if choice.session is None else 'the head of'} session "
        )
        name = "" if choice.thread_session is None else safe(choice.thread_session)
        call.screen.show("turn ", Span(short(choice.turn), "label"), where, name)
        call.screen.show(f"confidence {choice.confidence:.2f}: ", "; ".join(choice.reasons))
    if threads:
        rows = [_row(thread, is_chosen=thread.turn == choice.turn) for thread in threads]
        call.screen.table(rows, HEADER, spare=SPARE)


def _row(thread: RouteAlternative, *, is_chosen: bool) -> tuple[Span | str, ...]:
    session = f"{safe(thread.thread_session or '')}{quoted_title(thread.title)}"
    why = CHOSEN if is_chosen else "; ".join(thread.reasons)
    return f"{thread.score:.2f}", Span(short(thread.turn), "label"), session, why
