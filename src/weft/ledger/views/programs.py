"""What events mean for programs: their names, states, configurations and histories; and for tags.

A state only changes as its kind's machine allows: an event from elsewhere that does not fit leaves a line in the
history and the state as it is.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from weft.kernel import ledger_events, program_events
from weft.kernel.events import Event, kind_of
from weft.kernel.labels import visible_form
from weft.kernel.program_kinds import HUMAN, PROGRAM_KINDS, SESSION, KindFacts, next_state
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
from weft.ledger.views.rows import NAMED_PERSONAS, SessionRow

_KIND_OF: dict[type[Event], str] = {}
"""The kind of program that an event creates or configures."""


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
    facts = PROGRAM_KINDS[_KIND_OF[type(event)]]
    config = view.number(event.config)
    row = ProgramRow(
        id=program,
        kind=facts.name,
        name=_free_name(view, program, event.name),
        state=facts.first_state,
        info_type=plain(getattr(event, "info_type", UNSET)),
        system_kind=plain(getattr(event, "system_kind", UNSET)),
        config=config,
        version=int(config is not None),
        applied=int(event.applied is True),
        created_at=moment.when,
        created_by=event.actor,
    )
    view.sql.add(NAMED_PERSONAS, [(row.id, row.name)])
    _refer(view, program, event)
    _keep(view, moment, event, row, config)


def _free_name(view: Projector, program: str, ref: str) -> str:
    text = view.contents.content_text(view.contents.number(ref)) or program
    name = visible_form(text[:LABEL_LIMIT])
    while view.sql.one("SELECT 1 FROM program WHERE name = ? AND deleted = 0", (name,)) is not None:
        name = f"{name} ({program})"
    return name


def _refer(view: Projector, program: str, event: Any) -> None:
    view.sql.run("DELETE FROM program_reference WHERE program = ?", (program,))
    for reference in () if event.references is UNSET else event.references:
        view.sql.run(
            "INSERT INTO program_reference(program, field, target, version) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
            (program, reference.field, reference.program, plain(reference.version)),
        )


def _configured(view: Projector, moment: Moment, event: Any) -> None:
    row = _program(view, event)
    if row is None or row.kind != _KIND_OF[type(event)]:
        return
    row.config = view.number(event.config)
    row.version += 1
    row.applied = int(event.applied is True) or row.applied
    row.info_type = plain(getattr(event, "info_type", row.info_type))
    _refer(view, row.id, event)
    _keep(view, moment, event, row, row.config)


def _stepped(view: Projector, moment: Moment, event: Any) -> None:
    """A step of another kind's lifecycle, or one that does not fit the state, only leaves a line in the history."""
    row = _program(view, event)
    if row is None:
        return
    verb = PROGRAM_KINDS[row.kind].verb_of(type(event))
    state = None if verb is None else next_state(row.kind, row.state, verb, row.was)
    if state is not None:
        row.was = row.state if verb == "pause" else None
        row.state = state
        _follow(view, row, event)
    _keep(view, moment, event, row)


def _follow(view: Projector, row: ProgramRow, event: Any) -> None:
    """What changes with the state."""
    if isinstance(event, program_events.AgentThinking):
        row.turns = (row.turns or 0) + 1
    elif isinstance(event, program_events.AgentCompleted | program_events.AgentReset):
        row.task = row.session = row.turns = row.checkpoint = row.saved = None
    elif isinstance(event, program_events.TaskCompleted):
        row.result = view.number(event.result)


def _deleted(view: Projector, moment: Moment, event: program_events.ProgramDeleted) -> None:
    row = _program(view, event)
    if row is None:
        return
    row.state = next_state(row.kind, row.state, "deprecate") or row.state
    row.deleted = 1
    _keep(view, moment, event, row)


def _task_given(view: Projector, moment: Moment, event: program_events.AgentTaskAssigned) -> None:
    row = _program(view, event)
    if row is None:
        return
    row.task, row.session, row.turns = event.task, event.session, 0
    row.checkpoint = row.saved = None
    _keep(view, moment, event, row)


def _checkpoint(view: Projector, moment: Moment, event: program_events.AgentCheckpoint) -> None:
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


def _shared(view: Projector, moment: Moment, event: program_events.AgentShared) -> None:
    row = _program(view, event)
    if row is None:
        return
    view.sql.run(
        "INSERT INTO agent_share(agent, principal, n, replica) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (agent, principal) DO UPDATE SET n = excluded.n, replica = excluded.replica",
        (row.id, event.principal, moment.n, plain(event.replica)),
    )
    _keep(view, moment, event, row)


def _unshared(view: Projector, moment: Moment, event: program_events.AgentUnshared) -> None:
    row = _program(view, event)
    if row is None:
        return
    view.sql.run("DELETE FROM agent_share WHERE agent = ? AND principal = ?", (row.id, event.principal))
    _keep(view, moment, event, row)


def _checked(view: Projector, moment: Moment, event: program_events.TaskChecked) -> None:
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


def _presence(view: Projector, moment: Moment, event: program_events.HumanPresence) -> None:
    row = _program(view, event)
    if row is None:
        return
    if row.kind == HUMAN.name:
        row.state = next_state(row.kind, row.state, event.presence) or row.state
    _keep(view, moment, event, row)


def _notified(view: Projector, moment: Moment, event: program_events.HumanNotified) -> None:
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


def _answered(
    view: Projector, moment: Moment, event: program_events.HumanApproved | program_events.HumanRejected
) -> None:
    """The first answer counts."""
    row, request = _program(view, event), load_request(view.sql, event.request)
    if row is None:
        return
    if request is not None and request.human == row.id and request.status == "pending":
        request.status = "approved" if isinstance(event, program_events.HumanApproved) else "rejected"
        request.decided_at, request.reason = moment.when, view.number(event.reason)
        REQUEST.change(view.sql, (request,))
    _keep(view, moment, event, row)


def _session_stepped(view: Projector, moment: Moment, event: Event) -> None:
    row: SessionRow = moment.row
    verb = SESSION.verb_of(type(event)) or ""
    row.lifecycle = next_state(SESSION.name, row.lifecycle, verb) or row.lifecycle
    _note(view, moment, event, (row.id, row.lifecycle, row.config_version), None)


def handle_kind(facts: KindFacts) -> None:
    """Let the views follow a kind: the events that create, configure and move its programs."""
    if facts.stream == "session":
        for step in facts.steps.values():
            handles(step, SESSIONS)(_session_stepped)
        return
    _KIND_OF[facts.created] = _KIND_OF[facts.configured] = facts.name
    handles(facts.created, OTHERS)(_created)
    handles(facts.configured, OTHERS)(_configured)
    for step in facts.steps.values():
        handles(step, OTHERS)(_stepped)


for _facts in PROGRAM_KINDS.values():
    handle_kind(_facts)

_HANDLERS: dict[Handler, tuple[type[Event], ...]] = {
    _deleted: (program_events.ProgramDeleted,),
    _task_given: (program_events.AgentTaskAssigned,),
    _checkpoint: (program_events.AgentCheckpoint,),
    _noted: (program_events.TaskAssigned,),
    _shared: (program_events.AgentShared,),
    _unshared: (program_events.AgentUnshared,),
    _checked: (program_events.TaskChecked,),
    _presence: (program_events.HumanPresence,),
    _notified: (program_events.HumanNotified,),
    _answered: (program_events.HumanApproved, program_events.HumanRejected),
}
for _handler, _events in _HANDLERS.items():
    for _event in _events:
        handles(_event, OTHERS)(_handler)


@handles(program_events.SessionConfigured, SESSIONS)
def _session_configured(view: Projector, moment: Moment, event: program_events.SessionConfigured) -> None:
    row: SessionRow = moment.row
    row.config = view.number(event.config)
    row.config_version += 1
    models = [one.program for one in plain(event.references) or () if one.field == "default_model"]
    row.model = models[0] if models else None
    _note(view, moment, event, (row.id, row.lifecycle, row.config_version), row.config)


@handles(program_events.SessionModelSwitched, SESSIONS)
def _model_switched(view: Projector, moment: Moment, event: program_events.SessionModelSwitched) -> None:
    row: SessionRow = moment.row
    row.model = event.model
    _note(view, moment, event, (row.id, row.lifecycle, row.config_version), None)


@handles(ledger_events.NodeTagged, OTHERS)
def _tagged(view: Projector, moment: Moment, event: ledger_events.NodeTagged) -> None:
    for tag in _tags(view, event):
        view.sql.run(
            "INSERT INTO node_tag(node, tag, tagged_at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
            (event.node, tag, moment.when),
        )


@handles(ledger_events.NodeUntagged, OTHERS)
def _untagged(view: Projector, moment: Moment, event: ledger_events.NodeUntagged) -> None:
    for tag in _tags(view, event):
        view.sql.run("DELETE FROM node_tag WHERE node = ? AND tag = ?", (event.node, tag))


def _tags(view: Projector, event: ledger_events.NodeTagged | ledger_events.NodeUntagged) -> list[str]:
    """As people can type them, whoever wrote them; those whose words were erased are gone."""
    texts = (view.contents.content_text(view.contents.number(ref)) for ref in event.tags)
    return [tag for text in texts if text and (tag := cleaned_label(text))]
