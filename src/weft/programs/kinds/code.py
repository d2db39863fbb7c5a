"""Code: a source text in one of three languages, run in the sandbox when it is invoked."""

from __future__ import annotations

from weft.kernel import program_kinds
from weft.programs.config_fields import filled, member
from weft.programs.kinds import published
from weft.programs.kinds.kind import KindRow

LANGUAGES = ("javascript", "typescript", "python")

CODE = KindRow(
    facts=program_kinds.CODE,
    required=("source",),
    fields={"language": member(*LANGUAGES), "source": filled},
    file_states=published.FILE_STATES,
    state_in_use=published.STATE_IN_USE,
    steps=published.STEPS,
    ended_states=published.ENDED_STATES,
)
