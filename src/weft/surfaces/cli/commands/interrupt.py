"""`weft interrupt`: a turn that runs in any process is cut short."""

from __future__ import annotations

from weft.surfaces.cli import arguments
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.history import short
from weft.surfaces.cli.screen import Span
from weft.surfaces.wire.broker import InterruptedTurn


@weft_command("interrupt")
@arguments.session()
def command(call: Call, session: str) -> None:
    """Interrupt the turn that runs in a session.

    Whichever process runs it ends it with what it has: open tool calls are interrupted, what came of the answer is
    kept, and the session goes on from there. Messages that wait are answered next.
    """
    with call.writing() as ledger:
        label = ledger.session(session).label
        turn = ledger.inbox.interrupt(label)
    call.answer(
        InterruptedTurn(session=label, turn=turn),
        ["turn ", Span(short(turn), "id"), " of ", Span(label, "label"), " was asked to stop"],
    )
