"""Programs made, configured, published, deprecated and deleted: what all kinds have in common."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from weft.kernel.advice import Action
from weft.kernel.enums import ProgramKind
from weft.kernel.errors import InvalidInput, LabelTaken, NotAllowed, NotApplicable, NotFound
from weft.kernel.events import Event
from weft.kernel.ledger_events import AgentCreated
from weft.kernel.program_events import (
    AgentConfigured,
    CodeConfigured,
    CodeCreated,
    HumanConfigured,
    HumanCreated,
    InformationCreated,
    InformationUpdated,
    ModelConfigured,
    ModelCreated,
    ProgramDeleted,
    ProgramDeprecated,
    ProgramPublished,
    ProviderConfigured,
    ProviderCreated,
    TaskAssigned,
    TaskConfigured,
    TaskCreated,
)
from weft.ledger.views.program_rows import ProgramRow, find_program
from weft.ledger.views.values import json_of
from weft.programs import information, tasks
from weft.programs.addresses import checked_name
from weft.programs.configs import ACTORS, checked_config
from weft.programs.foreign import is_foreign
from weft.programs.json_values import is_same
from weft.programs.program_writer import ProgramWriter, granted
from weft.store.port import ReadTxn

CREATED: dict[ProgramKind, type[Event]] = {
    ProgramKind.CODE: CodeCreated,
    ProgramKind.PROVIDER: ProviderCreated,
    ProgramKind.MODEL: ModelCreated,
    ProgramKind.AGENT: AgentCreated,
    ProgramKind.TASK: TaskCreated,
    ProgramKind.INFORMATION: InformationCreated,
    ProgramKind.HUMAN: HumanCreated,
}
CONFIGURED: dict[ProgramKind, type[Event]] = {
    ProgramKind.CODE: CodeConfigured,
    ProgramKind.PROVIDER: ProviderConfigured,
    ProgramKind.MODEL: ModelConfigured,
    ProgramKind.AGENT: AgentConfigured,
    ProgramKind.TASK: TaskConfigured,
    ProgramKind.INFORMATION: InformationUpdated,
    ProgramKind.HUMAN: HumanConfigured,
}
PUBLISHED_KINDS = (ProgramKind.CODE, ProgramKind.PROVIDER, ProgramKind.MODEL)
ENDED = ("deprecated", "completed", "failed")


def create(
    clerk: ProgramWriter, kind: ProgramKind, name: str, config: Any, *, draft: bool = False, applied: bool = False
) -> ProgramRow:
    """A new program, in use unless it is to stay a draft. An agent that was only named so far is described now."""
    clerk.permit("configure", f"create the {kind} {name!r}")
    if kind is ProgramKind.SESSION:
        raise InvalidInput("a session is made by create_session", Action.CREATE_SESSION)
    checked_name(name)
    checked = checked_config(kind, config)
    _permit_grants(clerk, kind, None, {}, checked)
    there = find_program(clerk.sql, name)
    if there is not None and not there.deleted:
        if kind is ProgramKind.AGENT and there.kind == kind and there.version == 0:
            return configure(clerk, there, checked, applied=applied)
        raise LabelTaken(name, f"a {there.kind}")
    program = clerk.append.ulids.mint()
    fields = _fields(clerk, kind, checked, applied)
    stream = clerk.new_stream(kind, program)
    stream.add(CREATED[kind], name=clerk.append.put_text(name, "name"), **fields)
    row = clerk.reload(program)
    return _settle(clerk, row, None, checked, draft)


def _fields(clerk: ProgramWriter, kind: ProgramKind, config: dict[str, Any], applied: bool) -> dict[str, Any]:
    fields = {**clerk.referred(kind, config), "applied": True if applied else UNSET}
    if kind is ProgramKind.INFORMATION:
        fields["info_type"] = config["infoType"]
    return fields


def _settle(
    clerk: ProgramWriter, row: ProgramRow, before: dict[str, Any] | None, config: dict[str, Any], draft: bool
) -> ProgramRow:
    """What follows from a new configuration, in the same append."""
    kind = ProgramKind(row.kind)
    if kind is ProgramKind.TASK:
        row = tasks.follow_config(clerk, row, before or {}, config)
    if before is None and not draft:
        if kind in PUBLISHED_KINDS:
            row = clerk.step(row, "publish", ProgramPublished)
        elif kind is ProgramKind.INFORMATION:
            row = information.activate(clerk, information.validate(clerk, row))
    return row


def configure(
    clerk: ProgramWriter,
    row: ProgramRow,
    config: Any,
    *,
    expected: int | None = None,
    reason: str | None = None,
    reverts: int | None = None,
    applied: bool = False,
) -> ProgramRow:
    """Another configuration, whole. One that is the same changes nothing, unless it takes a foreign one over."""
    kind = ProgramKind(row.kind)
    clerk.permit("configure", f"configure the {kind} {row.name!r}")
    clerk.ensure_version(row.name, expected, row.version)
    if row.state in ENDED:
        raise NotApplicable(f"{kind} {row.name!r} is {row.state}", "make a new one; what it was stays in its history")
    checked = checked_config(kind, config)
    txn = ReadTxn(clerk.sql, clerk.append.txn.facts)
    before = json_of(txn, row.config)
    if row.version and is_same(before, checked) and not is_foreign(txn, row.kind, row.id, row.version, before):
        return row
    _permit_grants(clerk, kind, row, before if isinstance(before, dict) else {}, checked)
    fields = _fields(clerk, kind, checked, applied)
    reverting = UNSET if reverts is None else reverts
    row = clerk.add(row, CONFIGURED[kind], **fields, reverts=reverting, reason=clerk.reason(reason))
    if kind is ProgramKind.INFORMATION and row.state != "draft":
        information.ensure_valid(clerk, row)
    return _settle(clerk, row, before if isinstance(before, dict) else {}, checked, draft=True)


def _permit_grants(
    clerk: ProgramWriter, kind: ProgramKind, row: ProgramRow | None, before: dict[str, Any], config: dict[str, Any]
) -> None:
    """Nobody gives a right that they lack, and nobody changes their own."""
    if kind not in ACTORS or before.get("permissions") == config.get("permissions"):
        return
    if row is not None and row.id in clerk.append.acting_ids:
        raise NotAllowed("configure", [clerk.actor_name], "change its own permissions", "somebody else must do it")
    for right in sorted(set(granted(config)) - set(granted(before))):
        clerk.permit(right, f"give the permission {right!r}, which it lacks")


def revert(
    clerk: ProgramWriter, row: ProgramRow, version: int, *, expected: int | None, reason: str | None
) -> ProgramRow:
    """The configuration of an earlier version again, as a new one."""
    found = clerk.sql.one(
        "SELECT config FROM program_history WHERE program = ? AND version = ? AND config IS NOT NULL", (row.id, version)
    )
    if found is None:
        raise NotFound("version", f"{row.name}:{version}", Action.LIST_VERSIONS)
    config = json_of(ReadTxn(clerk.sql, clerk.append.txn.facts), found[0])
    if not isinstance(config, dict):
        raise NotApplicable(f"version {version} of {row.name!r} was erased", "choose another version")
    return configure(clerk, row, config, expected=expected, reason=reason, reverts=version)


def publish(clerk: ProgramWriter, row: ProgramRow, reason: str | None) -> ProgramRow:
    clerk.permit("configure", f"publish {row.name!r}")
    return clerk.step(row, "publish", ProgramPublished, reason=clerk.reason(reason))


def deprecate(clerk: ProgramWriter, row: ProgramRow, reason: str | None) -> ProgramRow:
    clerk.permit("configure", f"deprecate {row.name!r}")
    return clerk.step(row, "deprecate", ProgramDeprecated, reason=clerk.reason(reason))


def delete(clerk: ProgramWriter, row: ProgramRow, *, expected: int | None, reason: str | None) -> ProgramRow:
    """Hidden, its name free again; one that others name and need stays."""
    clerk.permit("configure", f"delete {row.name!r}")
    clerk.ensure_version(row.name, expected, row.version)
    users = clerk.users_of(row)
    if users:
        raise NotApplicable(
            f"{row.kind} {row.name!r} is named by {', '.join(map(repr, users[:5]))}", "configure or delete these first"
        )
    return clerk.add(row, ProgramDeleted, reason=clerk.reason(reason))


def assign(
    clerk: ProgramWriter, task: ProgramRow, assignee: ProgramRow | None, reason: str | None = None
) -> ProgramRow:
    """A task becomes somebody's, or nobody's."""
    clerk.permit("assign", f"assign the task {task.name!r}")
    config = clerk.config_of(task)
    name = None if assignee is None else f"@({assignee.name})"
    if config.get("assignee") == name:
        return task
    if task.state in ENDED:
        raise NotApplicable(f"task {task.name!r} is {task.state}", "make a new task")
    changed = {field: value for field, value in config.items() if field != "assignee"}
    changed |= {} if name is None else {"assignee": name}
    fields = clerk.referred(ProgramKind.TASK, changed)
    clerk.add(task, TaskConfigured, **fields, reason=clerk.reason(reason))
    return clerk.add(task, TaskAssigned, assignee=None if assignee is None else assignee.id)
