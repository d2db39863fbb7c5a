"""Configurations that came from another ledger: what they name of a machine is that machine's, not this one's.

Whoever is pulled from must not choose which variables of this machine go to which server, nor which commands run in
which of its folders. Such a program works once somebody here has taken it over: has looked at it, and configured it
themselves, be it with the same words.
"""

from __future__ import annotations

from typing import Any

import orjson

from weft.kernel.advice import Action, Advice
from weft.kernel.errors import NotApplicable
from weft.programs.kinds.table import KINDS
from weft.programs.model import Program
from weft.store.facts import local_value
from weft.store.port import ReadTxn
from weft.store.replica_names import last_event_as


def is_foreign(txn: ReadTxn, kind: str, program: str, version: int, config: Any) -> bool:
    """Whether this version names variables, a folder or commands, and was not written in this ledger."""
    return KINDS[kind].names_machine(config) and not _is_written_here(txn, program, version)


def _is_written_here(txn: ReadTxn, program: str, version: int) -> bool:
    entry = txn.sql.one(
        "SELECT max(n) FROM program_history WHERE program = ? AND version = ? AND config IS NOT NULL",
        (program, version),
    )
    if entry is None or entry[0] is None:
        return False
    line = txn.facts.line(entry[0])
    if line is None:  # it is being written right now
        return True
    replica = orjson.loads(line).get("replica")
    return replica == local_value(txn.sql, "replica") or last_event_as(txn.sql, str(replica)) >= int(entry[0])


def taking_over(program: Program) -> Advice:
    return Action.TAKE_OVER_PROGRAM.of(program=program.name, version=program.version)


def ensure_own(program: Program) -> None:
    """Its folder and its commands are those of somebody here."""
    if program.foreign:
        raise NotApplicable(
            f"{program.kind} {program.name!r} names a folder or commands, and was configured in another ledger",
            taking_over(program),
        )
