"""`weft archive`: out of sight, not out of the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from weft.ledger.read.session_list import meaningful_title
from weft.surfaces.cli.arguments import complete_labels
from weft.surfaces.cli.call import Call, undo
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.figures import counted
from weft.surfaces.cli.screen import Span
from weft.surfaces.cli.times import session_time

if TYPE_CHECKING:
    from weft.ledger.api import Ledger
    from weft.ledger.model import Session


@weft_command("archive")
@click.argument("session", nargs=-1, shell_complete=complete_labels)
@click.option("--tree", is_flag=True, help="Every session that stands in the same tree.")
@click.option("--older-than", metavar="WHEN", help="Only sessions that have not changed since, such as 90d.")
@click.option("--undo", "back", is_flag=True, help="Make them active again.")
@click.option("--list", "listed", is_flag=True, help="Show what is archived.")
@click.option("--dry-run", is_flag=True, help="Show which sessions it would be, and stop.")
@click.option("--reason", metavar="TEXT", help="Why.")
def command(
    call: Call,
    session: tuple[str, ...],
    tree: bool,
    older_than: str | None,
    back: bool,
    listed: bool,
    dry_run: bool,
    reason: str | None,
) -> None:
    """Archive a session; its turns stay.

    An archived session is listed by `weft sessions --all` and `weft archive --list` only and takes no more turns. It
    keeps its label and can be shown, searched, forked and restored.
    """
    if listed:
        with call.reading() as ledger:
            _list(call, [row for row in ledger.sessions(every=True) if row.status == "archived"])
        return
    status = "active" if back else "archived"
    chosen: dict[str, Any] = {"tree": tree, "older_than": older_than, "back": back}
    if dry_run:
        with call.reading() as ledger:
            _show_changed(call, ledger.labels.archivable(list(session), **chosen), f"would be {status}", alone=False)
        return
    with call.writing() as ledger:
        changed = _change(ledger, session, chosen, reason)
    _show_changed(call, changed, f"is {status}", alone=len(session) == 1 and not (tree or older_than))
    if changed and not back:
        call.note(undo("archive", "--undo", *(row.label for row in changed)))


def _change(ledger: Ledger, names: tuple[str, ...], chosen: dict[str, Any], reason: str | None) -> list[Session]:
    change = ledger.labels.unarchive if chosen["back"] else ledger.labels.archive
    return [change(row.id, reason=reason) for row in ledger.labels.archivable(list(names), **chosen)]


def _show_changed(call: Call, sessions: list[Session], what: str, *, alone: bool) -> None:
    """One session that was named alone is a document of its own, others are a list."""
    if call.json:
        call.document(sessions[0] if alone else sessions)
        return
    for session in sessions:
        call.screen.show(Span(session.label, "label"), f" {what}")
    if not sessions:
        call.note("no such sessions")


def _list(call: Call, sessions: list[Session]) -> None:
    if call.json:
        call.documents(sessions)
        return
    rows = [
        (Span(session.label, "label"), session_time(session), meaningful_title(session.title) or "")
        for session in sessions
    ]
    if rows:
        call.screen.table(rows, ("session", "last change", "title"))
        call.note(f"{counted(len(rows), 'session')} archived; `weft archive --undo SESSION` makes one active again")
    else:
        call.note("nothing is archived")
