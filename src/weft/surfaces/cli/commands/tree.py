"""`weft tree`: a whole tree of turns, from its root."""

from __future__ import annotations

from collections.abc import Iterator

from weft.ledger.model import Turn
from weft.surfaces.cli import arguments
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.default_session import named_or_latest
from weft.surfaces.cli.graph import ASCII, UNICODE, Glyphs, downward, gutter
from weft.surfaces.cli.history import Reader
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.cli.turn_lines import mark, one_line


@weft_command("tree")
@arguments.rev(required=False)
def command(call: Call, rev: str | None) -> None:
    """Show the whole tree that a turn belongs to.

    Without REV it is that of the latest session. From the root on; where a turn has several that follow it, they are
    set in, and the longest branch comes last.
    """
    with call.reading() as ledger:
        name, reader = named_or_latest(call, ledger, rev), Reader(ledger)
        turns = [] if name is None else list(reader.ahead(ledger.tree.turns(name)))
        if call.json:
            call.documents(map(reader.listed, reader.ahead(turns)))
        else:
            glyphs = UNICODE if call.screen.unicode else ASCII
            call.screen.page(_lines(turns, reader, glyphs, call.screen.columns))


def _lines(turns: list[Turn], reader: Reader, glyphs: Glyphs, columns: int) -> Iterator[Line]:
    rows = {row.turn: row for row in downward([(turn.id, turn.parent_id) for turn in turns])}
    turns_by_id = {turn.id: turn for turn in turns}
    for turn in reader.ahead(turns_by_id[shown] for shown in rows):
        beside = gutter(rows[turn.id], glyphs)
        yield [Span(beside, "line"), mark(turn, glyphs), " ", *one_line(turn, reader, columns - len(beside) - 2)]
