"""What events mean for programs (their names, states, configurations and histories), for tags,
approval policies and triggers; and for resources: what they are, who owns and uses them, their
snapshots, and what is still to be done.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from msgspec import UNSET, UnsetType

from weft.kernel import events as approvals
from weft.kernel import ledger_events, program_events
from weft.kernel.clock import ms_from_iso
from weft.kernel.enums import PolicyState, ResourceLiveness, RestoreOutcome, SnapshotOutcome, SnapshotState
from weft.kernel.events import ErrorFact, Event, PolicyTests, ResourceScope, kind_of
from weft.kernel.program_events import HUMAN, PROGRAM_KINDS, SESSION, KindFacts, TriggerFired, TriggerMissed, next_state
from weft.kernel.typed_names import visible_form
from weft.ledger.arguments import LABEL_LIMIT, cleaned_label
from weft.ledger.views.projector import OTHERS, SESSIONS, EventMoment, Handler, Projector, handles, plain
from weft.ledger.views.rows import (
    NAMED_PERSONAS,
    PROGRAM,
    PROGRAM_HISTORY,
    REQUEST,
    HistoryEntry,
    ProgramRow,
    RequestRow,
    SessionRow,
    TurnRow,
    load_program,
    load_request,
)

# --- What events mean for programs: their names, states, configurations and histories; and for tags.

_KIND_OF: dict[type[Event], str] = {}
"""The kind of program that an event creates or configures."""


def _program_of_event(view: Projector, event: Event) -> ProgramRow | None:
    """The program that an event's stream belongs to."""
    stream = event.stream
    return load_program(view.sql, stream[8:]) if stream[:8] == "program:" else None


def _keep_program(
    view: Projector, moment: EventMoment, event: Event, row: ProgramRow, config: int | None = None
) -> None:
    """The program's row as it is now, and a line of its history."""
    row.updated_at = max(row.updated_at, moment.when)
    PROGRAM.change(view.sql, (row,))
    _note_history(view, moment, event, (row.id, row.state, row.version), config)


def _note_history(
    view: Projector, moment: EventMoment, event: Event, now: tuple[str, str, int], config: int | None
) -> None:
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


def _create_program(view: Projector, moment: EventMoment, event: Any) -> None:
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
    _replace_references(view, program, event)
    _keep_program(view, moment, event, row, config)


def _free_name(view: Projector, program: str, ref: str) -> str:
    text = view.contents.content_text(view.contents.number(ref)) or program
    name = visible_form(text[:LABEL_LIMIT])
    while view.sql.fetch_row("SELECT 1 FROM program WHERE name = ? AND deleted = 0", (name,)) is not None:
        name = f"{name} ({program})"
    return name


def _replace_references(view: Projector, program: str, event: Any) -> None:
    view.sql.run("DELETE FROM program_reference WHERE program = ?", (program,))
    for reference in () if event.references is UNSET else event.references:
        view.sql.run(
            "INSERT INTO program_reference(program, field, target, version) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
            (program, reference.field, reference.program, plain(reference.version)),
        )


def _apply_configured(view: Projector, moment: EventMoment, event: Any) -> None:
    row = _program_of_event(view, event)
    if row is None or row.kind != _KIND_OF[type(event)]:
        return
    row.config = view.number(event.config)
    row.version += 1
    row.applied = int(event.applied is True) or row.applied
    row.info_type = plain(getattr(event, "info_type", row.info_type))
    _replace_references(view, row.id, event)
    _keep_program(view, moment, event, row, row.config)


def _apply_step(view: Projector, moment: EventMoment, event: Any) -> None:
    """A step of another kind's lifecycle, or one that does not fit the state, only leaves a line in the history."""
    row = _program_of_event(view, event)
    if row is None:
        return
    verb = PROGRAM_KINDS[row.kind].verb_of(type(event))
    state = None if verb is None else next_state(row.kind, row.state, verb, row.was)
    if state is not None:
        row.was = row.state if verb == "pause" else None
        row.state = state
        _follow_state(view, row, event)
    _keep_program(view, moment, event, row)


def _follow_state(view: Projector, row: ProgramRow, event: Any) -> None:
    """What changes with the state."""
    if isinstance(event, program_events.AgentThinking):
        row.turns = (row.turns or 0) + 1
    elif isinstance(event, program_events.AgentCompleted | program_events.AgentReset):
        row.task = row.session = row.turns = row.checkpoint = row.saved = None
    elif isinstance(event, program_events.TaskCompleted):
        row.result = view.number(event.result)


def _apply_deleted(view: Projector, moment: EventMoment, event: program_events.ProgramDeleted) -> None:
    row = _program_of_event(view, event)
    if row is None:
        return
    row.state = next_state(row.kind, row.state, "deprecate") or row.state
    row.deleted = 1
    _keep_program(view, moment, event, row)


def _task_given(view: Projector, moment: EventMoment, event: program_events.AgentTaskAssigned) -> None:
    row = _program_of_event(view, event)
    if row is None:
        return
    row.task, row.session, row.turns = event.task, event.session, 0
    row.checkpoint = row.saved = None
    _keep_program(view, moment, event, row)


def _apply_checkpoint(view: Projector, moment: EventMoment, event: program_events.AgentCheckpoint) -> None:
    row = _program_of_event(view, event)
    if row is None:
        return
    row.checkpoint, row.saved = event.turns, view.number(event.state)
    _keep_program(view, moment, event, row)


def _apply_noted(view: Projector, moment: EventMoment, event: Event) -> None:
    """What changes nothing by itself: the configuration beside it says whose a task is."""
    row = _program_of_event(view, event)
    if row is not None:
        _keep_program(view, moment, event, row)


def _apply_shared(view: Projector, moment: EventMoment, event: program_events.AgentShared) -> None:
    row = _program_of_event(view, event)
    if row is None:
        return
    view.sql.run(
        "INSERT INTO agent_share(agent, principal, n, replica) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (agent, principal) DO UPDATE SET n = excluded.n, replica = excluded.replica",
        (row.id, event.principal, moment.n, plain(event.replica)),
    )
    _keep_program(view, moment, event, row)


def _apply_unshared(view: Projector, moment: EventMoment, event: program_events.AgentUnshared) -> None:
    row = _program_of_event(view, event)
    if row is None:
        return
    view.sql.run("DELETE FROM agent_share WHERE agent = ? AND principal = ?", (row.id, event.principal))
    _keep_program(view, moment, event, row)


def _apply_task_check(view: Projector, moment: EventMoment, event: program_events.TaskChecked) -> None:
    row = _program_of_event(view, event)
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
    _keep_program(view, moment, event, row)


def _apply_presence(view: Projector, moment: EventMoment, event: program_events.HumanPresence) -> None:
    row = _program_of_event(view, event)
    if row is None:
        return
    if row.kind == HUMAN.name:
        row.state = next_state(row.kind, row.state, event.presence) or row.state
    _keep_program(view, moment, event, row)


def _apply_notified(view: Projector, moment: EventMoment, event: program_events.HumanNotified) -> None:
    row = _program_of_event(view, event)
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
    _keep_program(view, moment, event, row)


def _apply_answered(
    view: Projector, moment: EventMoment, event: program_events.HumanApproved | program_events.HumanRejected
) -> None:
    """The first answer counts."""
    row, request = _program_of_event(view, event), load_request(view.sql, event.request)
    if row is None:
        return
    if request is not None and request.human == row.id and request.status == "pending":
        request.status = "approved" if isinstance(event, program_events.HumanApproved) else "rejected"
        request.decided_at, request.reason = moment.when, view.number(event.reason)
        REQUEST.change(view.sql, (request,))
    _keep_program(view, moment, event, row)


def _session_stepped(view: Projector, moment: EventMoment, event: Event) -> None:
    row: SessionRow = moment.row
    verb = SESSION.verb_of(type(event)) or ""
    row.lifecycle = next_state(SESSION.name, row.lifecycle, verb) or row.lifecycle
    _note_history(view, moment, event, (row.id, row.lifecycle, row.config_version), None)


def handle_kind(facts: KindFacts) -> None:
    """Let the views follow a kind: the events that create, configure and move its programs."""
    if facts.stream == "session":
        for step in facts.steps.values():
            handles(step, SESSIONS)(_session_stepped)
        return
    _KIND_OF[facts.created] = _KIND_OF[facts.configured] = facts.name
    handles(facts.created, OTHERS)(_create_program)
    handles(facts.configured, OTHERS)(_apply_configured)
    for step in facts.steps.values():
        handles(step, OTHERS)(_apply_step)


for _facts in PROGRAM_KINDS.values():
    handle_kind(_facts)

_HANDLERS: dict[Handler, tuple[type[Event], ...]] = {
    _apply_deleted: (program_events.ProgramDeleted,),
    _task_given: (program_events.AgentTaskAssigned,),
    _apply_checkpoint: (program_events.AgentCheckpoint,),
    _apply_noted: (program_events.TaskAssigned,),
    _apply_shared: (program_events.AgentShared,),
    _apply_unshared: (program_events.AgentUnshared,),
    _apply_task_check: (program_events.TaskChecked,),
    _apply_presence: (program_events.HumanPresence,),
    _apply_notified: (program_events.HumanNotified,),
    _apply_answered: (program_events.HumanApproved, program_events.HumanRejected),
}
for _handler, _events in _HANDLERS.items():
    for _event in _events:
        handles(_event, OTHERS)(_handler)


@handles(program_events.SessionConfigured, SESSIONS)
def _session_configured(view: Projector, moment: EventMoment, event: program_events.SessionConfigured) -> None:
    row: SessionRow = moment.row
    row.config = view.number(event.config)
    row.config_version += 1
    models = [one.program for one in plain(event.references) or () if one.field == "default_model"]
    row.model = models[0] if models else None
    _note_history(view, moment, event, (row.id, row.lifecycle, row.config_version), row.config)


@handles(program_events.SessionModelSwitched, SESSIONS)
def _model_switched(view: Projector, moment: EventMoment, event: program_events.SessionModelSwitched) -> None:
    row: SessionRow = moment.row
    row.model = event.model
    _note_history(view, moment, event, (row.id, row.lifecycle, row.config_version), None)


@handles(ledger_events.NodeTagged, OTHERS)
def _apply_tagged(view: Projector, moment: EventMoment, event: ledger_events.NodeTagged) -> None:
    for tag in _tags_of_event(view, event):
        view.sql.run(
            "INSERT INTO node_tag(node, tag, tagged_at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
            (event.node, tag, moment.when),
        )


@handles(ledger_events.NodeUntagged, OTHERS)
def _apply_untagged(view: Projector, moment: EventMoment, event: ledger_events.NodeUntagged) -> None:
    for tag in _tags_of_event(view, event):
        view.sql.run("DELETE FROM node_tag WHERE node = ? AND tag = ?", (event.node, tag))


def _tags_of_event(view: Projector, event: ledger_events.NodeTagged | ledger_events.NodeUntagged) -> list[str]:
    """As people can type them, whoever wrote them; those whose words were erased are gone."""
    texts = (view.contents.content_text(view.contents.number(ref)) for ref in event.tags)
    return [tag for text in texts if text and (tag := cleaned_label(text))]


# --- What events mean for approval policies.

ACTIVE, PROPOSAL, REJECTED = PolicyState.ACTIVE.value, PolicyState.PROPOSAL.value, PolicyState.REJECTED.value
REPLACED = PolicyState.REPLACED.value


@handles(approvals.PolicyProposed, OTHERS)
def _policy_proposed(view: Projector, moment: EventMoment, event: approvals.PolicyProposed) -> None:
    tests = None if event.tests is UNSET else event.tests
    view.sql.run(
        "INSERT INTO policy(id, n, state, agent, name, source, digest, notes, docstring, tests_total, tests_passed,"
        " tests_failed, replica, proposed_by, proposed_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (id) DO NOTHING",
        (
            event.policy_ref,
            moment.n,
            PROPOSAL,
            plain(event.agent),
            view.number(event.name),
            view.contents.number(event.source),
            plain(event.digest),
            view.number(event.notes),
            view.number(event.docstring),
            *_test_counts(tests),
            plain(event.replica),
            event.actor,
            moment.when,
        ),
    )


def _test_counts(tests: PolicyTests | None) -> tuple[int | None, int | None, int | None]:
    return (None, None, None) if tests is None else (tests.total, tests.passed, tests.failed)


@handles(approvals.PolicyRejected, OTHERS)
def _policy_rejected(view: Projector, moment: EventMoment, event: approvals.PolicyRejected) -> None:
    if _is_own(view, event, event.policy_ref):
        _decide_policy(view, moment, event, event.policy_ref, REJECTED, view.number(event.reason))


@handles(approvals.PolicyActivated, OTHERS)
def _policy_activated(view: Projector, moment: EventMoment, event: approvals.PolicyActivated) -> None:
    if not _is_own(view, event, event.policy_ref, event.digest):
        return
    _replace_active_policy(view, event.policy_ref)
    _decide_policy(view, moment, event, event.policy_ref, ACTIVE, view.number(event.notes))
    if event.tests is not UNSET:
        view.sql.run(
            "UPDATE policy SET tests_total = ?, tests_passed = ?, tests_failed = ? WHERE id = ?",
            (*_test_counts(event.tests), event.policy_ref),
        )


@handles(approvals.PolicyRolledBack, OTHERS)
def _policy_rolled_back(view: Projector, moment: EventMoment, event: approvals.PolicyRolledBack) -> None:
    if not _is_own(view, event, event.to, event.digest):
        return
    _replace_active_policy(view, event.to)
    _decide_policy(view, moment, event, event.to, ACTIVE, view.number(event.reason))


def _is_own(view: Projector, event: Event, policy: str, digest: object = UNSET) -> bool:
    """Whether the replica that proposed it decides, and means the source that was proposed."""
    row = view.sql.fetch_row("SELECT replica, digest FROM policy WHERE id = ?", (policy,))
    return row is not None and row[0] == plain(event.replica) and (digest is UNSET or digest == row[1])


def _replace_active_policy(view: Projector, policy: str) -> None:
    """The one of the same ledger that was active for the same agent, or for all, is not any longer."""
    view.sql.run(
        "UPDATE policy SET state = ? WHERE state = ? AND EXISTS (SELECT 1 FROM policy other WHERE other.id = ?"
        " AND coalesce(other.agent, '') = coalesce(policy.agent, '') AND other.replica = policy.replica)",
        (REPLACED, ACTIVE, policy),
    )


def _decide_policy(
    view: Projector, moment: EventMoment, event: Event, policy: str, state: str, reason: int | None
) -> None:
    view.sql.run(
        "UPDATE policy SET state = ?, decided_by = ?, decided_at = ?, decided_n = ?, reason = ? WHERE id = ?",
        (state, event.actor, moment.when, moment.n, reason, policy),
    )


# --- What events mean for triggers: for which occasions they fired, and which times of their schedules they missed.


def _trigger_of_event(view: Projector, event: Event) -> str | None:
    """The trigger that an event's stream belongs to."""
    kind, _, program = event.stream.partition(":")
    row = load_program(view.sql, program) if kind == "program" else None
    return None if row is None else row.id


@handles(TriggerFired, OTHERS)
def _trigger_fired(view: Projector, moment: EventMoment, event: TriggerFired) -> None:
    """The first firing for an occasion counts."""
    trigger = _trigger_of_event(view, event)
    if trigger is None:
        return
    error = None if event.error is UNSET else event.error
    view.sql.run(
        "INSERT INTO trigger_firing(trigger_id, occasion, n, replica, source, due, fired_at, message, posted, cause,"
        " hops, error, error_code) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        (
            trigger,
            event.occasion,
            moment.n,
            plain(event.replica),
            event.source.value,
            None if event.due is UNSET else ms_from_iso(event.due),
            moment.when,
            plain(event.message),
            plain(event.posted),
            plain(event.cause),
            0 if event.hops is UNSET else event.hops,
            None if error is None else view.contents.number(error.message),
            None if error is None else view.name(error.code),
        ),
    )


@handles(TriggerMissed, OTHERS)
def _trigger_missed(view: Projector, moment: EventMoment, event: TriggerMissed) -> None:
    trigger = _trigger_of_event(view, event)
    if trigger is None:
        return
    view.sql.run(
        "INSERT INTO trigger_gap(n, trigger_id, replica, count, first, last, reason, noted_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            moment.n,
            trigger,
            plain(event.replica),
            event.count,
            ms_from_iso(event.first),
            ms_from_iso(event.last),
            view.number(event.reason),
            moment.when,
        ),
    )


# --- What events mean for resources: what they are, who owns and uses them, their snapshots, and what is still to be
# done.

ATTACHED, MOUNTED = "attached", "mounted"
Place = tuple[str, str, str]
"""The digest of a place, what kind of resource is there, and on which machine."""


def owner_columns(owner: ResourceScope | UnsetType | None) -> tuple[str | None, str | None]:
    """What kind of owner, and its id: the first that is named of session, agent and run."""
    if owner is None or owner is UNSET:
        return None, None
    for kind, value in (("session", owner.session), ("agent", owner.agent), ("run", owner.run)):
        if value is not UNSET:
            return kind, value
    return None, None


def _may_describe(view: Projector, moment: EventMoment, event: Event, resource: str) -> bool:
    """Whether the resource is known, and the event comes from the ledger that declared it: of what another ledger
    declared, a third one tells nothing."""
    row = view.sql.fetch_row("SELECT n, replica FROM resource WHERE id = ?", (resource,))
    if row is None:
        return False
    is_own = view.own_events.has(row[0], row[1])
    return view.own_events.has(moment.n, plain(event.replica)) if is_own else row[1] == plain(event.replica)


def text_digest(text: str) -> str:
    """By what a name, a place or a reference is found."""
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _content_digest(view: Projector, content: int | None) -> str | None:
    """Of a content's text; None where it is not here, or erased."""
    text = None if content is None else view.contents.content_text(content)
    return None if text is None else text_digest(text)


def _place_of(view: Projector, resource: str) -> Place | None:
    """Where a resource is; None: that is not known, or erased."""
    row = view.sql.fetch_row("SELECT place_digest, kind, COALESCE(machine, '') FROM resource WHERE id = ?", (resource,))
    return None if row is None or row[0] is None else (row[0], row[1], row[2])


def _settle_place(view: Projector, place: Place | None) -> None:
    """Of the resources of this ledger that somebody owns at one place, the newest stands there."""
    if place is None:
        return
    there = "place_digest = ? AND kind = ? AND COALESCE(machine, '') = ?"
    owned = view.sql.fetch_rows(
        f"SELECT id, n, replica FROM resource WHERE {there} AND owner IS NOT NULL ORDER BY n DESC", place
    )
    newest = next((id for id, n, replica in owned if view.own_events.has(n, replica)), "")
    view.sql.run(f"UPDATE resource SET stands = NULL WHERE {there} AND stands = 1 AND id <> ?", (*place, newest))
    view.sql.run("UPDATE resource SET stands = 1 WHERE id = ?", (newest,))


def _error_columns(view: Projector, error: ErrorFact | UnsetType) -> tuple[int | None, str | None]:
    return (None, None) if error is UNSET else (view.contents.number(error.message), view.name(error.code))


@handles(ledger_events.ResourceDeclared, OTHERS)
def _resource_declared(view: Projector, moment: EventMoment, event: ledger_events.ResourceDeclared) -> None:
    stream, _, resource = event.stream.partition(":")
    if stream != "resource":
        return
    scope = event.scope if event.scope is not UNSET else ResourceScope()
    name, place = view.contents.number(event.name), view.contents.number(event.place)
    described = (
        event.resource_kind.value,
        name,
        place,
        " ".join(sorted(capability.value for capability in event.capabilities)),
        int(event.imperative is True),
        int(event.made is True),
        plain(scope.agent),
        plain(scope.run),
        plain(scope.session),
        view.number(event.metadata),
        plain(event.machine),
        _content_digest(view, name),
        _content_digest(view, place),
    )
    if view.sql.fetch_row("SELECT 1 FROM resource WHERE id = ?", (resource,)) is None:
        view.sql.run(
            "INSERT INTO resource(id, n, replica, kind, name, place, capabilities, imperative, made, scope_agent,"
            " scope_run, scope_session, metadata, machine, name_digest, place_digest, liveness, declared_by,"
            " declared_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                resource,
                moment.n,
                plain(event.replica),
                *described,
                ResourceLiveness.UNKNOWN.value,
                event.actor,
                moment.when,
            ),
        )
    elif _may_describe(view, moment, event, resource):
        before = _place_of(view, resource)
        view.sql.run(
            "UPDATE resource SET kind = ?, name = ?, place = ?, capabilities = ?, imperative = ?, made = ?,"
            " scope_agent = ?, scope_run = ?, scope_session = ?, metadata = ?, machine = ?, name_digest = ?,"
            " place_digest = ?, stands = NULL WHERE id = ?",
            (*described, resource),
        )
        _settle_place(view, before)
        _settle_place(view, _place_of(view, resource))


@handles(ledger_events.ResourceOwned, OTHERS)
def _resource_owned(view: Projector, moment: EventMoment, event: ledger_events.ResourceOwned) -> None:
    if _may_describe(view, moment, event, event.resource_ref):
        view.sql.run(
            "UPDATE resource SET owner_kind = ?, owner = ? WHERE id = ?",
            (*owner_columns(event.owner), event.resource_ref),
        )
        _settle_place(view, _place_of(view, event.resource_ref))


@handles(ledger_events.SubresourceAdded, OTHERS)
def _subresource_added(view: Projector, moment: EventMoment, event: ledger_events.SubresourceAdded) -> None:
    if _may_describe(view, moment, event, event.resource_ref):
        view.sql.run(
            "INSERT INTO resource_part(resource, part_ref, part, n) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
            (event.resource_ref, event.part_ref, event.part.value, moment.n),
        )


@handles(ledger_events.SubresourceRemoved, OTHERS)
def _subresource_removed(view: Projector, moment: EventMoment, event: ledger_events.SubresourceRemoved) -> None:
    if _may_describe(view, moment, event, event.resource_ref):
        view.sql.run(
            "DELETE FROM resource_part WHERE resource = ? AND part_ref = ?", (event.resource_ref, event.part_ref)
        )


@handles(ledger_events.HandleOpened, OTHERS)
def _handle_opened(view: Projector, moment: EventMoment, event: ledger_events.HandleOpened) -> None:
    if not _may_describe(view, moment, event, event.resource_ref):
        return
    capabilities = () if event.capabilities is UNSET else event.capabilities
    view.sql.run(
        "INSERT INTO resource_handle(id, n, replica, resource, provider, provider_id, capabilities, opened_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        (
            event.handle,
            moment.n,
            plain(event.replica),
            event.resource_ref,
            view.name(event.provider),
            view.contents.number(event.provider_id),
            " ".join(sorted(capability.value for capability in capabilities)),
            moment.when,
        ),
    )


@handles(ledger_events.HandleClosed, OTHERS)
def _handle_closed(view: Projector, moment: EventMoment, event: ledger_events.HandleClosed) -> None:
    if _may_describe(view, moment, event, event.resource_ref):
        view.sql.run(
            "UPDATE resource_handle SET closed_at = ? WHERE id = ? AND resource = ? AND closed_at IS NULL",
            (moment.when, event.handle, event.resource_ref),
        )


def attachment_user(event: ledger_events.ResourceAttached | ledger_events.ResourceDetached) -> tuple[str, str]:
    """To what a resource is attached: a run, else a session, else an agent; where none is named, the one that acted."""
    if event.run is not UNSET:
        return "run", event.run
    if event.session is not UNSET:
        return "session", event.session
    return "agent", event.actor if event.agent is UNSET else event.agent


def mount_user(event: ledger_events.ResourceMounted | ledger_events.ResourceUnmounted) -> tuple[str, str] | None:
    """What sees a resource: a container, else a run."""
    if event.container is not UNSET:
        return "container", event.container
    return None if event.run is UNSET else ("run", event.run)


def _begin_use(
    view: Projector, moment: EventMoment, resource: str, way: str, user: tuple[str, str], mode: str, mount: int | None
) -> None:
    view.sql.run(
        "INSERT INTO resource_use(resource, way, user_kind, user_id, n, mode, mount, since)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (resource, way, user_kind, user_id)"
        " DO UPDATE SET n = excluded.n, mode = excluded.mode, mount = excluded.mount, since = excluded.since",
        (resource, way, *user, moment.n, mode, mount, moment.when),
    )


def _end_use(view: Projector, resource: str, way: str, user: tuple[str, str]) -> None:
    view.sql.run(
        "DELETE FROM resource_use WHERE resource = ? AND way = ? AND user_kind = ? AND user_id = ?",
        (resource, way, *user),
    )


@handles(ledger_events.ResourceAttached, OTHERS)
def _resource_attached(view: Projector, moment: EventMoment, event: ledger_events.ResourceAttached) -> None:
    if _may_describe(view, moment, event, event.resource_ref):
        _begin_use(view, moment, event.resource_ref, ATTACHED, attachment_user(event), event.mode.value, None)


@handles(ledger_events.ResourceDetached, OTHERS)
def _resource_detached(view: Projector, moment: EventMoment, event: ledger_events.ResourceDetached) -> None:
    if _may_describe(view, moment, event, event.resource_ref):
        _end_use(view, event.resource_ref, ATTACHED, attachment_user(event))


@handles(ledger_events.ResourceMounted, OTHERS)
def _resource_mounted(view: Projector, moment: EventMoment, event: ledger_events.ResourceMounted) -> None:
    user = mount_user(event)
    if user is not None and _may_describe(view, moment, event, event.resource_ref):
        mount = view.contents.number(event.mount)
        _begin_use(view, moment, event.resource_ref, MOUNTED, user, event.mode.value, mount)


@handles(ledger_events.ResourceUnmounted, OTHERS)
def _resource_unmounted(view: Projector, moment: EventMoment, event: ledger_events.ResourceUnmounted) -> None:
    user = mount_user(event)
    if user is not None and _may_describe(view, moment, event, event.resource_ref):
        _end_use(view, event.resource_ref, MOUNTED, user)


@handles(ledger_events.ResourceLivenessProbe, OTHERS)
def _resource_liveness_probe(view: Projector, moment: EventMoment, event: ledger_events.ResourceLivenessProbe) -> None:
    if _may_describe(view, moment, event, event.resource_ref):
        view.sql.run(
            "UPDATE resource SET liveness = ?, probed_at = ? WHERE id = ?",
            (event.status.value, moment.when, event.resource_ref),
        )


@handles(ledger_events.SnapshotRequested, OTHERS)
def _snapshot_requested(view: Projector, moment: EventMoment, event: ledger_events.SnapshotRequested) -> None:
    if _may_describe(view, moment, event, event.resource_ref):
        view.sql.run(
            "INSERT INTO resource_snapshot(id, n, replica, resource, state, run, method, before, inferred,"
            " created_at) VALUES (?, ?, ?, ?, ?, ?, ?, 0, 0, ?) ON CONFLICT DO NOTHING",
            (
                event.snapshot_ref,
                moment.n,
                plain(event.replica),
                event.resource_ref,
                SnapshotState.REQUESTED.value,
                plain(event.run),
                view.name(event.method),
                moment.when,
            ),
        )


def _may_describe_turn(view: Projector, moment: EventMoment, event: Event, turn: TurnRow) -> bool:
    """What another ledger says of a turn's files counts in sessions of other ledgers alone."""
    if view.own_events.has(moment.n, plain(event.replica)):
        return True
    session = None if turn.session is None else view.session_of_number(turn.session)
    return session is not None and view.may_change(moment, event, (session.n, session.replica))


@handles(ledger_events.SnapshotCreated, OTHERS)
def _snapshot_created(view: Projector, moment: EventMoment, event: ledger_events.SnapshotCreated) -> None:
    """The outcome of a request, or a snapshot that nobody had asked for; the first outcome counts. It is one of the
    turn's files (it has a segment and a depth) where it comes from the ledger that began the turn's session."""
    if not _may_describe(view, moment, event, event.resource_ref):
        return
    is_ok = event.outcome is SnapshotOutcome.OK
    reference = None if event.external_ref is UNSET else event.external_ref
    reference_id = None if reference is None else view.contents.number(reference.id)
    turn = None if event.run is UNSET else view.find_turn(event.run)
    if turn is not None and not _may_describe_turn(view, moment, event, turn):
        turn = None
    after = None if event.after is UNSET else event.after.event_id
    view.sql.run(
        "INSERT INTO resource_snapshot(id, n, replica, resource, state, run, segment, depth, after, before, method,"
        " ref_kind, ref, ref_digest, consistency, size_bytes, restorable, inferred, skipped, error, error_code,"
        " created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (id) DO UPDATE SET state = excluded.state,"
        " run = coalesce(excluded.run, resource_snapshot.run), after = excluded.after, segment = excluded.segment,"
        " depth = excluded.depth, before = excluded.before,"
        " method = excluded.method, ref_kind = excluded.ref_kind, ref = excluded.ref, ref_digest = excluded.ref_digest,"
        " consistency = excluded.consistency, size_bytes = excluded.size_bytes, restorable = excluded.restorable,"
        " inferred = excluded.inferred, skipped = excluded.skipped, error = excluded.error,"
        " error_code = excluded.error_code, created_at = excluded.created_at"
        " WHERE resource_snapshot.state = 'requested' AND resource_snapshot.resource = excluded.resource",
        (
            event.snapshot_ref,
            moment.n,
            plain(event.replica),
            event.resource_ref,
            (SnapshotState.OK if is_ok else SnapshotState.ERROR).value,
            plain(event.run),
            None if turn is None else turn.segment,
            None if turn is None else turn.depth,
            after,
            int(event.before is True),
            view.name(event.method),
            None if reference is None else view.name(reference.kind),
            reference_id,
            _content_digest(view, reference_id),
            plain(event.consistency),
            plain(event.size_bytes),
            int(is_ok and event.restorable is not False),
            int(event.inferred is True),
            view.number(event.skipped),
            *_error_columns(view, event.error),
            moment.when,
        ),
    )


@handles(ledger_events.SnapshotDiscarded, OTHERS)
def _snapshot_discarded(view: Projector, moment: EventMoment, event: ledger_events.SnapshotDiscarded) -> None:
    if _may_describe(view, moment, event, event.resource_ref):
        view.sql.run(
            "UPDATE resource_snapshot SET state = ?, restorable = 0 WHERE id = ? AND resource = ?",
            (SnapshotState.DISCARDED.value, event.snapshot_ref, event.resource_ref),
        )


def _may_restore(view: Projector, moment: EventMoment, event: Event, snapshot: str) -> bool:
    row = view.sql.fetch_row("SELECT resource FROM resource_snapshot WHERE id = ?", (snapshot,))
    return row is not None and _may_describe(view, moment, event, row[0])


@handles(ledger_events.RestoreRequested, OTHERS)
def _restore_requested(view: Projector, moment: EventMoment, event: ledger_events.RestoreRequested) -> None:
    if event.restore is UNSET or not _may_restore(view, moment, event, event.snapshot_ref):
        return
    view.sql.run(
        "INSERT INTO resource_restore(id, n, replica, snapshot, new_resource, place, owner_kind, owner, requested_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        (
            event.restore,
            moment.n,
            plain(event.replica),
            event.snapshot_ref,
            plain(event.new_resource_ref),
            view.number(event.place),
            *owner_columns(event.owner),
            moment.when,
        ),
    )


@handles(ledger_events.RestoreAttempted, OTHERS)
def _restore_attempted(view: Projector, moment: EventMoment, event: ledger_events.RestoreAttempted) -> None:
    """The first outcome of a wish counts."""
    if event.restore is UNSET or not _may_restore(view, moment, event, event.snapshot_ref):
        return
    view.sql.run(
        "UPDATE resource_restore SET outcome = ?, error = ?, error_code = ?, ended_at = ?"
        " WHERE id = ? AND snapshot = ? AND outcome IS NULL",
        (
            RestoreOutcome(event.outcome).value,
            *_error_columns(view, event.error),
            moment.when,
            event.restore,
            event.snapshot_ref,
        ),
    )
