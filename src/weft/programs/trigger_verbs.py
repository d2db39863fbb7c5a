"""The verbs of triggers: paused and resumed, and what they did."""

from __future__ import annotations

from weft.kernel.enums import ProgramKind
from weft.ledger.api import Firing, MissedTimes, listed_firings, listed_gaps
from weft.ledger.arguments import checked_count
from weft.programs.kinds import trigger as triggers
from weft.programs.lookups import find
from weft.programs.model import Program
from weft.programs.program_base import ProgramsBase


class TriggerVerbs(ProgramsBase):
    """What is done with triggers, and what they did."""

    def step_trigger(self, trigger: str, verb: str, *, reason: str | None = None, key: str | None = None) -> Program:
        """pause or resume. What sets a paused trigger off is passed over."""
        return self._change(
            "step_trigger",
            lambda writer: triggers.step(writer, writer.require(trigger, ProgramKind.TRIGGER), verb, reason),
            key,
            trigger,
            verb,
            reason,
        )

    def trigger_firings(self, trigger: str, *, limit: int = 20) -> list[Firing]:
        """For what a trigger fired here, the newest first, with what became of its messages."""
        most = checked_count(limit, "limit")
        with self._reading() as txn:
            return listed_firings(txn, find(txn, trigger, [ProgramKind.TRIGGER]).id, most)

    def missed_times(self, trigger: str, *, limit: int = 20) -> list[MissedTimes]:
        """Times of its schedule at which a trigger did not fire here, the newest first."""
        most = checked_count(limit, "limit")
        with self._reading() as txn:
            return listed_gaps(txn, find(txn, trigger, [ProgramKind.TRIGGER]).id, most)
