"""Invokes agents: with a task, or the one it has, it works on that; with a message it answers in its own session."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from weft.kernel.enums import ProgramKind
from weft.kernel.errors import Action, LedgerError, NotApplicable, WeftError
from weft.ledger.api import Lease
from weft.programs.criteria import explain
from weft.programs.foreign import ensure_own
from weft.programs.model import Program
from weft.programs.programs import Programs
from weft.runtime.configuration.gathering import TurnRequest
from weft.runtime.harness.leases import hold_agent
from weft.runtime.harness.performing import WorkRequest
from weft.runtime.harness.task_work import FinishedWork, TaskWork, ensure_free
from weft.runtime.invoke.invocation import Invocation, InvocationContext, InvocationResult
from weft.runtime.invoke.model import message_of, reply_result
from weft.runtime.turns.messages import to_the_end
from weft.runtime.turns.recorded_replies import TurnReply


async def invoke_agent(context: InvocationContext, program: Program, invocation: Invocation) -> InvocationResult:
    """A task to work on, its current one where there is no message, or a message in its own session."""
    task = invocation.task or (program.current_task if invocation.message is None else None)
    if task is not None:
        return await work_on_task(context, program, await context.get(task, ProgramKind.TASK), invocation)
    message = message_of(invocation, "agent")
    async with hold_agent(context.programs, context.crossing, program) as hold:
        return await _answer(context, await context.get(program.id), message, invocation, hold)


async def _answer(
    context: InvocationContext, agent: Program, message: Any, invocation: Invocation, hold: Lease
) -> InvocationResult:
    ensure_free(agent)
    session = agent.current_session or f"{agent.name}:main"
    await _ensure_model(context, agent, session, invocation)
    programs = context.programs.acting_as(agent.name, hold)
    after = "reset" if agent.current_task is None else "wait"
    await _step(context, programs, agent, "think")
    try:
        reply: TurnReply = await context.send(session, message, invocation.overrides, agent)
    except BaseException as error:  # whatever it is, nobody thinks here any more
        with suppress(LedgerError):  # somebody else has moved the agent meanwhile; what happened matters more
            await to_the_end(_step(context, programs, agent, after, _reason(error)))
        raise
    await _step(context, programs, agent, "complete" if agent.current_task is None else "wait")
    return reply_result(agent, reply)


async def _step(
    context: InvocationContext, programs: Programs, agent: Program, verb: str, reason: str | None = None
) -> None:
    await context.across(lambda: programs.step_agent(agent.id, verb, reason=reason))


def _reason(error: BaseException) -> str:
    return f"{error.code}: {error}" if isinstance(error, WeftError) else type(error).__name__


async def _ensure_model(
    context: InvocationContext, agent: Program, session: str | None, invocation: Invocation
) -> None:
    """Refuse an agent that no layer of its next turn in a session names a model for. A session that does not exist yet
    has no say in it."""
    ensure_own(agent)
    request = TurnRequest(session=session, persona=agent.id, overrides=invocation.overrides)
    if (await context.configuration(request)).model is None:
        raise NotApplicable(f"agent {agent.name!r} has no model", Action.SET_AGENT_MODEL.of(agent=agent.name))


async def work_on_task(
    context: InvocationContext, agent: Program, task: Program, invocation: Invocation
) -> InvocationResult:
    """Until its criteria hold, a budget of the harness is spent, or something outside fails."""
    ensure_own(task)
    session = agent.current_session if agent.current_task == task.name else None
    await _ensure_model(context, agent, session, invocation)
    work = TaskWork(
        context.ledger, context.programs, context.planner(), context.runner,
        on_token=context.on_token, on_progress=context.on_progress,
    )  # fmt: skip
    request = WorkRequest(
        authority=context.ledger.authority,
        overrides=invocation.overrides.record(),
        workspace=invocation.workspace,
    )
    return await _report(context, agent, await work.run(agent, task, request))


async def _report(context: InvocationContext, agent: Program, work: FinishedWork) -> InvocationResult:
    """The task as it is now, and the last verdict on each of its criteria."""
    checks = await context.across(lambda: context.programs.checks(work.task.id))
    last_checks = {check.criterion: check for check in checks}
    last, criteria = work.facts.last, work.facts.criteria
    fields = {
        "task": work.task.name,
        "state": work.task.state,
        "assignee": agent.name,
        "session": work.facts.session,
        "turns": len(work.facts.rounds),
        "answer": None if last is None else last.answer,
        "reason": work.reason,
        "criteria": [
            {
                "criterion": number,
                "type": check.type,
                "passed": check.passed,
                "observed": check.observed,
                "words": explain(criteria[number], check.observed, passed=check.passed),
            }
            for number, check in sorted(last_checks.items())
            if number < len(criteria)
        ],
    }
    result = {name: value for name, value in fields.items() if value is not None}
    return InvocationResult(program=work.task.name, kind=work.task.kind, result=result, sent=work.reply)
