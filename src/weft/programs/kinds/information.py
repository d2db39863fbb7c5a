"""Information: facts, schemas, workflows and patterns, held against a schema before anybody uses them."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from weft.kernel import program_events
from weft.kernel.enums import InfoType, ProgramKind, ReferenceField
from weft.kernel.errors import NotApplicable, SchemaMismatch
from weft.kernel.program_events import InformationValidated
from weft.ledger.views.rows import ProgramRow, json_of
from weft.programs.addresses import parse_address
from weft.programs.config_fields import anything, member, reference, reference_list
from weft.programs.foreign import is_counted, only_foreign
from weft.programs.json_values import check_schema, problems_with
from weft.programs.kinds.kind import Config, KindRow, ReferenceRule
from weft.programs.machine_names import NOTHING
from weft.programs.program_writer import ProgramWriter


def ensure_valid(writer: ProgramWriter, row: ProgramRow) -> dict[str, Any]:
    """It fits its schema, and a schema is one; returns the fields that say by which it was checked."""
    config = writer.config_of(row)
    if config.get("infoType") == "schema":
        check_schema(config.get("content"), "config.content")
    schemas = writer.references_of(row.id, ReferenceField.SCHEMA)
    if not schemas:
        return {}
    schema = writer.reload(schemas[0])
    version = parse_address(config["schema"]).version or writer.version_of(schema)
    problems = problems_with(config.get("content"), _content(writer, schema, version), f"schema {schema.name!r}")
    if problems:
        raise SchemaMismatch(f"information {row.name!r}", problems)
    return {"schema": schema.id, "version": version}


def _content(writer: ProgramWriter, schema: ProgramRow, version: int) -> Any:
    if not is_counted(writer.reading, schema.id, version):
        raise only_foreign(schema)
    content = writer.sql.one(
        "SELECT config FROM program_history WHERE program = ? AND version = ? AND config IS NOT NULL",
        (schema.id, version),
    )
    config = json_of(writer.reading, content[0]) if content else None
    if not isinstance(config, dict):
        raise NotApplicable(f"version {version} of schema {schema.name!r} is not here", "name another version of it")
    return config.get("content")


def validate(writer: ProgramWriter, row: ProgramRow, reason: str | None = None) -> ProgramRow:
    writer.permit_configuring(f"validate the information {row.name!r}", row)
    writer.ensure_legal(row, "validate")
    schema = {"schema": UNSET, "version": UNSET, **ensure_valid(writer, row)}
    return writer.step(row, "validate", InformationValidated, **schema, reason=writer.reason(reason))


def activate(writer: ProgramWriter, row: ProgramRow, reason: str | None = None) -> ProgramRow:
    writer.permit_configuring(f"activate the information {row.name!r}", row)
    return writer.take_step(row, "activate", reason)


def archive(writer: ProgramWriter, row: ProgramRow, reason: str | None = None) -> ProgramRow:
    writer.permit_configuring(f"archive the information {row.name!r}", row)
    return writer.take_step(row, "archive", reason)


def _follow_config(writer: ProgramWriter, row: ProgramRow, before: Config, config: Config) -> ProgramRow:
    """A draft is held against its schema when it is validated, what is in use whenever it changes."""
    if row.state != "draft":
        ensure_valid(writer, row)
    return row


def _info_type(config: Config) -> Config:
    return {"info_type": config["infoType"]}


INFORMATION = KindRow(
    facts=program_events.INFORMATION,
    required=("infoType", "content"),
    fields={"infoType": member(*InfoType), "content": anything, "schema": reference, "sources": reference_list},
    machine=dict.fromkeys(("infoType", "content", "schema", "sources"), NOTHING),
    references={
        "schema": ReferenceRule(ReferenceField.SCHEMA, (ProgramKind.INFORMATION,)),
        "sources": ReferenceRule(ReferenceField.SOURCE),
    },
    event_fields=_info_type,
    follow_config=_follow_config,
    file_states=("draft", "validated", "active", "archived"),
    state_in_use="active",
    steps={"draft": validate, "validated": activate, "active": archive, "archived": activate},
)
