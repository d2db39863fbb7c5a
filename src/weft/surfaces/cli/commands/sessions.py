"""`weft sessions`: every label, what it is about and where it stands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from weft.kernel.typed_names import shell_word
from weft.ledger.api import ListedSession, SessionFilter, SessionList
from weft.ledger.model import Branch
from weft.surfaces.cli import arguments, provisional
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.figures import abbreviated, counted
from weft.surfaces.cli.filter_values import NO_PROJECT, ensure_known_origin
from weft.surfaces.cli.history import short
from weft.surfaces.cli.import_lines import note_import
from weft.surfaces.cli.screen import Span
from weft.surfaces.cli.times import MINUTE, local_time, session_time
from weft.surfaces.cli.user_files import find_ledger
from weft.surfaces.plain_text import cut, safe
from weft.surfaces.wire.sessions import SessionEntry, UnfinishedTurn

if TYPE_CHECKING:
    from weft.ledger.api import Ledger
    from weft.ledger.imports import ProvisionalTurn

    Tails = dict[str, list[ProvisionalTurn]]

HEADER = ("session", "origin", "project", "turns", "tokens", "last change", "title")
SPARE = ("origin", "tokens", "project", "turns")
STATUS_STYLES = {"archived": "dim", "deleted": "bad"}
ON_A_TERMINAL = 50
PROJECT_COLUMNS = 20


@weft_command("sessions")
@click.option("--all", "every", is_flag=True, help="Subagents, archived, deleted and empty sessions too.")
@click.option("--subagents", is_flag=True, help="Subagents too, each below the session that started it.")
@click.option("--origin", metavar="NAME", help="Only sessions of this tool; weft for those made here.")
@click.option(
    "--project", metavar="NAME", help="Only sessions of this project: its name, its repository or a folder of it."
)
@click.option("--since", metavar="WHEN", help="Only sessions that changed since then; a day means all of it.")
@click.option("-n", "--limit", type=click.IntRange(min=0), metavar="N", help="At most N sessions.")
@arguments.after_option()
def command(
    call: Call,
    every: bool,
    subagents: bool,
    origin: str | None,
    project: str | None,
    since: str | None,
    limit: int | None,
    after: str | None,
) -> None:
    """List sessions and where they stand.

    The latest first. On a terminal at most 50, unless --limit says otherwise; if there are more, the cursor of the next
    page stands on the error stream, unless that is a terminal: there a larger -n shows more. A session whose last turn
    another tool is still writing is marked as provisional. Sessions of imports and of rooms without a turn are counted
    only, and sessions without a date come last.
    """
    short = call.screen.terminal and not call.json
    wanted = SessionFilter(
        origin=origin,
        project=project,
        since=since,
        every=every,
        subagents=subagents or every,
    )
    most = ON_A_TERMINAL if limit is None and short else limit
    with call.reading() as ledger:
        listing = ledger.listing().sessions(wanted, limit=most, after=after)
        tails = _tails(ledger)
        nothing = "" if listing.sessions else _nothing(ledger, wanted, is_filtered=limit is not None)
    if call.json:
        call.documents(_entry(listed, tails) for listed in listing.sessions)
        call.next_page(listing.next)
        return
    note_import(call, find_ledger(call.ledger))
    if listing.sessions:
        rows = _columns(listing.sessions, call.screen.terminal, tails)
        call.screen.table(*rows, numbers=("turns", "tokens"), spare=SPARE)
    for listed in listing.sessions:
        if listed.branches:
            label = listed.session.label
            call.note(f"{label} was moved elsewhere, too: `weft settle {shell_word(label)}` joins them")
    provisional.note_left_out(call, sum(map(len, tails.values())), "counted")
    _notes(call, listing, nothing)


def _tails(ledger: Ledger) -> Tails:
    tails: Tails = {}
    for tail in ledger.imports.provisional():
        tails.setdefault(tail.session_id, []).append(tail)
    return tails


def _entry(listed: ListedSession, tails: Tails) -> SessionEntry:
    unfinished = [UnfinishedTurn(turn=tail) for tail in tails.get(listed.session.id, ())]
    return SessionEntry(listed=listed, provisional=unfinished)


def _nothing(ledger: Ledger, wanted: SessionFilter, *, is_filtered: bool) -> str:
    """What is told where no session is listed."""
    ensure_known_origin(ledger, wanted.origin)
    if wanted.project is not None:
        of_project = SessionFilter(project=wanted.project, every=True, subagents=True)
        if not ledger.listing().sessions(of_project, limit=1).sessions:
            return NO_PROJECT
    is_filtered |= any(value is not None for value in (wanted.origin, wanted.project, wanted.since))
    return "no such sessions" if is_filtered else _NOTHING


def _notes(call: Call, listing: SessionList, nothing: str) -> None:
    if listing.further:
        call.note(
            f"{counted(listing.further, 'more session')}: `weft sessions -n N` lists more, --project and --since fewer"
            + call.page_hint(listing.next)
        )
    if listing.hidden:
        verb = "is" if listing.hidden == 1 else "are"
        call.note(f"{counted(listing.hidden, 'session')} of subagents {verb} not shown: --subagents lists them")
    if listing.empty:
        verb = "is" if listing.empty == 1 else "are"
        sessions = counted(listing.empty, "session")
        call.note(f"{sessions} of imports or rooms without a turn {verb} not shown: --all lists them")
    if not (listing.sessions or listing.hidden or listing.further or listing.empty):
        call.note(nothing)


_NOTHING = "no sessions yet: `weft record --session main …` makes one with its first turn"


def _columns(
    sessions: list[ListedSession], terminal: bool, tails: Tails
) -> tuple[list[list[Span | str]], Sequence[str]]:
    """A table's rows and header. On a terminal a column that is empty, or tells only what is made here, is left out."""
    labels = {listed.session.label for listed in sessions}
    rows: list[list[Span | str]] = []
    for listed in sessions:
        rows.append(_row(listed, terminal, listed.session.parent_session in labels, tails))
        rows += [_branch_row(branch, terminal) for branch in listed.branches]
    if not terminal:
        return rows, HEADER
    dull = {"origin": {"weft"}, "project": {""}, "tokens": {""}}
    columns = [i for i, name in enumerate(HEADER) if {str(row[i]) for row in rows} != dull.get(name)]
    return [[row[i] for i in columns] for row in rows], [HEADER[i] for i in columns]


def _row(listed: ListedSession, terminal: bool, below: bool, tails: Tails) -> list[Span | str]:
    session, when = listed.session, session_time(listed.session)
    title = listed.title
    if session.id in tails:
        title = f"[{provisional.MARK}] {title or provisional.subject(tails[session.id][0])}"
    if session.status != "active":
        title = f"[{session.status}] {title}"
    label = f"{'  ' if below else ''}{listed.short_label}" if terminal else session.label
    return [
        Span(label, "label"),
        session.origin,
        cut(safe(listed.project), PROJECT_COLUMNS) if terminal else listed.project,
        str(listed.depth),
        abbreviated(listed.total_tokens) if terminal else str(listed.total_tokens),
        when[:MINUTE] if terminal else when,
        Span(" ".join(title.split()), STATUS_STYLES.get(session.status, "")),
    ]


def _branch_row(branch: Branch, terminal: bool) -> list[Span | str]:
    """Where another ledger left the session that stands above it."""
    when = local_time(branch.changed_at)
    place = "no turn" if branch.head is None else short(branch.head)
    name = f"  {branch.name}" if terminal else branch.name
    return [Span(name, "label"), "", "", "", "", when[:MINUTE] if terminal else when, f"[moved elsewhere] to {place}"]
