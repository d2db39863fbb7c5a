"""Information: held against its schema before anybody uses it."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from weft.kernel.errors import NotApplicable, SchemaMismatch
from weft.kernel.program_events import InformationActivated, InformationArchived, InformationValidated
from weft.ledger.views.program_rows import ProgramRow
from weft.ledger.views.values import json_of
from weft.programs.program_writer import ProgramWriter
from weft.programs.schemas import check_schema, problems_with
from weft.store.port import ReadTxn


def ensure_valid(clerk: ProgramWriter, row: ProgramRow) -> dict[str, Any]:
    """It fits its schema, and a schema is one; returns the fields that say by which it was checked."""
    config = clerk.config_of(row)
    if config.get("infoType") == "schema":
        check_schema(config.get("content"), "config.content")
    found = clerk.sql.one(
        "SELECT target, version FROM program_reference WHERE program = ? AND field = 'schema'", (row.id,)
    )
    if found is None:
        return {}
    schema = clerk.reload(found[0])
    version = schema.version if found[1] is None else int(found[1])
    problems = problems_with(config.get("content"), _content(clerk, schema, version), f"schema {schema.name!r}")
    if problems:
        raise SchemaMismatch(f"information {row.name!r}", problems)
    return {"schema": schema.id, "version": version}


def _content(clerk: ProgramWriter, schema: ProgramRow, version: int) -> Any:
    found = clerk.sql.one(
        "SELECT config FROM program_history WHERE program = ? AND version = ? AND config IS NOT NULL",
        (schema.id, version),
    )
    config = json_of(ReadTxn(clerk.sql, clerk.append.txn.facts), found[0]) if found else None
    if not isinstance(config, dict):
        raise NotApplicable(f"version {version} of schema {schema.name!r} is not here", "name another version of it")
    return config.get("content")


def validate(clerk: ProgramWriter, row: ProgramRow, reason: str | None = None) -> ProgramRow:
    clerk.permit("configure", f"validate the information {row.name!r}")
    clerk.ensure_legal(row, "validate")
    by = {"schema": UNSET, "version": UNSET, **ensure_valid(clerk, row)}
    return clerk.step(row, "validate", InformationValidated, **by, reason=clerk.reason(reason))


def activate(clerk: ProgramWriter, row: ProgramRow, reason: str | None = None) -> ProgramRow:
    clerk.permit("configure", f"activate the information {row.name!r}")
    return clerk.step(row, "activate", InformationActivated, reason=clerk.reason(reason))


def archive(clerk: ProgramWriter, row: ProgramRow, reason: str | None = None) -> ProgramRow:
    clerk.permit("configure", f"archive the information {row.name!r}")
    return clerk.step(row, "archive", InformationArchived, reason=clerk.reason(reason))
