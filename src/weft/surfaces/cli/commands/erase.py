"""`weft erase`: what must be forgotten, forgotten; the record still verifies."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from weft.kernel.errors import InvalidInput
from weft.surfaces.cli.arguments import complete_labels
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.progress import progress
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.cli.shapes import to_json
from weft.surfaces.cli.turn_lines import counted
from weft.surfaces.cli.zones import local_time

if TYPE_CHECKING:
    from weft.ledger.erasing import Erasure, ErasurePlan, Tombstone
    from weft.ledger.ledger import Ledger

SHOWN = 8
APPLIED = "the erasure of another ledger, applied here"


@weft_command("erase")
@click.argument("what", nargs=-1, metavar="[TURN|SESSION|CONTENT]...", shell_complete=complete_labels)
@click.option("--reason", metavar="TEXT", help="Why; kept for ever, so say no more than needed.")
@click.option("--tree", is_flag=True, help="The whole tree that each turn belongs to, and the sessions in it.")
@click.option("--everywhere", is_flag=True, help="Contents that other turns use too; by default they stay.")
@click.option("--as", "actor", metavar="AGENT", default="local", help="In whose name.", show_default=True)
@click.option("--dry-run", is_flag=True, help="Show what would go and what would stay, and stop.")
@click.option("-y", "--yes", is_flag=True, help="Do it without asking.")
@click.option("--list", "listed", is_flag=True, help="Show what was erased, by whom, when and why.")
@click.option("--pending", is_flag=True, help="Show erasures of other ledgers that wait for your word.")
@click.option("--apply", "applied", is_flag=True, help="Carry those out.")
@click.option("--finish", is_flag=True, help="Go on with an erasure that somebody's reading held up.")
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
    that names a turn means the turn, and a reference means that one content, wherever it is used. What went cannot
    be brought back, not by importing it again either. Backups are named, not changed.
    """
    if bool(what) + listed + pending + applied + finish != 1:
        raise click.UsageError("name what to erase, or one of --list, --pending, --apply, --finish")
    if listed or pending:
        with call.reading() as ledger:
            _list(call, ledger.erasures() if listed else ledger.pending_erasures(), pending)
        return
    with call.writing() as ledger:
        if finish:
            clean = ledger.finish_erasing()
            call.answer({"complete": clean}, [_FINISHED if clean else _HELD])
            return
        names = [found.ref for found in ledger.pending_erasures()] if applied else list(what)
        if not names:
            call.answer({"contents": 0}, ["no erasures of other ledgers are waiting"])
            return
        why = reason or (APPLIED if applied else None)
        _erase(call, ledger, names, why, actor, tree=tree, everywhere=everywhere, dry_run=dry_run, yes=yes)


_FINISHED = "nothing is left to be done"
_HELD = "somebody still reads what was there before; close what has the ledger open and try again"


def _erase(
    call: Call,
    ledger: Ledger,
    names: list[str],
    reason: str | None,
    actor: str,
    *,
    tree: bool,
    everywhere: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    if reason is None and not dry_run:
        raise InvalidInput(
            "an erasure needs a reason", "give one with --reason; it is kept, so say no more than needed"
        )
    with progress(call, "erase") as bar:
        plan = ledger.plan_erasure(names, tree=tree, everywhere=everywhere, progress=bar.staged)
    if dry_run:
        call.answer(plan, *_plan_lines(plan, every=True))
        return
    if not plan.contents:
        call.answer({"contents": 0, "erased_already": plan.erased_already, "stays": len(plan.stays)}, [_nothing(plan)])
        return
    if not yes:
        _ask(call, plan)
    with progress(call, "erase") as bar:
        done = ledger.erase(plan, reason=reason or "", actor=actor, progress=bar.staged)
    call.answer(done, *_done_lines(done))
    if not done.complete:
        call.note(f"the files still hold old bytes: {_HELD}: `weft erase --finish`")


def _nothing(plan: ErasurePlan) -> str:
    if plan.stays or plan.held:
        return (
            "nothing to erase: others use all of it; `weft erase --dry-run` shows who, --everywhere takes it from them"
        )
    return f"nothing to erase: {counted(plan.erased_already, 'content')} erased already"


def _ask(call: Call, plan: ErasurePlan) -> None:
    if not (sys.stdin.isatty() and sys.stderr.isatty()) or call.json:
        raise InvalidInput(
            "nobody is there to say yes", "look at `weft erase … --dry-run`, then say --yes; it cannot be undone"
        )
    for line in _plan_lines(plan, every=False):
        call.screen.show(*line)
    click.confirm("erase it for good?", abort=True, err=True)


def _plan_lines(plan: ErasurePlan, *, every: bool) -> Iterator[Line]:
    size = f"{counted(len(plan.contents), 'content')} ({plan.bytes:,} bytes)"
    yield [Span("goes: ", "bad"), f"{size} of {counted(len(plan.turns), 'turn')}, "
           f"{counted(plan.messages, 'message')}, {counted(plan.tool_calls, 'tool call')}"]  # fmt: skip
    for doomed in plan.contents if every else ():
        yield ["  ", Span(doomed.ref, "id"), f" {doomed.size:,} bytes  {doomed.what}"]
    if plan.verbatim:
        yield [f"  among them {counted(plan.verbatim, 'stretch')} of imported sources, kept verbatim"]
    if plan.reached:
        yield [f"  {counted(len(plan.reached), 'other turn')} lose a content: {_few(plan.reached)}"]
    for session in plan.sessions:
        why = "named" if session.named else "contains it"
        yield [Span("session: ", "warn"), Span(session.label, "label"), f" ({why}, {session.status})"]
    if plan.subagents:
        yield [f"not named, so not erased: sessions of subagents: {_few(plan.subagents)}"]
    if plan.held:
        holders = dict.fromkeys(label for turn in plan.held for label in turn.sessions)
        yield [Span("stays: ", "good"), f"{counted(len(plan.held), 'turn')} that also belong to {_few(tuple(holders))}"]
    if plan.stays:
        users = dict.fromkeys(user for staying in plan.stays for user in staying.used_by)
        yield [Span("stays: ", "good"), f"{counted(len(plan.stays), 'content')} that others use too: "
               f"{_few(tuple(users))}; --everywhere takes them as well"]  # fmt: skip
    if plan.erased_already:
        yield [f"{counted(plan.erased_already, 'content')} erased already"]
    yield from _copy_lines(plan)


def _copy_lines(found: ErasurePlan | Erasure) -> Iterator[Line]:
    for copy in found.copies:
        state = "may still hold it" if copy.exists else "is no longer there: if it was moved, it may still hold it"
        yield [Span("copy: ", "warn"), Span(copy.path, "heading"), f" {state}"]


def _few(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _done_lines(done: Erasure) -> Iterator[Line]:
    yield [Span("erased ", "good"), f"{counted(done.contents, 'content')} ({done.bytes:,} bytes)"]
    if done.stays:
        yield [f"{counted(done.stays, 'content')} stay, since others use them too"]
    yield from _copy_lines(done)


def _list(call: Call, found: list[Tombstone], pending: bool) -> None:
    if call.json:
        call.documents(map(to_json, found))
        return
    rows = [
        (local_time(each.erased_at), Span(each.ref[:16], "id"), each.turn_id or each.session_id or "", each.actor,
         each.reason or "")
        for each in found
    ]  # fmt: skip
    if rows:
        call.screen.table(rows, ("when", "content", "of", "by", "why"), spare=("of",))
    if pending:
        call.note("`weft erase --apply` carries them out" if rows else "no erasures of other ledgers are waiting")
    elif not rows:
        call.note("nothing was erased")
