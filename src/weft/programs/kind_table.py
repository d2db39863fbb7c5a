"""Sessions, agents, people and information as programs, and the table of all kinds.

What can be done with a program is looked up in its kind's row.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from weft.kernel import program_events
from weft.kernel.clock import is_ulid_ending
from weft.kernel.enums import AgentRole, InfoType, Presence, ProgramKind, ReferenceField, SessionStatus
from weft.kernel.errors import (
    Action,
    IllegalTransition,
    InvalidConfig,
    InvalidInput,
    NotApplicable,
    NotFound,
    SchemaMismatch,
    quoted,
)
from weft.kernel.events import ErrorFact
from weft.kernel.ledger_events import SessionArchived
from weft.kernel.program_events import (
    AgentCheckpoint,
    AgentFailed,
    AgentShared,
    AgentTaskAssigned,
    AgentUnshared,
    HumanApproved,
    HumanNotified,
    HumanPresence,
    HumanRejected,
    InformationValidated,
    SessionConfigured,
    SessionModelSwitched,
    legal_verbs,
    next_state,
)
from weft.ledger.api import agent_names, end_worker, queued_messages, session_owner, shared_with
from weft.ledger.arguments import checked_flag, checked_label
from weft.ledger.model import DEFAULT_AGENT
from weft.ledger.views.rows import ProgramRow, RequestRow, SessionRow, json_of, load_program, load_request
from weft.ledger.write.turn_events import create_session, ensure_label_free
from weft.programs import tasks
from weft.programs.config_fields import (
    CHANNEL,
    COMMAND,
    COMPACTION,
    FOLDER,
    NOTHING,
    UNATTENDED,
    URL,
    ConfigFields,
    amount,
    anything,
    count,
    email,
    filled,
    flag,
    member,
    object_,
    reference,
    reference_list,
    right_patterns,
    text,
    texts,
)
from weft.programs.program_kinds import (
    CODE,
    LIMIT_CHECKS,
    MODEL,
    MODEL_CONFIG,
    MODEL_CONFIG_CHECK,
    PROVIDER,
    TOOLSET,
    TURN_MACHINE,
    Config,
    KindRow,
    ReferenceRule,
    with_changed_model,
    with_one_model,
)
from weft.programs.program_records import check_schema, counted_request, is_same, parse_address, problems_with
from weft.programs.program_writer import ProgramWriter, is_counted, only_foreign
from weft.programs.tasks import TASK
from weft.programs.triggers import TRIGGER
from weft.store.sql import Row

# --- Sessions as programs: the ledger's own sessions, with a configuration, paused, resumed and completed.

SESSION_VERBS = tuple(program_events.SESSION.steps)
MOST_COUNTED = 100
"""More messages that wait are not counted."""


SESSION = KindRow(
    facts=program_events.SESSION,
    fields={
        "owner": reference,
        "defaultModel": reference,
        "fallback": reference,
        MODEL_CONFIG: MODEL_CONFIG_CHECK,
        "permissions": ConfigFields(LIMIT_CHECKS),
        "logFile": filled,
        "workspace": filled,
        "toolset": filled,
        "role": member(*AgentRole),
        "compaction": COMPACTION,
    },
    references={
        "owner": ReferenceRule(ReferenceField.OWNER, (ProgramKind.AGENT, ProgramKind.HUMAN), (DEFAULT_AGENT,)),
        "defaultModel": ReferenceRule(ReferenceField.DEFAULT_MODEL, (ProgramKind.MODEL,)),
        "fallback": ReferenceRule(ReferenceField.FALLBACK, (ProgramKind.MODEL,)),
    },
    normalized=with_one_model,
    changed=with_changed_model,
    machine={**TURN_MACHINE, "owner": NOTHING, "logFile": FOLDER, "workspace": FOLDER, "role": NOTHING},
    ended_states=("completed",),
)


def create_configured_session(writer: ProgramWriter, label: str | None, owner: str | None, config: Any) -> SessionRow:
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
    return create_unchecked_session(writer, label, owner, checked)


def create_unchecked_session(
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
    return _configured_session(writer, row, checked, may_choose_files=may_choose_files)


def configure_session(
    writer: ProgramWriter, row: SessionRow, config: Any, expected: int | None = None, *, given: Any = None
) -> SessionRow:
    """`given` is the part of the configuration that whoever acts says themselves."""
    writer.permit_session(f"configure the session {row.label!r}", row)
    writer.ensure_version(row.label, expected, writer.version_of(row))
    if row.lifecycle in SESSION.ended_states:
        raise NotApplicable(f"session {row.label!r} is completed", "fork it, or make a new session")
    checked = SESSION.checked_config(config, writer.earlier_configs(row.id))
    return _configured_session(writer, _vouched_for(writer, row, checked, given), checked)


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


def _configured_session(
    writer: ProgramWriter, row: SessionRow, checked: Config, *, may_choose_files: bool = False
) -> SessionRow:
    """The persona that a session was made for is its owner without being configured as one. The first model that a
    session in which something was said is given is a switch, too."""
    before = writer.config_of(row)
    if checked.get("owner") == _persona_address(writer, row):
        checked = {name: value for name, value in checked.items() if name != "owner"}
    if is_same(before, checked):
        return row
    _permit_changes(writer, row, before, checked, may_choose_files=may_choose_files)
    stream, model = writer.session_stream(row), row.model
    is_switched = row.config_version > 0 or row.head is not None
    stream.add(SessionConfigured, **SESSION.config_event_fields(writer, checked))
    row = writer.append.view.session(row.id)
    if row.model is not None and row.model != model and is_switched:
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


def _refuse_waiting(writer: ProgramWriter, row: SessionRow) -> None:
    """Nobody would answer what waits in a completed session."""
    waiting = queued_messages(writer.reading, row.n, MOST_COUNTED)
    if waiting:
        count = f"{MOST_COUNTED} or more" if len(waiting) >= MOST_COUNTED else str(len(waiting))
        wait = "message waits" if len(waiting) == 1 else "messages wait"
        what = f"{count} {wait} in session {row.label!r}, which nobody would answer once it is completed"
        raise NotApplicable(what, Action.SERVE_MESSAGE.of(message=waiting[0].id))


def step_session(writer: ProgramWriter, row: SessionRow, verb: str, reason: str | None) -> SessionRow:
    writer.permit_session(f"{verb} the session {row.label!r}", row)
    if next_state(SESSION.name, row.lifecycle, verb) is None:
        targets = {way: to for way, to in legal_verbs(SESSION.name, row.lifecycle).items() if way in SESSION_VERBS}
        raise IllegalTransition(SESSION.name, row.label, row.lifecycle, verb, targets)
    if verb == "complete":
        _refuse_waiting(writer, row)
    writer.session_stream(row).add(SESSION.facts.steps[verb], reason=writer.reason(reason))
    return row


def delete_session(writer: ProgramWriter, row: SessionRow, *, expected: int | None, reason: str | None) -> SessionRow:
    """Its label goes; its turns stay, and it can be restored."""
    writer.permit_session(f"delete the session {row.label!r}", row)
    writer.ensure_version(row.label, expected, writer.version_of(row))
    stream = writer.session_stream(row)
    stream.add(SessionArchived, status=SessionStatus.DELETED, reason=writer.reason(reason))
    end_worker(writer.append, writer.append.view.session(row.id))
    return row


# --- Agents: an identity, rights, a harness, and work on one task at a time, in a session of its own.

SOUL_NAMES = ("prompt", "soul", "systemPrompt", "personality")
"""Names of one field, which is kept as the identity's soul; pages and help say the first one."""
IDENTITY_FIELDS = ("name", "emoji", "avatar", "description")
UNATTENDED_WRITES = "unattended_writes"
"""Whether what it does for other people that nobody watches may have tools that write; the ledger's owner says so."""
AGENT_VERBS = tuple(verb for verb in program_events.AGENT.steps if verb != "fail")
"""Steps that take a reason alone; `fail` takes an error."""
_IDENTITY = ConfigFields(dict.fromkeys((*IDENTITY_FIELDS, "soul"), text))
HARNESS_FIELDS = ConfigFields(
    {
        "maxTurns": count,
        "maxTokens": count,
        "maxCost": amount,
        "maxSeconds": count,
        "reflectOnFailure": flag,
        "maxReflections": count,
        "checkpointEvery": count,
    }
)
_PERMISSIONS = ConfigFields({**LIMIT_CHECKS, "programs": right_patterns})


def _with_identity(config: Config) -> Config:
    """What describes it stands under `identity`, wherever it was given."""
    identity = object_("config.identity", config.get("identity", {}))
    described = {
        name: value for name, value in {**config, **identity}.items() if name in (*SOUL_NAMES, *IDENTITY_FIELDS)
    }
    souls = {described.pop(name) for name in SOUL_NAMES if isinstance(described.get(name), str)}
    if len(souls) > 1:
        raise InvalidConfig(
            "config.identity.soul",
            "is given twice, differently",
            f"{', '.join(SOUL_NAMES)} are one thing: give one of them",
        )
    if souls:
        described["soul"] = souls.pop()
    rest = {name: value for name, value in config.items() if name not in (*SOUL_NAMES, *IDENTITY_FIELDS, "identity")}
    more = {name: value for name, value in identity.items() if name not in (*SOUL_NAMES, *IDENTITY_FIELDS)}
    return {"identity": {**more, **described}, **rest}


def _with_changed_identity(before: Config, merged: Config, changes: Config) -> Config:
    """Changes count for what stands under `identity` also where they name it beside."""
    merged = with_changed_model(before, merged, changes)
    identity = merged.get("identity", {})
    named = {name: value for name, value in changes.items() if name in (*SOUL_NAMES, *IDENTITY_FIELDS)}
    souls = [name for name in SOUL_NAMES if name in named]
    if not isinstance(identity, dict) or len(souls) > 1:
        return merged
    changed = {"soul" if name in souls else name: value for name, value in named.items()}
    kept = {name: value for name, value in {**identity, **changed}.items() if value is not None}
    return {**{name: value for name, value in merged.items() if name not in named}, "identity": kept}


AGENT = KindRow(
    facts=program_events.AGENT,
    fields={
        "identity": _IDENTITY,
        "permissions": _PERMISSIONS,
        "tools": texts,
        "toolset": filled,
        "harness": HARNESS_FIELDS,
        "defaultModel": reference,
        "fallback": reference,
        MODEL_CONFIG: MODEL_CONFIG_CHECK,
        "createdBy": text,
        "compaction": COMPACTION,
        "removal": member("anyone", "owner"),
        UNATTENDED_WRITES: flag,
    },
    machine={
        **TURN_MACHINE,
        **dict.fromkeys((f"identity.{name}" for name in ("soul", "name", "emoji", "avatar", "description")), NOTHING),
        **dict.fromkeys(
            (
                f"harness.{name}"
                for name in (
                    "maxTurns",
                    "maxTokens",
                    "maxCost",
                    "maxSeconds",
                    "reflectOnFailure",
                    "maxReflections",
                    "checkpointEvery",
                )
            ),
            NOTHING,
        ),
        **dict.fromkeys(("permissions.programs", "tools", "createdBy", "removal"), NOTHING),
        UNATTENDED_WRITES: UNATTENDED,
    },
    references={
        "defaultModel": ReferenceRule(ReferenceField.DEFAULT_MODEL, (ProgramKind.MODEL,)),
        "fallback": ReferenceRule(ReferenceField.FALLBACK, (ProgramKind.MODEL,)),
        "tools": ReferenceRule(ReferenceField.TOOL, (ProgramKind.CODE,), takes_names=True),
    },
    activity_fields=("currentTask", "currentSession", "turnCount", "lastCheckpoint"),
    normalized=lambda config: with_one_model(_with_identity(config)),
    changed=_with_changed_identity,
    is_made_by_everybody=True,
    is_moved_by_turns=True,
)


def assign_agent(writer: ProgramWriter, agent: ProgramRow, work: ProgramRow, label: str | None = None) -> ProgramRow:
    """An idle agent gets a task, and a session to work on it: its own of this label, made if there is none, else a new
    one, for the task's workspace."""
    writer.permit("assign", f"give {agent.name!r} the task {work.name!r}")
    if agent.state != "idle" or agent.task is not None:
        current = load_program(writer.sql, agent.task or "")
        doing = f"has the task {current.name!r}" if current else f"is {agent.state}"
        raise NotApplicable(f"agent {agent.name!r} {doing}", Action.WAIT_OR_RESET_AGENT.of(agent=agent.name))
    # a session that is made for it has its folder: nobody makes theirs what another set who may not
    work = tasks.assign_task(
        writer, writer.ensure_vouched(writer.ensure_own(work), tasks.TASK), writer.ensure_own(agent)
    )
    row = None if label is None else writer.append.view.find_session(label)
    if row is None:
        row = _new_session(writer, agent, work, label)
    elif session_owner(writer.reading, row) != agent.id:
        raise NotApplicable(f"session {row.label!r} is not one of {agent.name}", "name another session")
    else:
        writer.append.access.ensure("turn:record", row, row.label)
    return writer.add(agent, AgentTaskAssigned, task=work.id, session=row.id)


def _new_session(writer: ProgramWriter, agent: ProgramRow, work: ProgramRow, label: str | None) -> SessionRow:
    task_config, model = writer.config_of(work), writer.config_of(agent).get("defaultModel")
    title, workspace = task_config.get("title"), task_config.get("workspace")
    config = {} if model is None else {"defaultModel": model}
    config |= {} if label is not None or workspace is None else {"workspace": workspace}
    return create_unchecked_session(
        writer,
        label or f"{agent.name}_{work.name}_{writer.append.now_ms}",
        agent.name,
        config,
        task=title if isinstance(title, str) else work.name,
        may_choose_files=True,  # whoever configured the task was allowed to
    )


def step_agent(writer: ProgramWriter, agent: ProgramRow, verb: str, reason: str | None) -> ProgramRow:
    if not isinstance(verb, str) or verb not in AGENT_VERBS:
        raise InvalidInput(f"an agent cannot {quoted(verb)}", f"it can {', '.join((*AGENT_VERBS, 'fail'))}")
    writer.permit_agent("assign", f"{verb} for the agent {agent.name!r}", agent)
    return writer.take_step(agent, verb, reason)


def fail_agent(writer: ProgramWriter, agent: ProgramRow, message: str, code: str, details: Any) -> ProgramRow:
    writer.permit_agent("assign", f"fail the agent {agent.name!r}", agent)
    writer.ensure_legal(agent, "fail")
    error = ErrorFact(
        code=writer.append.named(code, "code"),
        message=writer.append.put_text(message, "message"),
        details=UNSET if details is None else writer.append.put_json(details, "details"),
    )
    return writer.step(agent, "fail", AgentFailed, error=error, reason=error.message)


def share_agent(writer: ProgramWriter, agent: ProgramRow, principal: ProgramRow) -> ProgramRow:
    """A private agent works for one more person or agent. Its creator says so, or the ledger's owner."""
    _ensure_creator(writer, agent, "share")
    writer.refuse_system_agent(agent, "it is there for everybody")
    return writer.add(agent, AgentShared, principal=principal.id)


def unshare_agent(writer: ProgramWriter, agent: ProgramRow, principal: ProgramRow) -> ProgramRow:
    _ensure_creator(writer, agent, "unshare")
    if principal.id not in shared_with(writer.reading, agent.id):
        raise NotApplicable(f"agent {agent.name!r} is not shared with {principal.name!r}", "nothing is to be done")
    return writer.add(agent, AgentUnshared, principal=principal.id)


def _ensure_creator(writer: ProgramWriter, agent: ProgramRow, verb: str) -> None:
    """Everybody in the chain is who created the agent; who did is the log's fact, whatever its configuration says."""
    if not writer.append.access.created(agent):
        raise writer.not_allowed("configure", f"{verb} the agent {agent.name!r}, which is another's")


def give_up_agent(writer: ProgramWriter, agent: ProgramRow, message: str, code: str) -> ProgramRow:
    """Its task fails, and it stands in an error that says why."""
    if agent.task is not None:
        tasks.fail_task(writer, writer.require(agent.task, ProgramKind.TASK), message)
    return fail_agent(writer, agent, message, code, None)


def stop_agent(writer: ProgramWriter, agent: ProgramRow, reason: str) -> ProgramRow:
    """Its task fails where it is not over, and it is idle."""
    row = None if agent.task is None else load_program(writer.sql, agent.task)
    if row is None:
        raise NotApplicable(f"agent {agent.name!r} has no task", "nothing is to be stopped")
    if row.state == "pending":
        row = tasks.start_task(writer, row, None)
    if row.state == "blocked":
        row = writer.take_step(row, "unblock", reason)
    if row.state == "active":
        tasks.fail_task(writer, row, reason)
    return step_agent(writer, agent, "reset", reason)


def checkpoint_agent(writer: ProgramWriter, agent: ProgramRow, state: Any) -> ProgramRow:
    """What it needs to go on from here, after as many turns as it has taken."""
    writer.permit_agent("assign", f"keep a checkpoint of {agent.name!r}", agent)
    if agent.task is None:
        raise NotApplicable(f"agent {agent.name!r} has no task", "a checkpoint belongs to work on a task")
    content = writer.append.put_json(state, "state")
    return writer.add(agent, AgentCheckpoint, turns=agent.turns or 0, state=content)


# --- People: whether they are there, what they are told and asked, and what they answer.

CHANNELS = ("terminal", "command", "webhook")

HUMAN = KindRow(
    facts=program_events.HUMAN,
    fields={
        "permissions": right_patterns,
        "email": email,
        "image": filled,
        "preferences": ConfigFields({"notificationChannel": member(*CHANNELS), "command": filled, "webhook": filled}),
    },
    machine={
        **dict.fromkeys(("permissions", "email", "image"), NOTHING),
        "preferences.notificationChannel": CHANNEL,
        "preferences.command": COMMAND,
        "preferences.webhook": URL,
    },
)


def presence(writer: ProgramWriter, human: ProgramRow, wanted: str) -> ProgramRow:
    if writer.append.acting_ids != (human.id,):
        writer.permit_configuring(f"say that {human.name!r} is {wanted}", human)
    if wanted not in tuple(Presence):
        raise InvalidInput(f"presence is {quoted(wanted)}", f"one of {', '.join(Presence)}")
    writer.ensure_legal(human, wanted)
    return writer.add(human, HumanPresence, presence=Presence(wanted))


def notify_human(
    writer: ProgramWriter, human: ProgramRow, message: str, *, asks: bool, program: str | None = None, data: Any = None
) -> str:
    """What a person is to be told or asked, kept before anybody tries to reach them. Returns the request's id."""
    if not isinstance(message, str) or not message.strip():
        raise InvalidInput("there is nothing to tell", "give text")
    request = writer.append.ulids.mint()
    writer.add(
        human,
        HumanNotified,
        request=request,
        text=writer.append.put_text(message, "text"),
        asks=checked_flag(asks, "asks"),
        program=UNSET if program is None else writer.require(program).id,
        data=UNSET if data is None else writer.append.put_json(data, "data"),
    )
    return request


def answer_request(writer: ProgramWriter, request: str, approved: bool, reason: str | None) -> str:
    """Yes or no, once, by the very person who was asked, who must have the right to."""
    row = _pending_request(writer, request)
    human = writer.require(row.human, ProgramKind.HUMAN)
    what = f"{'approve' if approved else 'reject'} what {human.name!r} was asked"
    if writer.actor != human.id:
        raise writer.append.refusal("approve", what, f"only {human.name!r} answers it")
    if "approve" not in writer.config_of(human).get("permissions", []):
        raise writer.not_allowed("approve", what)
    kind = HumanApproved if approved else HumanRejected
    writer.add(human, kind, request=row.id, reason=writer.reason(reason))
    return row.id


def _pending_request(writer: ProgramWriter, request: str) -> RequestRow:
    if not isinstance(request, str):
        raise InvalidInput(f"request is {quoted(request)}", "give its id")
    ids = _ids_ending(writer, request)
    row = load_request(writer.sql, ids[0][0]) if len(ids) == 1 else None
    if row is None:
        raise NotFound("request", request, Action.LIST_REQUESTS)
    row, _ = counted_request(writer.reading, row)
    if row.status != "pending":
        raise NotApplicable(f"request {row.id} is {row.status}", "it takes one answer; ask again")
    return row


def _ids_ending(writer: ProgramWriter, end: str) -> list[Row]:
    """Of at most two requests: whole ids, or the last letters of one. A sign of SQL's patterns is no letter."""
    if not is_ulid_ending(end):
        return []
    return writer.sql.fetch_rows("SELECT id FROM human_request WHERE id LIKE ? LIMIT 2", (f"%{end.upper()}",))


# --- Information: facts, schemas, workflows and patterns, held against a schema before anybody uses them.


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
    problems = problems_with(config.get("content"), _schema_content(writer, schema, version), f"schema {schema.name!r}")
    if problems:
        raise SchemaMismatch(f"information {row.name!r}", problems)
    return {"schema": schema.id, "version": version}


def _schema_content(writer: ProgramWriter, schema: ProgramRow, version: int) -> Any:
    if not is_counted(writer.reading, schema.id, version):
        raise only_foreign(schema)
    content = writer.sql.fetch_row(
        "SELECT config FROM program_history WHERE program = ? AND version = ? AND config IS NOT NULL",
        (schema.id, version),
    )
    config = json_of(writer.reading, content[0]) if content else None
    if not isinstance(config, dict):
        raise NotApplicable(f"version {version} of schema {schema.name!r} is not here", "name another version of it")
    return config.get("content")


def validate_information(writer: ProgramWriter, row: ProgramRow, reason: str | None = None) -> ProgramRow:
    writer.permit_configuring(f"validate the information {row.name!r}", row)
    writer.ensure_legal(row, "validate")
    schema = {"schema": UNSET, "version": UNSET, **ensure_valid(writer, row)}
    return writer.step(row, "validate", InformationValidated, **schema, reason=writer.reason(reason))


def activate_information(writer: ProgramWriter, row: ProgramRow, reason: str | None = None) -> ProgramRow:
    writer.permit_configuring(f"activate the information {row.name!r}", row)
    return writer.take_step(row, "activate", reason)


def archive_information(writer: ProgramWriter, row: ProgramRow, reason: str | None = None) -> ProgramRow:
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
    steps={
        "draft": validate_information,
        "validated": activate_information,
        "active": archive_information,
        "archived": activate_information,
    },
)


# --- The table of kinds: what can be done with a program is looked up in its kind's row.

ROWS: tuple[KindRow, ...] = (CODE, PROVIDER, MODEL, SESSION, AGENT, TASK, INFORMATION, HUMAN, TOOLSET, TRIGGER)
KINDS: dict[str, KindRow] = {kind.name: kind for kind in ROWS}


def checked_kind(name: Any) -> KindRow:
    """The kind of this name, as somebody gave it."""
    if not isinstance(name, str) or name not in KINDS:
        raise InvalidInput(f"there is no kind of program {quoted(name)}", f"one of {', '.join(KINDS)}")
    return KINDS[name]


def kind_of_row(row: ProgramRow | SessionRow) -> KindRow:
    return SESSION if isinstance(row, SessionRow) else KINDS[row.kind]
