"""Is a ledger sound: `weft doctor`, `verify` and `rebuild`, and the files beside it,
checked.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial

import click
import msgspec
from msgspec import UNSET

from weft.kernel.enums import SnapshotState
from weft.kernel.errors import Action, InvalidInput, LedgerMissing, LedgerTooOld, Unsupported
from weft.kernel.events import Receipt
from weft.kernel.typed_names import shell_word
from weft.ledger.api import KeptReference, Ledger, Problem, ResourceLog, Snapshot
from weft.store.port import Diagnosis, DiagnosisSeverity, as_far_as_it_goes, error, good, note, warning
from weft.surfaces.cli.arguments import read_input
from weft.surfaces.cli.command_line import DIFFERENT, OK, Call
from weft.surfaces.cli.command_line import command as weft_command
from weft.surfaces.cli.progress import awaited, counted, progress, size_text
from weft.surfaces.cli.screen import Span, local_time
from weft.surfaces.cli.user_files import find_ledger
from weft.surfaces.cli.work.sandbox_access import command_notes, files_folder, kept_files, load_sandbox_settings
from weft.surfaces.plain_text import safe
from weft.surfaces.wire.hints import phrase
from weft.verbs.answers import Examination, RebuiltViews, Verification

# --- The files beside a ledger, which `weft verify` checks, and the other files that `weft doctor` looks at.


class FileCheck:
    """Compares what snapshots hold with its hashes. Files of other ledgers need not be here."""

    def __init__(self, ledger: Ledger) -> None:
        self._kept = kept_files(files_folder(ledger))
        self._references = ResourceLog(ledger).kept_references()
        self.read = self.elsewhere = 0

    def problems(self) -> Iterator[Problem]:
        absent = {
            reference.snapshot for reference in self._kept.absent(self._references) if self._may_be_elsewhere(reference)
        }
        wanted = [reference for reference in self._references if reference.snapshot not in absent]
        self.elsewhere, self.read = len(absent), len(wanted)
        for problem in self._kept.problems(wanted):
            yield Problem("files", f"snapshot {problem.reference.snapshot}", problem.why)

    def _may_be_elsewhere(self, reference: KeptReference) -> bool:
        return not reference.is_own or self._kept.origin is not None

    def note_counts(self, call: Call) -> None:
        """What was looked at, for people."""
        if self.read:
            call.note(f"the kept files of {counted(self.read, 'snapshot')} are whole")
        if self.elsewhere:
            call.note(f"the files of {counted(self.elsewhere, 'snapshot')} are not here: another ledger has them")


def absent_snapshots(ledger: Ledger, snapshots: Sequence[Snapshot]) -> list[str]:
    """The ids of those whose files are not here: another ledger has them, or they are lost."""
    references = [
        KeptReference(snapshot=snapshot.id, kind=snapshot.external_kind, id=snapshot.external_id, is_own=True)
        for snapshot in snapshots
        if snapshot.state is SnapshotState.OK
        and snapshot.external_kind is not None
        and snapshot.external_id is not None
    ]
    return [one.snapshot for one in kept_files(files_folder(ledger)).absent(references)] if references else []


def examine_git() -> Diagnosis:
    """Which git keeps the files of turns."""
    from weft.runtime.sandbox.own_git import dotted, find_git, git_version

    try:
        program = find_git(path=os.environ.get("PATH", ""))
    except Unsupported as why:
        return note("git", str(why), "turns are recorded without their files", why.advice)
    return good("git", f"{program}, {dotted(git_version(program))}, keeps the files of turns")


def examine_commands() -> Iterator[Diagnosis]:
    """Commands of the sandbox whose weft was killed, so that nobody looked at what they left. Changes nothing."""
    from weft.runtime.sandbox.leftovers import CommandNotes

    for command in CommandNotes(command_notes()).interrupted():
        began = local_time(round(command.seconds * 1000))
        yield warning(
            "commands",
            safe(f"a command in {command.workspace}, begun at {began}, was cut off: weft was killed"),
            "what git would obey of what it left is still there",
            f"weft sandbox run --in {shell_word(command.workspace)} -- true",
        )


def examine_toolchains() -> Iterator[Diagnosis]:
    """What of the home folder a command in the sandbox is shown here, and to what this folder leads that it is not."""
    from weft.runtime.sandbox.toolchain_places import PersonalHome
    from weft.runtime.sandbox.toolchains import find_toolchains

    here, settings = os.getcwd(), load_sandbox_settings()
    toolchains = find_toolchains(PersonalHome.of(os.environ.get), here, None, settings.readable)
    for row in toolchains.rows:
        yield good("toolchains", safe(f"{row.name} at {row.place}: {row.why}"))
    for program in toolchains.hidden:
        yield note("toolchains", safe(program.sentence))


def examine_files(ledger: Ledger) -> Iterator[Diagnosis]:
    """What is kept beside a ledger: how much, what is missing, and what somebody left there who died."""
    files, references = kept_files(files_folder(ledger)), ResourceLog(ledger).kept_references()
    absent = files.absent(references)
    lost = [reference for reference in absent if reference.is_own]
    if lost and files.origin is not None:
        yield note(
            "files", f"the files of {counted(len(lost), 'snapshot')} were left out of this copy", _at(files.origin)
        )
    elif lost:
        what = f"the files of {counted(len(lost), 'snapshot')} are not in {safe(str(files_folder(ledger)))}"
        yield error("files", what, "they cannot be brought back", "bring that folder back from a backup")
    if foreign := len(absent) - len(lost):
        yield note(
            "files", f"the files of {counted(foreign, 'snapshot')} of other ledgers are not here", "they stay there"
        )
    if not files.is_there:
        return
    here = {(reference.kind, reference.id) for reference in references} - {
        (reference.kind, reference.id) for reference in absent
    }
    size = size_text(files.size_bytes())
    yield good("files", f"{counted(len(here), 'state')} of resources kept beside the ledger, {size}")
    if unused := files.unused(references):
        what = f"{counted(len(unused), 'state')} kept there that no snapshot names"
        why = "whoever kept them died before that was recorded, or before they were thrown away"
        yield note("files", what, why, Action.FINISH_ERASURE)
    if begun := files.unfinished():
        why = "whoever was at them died, or is at them now"
        yield note("files", f"{counted(begun, 'unfinished restore')}, or removals", why, Action.RECONCILE_RESOURCES)


def _at(origin: str) -> str:
    return f"they are beside {safe(origin)}"


# --- `weft doctor`: what is wrong with a ledger, what to do, and what is here for talking to models.

STYLES = {
    DiagnosisSeverity.ERROR: "bad",
    DiagnosisSeverity.WARNING: "warn",
    DiagnosisSeverity.NOTE: "dim",
    DiagnosisSeverity.GOOD: "good",
}


@weft_command("doctor")
@click.option("--full", is_flag=True, help="Verify every fact and every view, too.")
@click.option("--strict", is_flag=True, help="Exit with 1 also for warnings.")
def doctor_command(call: Call, full: bool, strict: bool) -> int:
    """Explain what is wrong with a ledger, and what to do.

    It looks at the file, its place, who has it open, what was acknowledged, facts, views, open turns, imports, clocks
    and the kept files of turns, in whatever state they are, and changes nothing. Exits with 1 if there is an error.
    Beside the ledger it says what is here for talking to models and running code, and how to get what is not; that is
    never an error.

    docs/operating.md#the-doctor lists what it looks at.
    """
    findings: list[Diagnosis] = []
    for diagnosis in awaited(call, "doctor", _examined(call, full)):
        findings.append(diagnosis)
        if not call.json:
            _show(call, diagnosis)
    bad = sum(finding.grade is DiagnosisSeverity.ERROR for finding in findings)
    doubtful = sum(finding.grade is DiagnosisSeverity.WARNING for finding in findings)
    if call.json:
        call.document(Examination(ok=not bad, errors=bad, warnings=doubtful, findings=findings))
    elif bad or doubtful:
        call.note(f"{counted(bad, 'error')}, {counted(doubtful, 'warning')}")
    else:
        call.note("nothing is wrong" + ("" if full else "; `weft doctor --full` verifies everything"))
    return DIFFERENT if bad or (strict and doubtful) else OK


def _examined(call: Call, full: bool) -> Iterator[Diagnosis]:
    from weft.surfaces.opening import examine

    try:
        path = find_ledger(call.ledger)
    except LedgerMissing as missing:
        yield error("file", str(missing), "nothing can be opened", missing.advice)
    else:
        is_sound = True
        for diagnosis in examine(path, full=full):
            is_sound &= diagnosis.grade is not DiagnosisSeverity.ERROR
            yield diagnosis
        if is_sound:
            with suppress(LedgerTooOld):  # the next command upgrades it; the doctor changes nothing
                yield _trust(call, path)
                yield from _open_requests(call, path)
                with call.looking(path) as ledger:
                    yield from as_far_as_it_goes("files", partial(examine_files, ledger))
    yield examine_git()
    yield from as_far_as_it_goes("commands", examine_commands)
    yield from as_far_as_it_goes("toolchains", examine_toolchains)
    from weft.surfaces.cli.chat.conversation import examine_servers
    from weft.surfaces.cli.chat.models import examine_talking

    yield from examine_servers()
    yield from examine_talking(os.environ.get)


def _trust(call: Call, path: str) -> Diagnosis:
    """Whether this person lets the ledger act."""
    from weft.store.replicas import StoredTrust

    with call.looking(path) as ledger:
        trust = ledger.trust
        if trust.is_trusted or not isinstance(trust, StoredTrust):
            return good("trust", "you trust it: it may act for you")
        why = f"it may not act for you: {trust.doubt}"
    return note("trust", why, "reading and recording work", Action.TRUST_LEDGER.of(ledger=path))


def _open_requests(call: Call, path: str) -> Iterator[Diagnosis]:
    """Snapshots and restores that somebody asked for and nobody carried out."""
    from weft.ledger.api import ResourceLog

    with call.looking(path) as ledger:
        snapshots, restores = ResourceLog(ledger).pending()
    if snapshots or restores:
        open_ones = f"{counted(len(snapshots), 'snapshot')} and {counted(len(restores), 'restore')} of resources"
        why = "whoever asked for them ended before they were done, or is at them now"
        yield note("resources", f"{open_ones} are wanted and not done", why, Action.RECONCILE_RESOURCES)


def _show(call: Call, finding: Diagnosis) -> None:
    call.screen.show(
        Span(f"{finding.grade.value:<8}", STYLES[finding.grade]), Span(f"{finding.check:<12}", "dim"), finding.what
    )
    if finding.why:
        call.screen.show(" " * 20, Span(finding.why, "dim"))
    if mend := phrase(finding.advice):
        call.screen.show(" " * 20, "do: ", Span(mend, "heading"))


# --- `weft verify`: is everything as it was written?

_SHOWN = re.compile(r"^digest +([0-9a-f]{64})\r?\nreceipt +(\w{1,64}) ([0-9]{1,18}) ([0-9a-f]{64})\r?$", re.MULTILINE)
"""A receipt as `weft record` shows it; of several, the last one covers the most."""


@weft_command("verify")
@click.option("--facts-only", is_flag=True, help="Only events and contents against their hashes.")
@click.option("--views-only", is_flag=True, help="Only turns, sessions and the other views against the facts.")
@click.option("--files-only", is_flag=True, help="Only the kept files of turns against their hashes.")
@click.option(
    "--receipt",
    metavar="FILE",
    type=click.Path(),
    help="Also check the ledger against the receipt in FILE, which `weft record` printed.",
)
def verify_command(call: Call, facts_only: bool, views_only: bool, files_only: bool, receipt: str | None) -> int:
    """Check every fact, every view, and the kept files of turns.

    Exits with 1 if there is any problem.

    Each byte of the kept files (docs/branches.md#the-files-of-a-turn) is hashed, those that several snapshots have
    once. Files that another ledger keeps, or that were left out of a copy, are counted and are no problem.
    """
    if facts_only + views_only + files_only > 1:
        raise click.UsageError("--facts-only, --views-only and --files-only exclude each other")
    if files_only and receipt is not None:
        raise click.UsageError("a receipt is about facts: leave --files-only out")
    held = None if receipt is None else _read_receipt(receipt)
    problems: list[Problem] = []

    def show(problem: Problem) -> None:
        problems.append(problem)
        if not call.json:
            call.screen.show(Span(problem.what, "bad"), f" {problem.where}: {safe(problem.detail)}")

    with call.reading() as ledger, progress(call, "verify") as bar:
        if not files_only:
            for problem in ledger.verify(facts=not views_only, views=not facts_only, receipt=held, progress=bar.staged):
                show(problem)
        check = None if facts_only or views_only else FileCheck(ledger)
        for problem in () if check is None else check.problems():
            show(problem)
        erased = 0 if problems else ledger.upkeep.stats()["erased_contents"]
    read, elsewhere = (UNSET, UNSET) if check is None else (check.read, check.elsewhere)
    if problems:
        call.answer(Verification(ok=False, problems=problems, snapshots=read, files_elsewhere=elsewhere))
        mends = "Views: `weft rebuild` mends them. Facts and files: restore a backup."
        call.note(f"{counted(len(problems), 'problem')}. {mends}")
        return DIFFERENT
    answer = Verification(ok=True, problems=[], erased_contents=erased, snapshots=read, files_elsewhere=elsewhere)
    call.answer(answer, [Span("no problems", "good")])
    if check is not None:
        check.note_counts(call)
    if erased:
        call.note(f"{counted(erased, 'content')} erased: `weft erase --list` tells why")
    return OK


def _read_receipt(name: str) -> Receipt:
    data = read_input(name, "no receipt was given: name its FILE")
    if shown := _SHOWN.findall(data.decode("utf-8", "replace")):
        digest, replica, n, log = shown[-1]
        return Receipt(replica, int(n), log, digest)
    try:
        answer = msgspec.json.decode(data)
        return msgspec.convert(answer.get("receipt", answer) if isinstance(answer, dict) else answer, Receipt)
    except msgspec.DecodeError as error:
        raise InvalidInput(
            f"{name} is not a receipt: {error}", "keep what `weft record` answers, with --json or without"
        ) from error


# --- `weft rebuild`: every view from the facts.


@weft_command("rebuild")
def rebuild_command(call: Call) -> None:
    """Rebuild every view from the facts.

    Facts are never touched; readers go on meanwhile.
    """
    with call.writing() as ledger, progress(call, "rebuild") as bar:
        changed = ledger.upkeep.rebuild(progress=bar.staged)
    outcome = f"mended {counted(changed, 'row')}" if changed else "every view was right already"
    call.answer(RebuiltViews(changed=changed), [outcome])
