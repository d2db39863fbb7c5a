"""Which version of a configuration counts here: the newest that this ledger wrote, or that somebody here took over.

A version that another ledger wrote is kept and shown, and nothing uses it: not its server, its variables, its folder,
its commands, its model, its rights. A program that only others configured cannot be used until one of its versions is
taken over, or somebody here configures it.
"""

from __future__ import annotations

from msgspec import Struct

from weft.kernel.errors import Action, Advice, NotApplicable
from weft.ledger.views.rows import ProgramRow, SessionRow
from weft.programs.model import Program
from weft.programs.vouching import ensure_vouched
from weft.store.port import ReadTxn
from weft.store.replicas import AuthoredEvent, authored_event, counts

SESSION_MODEL_KINDS = ("session_configured", "session_model_switched")


class CountedVersion(Struct, frozen=True):
    """The version of a program's configuration that counts here; where none does, the newest that others wrote."""

    n: int
    config: int | None
    version: int
    is_foreign: bool = False
    """No version counts: this one is what another ledger says."""
    pending: int | None = None
    """The newest version, where another ledger wrote it and nobody here has taken it over."""


NO_VERSION = CountedVersion(0, None, 0)


def counted_version(txn: ReadTxn, program: str) -> CountedVersion:
    rows = txn.sql.all(
        "SELECT n, config, version FROM program_history WHERE program = ? AND config IS NOT NULL ORDER BY n DESC",
        (program,),
    )
    for n, config, version in rows:
        if counts(txn, n):
            return CountedVersion(n, config, version, pending=None if version == rows[0][2] else rows[0][2])
    if not rows:
        return NO_VERSION
    n, config, version = rows[0]
    return CountedVersion(n, config, version, is_foreign=True, pending=version)


def is_counted(txn: ReadTxn, program: str, version: int) -> bool:
    """Whether this very version of a configuration was written or taken over here."""
    entry = txn.sql.one(
        "SELECT max(n) FROM program_history WHERE program = ? AND version = ? AND config IS NOT NULL",
        (program, version),
    )
    return entry is None or entry[0] is None or counts(txn, entry[0])


def newest_counts(txn: ReadTxn, program: str, kind: str) -> bool:
    """Whether the newest event of this kind in a program's history was written or taken over here."""
    entry = txn.sql.one("SELECT max(n) FROM program_history WHERE program = ? AND kind = ?", (program, kind))
    return entry is not None and entry[0] is not None and counts(txn, entry[0])


def counted_session_model(txn: ReadTxn, session: SessionRow) -> str | None:
    """The id of the model that a session was given here, or by what was taken over here."""
    if session.model is None and session.config is None:
        return None
    kinds = ", ".join("?" * len(SESSION_MODEL_KINDS))
    rows = txn.sql.all(
        f"SELECT n FROM program_history WHERE program = ? AND kind IN ({kinds}) ORDER BY n DESC",
        (session.id, *SESSION_MODEL_KINDS),
    )
    for (n,) in rows:
        event = authored_event(txn, n)
        if event is None:  # it is being written right now, and the row has its model
            return session.model
        if event.counts:
            return event.fields["model"] if "model" in event.fields else _referred(event, "default_model")
    return None


def _referred(event: AuthoredEvent, field: str) -> str | None:
    targets = referred_by(event, field)
    return targets[0] if targets else None


def referred_by(event: AuthoredEvent, field: str) -> list[str]:
    """The ids of the programs that the configuration of an event names in this field."""
    references = event.fields.get("references") or ()
    return [reference["program"] for reference in references if reference.get("field") == field]


def counted_references(txn: ReadTxn, program: ProgramRow, field: str) -> list[str]:
    """The ids of the programs that its counted configuration names in this field."""
    counted = counted_version(txn, program.id)
    if counted.is_foreign:
        return []
    event = None if counted.version == program.version else authored_event(txn, counted.n)
    if event is not None:
        return sorted(referred_by(event, field))
    query = "SELECT target FROM program_reference WHERE program = ? AND field = ? ORDER BY target"
    return [target for (target,) in txn.sql.all(query, (program.id, field))]


def taking_over(program: Program | ProgramRow) -> Advice:
    return Action.TAKE_OVER_PROGRAM.of(program=program.name)


def ensure_own(program: Program) -> Program:
    """Somebody here configured it, or took it over, and may name of the machine what they named. A program without any
    configuration is only a name."""
    if program.foreign:
        raise only_foreign(program)
    return ensure_vouched(program)


def only_foreign(program: Program | ProgramRow) -> NotApplicable:
    return NotApplicable(
        f"{program.kind} {program.name!r} was configured in another ledger, and nobody here has taken that over",
        taking_over(program),
    )
