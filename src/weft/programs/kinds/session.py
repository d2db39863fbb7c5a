"""Sessions as programs: the ledger's own sessions, with a configuration, paused, resumed and completed.

Their rows are the ledger's, not those of the other kinds: they are created, configured and deleted here.
"""

from __future__ import annotations

from typing import Any

from weft.kernel import program_events
from weft.kernel.enums import ProgramKind, ReferenceField, SessionStatus
from weft.kernel.errors import IllegalTransition, InvalidConfig, NotApplicable
from weft.kernel.ledger_events import SessionArchived
from weft.kernel.program_events import SessionConfigured, SessionModelSwitched, legal_verbs, next_state
from weft.ledger.api import agent_names, end_worker
from weft.ledger.arguments import checked_label
from weft.ledger.model import DEFAULT_AGENT
from weft.ledger.views.rows import SessionRow
from weft.ledger.write.turn_events import create_session, ensure_label_free
from weft.programs.addresses import parse_address
from weft.programs.config_fields import COMPACTION, Fields, filled, reference
from weft.programs.json_values import is_same
from weft.programs.kinds.kind import Config, KindRow, ReferenceRule
from weft.programs.kinds.turn_defaults import (
    LIMIT_CHECKS,
    MODEL_CONFIG,
    MODEL_CONFIG_CHECK,
    TURN_MACHINE,
    with_changed_model,
    with_one_model,
)
from weft.programs.machine_names import FOLDER, NOTHING
from weft.programs.program_writer import ProgramWriter

VERBS = tuple(program_events.SESSION.steps)


SESSION = KindRow(
    facts=program_events.SESSION,
    fields={
        "owner": reference,
        "defaultModel": reference,
        MODEL_CONFIG: MODEL_CONFIG_CHECK,
        "permissions": Fields(LIMIT_CHECKS),
        "logFile": filled,
        "workspace": filled,
        "toolset": filled,
        "compaction": COMPACTION,
    },
    references={
        "owner": ReferenceRule(ReferenceField.OWNER, (ProgramKind.AGENT, ProgramKind.HUMAN), (DEFAULT_AGENT,)),
        "defaultModel": ReferenceRule(ReferenceField.DEFAULT_MODEL, (ProgramKind.MODEL,)),
    },
    normalized=with_one_model,
    changed=with_changed_model,
    machine={**TURN_MACHINE, "owner": NOTHING, "logFile": FOLDER, "workspace": FOLDER},
    ended_states=("completed",),
)


def create(writer: ProgramWriter, label: str | None, owner: str | None, config: Any) -> SessionRow:
    """A session of one's own, or with the right to configure somebody else's. Its owner is the one that is given, else
    the one that its configuration names, else whoever acts."""
    checked = SESSION.checked_config(config)
    named = checked.get("owner")
    if named is not None and owner is not None and parse_address(named).name != owner:
        raise InvalidConfig("config.owner", f"{named} is another than {owner!r}", "name one owner")
    if named is not None:
        writer.ensure_references(SESSION.named_programs({"owner": named}))
        owner = parse_address(named).name
    owner = owner or writer.actor_name
    writer.permit_owner(f"make a session of {owner!r}", owner)
    return create_unchecked(writer, label, owner, checked)


def create_unchecked(
    writer: ProgramWriter,
    label: str | None,
    owner: str,
    config: Any,
    *,
    task: str | None = None,
    may_choose_files: bool = False,
) -> SessionRow:
    """A session of the ledger, whoever acts; without a label it goes by the end of its id. `may_choose_files` says that
    somebody who may has chosen its folder."""
    writer.ensure_allowed(SESSION.name)
    checked = SESSION.checked_config(config)
    append = writer.append
    name = f"session-{append.ulids.mint()[-8:].lower()}" if label is None else checked_label(label)
    ensure_label_free(append, name)
    fields = {} if task is None else {"task_description": append.put_text(task, "task")}
    row = create_session(append, name, persona=owner, actor=writer.actor, **fields)
    return _configured(writer, row, checked, may_choose_files=may_choose_files)


def configure(
    writer: ProgramWriter, row: SessionRow, config: Any, expected: int | None = None, *, given: Any = None
) -> SessionRow:
    """`given` is the part of the configuration that whoever acts says themselves."""
    writer.permit_session(f"configure the session {row.label!r}", row)
    writer.ensure_version(row.label, expected, writer.version_of(row))
    if row.lifecycle in SESSION.ended_states:
        raise NotApplicable(f"session {row.label!r} is completed", "fork it, or make a new session")
    checked = SESSION.checked_config(config, writer.earlier_configs(row.id))
    return _configured(writer, _vouched_for(writer, row, checked, given), checked)


def _vouched_for(writer: ProgramWriter, row: SessionRow, checked: Config, given: Any) -> SessionRow:
    """The same configuration once more, where whoever acts names what somebody set in it who may not."""
    own = writer.config_of(row)
    names = writer.names_to_vouch_for(SESSION, row, own, checked, given)
    if not names:
        return row
    writer.permit_machine(SESSION.name, row.label, names)
    writer.session_stream(row).add(SessionConfigured, **SESSION.config_event_fields(writer, own))
    return writer.append.view.session(row.id)


def shown_config(writer: ProgramWriter, row: SessionRow) -> Config:
    """Its configuration as it is shown: with its owner, whether or not that is configured."""
    return {"owner": _persona_address(writer, row), **writer.config_of(row)}


def _persona_address(writer: ProgramWriter, row: SessionRow) -> str:
    return f"@({agent_names(writer.sql, [row.persona])[row.persona]})"


def _configured(
    writer: ProgramWriter, row: SessionRow, checked: Config, *, may_choose_files: bool = False
) -> SessionRow:
    """The persona that a session was made for is its owner without being configured as one."""
    before = writer.config_of(row)
    if checked.get("owner") == _persona_address(writer, row):
        checked = {name: value for name, value in checked.items() if name != "owner"}
    if is_same(before, checked):
        return row
    _permit_changes(writer, row, before, checked, may_choose_files=may_choose_files)
    stream, model = writer.session_stream(row), row.model
    first = row.config_version == 0
    stream.add(SessionConfigured, **SESSION.config_event_fields(writer, checked))
    row = writer.append.view.session(row.id)
    if row.model is not None and row.model != model and not first:
        stream.add(SessionModelSwitched, model=row.model)
    return row


def _permit_changes(
    writer: ProgramWriter, row: SessionRow, before: Config, config: Config, *, may_choose_files: bool
) -> None:
    """Nobody gives a session to somebody else without the right to configure; an agent does not choose files, and does
    not change permissions that were set."""
    if not may_choose_files:
        is_kept = SESSION.machine_names(before) == SESSION.machine_names(config)
        writer.permit_machine_change(SESSION.name, row.label, SESSION.machine_changes(before, config), is_kept)
    if "permissions" in before:
        what = f"change the permissions of the session {row.label!r}"
        writer.permit_person(before["permissions"], config.get("permissions"), what)
    owner = config.get("owner")
    if owner is not None and owner != before.get("owner"):
        writer.permit_owner(f"give a session to {owner}", parse_address(owner).name)


def step(writer: ProgramWriter, row: SessionRow, verb: str, reason: str | None) -> SessionRow:
    writer.permit_session(f"{verb} the session {row.label!r}", row)
    if next_state(SESSION.name, row.lifecycle, verb) is None:
        targets = {way: to for way, to in legal_verbs(SESSION.name, row.lifecycle).items() if way in VERBS}
        raise IllegalTransition(SESSION.name, row.label, row.lifecycle, verb, targets)
    writer.session_stream(row).add(SESSION.facts.steps[verb], reason=writer.reason(reason))
    return row


def delete(writer: ProgramWriter, row: SessionRow, *, expected: int | None, reason: str | None) -> SessionRow:
    """Its label goes; its turns stay, and it can be restored."""
    writer.permit_session(f"delete the session {row.label!r}", row)
    writer.ensure_version(row.label, expected, writer.version_of(row))
    stream = writer.session_stream(row)
    stream.add(SessionArchived, status=SessionStatus.DELETED, reason=writer.reason(reason))
    end_worker(writer.append, writer.append.view.session(row.id))
    return row
