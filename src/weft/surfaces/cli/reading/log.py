"""`weft log`: turns, the newest first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

import click

from weft.ledger.api import Page
from weft.ledger.model import Turn
from weft.surfaces.cli import arguments, turn_lists
from weft.surfaces.cli.command_line import Call, SharedCommand
from weft.surfaces.cli.command_line import command as weft_command
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.cli.turn_lists import (
    ASCII,
    UNICODE,
    GraphGlyphs,
    GraphRow,
    Reader,
    crossing,
    entry,
    gutter,
    gutter_below,
    mark,
    one_line,
    place_in_latest,
    turn_pages,
    upward,
)
from weft.verbs.answers import UnfinishedTurn

if TYPE_CHECKING:
    from weft.ledger.api import Ledger
    from weft.ledger.imports import ProvisionalTurn


_COUNT = re.compile(r"-\d+")


class LogCommand(SharedCommand):
    """`weft log -3` is `weft log -n 3`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        before = ("", *args)
        spelled = [f"-n{arg[1:]}" if _is_count(last, arg) else arg for last, arg in zip(before, args, strict=False)]
        return super().parse_args(ctx, spelled)


def _is_count(last: str, arg: str) -> bool:
    """Not where the argument is the value of an option."""
    return _COUNT.fullmatch(arg) is not None and last not in ("-n", "--limit", "--session", "--ledger", "--after")


@weft_command("log", cls=LogCommand)
@arguments.rev(required=False)
@click.option("--graph", is_flag=True, help="Draw the branches.")
@click.option("--oneline", is_flag=True, help="One line for each turn.")
@click.option("-n", "--limit", type=click.IntRange(min=0), metavar="N", help="At most N turns.")
@arguments.session_option("Only turns that this session made.")
@arguments.after_option()
def log_command(
    call: Call,
    rev: str | None,
    graph: bool,
    oneline: bool,
    limit: int | None,
    session: str | None,
    after: str | None,
) -> None:
    """Show turns, the newest first.

    Without REV all turns are shown; with REV that turn and its ancestors. -3 is short for -n 3. What another tool is
    still writing stands above the turn that it follows, marked as provisional. With --limit the cursor of the next page
    stands on the error stream, unless that is a terminal: there a larger -n shows more.

    Sessions stand in parentheses at their heads, with their titles; turns that are a compaction, failed, were
    interrupted or are still being recorded say so. A turn's subject is what a person asked, not what a tool put before
    it. Where the thread of an imported session goes on from another one, a line between the two says so. What is
    provisional has no id yet.
    """
    with call.reading() as ledger:
        place = None if rev is None else place_in_latest(call, ledger, rev)
        show_log(call, ledger, place, graph=graph, oneline=oneline, limit=limit, session=session, after=after)


def show_log(
    call: Call,
    ledger: Ledger,
    rev: str | None,
    *,
    graph: bool = False,
    oneline: bool = False,
    limit: int | None = None,
    session: str | None = None,
    after: str | None = None,
) -> None:
    """The turns of a ledger, or of one of its threads."""
    reader = Reader(ledger)
    tails = [] if limit == 0 or after is not None else _open_tails(ledger, rev, session)
    page: Page[Turn] = Page()
    chosen: Iterable[Turn] = page
    if rev is None or not turn_lists.is_only_provisional(ledger, rev):
        if limit is None:
            chosen = turn_pages(ledger, thread=rev, session=session, after=after)
        else:
            chosen = page = ledger.log(limit, thread=rev, session=session, after=after)
    _show(call, reader, rev, session, tails, chosen, graph=graph, oneline=oneline, asked=limit != 0)
    call.next_page(page.next)


def _show(
    call: Call,
    reader: Reader,
    rev: str | None,
    session: str | None,
    tails: list[ProvisionalTurn],
    chosen: Iterable[Turn],
    *,
    graph: bool,
    oneline: bool,
    asked: bool,
) -> None:
    turns = reader.ahead(chosen)
    if call.json:
        unfinished = (UnfinishedTurn(turn=tail) for tail in tails)
        call.documents(chain(unfinished, map(reader.listed, reader.ahead(turns))))
        return
    above = turn_lists.log_lines(tails, reader, call.screen.columns, oneline=oneline)
    first = next(turns, None)
    if first is None and not tails:
        call.note(_no_turns_words(rev, session, asked=asked))
        return
    drawing = _Drawing(reader, oneline, call.screen.columns, is_thread=rev is not None)
    every = chain([] if first is None else [first], turns)
    glyphs = UNICODE if call.screen.unicode else ASCII
    call.screen.page(chain(above, drawing.graph(list(every), glyphs) if graph else drawing.plain(every)))


def _open_tails(ledger: Ledger, rev: str | None, session: str | None) -> list[ProvisionalTurn]:
    """What other tools are still writing, of what was asked for."""
    tails = ledger.imports.provisional(session) if rev is None else turn_lists.tails_after(ledger, rev)
    made_by = None if session is None else ledger.session(session).id
    return [tail for tail in tails if made_by in (None, tail.session_id)]


def _no_turns_words(rev: str | None, session: str | None, *, asked: bool) -> str:
    if session is not None:
        return f"session {session!r} has made no turns here"
    if not asked or rev is not None:
        return "no turns asked for"
    return 'no turns yet: record one with `weft record --query "…" --response "…"`, or pipe JSON to `weft record`'


class _Drawing:
    """The turns of a log as lines."""

    def __init__(self, reader: Reader, oneline: bool, columns: int, *, is_thread: bool) -> None:
        self._reader, self._oneline, self._columns = reader, oneline, columns
        self._is_thread = is_thread

    def _turn_lines(self, turn: Turn, older: Turn | None, taken: int = 0) -> Iterator[Line]:
        room = self._columns - taken
        if self._oneline:
            yield one_line(turn, self._reader, room)
        else:
            yield from entry(turn, self._reader, room)
        if self._is_thread and older is not None and turn.parent_id is None:
            yield from () if self._oneline else ([],)
            yield crossing(older, self._reader, room)

    def plain(self, turns: Iterable[Turn]) -> Iterator[Line]:
        for i, (turn, older) in enumerate(_with_next(self._reader.ahead(turns))):
            if i and not self._oneline:
                yield []
            yield from self._turn_lines(turn, older)

    def graph(self, turns: list[Turn], glyphs: GraphGlyphs) -> Iterator[Line]:
        turns_by_id = {turn.id: turn for turn in turns}
        older = {turn.id: following for turn, following in _with_next(turns)}
        rows = list(upward([(turn.id, turn.parent_id) for turn in turns]))
        ahead = self._reader.ahead(turns_by_id[row.turn] for row in rows if row.place is GraphRow.TURN)
        for row in rows:
            if row.place is not GraphRow.TURN:
                yield [Span(gutter(row, glyphs), "line")]
                continue
            turn = next(ahead)
            beside, below = gutter(row, glyphs), gutter_below(row, glyphs)
            first, *further = self._turn_lines(turn, older[turn.id], len(below) + 1)
            yield [Span(beside, "line"), mark(turn, glyphs), " ", *first]
            yield from (
                [Span(f"{below} ", "line"), *line] if line else [Span(below.rstrip(), "line")] for line in further
            )
            if not self._oneline and row.goes_on:
                yield [Span(below, "line")]


def _with_next(turns: Iterable[Turn]) -> Iterator[tuple[Turn, Turn | None]]:
    """Each turn with the one that is shown after it."""
    last: Turn | None = None
    for turn in turns:
        if last is not None:
            yield last, turn
        last = turn
    if last is not None:
        yield last, None
