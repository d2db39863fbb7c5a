"""Agents at work: a task and a session for it, thinking and acting, checkpoints, and the way back to idle."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from weft.kernel.advice import Action
from weft.kernel.enums import ProgramKind
from weft.kernel.errors import InvalidInput, NotApplicable
from weft.kernel.events import Event
from weft.kernel.fields import ErrorFact
from weft.kernel.program_events import (
    AgentCheckpoint,
    AgentCompleted,
    AgentExecuting,
    AgentFailed,
    AgentPaused,
    AgentReset,
    AgentResumed,
    AgentTaskAssigned,
    AgentThinking,
    AgentWaiting,
)
from weft.ledger.views.program_rows import ProgramRow, load_program
from weft.programs import making, sessions
from weft.programs.program_writer import ProgramWriter

STEPS: dict[str, type[Event]] = {
    "think": AgentThinking,
    "execute": AgentExecuting,
    "wait": AgentWaiting,
    "pause": AgentPaused,
    "resume": AgentResumed,
    "complete": AgentCompleted,
    "reset": AgentReset,
}


def assign(clerk: ProgramWriter, agent: ProgramRow, task: ProgramRow) -> ProgramRow:
    """An idle agent gets a task, and a new session to work on it."""
    clerk.permit("assign", f"give {agent.name!r} the task {task.name!r}")
    if agent.state != "idle" or agent.task is not None:
        busy = load_program(clerk.sql, agent.task or "")
        doing = f"has the task {busy.name!r}" if busy else f"is {agent.state}"
        raise NotApplicable(f"agent {agent.name!r} {doing}", Action.WAIT_OR_RESET_AGENT.of(agent=agent.name))
    task = making.assign(clerk, task, agent)
    title = clerk.config_of(task).get("title")
    model = clerk.config_of(agent).get("defaultModel")
    label = f"{agent.name}_{task.name}_{clerk.append.now_ms}"
    config = {} if model is None else {"defaultModel": model}
    session = sessions.make(clerk, label, agent.name, config, task=title if isinstance(title, str) else task.name)
    return clerk.add(agent, AgentTaskAssigned, task=task.id, session=session.id)


def step(clerk: ProgramWriter, agent: ProgramRow, verb: str, reason: str | None) -> ProgramRow:
    clerk.permit("assign", f"{verb} for the agent {agent.name!r}", agent.id)
    if verb not in STEPS:
        raise InvalidInput(f"an agent cannot {verb!r}", f"it can {', '.join((*STEPS, 'fail'))}")
    return clerk.step(agent, verb, STEPS[verb], reason=clerk.reason(reason))


def fail(clerk: ProgramWriter, agent: ProgramRow, message: str, code: str, details: Any) -> ProgramRow:
    clerk.permit("assign", f"fail the agent {agent.name!r}", agent.id)
    clerk.ensure_legal(agent, "fail")
    error = ErrorFact(
        code=clerk.append.named(code, "code"),
        message=clerk.append.put_text(message, "message"),
        details=UNSET if details is None else clerk.append.put_json(details, "details"),
    )
    return clerk.step(agent, "fail", AgentFailed, error=error)


def checkpoint(clerk: ProgramWriter, agent: ProgramRow, state: Any) -> ProgramRow:
    """What it needs to go on from here, after as many turns as it has taken."""
    clerk.permit("assign", f"keep a checkpoint of {agent.name!r}", agent.id)
    if agent.kind != ProgramKind.AGENT or agent.task is None:
        raise NotApplicable(f"agent {agent.name!r} has no task", "a checkpoint belongs to work on a task")
    kept = clerk.append.put_json(state, "state")
    return clerk.add(agent, AgentCheckpoint, turns=agent.turns or 0, state=kept)
