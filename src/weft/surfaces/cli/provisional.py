"""Turns that another tool is still writing, as people see them: marked, without an id, and gone once they are turns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from weft.kernel.errors import WeftError
from weft.surfaces.cli.figures import counted
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.cli.times import local_time
from weft.surfaces.cli.turn_lines import INDENT
from weft.surfaces.plain_text import cut, safe, safe_lines

if TYPE_CHECKING:
    from weft.ledger.api import Ledger
    from weft.ledger.imports import ProvisionalItem, ProvisionalTurn
    from weft.surfaces.cli.call import Call
    from weft.surfaces.cli.history import Reader

MARK = "provisional"
STYLE = "good"
FOLDED_LINES = 6


def note_left_out(call: Call, count: int, done: str) -> None:
    """One line beside an answer that leaves out turns which are still being written: they are not `done` yet. Under
    --json their number, on the error stream."""
    if count and call.json:
        from weft.surfaces.wire.json_text import document

        click.echo(document({"provisional": count}, indent=False), err=True)
    elif count:
        verb = "is" if count == 1 else "are"
        call.note(
            f"{counted(count, 'turn')} {verb} still being written, and not {done} yet: `weft import` takes"
            f" {'it' if count == 1 else 'them'} once {'it has' if count == 1 else 'they have'} ended"
        )


def tails_after(ledger: Ledger, rev: str) -> list[ProvisionalTurn]:
    """What is being written after the turn that these words mean; a session may have nothing else yet."""
    tails = ledger.imports.provisional()
    if not tails:
        return []
    try:
        tip = ledger.resolve(rev)
    except WeftError:  # whoever looks for that turn says what is wrong with these words
        return ledger.imports.provisional(rev) if is_only_provisional(ledger, rev) else []
    return [tail for tail in tails if tail.parent_id == tip]


def is_only_provisional(ledger: Ledger, rev: str) -> bool:
    """Is it a session of which nothing has come to an end yet?"""
    try:
        return ledger.session(rev).head is None and bool(ledger.imports.provisional(rev))
    except WeftError:
        return False


def subject(tail: ProvisionalTurn) -> str:
    asked = next((item.text for item in tail.items if item.role == "user" and item.text), "")
    return " ".join(asked.split())


def one_line(tail: ProvisionalTurn, reader: Reader, columns: int) -> Line:
    lead = f"({_label(tail, reader)}) "
    so_far = counted(tail.items_so_far, "item")
    room = max(20, columns - len(MARK) - len(lead) - len(so_far) - 5)
    return [Span(MARK, STYLE), " ", Span(lead, "label"), cut(safe(subject(tail)), room), Span(f"  [{so_far}]", "dim")]


def entry(tail: ProvisionalTurn, reader: Reader, columns: int) -> Iterator[Line]:
    """As `weft log` shows it, above the turn that it will follow."""
    yield [Span(MARK, STYLE), " (", Span(_label(tail, reader), "label"), ")", Span(" [still being written]", STYLE)]
    yield ["Seen:  ", local_time(tail.seen_at)]
    yield ["Agent: ", ", ".join(filter(None, (tail.origin, tail.model, counted(tail.items_so_far, "item"))))]
    yield []
    yield [INDENT, cut(safe(subject(tail)) or "(no text)", max(20, columns - len(INDENT)))]


def log_lines(tails: Sequence[ProvisionalTurn], reader: Reader, columns: int, *, oneline: bool) -> Iterator[Line]:
    for tail in tails:
        if oneline:
            yield one_line(tail, reader, columns)
        else:
            yield from entry(tail, reader, columns)
            yield []


def page(tails: Sequence[ProvisionalTurn], *, full: bool) -> Iterator[Line]:
    """As `weft show` shows it, below the turn that it follows."""
    for tail in tails:
        yield []
        yield [Span(f"{MARK}: still being written, not a turn yet", STYLE)]
        yield [Span("Seen:    ", "dim"), local_time(tail.seen_at)]
        yield [Span("Source:  ", "dim"), tail.source]
        if (left := tail.items_so_far - len(tail.items)) > 0:
            yield [Span(f"… {counted(left, 'earlier item')} after the first", "dim")]
        for item in tail.items:
            yield []
            yield from _item(item, full)


def _item(item: ProvisionalItem, full: bool) -> Iterator[Line]:
    if item.tool is not None:
        yield [Span(item.tool, "tool"), Span(f" [{item.status or 'no outcome yet'}]", "dim")]
    else:
        yield [Span(item.role, item.role if item.role in ("user", "assistant") else "heading")]
    lines = safe_lines(item.text)
    shown = lines if full else lines[:FOLDED_LINES]
    yield from (["  ", line] for line in shown)
    if len(lines) > len(shown):
        yield [Span(f"  … {counted(len(lines) - len(shown), 'more line')}", "dim")]


def _label(tail: ProvisionalTurn, reader: Reader) -> str:
    session = reader.session(tail.session_id)
    return reader.short_label(session) if session else tail.session_id
