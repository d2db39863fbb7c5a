"""Which agents are system agents here: those that this ledger made itself.

What an event of another ledger says of an agent's system kind is kept and decides nothing, even where somebody here
took the agent over: otherwise whoever sends facts could have messages routed by an agent of theirs.
"""

from __future__ import annotations

from weft.kernel.enums import SystemAgentKind
from weft.ledger.views.program_rows import PROGRAM, ProgramRow
from weft.store.authorship import authored_event
from weft.store.port import ReadTxn


def system_kind_of(txn: ReadTxn, program: ProgramRow | None) -> str | None:
    """What a system agent of this ledger is for; None for every other program."""
    if program is None or program.system_kind is None:
        return None
    first = txn.sql.one("SELECT min(n) FROM program_history WHERE program = ?", (program.id,))
    if first is None or first[0] is None:
        return None
    event = authored_event(txn, first[0])
    return program.system_kind if event is None or event.is_own else None  # None: it is being written right now


def find_system_agent(txn: ReadTxn, kind: SystemAgentKind) -> ProgramRow | None:
    """The first system agent of a kind that this ledger made."""
    query = f"{PROGRAM.select} WHERE system_kind = ? AND deleted = 0 ORDER BY created_at, id"
    rows = (ProgramRow(*row) for row in txn.sql.all(query, (kind.value,)))
    return next((row for row in rows if system_kind_of(txn, row) is not None), None)
