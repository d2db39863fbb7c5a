"""`weft erase` and `weft secrets`: contents and credentials that go for good. An erasure's
plan is shown, asked for, carried out and told.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from weft.kernel.enums import SnapshotState
from weft.kernel.errors import InvalidInput, NotApplicable
from weft.surfaces.cli.arguments import complete_labels, ensure_known_origin, session_option
from weft.surfaces.cli.command_line import DIFFERENT, OK, Call, confirm, is_person_there, undo
from weft.surfaces.cli.command_line import command as weft_command
from weft.surfaces.cli.ledgers.import_job import ImportJob
from weft.surfaces.cli.programs.program_call import as_actor
from weft.surfaces.cli.progress import counted, progress
from weft.surfaces.cli.screen import Line, Span, local_time
from weft.surfaces.cli.turn_lists import Reader, short
from weft.surfaces.cli.user_files import find_ledger, user_cache
from weft.surfaces.cli.work.sandbox_access import ledger_files
from weft.surfaces.plain_text import safe
from weft.verbs.answers import FinishedErasure, IgnoredSecret, NothingToErase, PlannedErasure

if TYPE_CHECKING:
    from weft.ledger.api import (
        Erasure,
        ErasurePlan,
        KeptReference,
        Ledger,
        ResourceLog,
        SecretMatch,
        SecretPlace,
        SecretReport,
        SecretScanner,
        Snapshot,
        Tombstone,
    )


# --- An erasure on the command line: its plan shown, asked for, carried out and told.

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
    snapshots = [snapshot for snapshot in _kept_in(ledger, plan.turns) if snapshot.state is SnapshotState.OK]
    goes: list[Line] = [[Span("goes: ", "bad"), f"{counted(len(snapshots), 'snapshot')} of files"]] if snapshots else []
    if dry_run:
        lines = _plan_lines(plan, _shown_labels(call, ledger), every=True, redacted=len(remainders))
        call.answer(PlannedErasure(plan=plan, snapshots=len(snapshots)), *lines, *goes)
        return
    if plan.is_done:
        if yes:  # what an erasure left that was cut short, or done on another machine
            _forget_files(call, ledger, plan.turns, reason or "erased before")
        nothing = NothingToErase(erased_already=plan.erased_already, stays=len(plan.stays))
        call.answer(nothing, [_nothing_to_erase(plan)])
        return
    if reason is None or not yes:
        lines = _plan_lines(plan, _shown_labels(call, ledger), every=False, redacted=len(remainders))
        _ask_for_reason(call, [*lines, *goes], reason)
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
    snapshots = _kept_in(ledger, turns)
    if snapshots:
        from weft.surfaces.cli.work.sandbox_access import resource_controller

        elsewhere = resource_controller(ledger).forget(snapshots, reason)
        went = sum(snapshot.state is SnapshotState.OK for snapshot in snapshots) - len(elsewhere)
        if went:
            files = f"{counted(went, 'snapshot')} of their files"
            call.note(f"{files} went, too; what later turns still have stays in theirs")
        if elsewhere:
            files = f"{counted(len(elsewhere), 'snapshot')} of their files"
            call.note(Span(f"{files} lie on another machine and are still there: erase the same there", "warn"))


def _kept_in(ledger: Ledger, turns: Sequence[str]) -> list[Snapshot]:
    from weft.ledger.api import ResourceLog

    log = ResourceLog(ledger)
    return [snapshot for turn in turns for snapshot in log.taken_in(turn)]


def finish_files(call: Call, ledger: Ledger) -> None:
    """Remove kept files that no snapshot names. Not while something is about to be recorded, nor while a ledger lies
    aside that may name them."""
    from weft.ledger.api import ResourceLog
    from weft.surfaces.cli.work.sandbox_access import files_folder, kept_files

    files, log = kept_files(files_folder(ledger)), ResourceLog(ledger)
    if not files.is_there or not (unused := files.unused(log.kept_references())):
        return
    left = f"{counted(len(unused), 'kept state')} that no snapshot names"
    if aside := [path for path in ledger_files(ledger) if ".replaced-" in path.name]:
        call.note(f"{left} stay: {safe(str(aside[0]))} may name them; remove it first")
        return
    ledger.trust.ensure("throw kept files away")
    try:
        removed = files.remove_unused(partial(_named_by_all, log))
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
            f"ledgers that you sync with may still hold it: {_few_names(names)}; `weft push` brings them the tombstones"
        )


def _nothing_to_erase(plan: ErasurePlan) -> str:
    if plan.stays or plan.held:
        return (
            "nothing to erase: others use all of it; `weft erase --dry-run` shows who, --everywhere takes it from them"
        )
    return f"nothing to erase: {counted(plan.erased_already, 'content')} erased already"


def _ask_for_reason(call: Call, plan_lines: list[Line], reason: str | None) -> None:
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
        yield [f"  {counted(len(plan.reached), 'other turn')} {verb} a content: {_few_names(map(short, plan.reached))}"]
    for session in plan.sessions:
        about = "its label and title go" if session.named else "contains it"
        yield [
            Span("session: ", "warn"),
            Span(shown.get(session.label, session.label), "label"),
            f" ({about}, {session.status})",
        ]
    if plan.rooms:
        yield [f"said in rooms: {_few_names(room[-8:] for room in plan.rooms)}"]
    if plan.subagents:
        subagents = _few_names(shown.get(label, label) for label in plan.subagents)
        yield [f"not named, so not erased: sessions of subagents: {subagents}"]
    if plan.held:
        holders = dict.fromkeys(shown.get(label, label) for turn in plan.held for label in turn.sessions)
        verb = "belongs" if len(plan.held) == 1 else "belong"
        yield [Span("stays: ", "good"), f"{counted(len(plan.held), 'turn')} that also {verb} to {_few_names(holders)}"]
    if plan.stays:
        users = dict.fromkeys(_short_user(user) for staying in plan.stays for user in staying.used_by)
        yield [Span("stays: ", "good"), f"{counted(len(plan.stays), 'content')} that others use too: "
               f"{_few_names(users)}; --everywhere takes them as well"]  # fmt: skip
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


def _few_names(all_names: Iterable[str]) -> str:
    names = list(all_names)
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _done_lines(done: Erasure) -> Iterator[Line]:
    yield [Span("erased ", "good"), f"{counted(done.contents, 'content')} ({done.bytes:,} bytes)"]
    if done.stays:
        use = "stays, since others use it too" if done.stays == 1 else "stay, since others use them too"
        yield [f"{counted(done.stays, 'content')} {use}"]
    yield from _copy_lines(done)


# --- `weft erase`: what must be forgotten, forgotten; the record still verifies.

APPLIED = "the erasure of another ledger, applied here"


@weft_command("erase")
@click.argument("what", nargs=-1, metavar="[TURN|SESSION|CONTENT|MESSAGE]...", shell_complete=complete_labels)
@click.option("--reason", metavar="TEXT", help="Why; needed with --yes. Kept for ever, so say no more than you must.")
@click.option("--tree", is_flag=True, help="The whole tree that each turn belongs to, and the sessions in it.")
@click.option("--everywhere", is_flag=True, help="Contents that other turns use too; by default they stay.")
@as_actor
@click.option("--dry-run", is_flag=True, help="Show what would go and what would stay; erase nothing.")
@click.option("-y", "--yes", is_flag=True, help="Skip the confirmation prompt.")
@click.option("--list", "listed", is_flag=True, help="Show what was erased, by whom, when and why.")
@click.option("--pending", is_flag=True, help="List erasures of other ledgers that wait to be carried out here.")
@click.option("--apply", "applied", is_flag=True, help="Carry out the erasures that --pending lists.")
@click.option(
    "--finish", is_flag=True, help="Go on with an erasure that was held up, and remove kept files that nothing names."
)
def erase_command(
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

    A label means the session: its own turns, its label and its title; turns that a fork shares stay. Anything else that
    names a turn means the turn, and a reference means that one content, wherever it is used. The id of a message of a
    room means what it says: in the room, in its forks and in the sessions of agents that were sent it. What was erased
    cannot be brought back, not even by importing it again. Backups are named, not changed.

    A content is named as --dry-run lists it. Backups and exports that were made here are named, not changed. Without
    --yes the plan is shown and a person is asked; where nobody is at the terminal, nothing is erased. Without --reason
    the plan is shown and nothing is erased. --list says of each erasure in which ledger it was made, and whether it was
    carried out here: one of another ledger waits until somebody here takes it over. docs/operating.md#erasing says what
    is gone and what stays visible.
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
            _place_of_content(reader, tombstone),
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


def _place_of_content(reader: Reader, tombstone: Tombstone) -> str:
    """The turn or the session that the content was of, as other commands take it."""
    if tombstone.turn_id is not None:
        return short(tombstone.turn_id)
    session = reader.session(tombstone.session_id)
    return reader.short_label(session) if session else tombstone.session_id or ""


def _ledger_of(ledger: Ledger, tombstone: Tombstone) -> str:
    """Whose erasure it is: of this ledger, or of another by the end of its replica's id, as `weft pending` shows it."""
    return "this one" if tombstone.replica in (None, ledger.replica) else (tombstone.replica or "")[-8:]


# --- `weft secrets`: credentials that lie in what was recorded; found, never shown, and erased if asked to.

PLACES = 4


@weft_command("secrets")
@click.argument("fingerprints", nargs=-1, metavar="[FINGERPRINT]...")
@session_option("Only in the thread of this session, or told of it.")
@click.option("--origin", metavar="NAME", help="Only in turns of this tool; weft for those recorded here.")
@click.option("--project", metavar="NAME", help="Only in sessions of this folder, by its path or its last part.")
@click.option("--since", metavar="TIME", help="Only in turns from this time on; a day means all of it.")
@click.option("--all", "anew", is_flag=True, help="Look at every content again, not only at what is new.")
@click.option("--ignore", metavar="FINGERPRINT", help="Mark it as a false alarm, which is not listed.")
@click.option("--unignore", metavar="FINGERPRINT", help="List it again.")
@click.option("--ignored", is_flag=True, help="Show what is ignored instead.")
@click.option("--erase", is_flag=True, help="Erase every content that holds one of those found, for good.")
@click.option("--redact", is_flag=True, help="Erase the credentials alone: the rest of each text is shown as it was.")
@click.option("--show", is_flag=True, help="Show the credentials themselves, with the words around them.")
@click.option("--reason", metavar="TEXT", help="Why; needed with --yes. Kept for ever, so say no more than you must.")
@as_actor
@click.option("--dry-run", is_flag=True, help="With --erase or --redact: show what would go; erase nothing.")
@click.option("-y", "--yes", is_flag=True, help="With --erase or --redact: do it without asking.")
def secrets_command(
    call: Call,
    fingerprints: tuple[str, ...],
    ignore: str | None,
    unignore: str | None,
    erase: bool,
    redact: bool,
    show: bool,
    reason: str | None,
    actor: str,
    dry_run: bool,
    yes: bool,
    **options: Any,
) -> int:
    """Find credentials in what was recorded, look at them, and erase them.

    Scans contents that came since the last scan and lists every credential found so far: by which rule, where and how
    often. The credential itself is shown only with --show. Nothing is sent anywhere. A fingerprint, or its beginning,
    stands for one of them. --erase takes every content that holds one; --redact leaves the rest of the text, with a
    mark in its place, and takes whole only copies of imported sources. Exits with 1 if there are any.

    Six digits of a fingerprint are enough. The mark is [redacted]. It needs weft[secrets]; docs/security.md#secrets
    says what is looked at and what is not found.
    """
    if (ignore is not None) + (unignore is not None) + erase + redact + show > 1:
        raise click.UsageError("say one of --ignore, --unignore, --show, --redact and --erase")
    if (reason is not None or dry_run or yes) and not (erase or redact):
        raise click.UsageError("--reason, --dry-run and --yes belong to --erase and --redact")
    with call.writing() as opened:
        ledger = call.in_name_of(actor, opened)
        if ignore is not None or unignore is not None:
            _choose(call, ledger, ignore, unignore)
            return OK
        report, scanner = _find(call, ledger, fingerprints, {**options, "again": erase or redact})
        if (erase or redact) and report.secrets:
            left = ledger.secrets.remainders(report, scanner=scanner) if redact else {}
            _erase(call, ledger, scanner, report, reason, left, dry_run=dry_run, yes=yes)
            return OK
        if show:
            matches = ledger.secrets.matches(report, scanner=scanner)
            call.documents(matches) if call.json else call.screen.page(_match_lines(report, matches))
            _note_names(call, report)
            return DIFFERENT if matches else OK
        call.answer(report, *_report_lines(report))
        _note_report(call, report)
        return DIFFERENT if report.secrets and not options["ignored"] else OK


def _find(
    call: Call, ledger: Ledger, fingerprints: tuple[str, ...], options: dict[str, Any]
) -> tuple[SecretReport, SecretScanner]:
    from weft.ledger.secrets import load_scanner

    with progress(call, "secrets", by_itself=True) as bar:
        scanner = load_scanner(user_cache())
        report = ledger.secrets.find(fingerprints=fingerprints, scanner=scanner, progress=bar.staged, **options)
    if not report.secrets:
        ensure_known_origin(ledger, options["origin"])
    return report, scanner


def _choose(call: Call, ledger: Ledger, ignore: str | None, unignore: str | None) -> None:
    if ignore is not None:
        mark = ledger.secrets.ignore(ignore)
        call.answer(IgnoredSecret(ignored=mark), ["ignored ", Span(mark, "id")])
        call.note(undo("secrets", "--unignore", mark))
    else:
        mark = ledger.secrets.ignore(unignore or "", undo=True)
        call.answer(IgnoredSecret(unignored=mark), ["no longer ignored: ", Span(mark, "id")])


def _erase(
    call: Call,
    ledger: Ledger,
    scanner: SecretScanner,
    report: SecretReport,
    reason: str | None,
    remainders: dict[str, str],
    *,
    dry_run: bool,
    yes: bool,
) -> None:
    """Labels that hold a credential are not shown in the plan either."""
    if reason is not None and _holds_secret(scanner, reason):
        raise InvalidInput("the reason holds a credential itself", "say why, without saying what")
    refs = list(dict.fromkeys(ref for secret in report.secrets for ref in secret.contents))
    if not refs:
        raise NotApplicable("names in events cannot be erased", "replace the credential where it came from")
    with progress(call, "erase") as bar:
        plan = ledger.erasure.plan(refs, progress=bar.staged)
    named = tuple(
        replace(affected, label=affected.id) if _holds_secret(scanner, affected.label) else affected
        for affected in plan.sessions
    )
    carry_out(call, ledger, replace(plan, sessions=named), reason, remainders=remainders, dry_run=dry_run, yes=yes)
    call.note("a credential that was recorded is known: replace it where it came from, too")


def _holds_secret(scanner: SecretScanner, text: str) -> bool:
    return bool(scanner.scan(text.encode("utf-8", "replace"), b""))


def _report_lines(report: SecretReport) -> Iterator[Line]:
    for secret in report.secrets:
        yield [Span(secret.fingerprint, "id"), "  ", Span(secret.kind, "bad"), f" {secret.shown}  ",
               f"{counted(secret.times, 'time')}, {', '.join(secret.rules)}"]  # fmt: skip
        for place in secret.places[:PLACES]:
            yield _secret_place(place)
        if secret.uses > PLACES:
            yield [f"    and {secret.uses - PLACES:,} more"]
        if not secret.uses:
            yield ["    in a content that nothing uses: ", Span(secret.contents[0][:16], "id")]


def _match_lines(report: SecretReport, matches: list[SecretMatch]) -> Iterator[Line]:
    kinds = {secret.fingerprint: secret.kind for secret in report.secrets}
    for match in matches:
        yield [Span(match.fingerprint, "id"), "  ", Span(kinds[match.fingerprint], "bad"), "  content ",
               Span(match.content[:16], "id")]  # fmt: skip
        before, after = (" ".join(text.split()) for text in (match.before, match.after))
        yield ["    ", Span(f"…{before} ", "dim"), Span(match.secret, "match"), Span(f" {after}…", "dim")]


def _secret_place(place: SecretPlace) -> Line:
    line: list[Span | str] = ["    "]
    if place.session_id is not None:
        line += ["session ", Span(place.session or place.session_id, "label"), "  "]
    if place.turn_id is not None:
        line += ["turn ", Span(short(place.turn_id), "id"), "  "]
    if place.call_id is not None:
        line += [f"call {place.call_id}  "]
    elif place.message_id is not None:
        line += ["message ", Span(short(place.message_id), "id"), "  "]
    return [*line, place.what]


def _note_report(call: Call, report: SecretReport) -> None:
    looked = f"{counted(report.scanned.contents, 'new content')} ({report.scanned.bytes:,} bytes) looked at"
    call.note(f"{counted(len(report.secrets), 'secret')} found; {looked} with {report.rules}")
    if report.ignored:
        call.note(f"{counted(report.ignored, 'finding')} ignored; `weft secrets --ignored` shows them")
    _note_names(call, report)
    if any(secret.contents for secret in report.secrets):
        call.note("`weft secrets --show` shows them, `--redact` takes them out of what was said, `--erase` all of it")


def _note_names(call: Call, report: SecretReport) -> None:
    if named := sum(any(not place.content for place in secret.places) for secret in report.secrets):
        call.note(f"{counted(named, 'secret')} in names, which cannot be erased: replace them where they came from")
