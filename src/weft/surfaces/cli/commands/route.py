"""`weft route`: the thread that a text belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from weft.kernel.clock import SystemClock
from weft.kernel.shell_words import shell_word
from weft.runtime.routing.smart_routes import (
    DEFAULT_ALTERNATIVES,
    DEFAULT_THRESHOLD,
    check_route_arguments,
    choose_route,
)
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.embedding import nearest_turns
from weft.surfaces.cli.history import quoted_title, short
from weft.surfaces.cli.screen import Span
from weft.surfaces.plain_text import safe

if TYPE_CHECKING:
    from weft.runtime.routing.smart_routes import RouteAlternative, RouteChoice

HEADER = ("score", "turn", "session", "why")
SPARE = ("why", "session")


@weft_command("route")
@click.argument("text")
@click.option("--dry-run", is_flag=True, help="Show where the text would go; nothing is sent.")
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

    Words are compared, and meanings where turns were embedded (`weft embed --all turn`). Below the threshold no thread
    is chosen.

    \b
    weft route --dry-run "the hover demo flickers again"
    """
    if not dry_run:
        raise click.UsageError(
            f"`weft send --smart {shell_word(text)}` sends; give --dry-run to see where it would go."
        )
    check_route_arguments(text, threshold, limit)
    with call.reading() as ledger:
        cosines = nearest_turns(call, ledger, text)
        related = ledger.related_turns(text, also=tuple(cosines))
        choice = choose_route(related, cosines, now_ms=SystemClock().now_ms(), threshold=threshold, limit=limit)
    if call.json:
        call.document(choice)
        return
    _show(call, choice)


def _show(call: Call, choice: RouteChoice) -> None:
    if choice.turn is None:
        call.screen.show("no thread: ", "; ".join(choice.reasons))
    else:
        where = (
            "" if choice.thread_session is None else f" {'of' if choice.session is None else 'the head of'} session "
        )
        name = "" if choice.thread_session is None else safe(choice.thread_session)
        call.screen.show("turn ", Span(short(choice.turn), "label"), where, name)
        call.screen.show(f"confidence {choice.confidence:.2f}: ", "; ".join(choice.reasons))
    if choice.alternatives:
        call.screen.table([_row(option) for option in choice.alternatives], HEADER, spare=SPARE)


def _row(option: RouteAlternative) -> tuple[Span | str, ...]:
    session = f"{safe(option.thread_session or '')}{quoted_title(option.title)}"
    return f"{option.score:.2f}", Span(short(option.turn), "label"), session, "; ".join(option.reasons)
