"""The rows of the programs' views, and how they are found."""

from __future__ import annotations

from msgspec import Struct

from weft.kernel.labels import normal_form
from weft.kernel.program_kinds import PROGRAM_KINDS
from weft.ledger.views.rows import Table
from weft.store.sql import Sql


class ProgramRow(Struct, gc=False):
    """The row of a program."""

    id: str
    kind: str
    name: str
    state: str
    was: str | None = None
    info_type: str | None = None
    config: int | None = None
    version: int = 0
    deleted: int = 0
    applied: int = 0
    created_at: int = 0
    updated_at: int = 0
    created_by: str = "local"
    task: str | None = None
    session: str | None = None
    turns: int | None = None
    checkpoint: int | None = None
    saved: int | None = None
    result: int | None = None
    system_kind: str | None = None
    """What a system agent is for."""


class HistoryEntry(Struct, gc=False):
    """The row of a change of a program: its configuration or state from then on."""

    n: int
    program: str
    kind: str
    state: str
    version: int
    config: int | None
    at: int
    actor: str
    reason: int | None


class RequestRow(Struct, gc=False):
    """The row of what a person was told or asked."""

    id: str
    human: str
    text: int | None
    asks: int
    program: str | None
    data: int | None
    status: str
    asked_by: str
    asked_at: int
    decided_at: int | None = None
    reason: int | None = None


PROGRAM = Table("program", ProgramRow, ("id",), ("kind", "name", "created_at", "created_by", "system_kind"))
PROGRAM_HISTORY = Table("program_history", HistoryEntry, ("n",))
REQUEST = Table("human_request", RequestRow, ("id",))


def load_program(sql: Sql, program: str) -> ProgramRow | None:
    row = sql.one(f"{PROGRAM.select} WHERE id = ?", (program,))
    return ProgramRow(*row) if row else None


def find_program(sql: Sql, name: str) -> ProgramRow | None:
    """By the name of a living one, then by id."""
    name = normal_form(name)
    row = sql.one(f"{PROGRAM.select} WHERE name = ? AND deleted = 0", (name,))
    return ProgramRow(*row) if row else load_program(sql, name)


def agent_id(sql: Sql, name: str) -> str | None:
    """The id of a program that can act, by name or id; of a name that only deleted ones had, the last of these."""
    name = normal_form(name)
    kinds = [facts.name for facts in PROGRAM_KINDS.values() if facts.acts]
    row = sql.one(
        f"SELECT id FROM program WHERE (name = ? OR id = ?) AND kind IN ({', '.join('?' * len(kinds))})"
        " ORDER BY deleted, updated_at DESC, id DESC LIMIT 1",
        (name, name, *kinds),
    )
    return str(row[0]) if row else None


def load_request(sql: Sql, request: str) -> RequestRow | None:
    row = sql.one(f"{REQUEST.select} WHERE id = ?", (request,))
    return RequestRow(*row) if row else None
