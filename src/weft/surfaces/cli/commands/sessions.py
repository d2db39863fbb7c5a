"""`weft sessions`: every label, what it is about and where it stands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from weft.ledger.model import Branch
from weft.ledger.read.listing import ListedSession, SessionFilter, SessionList, has_title
from weft.surfaces.cli import arguments, provisional
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.history import short
from weft.surfaces.cli.import_state import note_import
from weft.surfaces.cli.locating import find_ledger
from weft.surfaces.cli.plain_text import cut, safe
from weft.surfaces.cli.screen import Span
from weft.surfaces.cli.shapes import to_json
from weft.surfaces.cli.turn_lines import counted
from weft.surfaces.cli.zones import local_time

if TYPE_CHECKING:
    from weft.ledger.api.ledger import Ledger
    from weft.ledger.imports import ProvisionalTurn

    Tails = dict[str, list[ProvisionalTurn]]

HEADER = ("session", "origin", "project", "turns", "tokens", "last change", "title")
SPARE = ("origin", "tokens", "project", "turns")
STATUS_STYLES = {"archived": "dim", "deleted": "bad"}
ON_A_TERMINAL = 50
PROJECT_COLUMNS = 20
MINUTE = len("2026-11-15 09:30")


@weft_command("sessions")
@click.option("--all", "every", is_flag=True, help="Subagents, archived and deleted sessions too.")
@click.option("--subagents", is_flag=True, help="Subagents too, each below the session that started it.")
@click.option("--origin", metavar="NAME", help="Only sessions of this tool; weft for those made here.")
@click.option("--project", metavar="NAME", help="Only sessions of this folder, by its path or its last part.")
@click.option("--since", metavar="WHEN", help="Only sessions that changed since then, such as '2 days ago'.")
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
    page stands on the error stream. A session whose last turn another tool is still writing is marked as provisional.
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
        found = ledger.listing().sessions(wanted, limit=most, after=after)
        tails = _tails(ledger)
    if call.json:
        call.documents(_shape(listed, tails) for listed in found.sessions)
        call.next_page(found.next)
        return
    note_import(call, find_ledger(call.ledger))
    if found.sessions:
        rows = _columns(found.sessions, call.screen.terminal, tails)
        call.screen.table(*rows, numbers=("turns", "tokens"), spare=SPARE)
    for listed in found.sessions:
        if listed.branches:
            call.note(
                f"{listed.session.label} was moved elsewhere, too: `weft settle {listed.session.label}` joins them"
            )
    _notes(call, found, filtered=any(given is not None for given in (origin, project, since, limit)))


def _tails(ledger: Ledger) -> Tails:
    tails: Tails = {}
    for tail in ledger.imports.provisional():
        tails.setdefault(tail.session_id, []).append(tail)
    return tails


def _shape(listed: ListedSession, tails: Tails) -> dict[str, Any]:
    """The session's own fields, and what lists add to them."""
    return {
        **to_json(listed.session),
        **{name: value for name, value in to_json(listed).items() if name != "session"},
        "provisional": [provisional.shape(tail) for tail in tails.get(listed.session.id, ())],
    }


def _notes(call: Call, found: SessionList, *, filtered: bool) -> None:
    if found.further:
        call.note(
            f"{counted(found.further, 'more session')}: `weft sessions -n N` lists more, --project and --since fewer,"
            f" the next page with --after {found.next}"
        )
    if found.hidden:
        verb = "is" if found.hidden == 1 else "are"
        call.note(f"{counted(found.hidden, 'session')} of subagents {verb} not shown: --subagents lists them")
    if not (found.sessions or found.hidden or found.further):
        call.note("no such sessions" if filtered else _NOTHING)


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
    kept = [i for i, name in enumerate(HEADER) if {str(row[i]) for row in rows} != dull.get(name)]
    return [[row[i] for i in kept] for row in rows], [HEADER[i] for i in kept]


def _row(listed: ListedSession, terminal: bool, below: bool, tails: Tails) -> list[Span | str]:
    session, when = listed.session, local_time(listed.session.updated_at)
    told = session.title if has_title(session) else None
    title = told or session.task_description or listed.subject or session.title or ""
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


def abbreviated(count: int) -> str:
    """12,345 as 12k: how much it is, not how many."""
    for unit, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= unit:
            shown = count / unit
            return f"{shown:.1f}{letter}" if shown < 10 else f"{shown:.0f}{letter}"
    return str(count) if count else ""
