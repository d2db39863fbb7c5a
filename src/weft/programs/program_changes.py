"""Creates, configures, reverts and deletes programs of any kind, inside one append. Their kind's row says the rest."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from weft.kernel.errors import Action, InvalidInput, LabelTaken, NotAllowed, NotApplicable, NotFound
from weft.kernel.program_events import ProgramDeleted
from weft.ledger.api import cancel_deliveries_to
from weft.ledger.read.access import granted
from weft.ledger.views.rows import ProgramRow, find_program, json_of
from weft.programs.addresses import checked_name
from weft.programs.foreign import counted_version
from weft.programs.json_values import is_same
from weft.programs.kinds.kind import KindRow
from weft.programs.kinds.table import kind_of_row
from weft.programs.lookups import to_program
from weft.programs.machine_names import MACHINE_PREFIX
from weft.programs.program_writer import ProgramWriter


def create(
    writer: ProgramWriter, kind: KindRow, name: str, config: Any, *, draft: bool = False, applied: bool = False
) -> ProgramRow:
    """A new program, in use unless it is to stay a draft. An agent that was only named so far is described now."""
    if not kind.is_made_by_everybody:
        writer.permit_creating(f"create the {kind.name} {name!r}", name)
    if kind.facts.stream != "program":
        raise InvalidInput(f"a {kind.name} is made by create_{kind.name}", Action.CREATE_SESSION)
    name = checked_name(name)
    checked = kind.checked_config(config)
    kind.refuse_name(name, checked)
    permit_grants(writer, kind, None, {}, checked)
    writer.permit_machine_change(kind.name, name, kind.machine_changes({}, checked), kind.keeps_machine({}, checked))
    row = find_program(writer.sql, name)
    if row is not None and not row.deleted:
        if row.kind == kind.name and row.version == 0 and writer.append.access.may_read_program(row):
            return configure(writer, row, checked, applied=applied)
        raise LabelTaken(name, f"a {row.kind}" if writer.append.access.may_read_program(row) else "taken")
    program = writer.append.ulids.mint()
    fields = _event_fields(writer, kind, checked, applied)
    stream = writer.new_stream(kind.name, program)
    stream.add(kind.facts.created, name=writer.append.put_text(name, "name"), **fields)
    row = kind.follow_config(writer, writer.reload(program), {}, checked)
    return row if draft else kind.put_in_use(writer, row)


def _event_fields(writer: ProgramWriter, kind: KindRow, config: dict[str, Any], applied: bool) -> dict[str, Any]:
    return {**kind.config_event_fields(writer, config), "applied": True if applied else UNSET}


def configure(
    writer: ProgramWriter,
    row: ProgramRow,
    config: Any,
    *,
    expected: int | None = None,
    reason: str | None = None,
    reverts: int | None = None,
    applied: bool = False,
    given: Any = None,
) -> ProgramRow:
    """Another configuration, whole. One that is the same as what counts here changes nothing, unless it vouches for
    what somebody set who may not: `given` is the part of it that whoever acts says themselves."""
    kind = kind_of_row(row)
    writer.permit_configuring(f"configure the {kind.name} {row.name!r}", row)
    writer.ensure_version(row.name, expected, writer.version_of(row))
    if row.state in kind.ended_states:
        raise NotApplicable(
            f"{kind.name} {row.name!r} is {row.state}", "make a new one; what it was stays in its history"
        )
    activity = to_program(writer.reading, row).activity
    checked = kind.checked_config(config, writer.earlier_configs(row.id), activity)
    kind.refuse_name(row.name, checked)
    counted = counted_version(writer.reading, row.id)
    own = None if counted.is_foreign else json_of(writer.reading, counted.config)
    row = _vouched_for(writer, kind, row, own, checked, given)
    if counted.version and is_same(own, checked):
        return row
    before = own if isinstance(own, dict) else {}
    permit_grants(writer, kind, row, before, checked)
    refuse_hidden_system_agent(writer, row, before, checked)
    changes = kind.machine_changes(before, checked)
    writer.permit_machine_change(kind.name, row.name, changes, kind.keeps_machine(before, checked))
    fields = _event_fields(writer, kind, checked, applied)
    reverting = UNSET if reverts is None else reverts
    row = writer.add(row, kind.facts.configured, **fields, reverts=reverting, reason=writer.reason(reason))
    return kind.follow_config(writer, row, before, checked)


def _vouched_for(
    writer: ProgramWriter, kind: KindRow, row: ProgramRow, own: Any, checked: dict[str, Any], given: Any
) -> ProgramRow:
    """A version with the same configuration, where whoever acts names what stands in it and was set by somebody who may
    not: from then on it was set by them."""
    if not isinstance(own, dict):
        return row
    names = writer.names_to_vouch_for(kind, row, own, checked, given)
    if not names:
        return row
    writer.permit_machine(kind.name, row.name, names)
    return writer.add(row, kind.facts.configured, **_event_fields(writer, kind, own, bool(row.applied)))


def permit_grants(
    writer: ProgramWriter, kind: KindRow, row: ProgramRow | None, before: dict[str, Any], config: dict[str, Any]
) -> None:
    """Nobody gives a right that they lack, and nobody changes their own."""
    if not kind.facts.acts or before.get("permissions") == config.get("permissions"):
        return
    if row is not None and row.id in writer.append.acting_ids:
        raise NotAllowed("configure", [writer.actor_name], "change its own permissions", "somebody else must do it")
    for right in sorted(set(granted(config)) - set(granted(before))):
        writer.permit(right, f"give the permission {right!r}, which it lacks")
        if right.startswith(MACHINE_PREFIX):
            writer.append.authority.ensure_allowed(right)


def refuse_hidden_system_agent(
    writer: ProgramWriter, row: ProgramRow, before: dict[str, Any], config: dict[str, Any]
) -> None:
    """Whoever may configure a program says who sees it, but for an agent that the ledger made itself."""
    if (before.get("visibility") == "private") != (config.get("visibility") == "private"):
        writer.refuse_system_agent(row, "it is there for everybody")


def revert(
    writer: ProgramWriter, row: ProgramRow, version: int, *, expected: int | None, reason: str | None
) -> ProgramRow:
    """The configuration of an earlier version again, as a new one."""
    entry = writer.sql.one(
        "SELECT config FROM program_history WHERE program = ? AND version = ? AND config IS NOT NULL", (row.id, version)
    )
    if entry is None:
        raise NotFound("version", f"{row.name}:{version}", Action.LIST_VERSIONS)
    config = json_of(writer.reading, entry[0])
    if not isinstance(config, dict):
        raise NotApplicable(f"version {version} of {row.name!r} was erased", "choose another version")
    return configure(writer, row, config, expected=expected, reason=reason, reverts=version)


def delete(writer: ProgramWriter, row: ProgramRow, *, expected: int | None, reason: str | None) -> ProgramRow:
    """Hidden, its name free again; one that others name and need stays. Messages of conversations that wait for a
    deleted agent leave its inboxes."""
    writer.permit_configuring(f"delete {row.name!r}", row)
    writer.refuse_system_agent(row, "it stays, and takes part in every room")
    writer.ensure_version(row.name, expected, writer.version_of(row))
    users = writer.users_of(row)
    if users:
        raise NotApplicable(
            f"{row.kind} {row.name!r} is named by {', '.join(map(repr, users[:5]))}", "configure or delete these first"
        )
    deleted = writer.add(row, ProgramDeleted, reason=writer.reason(reason))
    cancel_deliveries_to(writer.append, row.id)
    return deleted
