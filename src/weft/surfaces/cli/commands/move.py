"""`weft move`: the head of a session, by compare and swap."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from weft.ledger.model import Session
from weft.surfaces.cli import arguments
from weft.surfaces.cli.call import Call, undo
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.history import short
from weft.surfaces.cli.screen import Line, Span

if TYPE_CHECKING:
    from weft.ledger.api import Ledger

NO_TURN = "-"


@weft_command("move")
@arguments.session()
@arguments.rev(required=False)
@click.option("--expect", metavar="REV", help="Move only if the head stands there; '-' means that it has no turn.")
@click.option("--reset", is_flag=True, help="To no turn at all: the next turn is a new root.")
@click.option("--reason", metavar="TEXT", help="Why, for the reflog.")
def command(call: Call, session: str, rev: str | None, reset: bool, expect: str | None, reason: str | None) -> None:
    """Move a session's head to another turn.

    REV is a turn, or the digest of an event inside one. Nothing is lost: the reflog remembers where the session stood,
    and `weft restore` goes back.
    """
    if (rev is None) != reset:
        raise click.UsageError("say where to: `weft move SESSION REV`, or `weft move SESSION --reset`")
    with call.writing() as ledger:
        before = ledger.session(session)
        moved = _move(ledger, session, rev, expect, reason)
    label = Span(moved.label, "label")
    call.answer(moved, [label, ": ", *_place(before), " -> ", *_place(moved)])
    call.note(undo("restore", moved.label))


def _move(ledger: Ledger, session: str, rev: str | None, expect: str | None, reason: str | None) -> Session:
    guard: dict[str, Any] = {}
    if expect is not None:
        guard["expected"] = None if expect == NO_TURN else ledger.resolve(expect)
    if rev is None:
        return ledger.heads.reset(session, reason=reason, **guard)
    point = ledger.point(rev)
    return ledger.move_head(session, new=point.event_id or point.turn_id, reason=reason, **guard)


def _place(session: Session) -> Line:
    if session.head is None:
        return [Span("no turn", "id")]
    inside = "" if session.head_event is None else f" at event {session.head_event}"
    return [Span(short(session.head), "id"), inside]
