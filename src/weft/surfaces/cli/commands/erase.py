"""`weft erase`: what must be forgotten, forgotten; the record still verifies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from weft.surfaces.cli.arguments import complete_labels
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.erasures import FINISHED, HELD, carry_out, finish_files
from weft.surfaces.cli.figures import counted
from weft.surfaces.cli.history import Reader, short
from weft.surfaces.cli.program_call import as_actor
from weft.surfaces.cli.progress import progress
from weft.surfaces.cli.screen import Span
from weft.surfaces.cli.times import local_time
from weft.surfaces.wire.upkeep import FinishedErasure, NothingToErase

if TYPE_CHECKING:
    from weft.ledger.api import Ledger, Tombstone

APPLIED = "the erasure of another ledger, applied here"


@weft_command("erase")
@click.argument("what", nargs=-1, metavar="[TURN|SESSION|CONTENT|MESSAGE]...", shell_complete=complete_labels)
@click.option("--reason", metavar="TEXT", help="Why; needed with --yes. Kept for ever, so say no more than you must.")
@click.option("--tree", is_flag=True, help="The whole tree that each turn belongs to, and the sessions in it.")
@click.option("--everywhere", is_flag=True, help="Contents that other turns use too; by default they stay.")
@as_actor
@click.option("--dry-run", is_flag=True, help="Show what would go and what would stay, and stop.")
@click.option("-y", "--yes", is_flag=True, help="Do it without asking.")
@click.option("--list", "listed", is_flag=True, help="Show what was erased, by whom, when and why.")
@click.option("--pending", is_flag=True, help="Show erasures of other ledgers that wait for your word.")
@click.option("--apply", "applied", is_flag=True, help="Carry those out.")
@click.option(
    "--finish", is_flag=True, help="Go on with an erasure that was held up, and remove kept files that nothing names."
)
def command(
    call: Call,
    what: tuple[str, ...],
    reason: str | None,
    tree: bool,
    everywhere: bool,
    actor: str,
    dry_run: bool,
    yes: bool,
    listed: bool,
    pending: bool,
    applied: bool,
    finish: bool,
) -> None:
    """Erase contents for good; the record still verifies.

    A label means the session: its own turns, its label and its title; turns that a fork shares stay. Anything else
    that names a turn means the turn, and a reference means that one content, wherever it is used. The id of a message
    of a room means what it says: in the room, in its forks and in the sessions of agents that were sent it. What went
    cannot be brought back, not by importing it again either. Backups are named, not changed.
    """
    if bool(what) + listed + pending + applied + finish != 1:
        raise click.UsageError("name what to erase, or one of --list, --pending, --apply, --finish")
    if listed or pending:
        with call.reading() as opened:
            ledger = call.in_name_of(actor, opened)
            _list(call, ledger, pending)
        return
    with call.writing() as opened:
        ledger = call.in_name_of(actor, opened)
        if finish:
            clean = ledger.erasure.finish()
            call.answer(FinishedErasure(complete=clean), [FINISHED if clean else HELD])
            finish_files(call, ledger)
            return
        names = [pending_erasure.ref for pending_erasure in ledger.erasure.pending()] if applied else list(what)
        if not names:
            call.answer(NothingToErase(), ["no erasures of other ledgers are waiting"])
            return
        why = reason or (APPLIED if applied else None)
        with progress(call, "erase") as bar:
            plan = ledger.erasure.plan(names, tree=tree, everywhere=everywhere, progress=bar.staged)
        carry_out(call, ledger, plan, why, dry_run=dry_run, yes=yes)


def _list(call: Call, ledger: Ledger, pending: bool) -> None:
    waiting = ledger.erasure.pending()
    tombstones = waiting if pending else ledger.erasure.done()
    if call.json:
        call.documents(tombstones)
        return
    states, reader = _states(ledger, waiting), Reader(ledger)
    rows = [
        (
            local_time(tombstone.erased_at),
            Span(tombstone.ref[:16], "id"),
            _place(reader, tombstone),
            tombstone.actor,
            _ledger_of(ledger, tombstone),
            states.get(tombstone.ref, "erased"),
            tombstone.reason or "",
        )
        for tombstone in tombstones
    ]
    if rows:
        call.screen.table(rows, ("when", "content", "of", "by", "ledger", "here", "why"), spare=("of", "here"))
    if pending:
        hint = "`weft erase --apply` carries them out, `weft pending` takes or refuses them one by one"
        call.note(hint if rows else "no erasures of other ledgers are waiting")
    elif waiting:
        call.note(f"{counted(len(waiting), 'erasure')} of other ledgers not carried out here: `weft erase --pending`")
    elif not rows:
        call.note("nothing was erased")


def _states(ledger: Ledger, waiting: list[Tombstone]) -> dict[str, Span]:
    """By reference: contents that are still here, though another ledger erased them."""
    from weft.programs import Programs

    decided = Programs(ledger).pending(kind="erasure", decided=True)
    refused = {item.name: Span("refused", "bad") for item in decided if item.status == "refused"}
    return refused | {tombstone.ref: Span("waits", "warn") for tombstone in waiting}


def _place(reader: Reader, tombstone: Tombstone) -> str:
    """The turn or the session that the content was of, as other commands take it."""
    if tombstone.turn_id is not None:
        return short(tombstone.turn_id)
    session = reader.session(tombstone.session_id)
    return reader.short_label(session) if session else tombstone.session_id or ""


def _ledger_of(ledger: Ledger, tombstone: Tombstone) -> str:
    """Whose erasure it is: of this ledger, or of another by the end of its replica's id, as `weft pending` shows it."""
    return "this one" if tombstone.replica in (None, ledger.replica) else (tombstone.replica or "")[-8:]
