"""The programs of a ledger: every verb on what acts or is acted with. Thread-safe."""

from __future__ import annotations

from collections.abc import Sequence

from weft.kernel.authority import Authority
from weft.ledger.api import Lease
from weft.ledger.arguments import checked_list, checked_record
from weft.programs.apply import PlannedProgram, apply
from weft.programs.information_verbs import InformationVerbs
from weft.programs.pending_verbs import PendingVerbs
from weft.programs.program_files import WantedProgram
from weft.programs.program_verbs import ProgramVerbs
from weft.programs.trigger_verbs import TriggerVerbs
from weft.programs.work_verbs import WorkVerbs


class Programs(ProgramVerbs, WorkVerbs, InformationVerbs, TriggerVerbs, PendingVerbs):
    """Programs of one open ledger, changed in the name that the ledger acts in."""

    def acting_as(self, who: Authority | str, hold: Lease | None = None) -> Programs:
        """The same programs, changed in the name of somebody else: an authority, or the name of an agent or a person;
        with a hold of an agent, only while it lasts."""
        return Programs(self.ledger.acting_as(who), hold)

    def apply(
        self, wanted: Sequence[WantedProgram], *, prune: bool = False, dry_run: bool = False, key: str | None = None
    ) -> list[PlannedProgram]:
        """Many programs as files describe them (`weft.programs.program_files`), in one append; what was done, or would
        be."""
        programs = [checked_record(program, WantedProgram, "wanted") for program in checked_list(wanted, "wanted")]
        return apply(self._writer, programs, prune=prune, dry_run=dry_run, key=key)
