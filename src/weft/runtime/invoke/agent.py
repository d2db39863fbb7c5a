"""Invokes agents: with a task, or the one it has, it works on that; with a message it answers in its own session."""

from __future__ import annotations

from typing import Any

from weft.kernel.enums import ProgramKind
from weft.ledger.api import Lease
from weft.programs.model import Program
from weft.runtime.invoke.agent_work import AgentTurns, ensure_free, ensure_model, hold_agent, work_on_task
from weft.runtime.invoke.invocation import Invocation, InvocationContext, InvocationResult
from weft.runtime.invoke.model import message_of, reply_result


async def invoke_agent(context: InvocationContext, program: Program, invocation: Invocation) -> InvocationResult:
    """A task to work on, its current one where there is no message, or a message in its own session."""
    task = invocation.task or (program.current_task if invocation.message is None else None)
    if task is not None:
        return await work_on_task(context, program, await context.get(task, ProgramKind.TASK), invocation)
    message = message_of(invocation, "agent")
    async with hold_agent(context, program) as hold:
        return await _answer(context, await context.get(program.id), message, invocation, hold)


async def _answer(
    context: InvocationContext, agent: Program, message: Any, invocation: Invocation, hold: Lease
) -> InvocationResult:
    ensure_free(agent)
    session = agent.current_session or f"{agent.name}:main"
    await ensure_model(context, agent, session, invocation)
    turns = AgentTurns(context, agent, invocation.overrides, hold)
    reply = await turns.think(session, message, after="reset" if agent.current_task is None else "wait")
    await turns.step("complete" if agent.current_task is None else "wait")
    return reply_result(agent, reply)
