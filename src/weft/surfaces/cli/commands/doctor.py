"""`weft doctor`: what is wrong with a ledger, what to do, and what is here for talking to models."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import click

from weft.kernel.errors import Action, LedgerMissing, LedgerTooOld
from weft.store.port import Diagnosis, DiagnosisSeverity, as_far_as_it_goes, error, good, note
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.chat.readiness import examine_talking
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.exits import DIFFERENT, OK
from weft.surfaces.cli.figures import counted
from weft.surfaces.cli.file_checks import examine_commands, examine_files, examine_git, examine_toolchains
from weft.surfaces.cli.progress import awaited
from weft.surfaces.cli.screen import Span
from weft.surfaces.cli.user_files import find_ledger
from weft.surfaces.wire.hints import phrase
from weft.surfaces.wire.upkeep import Examination

STYLES = {
    DiagnosisSeverity.ERROR: "bad",
    DiagnosisSeverity.WARNING: "warn",
    DiagnosisSeverity.NOTE: "dim",
    DiagnosisSeverity.GOOD: "good",
}


@weft_command("doctor")
@click.option("--full", is_flag=True, help="Verify every fact and every view, too.")
@click.option("--strict", is_flag=True, help="Exit with 1 also for warnings.")
def command(call: Call, full: bool, strict: bool) -> int:
    """Explain what is wrong with a ledger, and what to do.

    It looks at the file, its place, who has it open, what was acknowledged, facts, views, open turns, imports, clocks
    and the kept files of turns, in whatever state they are, and changes nothing. Exits with 1 if there is an error.
    Beside the ledger it says what is here for talking to models and running code, and how to get what is not; that is
    never an error.
    """
    findings: list[Diagnosis] = []
    for diagnosis in awaited(call, "doctor", _examined(call, full)):
        findings.append(diagnosis)
        if not call.json:
            _show(call, diagnosis)
    bad = sum(one.grade is DiagnosisSeverity.ERROR for one in findings)
    doubtful = sum(one.grade is DiagnosisSeverity.WARNING for one in findings)
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
                yield from _wishes(call, path)
                with call.looking(path) as ledger:
                    yield from as_far_as_it_goes("files", partial(examine_files, ledger))
    yield examine_git()
    yield from as_far_as_it_goes("commands", examine_commands)
    yield from as_far_as_it_goes("toolchains", examine_toolchains)
    from weft.surfaces.cli.chat.servers import examine_servers

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


def _wishes(call: Call, path: str) -> Iterator[Diagnosis]:
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
