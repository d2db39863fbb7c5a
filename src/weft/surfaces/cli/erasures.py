"""An erasure on the command line: its plan shown, asked for, carried out and told."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from weft.kernel.enums import SnapshotState
from weft.kernel.errors import InvalidInput, NotApplicable
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.figures import counted
from weft.surfaces.cli.history import short
from weft.surfaces.cli.import_job import ImportJob
from weft.surfaces.cli.progress import progress
from weft.surfaces.cli.questions import confirm, is_person_there
from weft.surfaces.cli.resource_access import ledger_files
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.cli.user_files import find_ledger
from weft.surfaces.plain_text import safe
from weft.surfaces.wire.upkeep import NothingToErase, PlannedErasure

if TYPE_CHECKING:
    from weft.ledger.api import Erasure, ErasurePlan, KeptReference, Ledger, ResourceLog, Snapshot

SHOWN = 8
FINISHED = "nothing is left to be done"
HELD = "somebody still reads what was there before; close what has the ledger open and try again"


def carry_out(
    call: Call,
    ledger: Ledger,
    plan: ErasurePlan,
    reason: str | None,
    *,
    remainders: Mapping[str, str] = MappingProxyType({}),
    dry_run: bool,
    yes: bool,
) -> None:
    """Show a plan, or do what it says once somebody has said why and yes, in the name that the ledger acts in."""
    snapshots = [one for one in _kept_in(ledger, plan.turns) if one.state is SnapshotState.OK]
    goes: list[Line] = [[Span("goes: ", "bad"), f"{counted(len(snapshots), 'snapshot')} of files"]] if snapshots else []
    if dry_run:
        lines = _plan_lines(plan, _shown_labels(call, ledger), every=True, redacted=len(remainders))
        call.answer(PlannedErasure(plan=plan, snapshots=len(snapshots)), *lines, *goes)
        return
    if plan.is_done:
        if yes:  # what an erasure left that was cut short, or done on another machine
            _forget_files(call, ledger, plan.turns, reason or "erased before")
        nothing = NothingToErase(erased_already=plan.erased_already, stays=len(plan.stays))
        call.answer(nothing, [_nothing(plan)])
        return
    if reason is None or not yes:
        lines = _plan_lines(plan, _shown_labels(call, ledger), every=False, redacted=len(remainders))
        _ask(call, [*lines, *goes], reason)
    with progress(call, "erase") as bar:
        done = ledger.erasure.erase(plan, reason=reason or "", remainders=remainders, progress=bar.staged)
    ImportJob(find_ledger(call.ledger)).forget()
    _forget_files(call, ledger, plan.turns, reason or "")
    call.answer(done, *_done_lines(done))
    _note_remotes(call, ledger)
    if not done.complete:
        call.note(f"the files still hold old bytes: {HELD}: `weft erase --finish`")


def _forget_files(call: Call, ledger: Ledger, turns: Sequence[str], reason: str) -> None:
    """Throw away the snapshots of erased turns. Other turns keep theirs."""
    kept = _kept_in(ledger, turns)
    if kept:
        from weft.surfaces.cli.resource_access import resource_controller

        elsewhere = resource_controller(ledger).forget(kept, reason)
        went = sum(one.state is SnapshotState.OK for one in kept) - len(elsewhere)
        if went:
            files = f"{counted(went, 'snapshot')} of their files"
            call.note(f"{files} went, too; what later turns still have stays in theirs")
        if elsewhere:
            files = f"{counted(len(elsewhere), 'snapshot')} of their files"
            call.note(Span(f"{files} lie on another machine and are still there: erase the same there", "warn"))


def _kept_in(ledger: Ledger, turns: Sequence[str]) -> list[Snapshot]:
    from weft.ledger.api import ResourceLog

    log = ResourceLog(ledger)
    return [one for turn in turns for one in log.taken_in(turn)]


def finish_files(call: Call, ledger: Ledger) -> None:
    """Remove kept files that no snapshot names. Not while something is about to be recorded, nor while a ledger lies
    aside that may name them."""
    from weft.ledger.api import ResourceLog
    from weft.surfaces.cli.resource_access import files_folder, kept_files

    kept, log = kept_files(files_folder(ledger)), ResourceLog(ledger)
    if not kept.is_there or not (unused := kept.unused(log.kept_references())):
        return
    left = f"{counted(len(unused), 'kept state')} that no snapshot names"
    if aside := [path for path in ledger_files(ledger) if ".replaced-" in path.name]:
        call.note(f"{left} stay: {safe(str(aside[0]))} may name them; remove it first")
        return
    ledger.trust.ensure("throw kept files away")
    try:
        removed = kept.remove_unused(partial(_named_by_all, log))
    except NotApplicable as why:
        call.note(f"{left} stay: {why}")
    else:
        call.note(f"{counted(removed, 'kept state')} that no snapshot names went")


def _named_by_all(log: ResourceLog) -> list[KeptReference]:
    """Asked when nobody uses the store: what somebody has just kept is recorded by now, or will be soon."""
    if not log.is_quiet():
        raise NotApplicable("a turn or a resource is being worked on", "try again afterwards")
    return log.kept_references()


def _note_remotes(call: Call, ledger: Ledger) -> None:
    from weft.exchange.sync import remotes

    if not ledger.authority.is_unlimited:  # where the ledger is synced to is for its owner to know
        return
    if names := tuple(remote.name for remote in remotes(ledger)):
        call.note(
            f"ledgers that you sync with may still hold it: {_few(names)}; `weft push` brings them the tombstones"
        )


def _nothing(plan: ErasurePlan) -> str:
    if plan.stays or plan.held:
        return (
            "nothing to erase: others use all of it; `weft erase --dry-run` shows who, --everywhere takes it from them"
        )
    return f"nothing to erase: {counted(plan.erased_already, 'content')} erased already"


def _ask(call: Call, plan_lines: list[Line], reason: str | None) -> None:
    """Show the plan; without a reason nothing is asked, and the reason is what is missing."""
    is_answered = is_person_there(call)
    if not call.json and (is_answered or reason is None):
        for line in plan_lines:
            call.screen.show(*line)
    if reason is None:
        raise InvalidInput(
            "nothing was erased: an erasure needs a reason",
            "give one with --reason; it is kept, so say no more than needed",
        )
    confirm(call, "erase it for good?", "look at it with --dry-run, then say --yes; it cannot be undone", is_sure=False)


def _shown_labels(call: Call, ledger: Ledger) -> dict[str, str]:
    """What to type for each session, by its label."""
    return {} if call.json else ledger.listing().short_labels()


def _plan_lines(plan: ErasurePlan, shown: dict[str, str], *, every: bool, redacted: int = 0) -> Iterator[Line]:
    size = f"{counted(len(plan.contents), 'content')} ({plan.bytes:,} bytes)"
    yield [Span("goes: ", "bad"), f"{size} of {counted(len(plan.turns), 'turn')}, "
           f"{counted(plan.messages, 'message')}, {counted(plan.tool_calls, 'tool call')}"]  # fmt: skip
    if redacted:
        yield [Span("stays: ", "good"), f"what {counted(redacted, 'content')} of them say beside the credential"]
    for doomed in plan.contents if every else ():
        yield ["  ", Span(doomed.ref, "id"), f" {doomed.size:,} bytes  {doomed.what}"]
    if plan.verbatim:
        yield [f"  among them {counted(plan.verbatim, 'piece')} of imported files, kept verbatim"]
    if plan.reached:
        verb = "loses" if len(plan.reached) == 1 else "lose"
        yield [f"  {counted(len(plan.reached), 'other turn')} {verb} a content: {_few(map(short, plan.reached))}"]
    for session in plan.sessions:
        about = "its label and title go" if session.named else "contains it"
        yield [
            Span("session: ", "warn"),
            Span(shown.get(session.label, session.label), "label"),
            f" ({about}, {session.status})",
        ]
    if plan.rooms:
        yield [f"said in rooms: {_few(room[-8:] for room in plan.rooms)}"]
    if plan.subagents:
        subagents = _few(shown.get(label, label) for label in plan.subagents)
        yield [f"not named, so not erased: sessions of subagents: {subagents}"]
    if plan.held:
        holders = dict.fromkeys(shown.get(label, label) for turn in plan.held for label in turn.sessions)
        verb = "belongs" if len(plan.held) == 1 else "belong"
        yield [Span("stays: ", "good"), f"{counted(len(plan.held), 'turn')} that also {verb} to {_few(holders)}"]
    if plan.stays:
        users = dict.fromkeys(_short_user(user) for staying in plan.stays for user in staying.used_by)
        yield [Span("stays: ", "good"), f"{counted(len(plan.stays), 'content')} that others use too: "
               f"{_few(users)}; --everywhere takes them as well"]  # fmt: skip
    if plan.erased_already:
        yield [f"{counted(plan.erased_already, 'content')} erased already"]
    yield from _copy_lines(plan)


def _copy_lines(erasure: ErasurePlan | Erasure) -> Iterator[Line]:
    for copy in erasure.copies:
        state = "may still hold it" if copy.exists else "is no longer there: if it was moved, it may still hold it"
        yield [Span("copy: ", "warn"), Span(copy.path, "heading"), f" {state}"]


def _short_user(user: str) -> str:
    """A turn that uses a content, by the end of its id; anything else as it is."""
    return f"turn {short(user)}" if user.startswith("turn ") else user


def _few(all_names: Iterable[str]) -> str:
    names = list(all_names)
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _done_lines(done: Erasure) -> Iterator[Line]:
    yield [Span("erased ", "good"), f"{counted(done.contents, 'content')} ({done.bytes:,} bytes)"]
    if done.stays:
        use = "stays, since others use it too" if done.stays == 1 else "stay, since others use them too"
        yield [f"{counted(done.stays, 'content')} {use}"]
    yield from _copy_lines(done)
