"""`weft read`: a whole conversation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import click

from weft.ledger.api import FullTurn
from weft.ledger.read.session_list import in_one_line, meaningful_title
from weft.surfaces.cli import arguments, provisional
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.default_session import named_or_latest
from weft.surfaces.cli.figures import counted
from weft.surfaces.cli.history import Reader, short
from weft.surfaces.cli.pager import ReadLine, show_folded
from weft.surfaces.cli.thread_turns import read_turn, thread_turns
from weft.surfaces.cli.times import local_minute

if TYPE_CHECKING:
    from weft.ledger.api import Ledger
    from weft.ledger.model import RevisionTarget, Session, Turn

DAY = len("2026-11-15")


@weft_command("read")
@arguments.rev(required=False)
@click.option("--steps", is_flag=True, help="The steps between prompts and answers, too: calls, results, thinking.")
@arguments.original_option
def command(call: Call, rev: str | None, steps: bool, original: bool) -> None:
    """Read a whole conversation: prompts and answers in full.

    REV is a session, or a turn to read up to; without it, the latest session. What was done between a prompt and its
    answer stands in one line, such as "14 steps: 9 Bash, 2 Edit". On a terminal, `n` and `N` go to the next and the
    previous prompt, `/word` searches, `&` and Enter show the steps, and `q` leaves. Piped, it is plain text.

    \b
    weft read
    weft read main~3 --steps
    weft read main | grep -n changelog
    """
    with call.reading() as opened:
        ledger = opened.originals() if original else opened
        name = named_or_latest(call, ledger, rev)
        if name is None:
            if call.json:
                call.documents(())
            return
        tails = provisional.tails_after(ledger, name)
        if provisional.is_only_provisional(ledger, name):
            if call.json:
                call.documents(())
            else:
                call.screen.page(list(provisional.page(tails, full=False))[1:])
            return
        first, turns = thread_turns(ledger, name)
        if call.json:
            call.documents(map(read_turn, turns))
            return
        lines = _lines(call, ledger, first, ledger.point(name), turns)
        below = (ReadLine(line) for line in provisional.page(tails, full=False))
        show_folded(call.screen, (line for part in (lines, below) for line in part), unfold=steps)


def _lines(
    call: Call, ledger: Ledger, first: str, point: RevisionTarget, turns: Iterable[FullTurn]
) -> Iterator[ReadLine]:
    from weft.surfaces.cli.rendering.conversation import ReadingPage, head_lines

    screen, reader, last = call.screen, Reader(ledger), ledger.turn(point.turn_id)
    title, facts = _about(ledger, reader, _reached_by(reader, point, last), ledger.turn(first), last)
    yield from head_lines(title, facts, screen.columns)
    page = ReadingPage(
        columns=screen.columns,
        unicode=screen.unicode,
        is_plain=not screen.terminal,
        labels=reader.short_labels,
        turns=last.depth,
    )
    yield from page.lines(turns)


def _reached_by(reader: Reader, point: RevisionTarget, last: Turn) -> Session | None:
    """The session that was named. Where that is deleted, or its label is another's by now, the one that made the
    turn."""
    maker = reader.session(last.session_id)
    if maker is not None and maker.label == point.session:
        return maker
    return reader.active_session(point.session) or maker


def _about(ledger: Ledger, reader: Reader, session: Session | None, first: Turn, last: Turn) -> tuple[str, list[str]]:
    """The title of a thread, and what else is known of it. The session is the one that it was reached by; of a turn
    that was named by itself, the one that made it."""
    subject = ledger.listing().subjects([first.id]).get(first.id, "")
    title = (_own_title(session) if session else "") or subject or f"turn {short(last.id)}"
    facts = [reader.short_label(session) if session else short(last.id)]
    folder = last.workspace_path or (session.workspace_path if session else None) or first.workspace_path
    project = ledger.listing().projects([folder or ""])[folder or ""]
    facts += [last.origin or "", project, _days(first, last), counted(last.depth, "turn")]
    return " ".join(title.split()), [fact for fact in facts if fact]


def _own_title(session: Session) -> str:
    """What lists of sessions call it, too, where it says so itself."""
    return meaningful_title(session.title) or in_one_line(session.task_description or "")


def _days(first: Turn, last: Turn) -> str:
    if not (first.time_known and last.time_known):
        return ""
    begin, end = local_minute(first.started_at), local_minute(last.completed_at or last.started_at)
    if begin == end:
        return begin
    return f"{begin} to {end[DAY + 1 :] if begin[:DAY] == end[:DAY] else end}"
