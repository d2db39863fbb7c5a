"""Sessions as programs: the ledger's own sessions, with a configuration, and paused, resumed and completed."""

from __future__ import annotations

from typing import Any

from weft.kernel.enums import ProgramKind, SessionStatus
from weft.kernel.errors import IllegalTransition, LabelTaken, NotApplicable
from weft.kernel.events import Event
from weft.kernel.ledger_events import SessionArchived
from weft.kernel.lifecycles import legal_verbs, next_state
from weft.kernel.program_events import (
    SessionCompleted,
    SessionConfigured,
    SessionModelSwitched,
    SessionPaused,
    SessionResumed,
)
from weft.ledger.arguments import checked_label
from weft.ledger.views.program_rows import find_program
from weft.ledger.views.rows import SessionRow
from weft.ledger.write.placement import create_session
from weft.programs.configs import checked_config
from weft.programs.json_values import is_same
from weft.programs.program_writer import ProgramWriter

STEPS: dict[str, type[Event]] = {"pause": SessionPaused, "resume": SessionResumed, "complete": SessionCompleted}


def create(clerk: ProgramWriter, label: str | None, owner: str, config: Any) -> SessionRow:
    """A session of one's own, or with the right to configure somebody else's."""
    found = find_program(clerk.sql, owner)
    clerk.permit("configure", f"make a session of {owner!r}", None if found is None else found.id)
    return make(clerk, label, owner, config)


def make(clerk: ProgramWriter, label: str | None, owner: str, config: Any, *, task: str | None = None) -> SessionRow:
    """A session of the ledger; without a label it goes by the end of its id."""
    checked = checked_config(ProgramKind.SESSION, config)
    clerk.ensure_allowed(ProgramKind.SESSION)
    append = clerk.append
    name = f"session-{append.ulids.mint()[-8:].lower()}" if label is None else checked_label(label)
    if append.view.find_session(name) is not None:
        raise LabelTaken(name, "a session")
    fields = {} if task is None else {"task_description": append.put_text(task, "task")}
    row = create_session(append, name, persona=owner, actor=clerk.actor, **fields)
    return _configured(clerk, row, checked) if checked else row


def configure(clerk: ProgramWriter, row: SessionRow, config: Any, expected: int | None = None) -> SessionRow:
    clerk.permit("configure", f"configure the session {row.label!r}", row.persona)
    clerk.ensure_version(row.label, expected, row.config_version)
    if row.lifecycle == "completed":
        raise NotApplicable(f"session {row.label!r} is completed", "fork it, or make a new session")
    return _configured(clerk, row, checked_config(ProgramKind.SESSION, config))


def _configured(clerk: ProgramWriter, row: SessionRow, checked: dict[str, Any]) -> SessionRow:
    before = row.model
    if is_same(clerk.config_of(row), checked):
        return row
    stream = clerk.session_stream(row)
    first = row.config_version == 0
    stream.add(SessionConfigured, **clerk.referred(ProgramKind.SESSION, checked))
    row = clerk.append.view.session(row.id)
    if row.model is not None and row.model != before and not first:
        stream.add(SessionModelSwitched, model=row.model)
    return row


def step(clerk: ProgramWriter, row: SessionRow, verb: str, reason: str | None) -> SessionRow:
    clerk.permit("configure", f"{verb} the session {row.label!r}", row.persona)
    if next_state(ProgramKind.SESSION, row.lifecycle, verb) is None:
        ways = {way: to for way, to in legal_verbs(ProgramKind.SESSION, row.lifecycle).items() if way != "begin"}
        raise IllegalTransition(ProgramKind.SESSION, row.label, row.lifecycle, verb, ways)
    clerk.session_stream(row).add(STEPS[verb], reason=clerk.reason(reason))
    return row


def delete(clerk: ProgramWriter, row: SessionRow, *, expected: int | None, reason: str | None) -> SessionRow:
    """Its label goes; its turns stay, and it can be restored."""
    clerk.permit("configure", f"delete the session {row.label!r}", row.persona)
    clerk.ensure_version(row.label, expected, row.config_version)
    stream = clerk.session_stream(row)
    stream.add(SessionArchived, status=SessionStatus.DELETED, reason=clerk.reason(reason))
    return row
