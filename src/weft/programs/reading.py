"""Programs as they are and as they were: rows made readable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.kernel.advice import Action
from weft.kernel.contents import ERASED
from weft.kernel.enums import ProgramKind
from weft.kernel.errors import NotFound
from weft.ledger.read.sessions import agent_names
from weft.ledger.views.program_rows import (
    PROGRAM,
    PROGRAM_HISTORY,
    REQUEST,
    HistoryEntry,
    ProgramRow,
    RequestRow,
    load_program,
)
from weft.ledger.views.rows import SESSION, SessionRow, load_session
from weft.ledger.views.values import json_of, text_of
from weft.programs.foreign import is_foreign
from weft.programs.model import Check, Program, ProgramChange, Request
from weft.programs.program_writer import find_any, name_in
from weft.programs.tags import tags_of
from weft.store.port import ReadTxn


def find(txn: ReadTxn, name: str, kinds: Sequence[ProgramKind] = ()) -> ProgramRow | SessionRow:
    """By name, address or ulid. A deleted program is found by its ulid alone."""
    wanted = name_in(txn.sql, name)
    found = find_any(txn.sql, wanted)
    kind = None if found is None else _kind(found)
    if found is None or (kinds and kind not in kinds):
        raise NotFound(" or ".join(kinds) or "program", wanted, Action.LIST_PROGRAMS)
    return found


def _kind(row: ProgramRow | SessionRow) -> ProgramKind:
    return ProgramKind(row.kind) if isinstance(row, ProgramRow) else ProgramKind.SESSION


def to_program(txn: ReadTxn, row: ProgramRow | SessionRow, version: int | None = None) -> Program:
    made = _of_session(txn, row) if isinstance(row, SessionRow) else _of_row(txn, row)
    if version is None or version == made.version:
        return made
    config = _version(txn, row.id, made.name, version)
    foreign = is_foreign(txn, made.kind, row.id, version, config)
    return Program(**{**_fields(made), "config": config, "version": version, "foreign": foreign})


def _fields(program: Program) -> dict[str, Any]:
    return {name: getattr(program, name) for name in program.__struct_fields__}


def _version(txn: ReadTxn, program: str, name: str, version: int) -> Any:
    found = txn.sql.one(
        "SELECT config FROM program_history WHERE program = ? AND version = ? AND config IS NOT NULL",
        (program, version),
    )
    if found is None:
        raise NotFound("version", f"{name}:{version}", Action.LIST_VERSIONS)
    return json_of(txn, found[0])


def _of_row(txn: ReadTxn, row: ProgramRow) -> Program:
    task = load_program(txn.sql, row.task) if row.task else None
    session = load_session(txn.sql, row.session) if row.session else None
    config = json_of(txn, row.config)
    return Program(
        id=row.id,
        name=row.name,
        kind=ProgramKind(row.kind),
        state=row.state,
        config=config,
        version=row.version,
        tags=tags_of(txn.sql, row.id),
        created_at=row.created_at,
        updated_at=row.updated_at,
        created_by=agent_names(txn.sql, [row.created_by])[row.created_by],
        deleted=bool(row.deleted),
        applied=bool(row.applied),
        foreign=is_foreign(txn, row.kind, row.id, row.version, config),
        current_task=task.name if task else row.task,
        current_session=session.label if session else row.session,
        turn_count=row.turns,
        last_checkpoint=row.checkpoint,
        result=text_of(txn, row.result),
    )


def _of_session(txn: ReadTxn, row: SessionRow) -> Program:
    """Its owner and model stand in its configuration, whoever put them there."""
    owner = agent_names(txn.sql, [row.persona])[row.persona]
    kept = json_of(txn, row.config) or {}
    model = load_program(txn.sql, row.model) if row.model else None
    named = {} if model is None or "defaultModel" in (kept if kept != ERASED else {}) else {"defaultModel": model.name}
    config = kept if kept == ERASED else {"owner": f"@({owner})", **kept, **named}
    return Program(
        id=row.id,
        name=row.label,
        kind=ProgramKind.SESSION,
        state=row.lifecycle,
        config=config,
        version=row.config_version,
        tags=tags_of(txn.sql, row.id),
        created_at=row.created_at,
        updated_at=row.updated_at,
        created_by=owner,
        deleted=row.status == "deleted",
    )


def list_programs(
    txn: ReadTxn, kind: ProgramKind | None, states: Sequence[str] = (), *, deleted: bool = False
) -> list[Program]:
    """By kind, then name."""
    found: list[Program] = []
    if kind is not ProgramKind.SESSION:
        where = "kind = ?" if kind else "kind <> ?"
        hidden = "" if deleted else " AND deleted = 0"
        rows = txn.sql.all(f"{PROGRAM.select} WHERE {where}{hidden} ORDER BY kind, name, id", (kind or "",))
        found += [_of_row(txn, ProgramRow(*row)) for row in rows]
    if kind in (None, ProgramKind.SESSION):
        hidden = "" if deleted else " WHERE status <> 'deleted'"
        rows = txn.sql.all(f"{SESSION.select}{hidden} ORDER BY label, n")
        found += [_of_session(txn, SessionRow(*row)) for row in rows]
    return [one for one in found if not states or one.state in states]


def history(txn: ReadTxn, row: ProgramRow | SessionRow) -> list[ProgramChange]:
    """Newest first."""
    rows = txn.sql.all(f"{PROGRAM_HISTORY.select} WHERE program = ? ORDER BY n DESC", (row.id,))
    entries = [HistoryEntry(*one) for one in rows]
    names = agent_names(txn.sql, (one.actor for one in entries))
    return [
        ProgramChange(
            n=one.n,
            kind=one.kind,
            state=one.state,
            version=one.version,
            at=one.at,
            actor=names[one.actor],
            reason=text_of(txn, one.reason),
            config=json_of(txn, one.config),
        )
        for one in entries
    ]


def checks_of(txn: ReadTxn, task: ProgramRow) -> list[Check]:
    """Every verdict, the oldest first."""
    rows = txn.sql.all(
        "SELECT criterion, type, passed, observed, version, at FROM task_check WHERE task = ? ORDER BY n", (task.id,)
    )
    return [
        Check(criterion=a, type=b, passed=bool(c), observed=json_of(txn, d), version=e, at=f)
        for a, b, c, d, e, f in rows
    ]


def requests(txn: ReadTxn, human: ProgramRow | None, status: str | None) -> list[Request]:
    """The oldest first."""
    conditions = {"human = ?": human.id if human else None, "status = ?": status}
    given = {text: value for text, value in conditions.items() if value is not None}
    where = " WHERE " + " AND ".join(given) if given else ""
    rows = txn.sql.all(f"{REQUEST.select}{where} ORDER BY asked_at, id", tuple(given.values()))
    return [to_request(txn, RequestRow(*row)) for row in rows]


def to_request(txn: ReadTxn, row: RequestRow) -> Request:
    program = load_program(txn.sql, row.program) if row.program else None
    names = agent_names(txn.sql, (row.human, row.asked_by))
    return Request(
        id=row.id,
        human=names[row.human],
        text=text_of(txn, row.text),
        asks=bool(row.asks),
        status=row.status,
        asked_by=names[row.asked_by],
        asked_at=row.asked_at,
        program=program.name if program else None,
        data=json_of(txn, row.data),
        decided_at=row.decided_at,
        reason=text_of(txn, row.reason),
    )


def saved_state(txn: ReadTxn, agent: ProgramRow) -> Any:
    return json_of(txn, agent.saved)
