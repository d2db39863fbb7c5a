"""`weft cherry-pick`: turns of another branch, said again on a session."""

from __future__ import annotations

import click

from weft.surfaces.cli.arguments import complete_labels, expected_head, expected_option, key_option
from weft.surfaces.cli.call import Call, undo
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.history import short
from weft.surfaces.cli.screen import Span
from weft.surfaces.wire.sessions import PickedTurn


@weft_command("cherry-pick")
@click.argument("turn", nargs=-1, required=True, shell_complete=complete_labels)
@click.option(
    "--onto", metavar="SESSION", required=True, shell_complete=complete_labels, help="The session that gets them."
)
@expected_option
@key_option
def command(call: Call, turn: tuple[str, ...], onto: str, expected: str | None, key: str | None) -> None:
    """Apply turns of another branch to a session.

    Each becomes a new turn there, which says the same by the same contents and names its source; in this order, all of
    them or none. Nothing is moved or rewritten. What they cost is counted once, where they were made.
    """
    with call.writing() as ledger:
        pinned = expected_head(ledger, expected)
        turns = ledger.merges.cherry_pick(list(turn), onto=onto, expected=pinned, key=key)
        label, sources = (
            ledger.session(onto).label,
            [ledger.merges.provenance(new_turn.id)[0].source_id for new_turn in turns],
        )
    if call.json:
        call.document([PickedTurn(turn=turn, source_id=id) for turn, id in zip(turns, sources, strict=True)])
        return
    for new_turn, source in zip(turns, sources, strict=True):
        call.screen.show(
            Span(short(new_turn.id), "id"), " on ", Span(label, "label"), " from ", Span(short(source), "id")
        )
    call.note(undo("restore", label, *([str(len(turns))] if len(turns) > 1 else [])))
