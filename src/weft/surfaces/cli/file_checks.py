"""The files beside a ledger, which `weft verify` checks, and the other files that `weft doctor` looks at."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from weft.kernel.enums import SnapshotState
from weft.kernel.errors import Action, Unsupported
from weft.kernel.typed_names import shell_word
from weft.ledger.api import KeptReference, Ledger, Problem, ResourceLog, Snapshot
from weft.store.port import Diagnosis, error, good, note, warning
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.figures import counted, size_text
from weft.surfaces.cli.interrupted_commands import command_notes
from weft.surfaces.cli.resource_access import files_folder, kept_files
from weft.surfaces.cli.sandbox_access import load_sandbox_settings
from weft.surfaces.cli.times import local_time
from weft.surfaces.plain_text import safe


class FileCheck:
    """Compares what snapshots hold with its hashes. Files of other ledgers need not be here."""

    def __init__(self, ledger: Ledger) -> None:
        self._kept = kept_files(files_folder(ledger))
        self._references = ResourceLog(ledger).kept_references()
        self.read = self.elsewhere = 0

    def problems(self) -> Iterator[Problem]:
        absent = {one.snapshot for one in self._kept.absent(self._references) if self._may_be_elsewhere(one)}
        wanted = [one for one in self._references if one.snapshot not in absent]
        self.elsewhere, self.read = len(absent), len(wanted)
        for one in self._kept.problems(wanted):
            yield Problem("files", f"snapshot {one.reference.snapshot}", one.why)

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
        KeptReference(snapshot=one.id, kind=one.external_kind, id=one.external_id, is_own=True)
        for one in snapshots
        if one.state is SnapshotState.OK and one.external_kind is not None and one.external_id is not None
    ]
    return [one.snapshot for one in kept_files(files_folder(ledger)).absent(references)] if references else []


def examine_git() -> Diagnosis:
    """Which git keeps the files of turns."""
    from weft.runtime.sandbox.git_program import dotted, find_git, git_version

    try:
        program = find_git(path=os.environ.get("PATH", ""))
    except Unsupported as why:
        return note("git", str(why), "turns are recorded without their files", why.advice)
    return good("git", f"{program}, {dotted(git_version(program))}, keeps the files of turns")


def examine_commands() -> Iterator[Diagnosis]:
    """Commands of the sandbox whose weft was killed, so that nobody looked at what they left. Changes nothing."""
    from weft.runtime.sandbox.interrupted_commands import CommandNotes

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
    kept, references = kept_files(files_folder(ledger)), ResourceLog(ledger).kept_references()
    absent = kept.absent(references)
    lost = [one for one in absent if one.is_own]
    if lost and kept.origin is not None:
        yield note(
            "files", f"the files of {counted(len(lost), 'snapshot')} were left out of this copy", _at(kept.origin)
        )
    elif lost:
        what = f"the files of {counted(len(lost), 'snapshot')} are not in {safe(str(files_folder(ledger)))}"
        yield error("files", what, "they cannot be brought back", "bring that folder back from a backup")
    if foreign := len(absent) - len(lost):
        yield note(
            "files", f"the files of {counted(foreign, 'snapshot')} of other ledgers are not here", "they stay there"
        )
    if not kept.is_there:
        return
    here = {(one.kind, one.id) for one in references} - {(one.kind, one.id) for one in absent}
    size = size_text(kept.size_bytes())
    yield good("files", f"{counted(len(here), 'state')} of resources kept beside the ledger, {size}")
    if unused := kept.unused(references):
        what = f"{counted(len(unused), 'state')} kept there that no snapshot names"
        why = "whoever kept them died before that was recorded, or before they were thrown away"
        yield note("files", what, why, Action.FINISH_ERASURE)
    if begun := kept.unfinished():
        why = "whoever was at them died, or is at them now"
        yield note("files", f"{counted(begun, 'unfinished restore')}, or removals", why, Action.RECONCILE_RESOURCES)


def _at(origin: str) -> str:
    return f"they are beside {safe(origin)}"
