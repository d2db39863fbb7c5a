"""What events mean for programs: their names, states, configurations and histories; and for tags.

A state only changes as its kind's machine allows: an event from elsewhere that does not fit leaves a line in the
history and the state as it is.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from weft.kernel import ledger_events as own
from weft.kernel import program_events as told
from weft.kernel.contents import showable
from weft.kernel.enums import ProgramKind
from weft.kernel.events import Event, kind_of
from weft.kernel.lifecycles import FIRST_STATES, next_state
from weft.ledger.arguments import LABEL_LIMIT, cleaned_label
from weft.ledger.views.program_rows import (
    PROGRAM,
    PROGRAM_HISTORY,
    REQUEST,
    HistoryEntry,
    ProgramRow,
    RequestRow,
    load_program,
    load_request,
)
from weft.ledger.views.projector import OTHERS, SESSIONS, Handler, Moment, Projector, handles, plain
from weft.ledger.views.rows import SessionRow

CREATED: dict[type[Event], ProgramKind] = {
    own.AgentCreated: ProgramKind.AGENT,
    told.CodeCreated: ProgramKind.CODE,
    told.ProviderCreated: ProgramKind.PROVIDER,
    told.ModelCreated: ProgramKind.MODEL,
    told.TaskCreated: ProgramKind.TASK,
    told.InformationCreated: ProgramKind.INFORMATION,
    told.HumanCreated: ProgramKind.HUMAN,
}
CONFIGURED: dict[type[Event], ProgramKind] = {
    told.AgentConfigured: ProgramKind.AGENT,
    told.CodeConfigured: ProgramKind.CODE,
    told.ProviderConfigured: ProgramKind.PROVIDER,
    told.ModelConfigured: ProgramKind.MODEL,
    told.TaskConfigured: ProgramKind.TASK,
    told.InformationUpdated: ProgramKind.INFORMATION,
    told.HumanConfigured: ProgramKind.HUMAN,
}
VERBS: dict[type[Event], str] = {
    told.ProgramPublished: "publish",
    told.ProgramDeprecated: "deprecate",
    told.AgentThinking: "think",
    told.AgentExecuting: "execute",
    told.AgentWaiting: "wait",
    told.AgentPaused: "pause",
    told.AgentResumed: "resume",
    told.AgentFailed: "fail",
    told.AgentCompleted: "complete",
    told.AgentReset: "reset",
    told.TaskStarted: "start",
    told.TaskBlocked: "block",
    told.TaskUnblocked: "unblock",
    told.TaskCompleted: "complete",
    told.TaskFailed: "fail",
    told.InformationValidated: "validate",
    told.InformationActivated: "activate",
    told.InformationArchived: "archive",
}
"""What an event does to its program's state. Of no other kind of program does it mean anything."""
SESSION_VERBS: dict[type[Event], str] = {
    told.SessionPaused: "pause",
    told.SessionResumed: "resume",
    told.SessionCompleted: "complete",
}


def _program(view: Projector, event: Event) -> ProgramRow | None:
    """The program that an event's stream belongs to."""
    stream = event.stream
    return load_program(view.sql, stream[8:]) if stream[:8] == "program:" else None


def _keep(view: Projector, moment: Moment, event: Event, row: ProgramRow, config: int | None = None) -> None:
    """The program's row as it is now, and a line of its history."""
    row.updated_at = max(row.updated_at, moment.when)
    PROGRAM.change(view.sql, (row,))
    _note(view, moment, event, (row.id, row.state, row.version), config)


def _note(view: Projector, moment: Moment, event: Event, now: tuple[str, str, int], config: int | None) -> None:
    reason = view.number(getattr(event, "reason", UNSET))
    program, state, version = now
    entry = HistoryEntry(
        n=moment.n,
        program=program,
        kind=kind_of(event),
        state=state,
        version=version,
        config=config,
        at=moment.when,
        actor=event.actor,
        reason=reason,
    )
    PROGRAM_HISTORY.add(view.sql, (entry,))


def _created(view: Projector, moment: Moment, event: Any) -> None:
    """The first one makes the program; another one in the same stream changes nothing."""
    kind, _, program = event.stream.partition(":")
    if kind != "program" or load_program(view.sql, program) is not None:
        return
    made = CREATED[type(event)]
    config = view.number(event.config)
    row = ProgramRow(
        id=program,
        kind=made,
        name=_free_name(view, program, event.name),
        state=FIRST_STATES[made],
        info_type=plain(getattr(event, "info_type", UNSET)),
        config=config,
        version=int(config is not None),
        applied=int(event.applied is True),
        created_at=moment.when,
        created_by=event.actor,
    )
    _refer(view, program, event)
    _keep(view, moment, event, row, config)


def _free_name(view: Projector, program: str, ref: str) -> str:
    text = view.contents.content_text(view.contents.number(ref)) or program
    name = showable(text[:LABEL_LIMIT])
    while view.sql.one("SELECT 1 FROM program WHERE name = ? AND deleted = 0", (name,)) is not None:
        name = f"{name} ({program})"
    return name


def _refer(view: Projector, program: str, event: Any) -> None:
    view.sql.run("DELETE FROM program_reference WHERE program = ?", (program,))
    for one in () if event.references is UNSET else event.references:
        view.sql.run(
            "INSERT INTO program_reference(program, field, target, version) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
            (program, one.field, one.program, plain(one.version)),
        )


def _configured(view: Projector, moment: Moment, event: Any) -> None:
    row = _program(view, event)
    if row is None or row.kind != CONFIGURED[type(event)]:
        return
    row.config = view.number(event.config)
    row.version += 1
    row.applied = int(event.applied is True) or row.applied
    row.info_type = plain(getattr(event, "info_type", row.info_type))
    _refer(view, row.id, event)
    _keep(view, moment, event, row, row.config)


def _stepped(view: Projector, moment: Moment, event: Any) -> None:
    row = _program(view, event)
    if row is None:
        return
    kind, verb = ProgramKind(row.kind), VERBS[type(event)]
    state = next_state(kind, row.state, verb, row.was)
    if state is not None and _belongs(event, kind):
        row.was = row.state if verb == "pause" else None
        row.state = state
        _follow(view, row, event)
    _keep(view, moment, event, row)


def _belongs(event: Event, kind: ProgramKind) -> bool:
    """`complete` and `fail` are verbs of several kinds; an event's first word says of which it tells."""
    first = kind_of(event).partition("_")[0]
    return first in ("program", kind)


def _follow(view: Projector, row: ProgramRow, event: Any) -> None:
    """What changes with the state."""
    if isinstance(event, told.AgentThinking):
        row.turns = (row.turns or 0) + 1
    elif isinstance(event, told.AgentCompleted | told.AgentReset):
        row.task = row.session = row.turns = row.checkpoint = row.saved = None
    elif isinstance(event, told.TaskCompleted):
        row.result = view.number(event.result)


def _deleted(view: Projector, moment: Moment, event: told.ProgramDeleted) -> None:
    row = _program(view, event)
    if row is None:
        return
    row.state = next_state(ProgramKind(row.kind), row.state, "deprecate") or row.state
    row.deleted = 1
    _keep(view, moment, event, row)


def _task_given(view: Projector, moment: Moment, event: told.AgentTaskAssigned) -> None:
    row = _program(view, event)
    if row is None:
        return
    row.task, row.session, row.turns = event.task, event.session, 0
    row.checkpoint = row.saved = None
    _keep(view, moment, event, row)


def _checkpoint(view: Projector, moment: Moment, event: told.AgentCheckpoint) -> None:
    row = _program(view, event)
    if row is None:
        return
    row.checkpoint, row.saved = event.turns, view.number(event.state)
    _keep(view, moment, event, row)


def _noted(view: Projector, moment: Moment, event: Event) -> None:
    """What changes nothing by itself: the configuration beside it says whose a task is."""
    row = _program(view, event)
    if row is not None:
        _keep(view, moment, event, row)


def _checked(view: Projector, moment: Moment, event: told.TaskChecked) -> None:
    row = _program(view, event)
    if row is None:
        return
    view.sql.run(
        "INSERT INTO task_check(n, task, criterion, type, passed, observed, version, at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            moment.n,
            row.id,
            event.criterion,
            event.type,
            int(event.passed),
            view.number(event.observed),
            row.version,
            moment.when,
        ),
    )
    _keep(view, moment, event, row)


def _presence(view: Projector, moment: Moment, event: told.HumanPresence) -> None:
    row = _program(view, event)
    if row is None:
        return
    if row.kind == ProgramKind.HUMAN:
        row.state = next_state(ProgramKind.HUMAN, row.state, event.presence) or row.state
    _keep(view, moment, event, row)


def _notified(view: Projector, moment: Moment, event: told.HumanNotified) -> None:
    row = _program(view, event)
    if row is None or load_request(view.sql, event.request) is not None:
        return
    request = RequestRow(
        id=event.request,
        human=row.id,
        text=view.number(event.text),
        asks=int(event.asks),
        program=plain(event.program),
        data=view.number(event.data),
        status="pending" if event.asks else "told",
        asked_by=event.actor,
        asked_at=moment.when,
    )
    REQUEST.add(view.sql, (request,))
    _keep(view, moment, event, row)


def _answered(view: Projector, moment: Moment, event: told.HumanApproved | told.HumanRejected) -> None:
    """The first answer counts."""
    row, request = _program(view, event), load_request(view.sql, event.request)
    if row is None:
        return
    if request is not None and request.human == row.id and request.status == "pending":
        request.status = "approved" if isinstance(event, told.HumanApproved) else "rejected"
        request.decided_at, request.reason = moment.when, view.number(event.reason)
        REQUEST.change(view.sql, (request,))
    _keep(view, moment, event, row)


ROOMS: dict[Handler, tuple[type[Event], ...]] = {
    _created: tuple(CREATED),
    _configured: tuple(CONFIGURED),
    _stepped: tuple(VERBS),
    _deleted: (told.ProgramDeleted,),
    _task_given: (told.AgentTaskAssigned,),
    _checkpoint: (told.AgentCheckpoint,),
    _noted: (told.TaskAssigned,),
    _checked: (told.TaskChecked,),
    _presence: (told.HumanPresence,),
    _notified: (told.HumanNotified,),
    _answered: (told.HumanApproved, told.HumanRejected),
}
for _handler, _kinds in ROOMS.items():
    for _kind in _kinds:
        handles(_kind, OTHERS)(_handler)


@handles(told.SessionConfigured, SESSIONS)
def _session_configured(view: Projector, moment: Moment, event: told.SessionConfigured) -> None:
    row: SessionRow = moment.row
    row.config = view.number(event.config)
    row.config_version += 1
    models = [one.program for one in plain(event.references) or () if one.field == "default_model"]
    row.model = models[0] if models else None
    _note(view, moment, event, (row.id, row.lifecycle, row.config_version), row.config)


@handles(told.SessionModelSwitched, SESSIONS)
def _model_switched(view: Projector, moment: Moment, event: told.SessionModelSwitched) -> None:
    row: SessionRow = moment.row
    row.model = event.model
    _note(view, moment, event, (row.id, row.lifecycle, row.config_version), None)


def _session_stepped(view: Projector, moment: Moment, event: Event) -> None:
    row: SessionRow = moment.row
    row.lifecycle = next_state(ProgramKind.SESSION, row.lifecycle, SESSION_VERBS[type(event)]) or row.lifecycle
    _note(view, moment, event, (row.id, row.lifecycle, row.config_version), None)


for _kind in SESSION_VERBS:
    handles(_kind, SESSIONS)(_session_stepped)


@handles(own.NodeTagged, OTHERS)
def _tagged(view: Projector, moment: Moment, event: own.NodeTagged) -> None:
    for tag in _tags(view, event):
        view.sql.run(
            "INSERT INTO node_tag(node, tag, tagged_at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
            (event.node, tag, moment.when),
        )


@handles(own.NodeUntagged, OTHERS)
def _untagged(view: Projector, moment: Moment, event: own.NodeUntagged) -> None:
    for tag in _tags(view, event):
        view.sql.run("DELETE FROM node_tag WHERE node = ? AND tag = ?", (event.node, tag))


def _tags(view: Projector, event: own.NodeTagged | own.NodeUntagged) -> list[str]:
    """As people can type them, whoever wrote them; those whose words were erased are gone."""
    texts = (view.contents.content_text(view.contents.number(ref)) for ref in event.tags)
    return [tag for text in texts if text and (tag := cleaned_label(text))]
