"""The table of kinds: what can be done with a program is looked up in its kind's row."""

from __future__ import annotations

from typing import Any

from weft.kernel.errors import InvalidInput, quoted
from weft.ledger.views.rows import ProgramRow, SessionRow
from weft.programs.kinds.agent import AGENT
from weft.programs.kinds.code import CODE
from weft.programs.kinds.human import HUMAN
from weft.programs.kinds.information import INFORMATION
from weft.programs.kinds.kind import KindRow
from weft.programs.kinds.model import MODEL
from weft.programs.kinds.provider import PROVIDER
from weft.programs.kinds.session import SESSION
from weft.programs.kinds.task import TASK
from weft.programs.kinds.toolset import TOOLSET
from weft.programs.kinds.trigger import TRIGGER

ROWS: tuple[KindRow, ...] = (CODE, PROVIDER, MODEL, SESSION, AGENT, TASK, INFORMATION, HUMAN, TOOLSET, TRIGGER)
KINDS: dict[str, KindRow] = {kind.name: kind for kind in ROWS}


def checked_kind(name: Any) -> KindRow:
    """The kind of this name, as somebody gave it."""
    if not isinstance(name, str) or name not in KINDS:
        raise InvalidInput(f"there is no kind of program {quoted(name)}", f"one of {', '.join(KINDS)}")
    return KINDS[name]


def kind_of_row(row: ProgramRow | SessionRow) -> KindRow:
    return SESSION if isinstance(row, SessionRow) else KINDS[row.kind]
