"""Agents: an identity, rights, a harness, and work on one task at a time, in a session of its own."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from weft.kernel import program_events
from weft.kernel.enums import ProgramKind, ReferenceField
from weft.kernel.errors import Action, InvalidConfig, InvalidInput, NotApplicable, quoted
from weft.kernel.events import ErrorFact
from weft.kernel.program_events import AgentCheckpoint, AgentFailed, AgentShared, AgentTaskAssigned, AgentUnshared
from weft.ledger.api import session_owner, shared_with
from weft.ledger.views.rows import ProgramRow, SessionRow, load_program
from weft.programs.config_fields import (
    COMPACTION,
    Fields,
    amount,
    count,
    filled,
    flag,
    member,
    object_,
    reference,
    right_patterns,
    text,
    texts,
)
from weft.programs.kinds import session, task
from weft.programs.kinds.kind import Config, KindRow, ReferenceRule
from weft.programs.kinds.turn_defaults import (
    LIMIT_CHECKS,
    MODEL_CONFIG,
    MODEL_CONFIG_CHECK,
    TURN_MACHINE,
    with_changed_model,
    with_one_model,
)
from weft.programs.machine_names import NOTHING, UNATTENDED
from weft.programs.program_writer import ProgramWriter

SOUL_NAMES = ("soul", "systemPrompt", "personality")
"""Three names of one field, which is kept as the identity's soul."""
IDENTITY_FIELDS = ("name", "emoji", "avatar", "description")
UNATTENDED_WRITES = "unattended_writes"
"""Whether what it does for other people that nobody watches may have tools that write; the ledger's owner says so."""
VERBS = tuple(verb for verb in program_events.AGENT.steps if verb != "fail")
"""Steps that take a reason alone; `fail` takes an error."""
_IDENTITY = Fields(dict.fromkeys((*IDENTITY_FIELDS, "soul"), text))
HARNESS_FIELDS = Fields(
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
_PERMISSIONS = Fields({**LIMIT_CHECKS, "programs": right_patterns})


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


AGENT = KindRow(
    facts=program_events.AGENT,
    fields={
        "identity": _IDENTITY,
        "permissions": _PERMISSIONS,
        "tools": texts,
        "toolset": filled,
        "harness": HARNESS_FIELDS,
        "defaultModel": reference,
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
        "tools": ReferenceRule(ReferenceField.TOOL, (ProgramKind.CODE,)),
    },
    activity_fields=("currentTask", "currentSession", "turnCount", "lastCheckpoint"),
    normalized=lambda config: with_one_model(_with_identity(config)),
    changed=with_changed_model,
    is_made_by_everybody=True,
)


def assign(writer: ProgramWriter, agent: ProgramRow, work: ProgramRow, label: str | None = None) -> ProgramRow:
    """An idle agent gets a task, and a session to work on it: its own of this label, made if there is none, else a new
    one, for the task's workspace."""
    writer.permit("assign", f"give {agent.name!r} the task {work.name!r}")
    if agent.state != "idle" or agent.task is not None:
        current = load_program(writer.sql, agent.task or "")
        doing = f"has the task {current.name!r}" if current else f"is {agent.state}"
        raise NotApplicable(f"agent {agent.name!r} {doing}", Action.WAIT_OR_RESET_AGENT.of(agent=agent.name))
    # a session that is made for it has its folder: nobody makes theirs what another set who may not
    work = task.assign(writer, writer.ensure_vouched(writer.ensure_own(work), task.TASK), writer.ensure_own(agent))
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
    return session.create_unchecked(
        writer,
        label or f"{agent.name}_{work.name}_{writer.append.now_ms}",
        agent.name,
        config,
        task=title if isinstance(title, str) else work.name,
        may_choose_files=True,  # whoever configured the task was allowed to
    )


def step(writer: ProgramWriter, agent: ProgramRow, verb: str, reason: str | None) -> ProgramRow:
    if not isinstance(verb, str) or verb not in VERBS:
        raise InvalidInput(f"an agent cannot {quoted(verb)}", f"it can {', '.join((*VERBS, 'fail'))}")
    writer.permit_agent("assign", f"{verb} for the agent {agent.name!r}", agent)
    return writer.take_step(agent, verb, reason)


def fail(writer: ProgramWriter, agent: ProgramRow, message: str, code: str, details: Any) -> ProgramRow:
    writer.permit_agent("assign", f"fail the agent {agent.name!r}", agent)
    writer.ensure_legal(agent, "fail")
    error = ErrorFact(
        code=writer.append.named(code, "code"),
        message=writer.append.put_text(message, "message"),
        details=UNSET if details is None else writer.append.put_json(details, "details"),
    )
    return writer.step(agent, "fail", AgentFailed, error=error, reason=error.message)


def share(writer: ProgramWriter, agent: ProgramRow, principal: ProgramRow) -> ProgramRow:
    """A private agent works for one more person or agent. Its creator says so, or the ledger's owner."""
    _ensure_creator(writer, agent, "share")
    writer.refuse_system_agent(agent, "it is there for everybody")
    return writer.add(agent, AgentShared, principal=principal.id)


def unshare(writer: ProgramWriter, agent: ProgramRow, principal: ProgramRow) -> ProgramRow:
    _ensure_creator(writer, agent, "unshare")
    if principal.id not in shared_with(writer.reading, agent.id):
        raise NotApplicable(f"agent {agent.name!r} is not shared with {principal.name!r}", "nothing is to be done")
    return writer.add(agent, AgentUnshared, principal=principal.id)


def _ensure_creator(writer: ProgramWriter, agent: ProgramRow, verb: str) -> None:
    """Everybody in the chain is who created the agent; who did is the log's fact, whatever its configuration says."""
    if not writer.append.access.created(agent):
        raise writer.not_allowed("configure", f"{verb} the agent {agent.name!r}, which is another's")


def give_up(writer: ProgramWriter, agent: ProgramRow, message: str, code: str) -> ProgramRow:
    """Its task fails, and it stands in an error that says why."""
    if agent.task is not None:
        task.fail(writer, writer.require(agent.task, ProgramKind.TASK), message)
    return fail(writer, agent, message, code, None)


def stop(writer: ProgramWriter, agent: ProgramRow, reason: str) -> ProgramRow:
    """Its task fails where it is not over, and it is idle."""
    row = None if agent.task is None else load_program(writer.sql, agent.task)
    if row is None:
        raise NotApplicable(f"agent {agent.name!r} has no task", "nothing is to be stopped")
    if row.state == "pending":
        row = task.start(writer, row, None)
    if row.state == "blocked":
        row = writer.take_step(row, "unblock", reason)
    if row.state == "active":
        task.fail(writer, row, reason)
    return step(writer, agent, "reset", reason)


def checkpoint(writer: ProgramWriter, agent: ProgramRow, state: Any) -> ProgramRow:
    """What it needs to go on from here, after as many turns as it has taken."""
    writer.permit_agent("assign", f"keep a checkpoint of {agent.name!r}", agent)
    if agent.task is None:
        raise NotApplicable(f"agent {agent.name!r} has no task", "a checkpoint belongs to work on a task")
    content = writer.append.put_json(state, "state")
    return writer.add(agent, AgentCheckpoint, turns=agent.turns or 0, state=content)
