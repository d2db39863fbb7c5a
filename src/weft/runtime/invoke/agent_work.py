"""Agents at work: one thinks in its session until a task's criteria hold, within its harness.

Every state it passes is an event before what it stands for: thinking while a model is asked, executing while criteria
are checked, waiting where something outside failed or the work was interrupted. Run again, the work goes on in the
same session, by the last checkpoint or else from where the session stands. Tools are not offered to the model here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

from weft.kernel.advice import Action
from weft.kernel.errors import AgentBusy, CriteriaUnmet, NotApplicable, WeftError
from weft.ledger.api import Lease
from weft.programs.foreign import ensure_own
from weft.programs.model import Program
from weft.programs.programs import Programs
from weft.runtime.configuration.gathering import TurnRequest
from weft.runtime.configuration.message_overrides import MessageOverrides
from weft.runtime.invoke.criterion_commands import CriterionCommands
from weft.runtime.invoke.invocation import Invocation, InvocationContext, InvocationResult
from weft.runtime.invoke.task_messages import reflection, resumed_brief, task_brief
from weft.runtime.turns.messages import TurnReply, renewed, to_the_end

ENDED_STATES = ("completed", "failed")
DEFAULT_MAX_TURNS = 50


@asynccontextmanager
async def hold_agent(context: InvocationContext, agent: Program, task: Program | None = None) -> AsyncIterator[Lease]:
    """Nobody else runs this agent meanwhile, in this process or another."""
    programs = context.programs.acting_as(agent.name)
    holds: list[Lease] = []
    purpose = None if task is None else task.id
    try:
        await to_the_end(context.across(lambda: holds.append(programs.hold_agent(agent.id, task=purpose))))
        async with renewed(partial(context.across, partial(programs.renew_agent, holds[0]))):
            yield holds[0]
    finally:
        for hold in holds:  # also where the task was cancelled before it heard of it
            with suppress(AgentBusy):  # it was taken from us; whoever has it now keeps it
                await to_the_end(context.across(partial(programs.release_agent, hold)))


def ensure_free(agent: Program) -> None:
    """Refuse an agent whose state lets nobody begin with it."""
    hints = {
        "paused": Action.RESUME_AGENT.of(agent=agent.name),
        "error": Action.RESET_AGENT.of(agent=agent.name),
        "thinking": Action.WAIT_FOR_ANSWER_OR_RESET_AGENT.of(agent=agent.name),
    }
    if agent.state in hints:
        raise NotApplicable(f"agent {agent.name!r} is {agent.state}", hints[agent.state])


async def ensure_model(context: InvocationContext, agent: Program, session: str | None, invocation: Invocation) -> None:
    """Refuse an agent that no layer of its next turn in a session names a model for. A session that does not exist yet
    has no say in it."""
    ensure_own(agent)
    request = TurnRequest(session=session, persona=agent.id, overrides=invocation.overrides)
    if (await context.configuration(request)).model is None:
        raise NotApplicable(f"agent {agent.name!r} has no model", Action.SET_AGENT_MODEL.of(agent=agent.name))


class AgentTurns:
    """The turns and steps of an agent that is held, recorded in its own name."""

    def __init__(
        self,
        context: InvocationContext,
        agent: Program,
        overrides: MessageOverrides,
        hold: Lease,
    ) -> None:
        self.context, self.agent, self._overrides = context, agent, overrides
        self.programs = context.programs.acting_as(agent.name, hold)

    async def step(self, verb: str, reason: str | None = None) -> Program:
        return await self.context.across(lambda: self.programs.step_agent(self.agent.id, verb, reason=reason))

    async def think(self, session: str, message: Any, after: str) -> TurnReply:
        """One turn. `after` is the step that a failure leaves the agent with."""
        await self.step("think")
        try:
            return await self.context.send(session, message, self._overrides, self.agent)
        except BaseException as error:  # whatever it is, nobody thinks here any more
            with suppress(WeftError):  # somebody else has moved the agent meanwhile; what happened matters more
                await to_the_end(self.step(after, _reason(error)))
            raise


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if isinstance(error, WeftError) else type(error).__name__


async def work_on_task(
    context: InvocationContext, agent: Program, task: Program, invocation: Invocation
) -> InvocationResult:
    """Until its criteria hold, the turns of the harness are spent, or something outside fails."""
    ensure_own(task)
    session = agent.current_session if agent.current_task == task.name else None
    await ensure_model(context, agent, session, invocation)
    async with hold_agent(context, agent, task) as hold:
        working, begun = await context.across(lambda: _begin(context.programs, agent.id, task.id, hold))
        turns = AgentTurns(context, working, invocation.overrides, hold)
        return await TaskWork(turns, begun, invocation.workspace).run()


def _begin(invoker: Programs, agent_id: str, task_id: str, hold: Lease) -> tuple[Program, Program]:
    """The task started and the agent on it, whether for the first time or taken up again."""
    programs = invoker.acting_as(invoker.ledger.authority, hold)
    agent, task = invoker.get(agent_id), invoker.get(task_id)
    is_current = agent.current_task == task.name
    if is_current and task.state in ENDED_STATES:  # it was left there between the end of its task and its own
        agent = programs.acting_as(agent.name, hold).step_agent(agent.id, "reset", reason="its task is over")
    elif not is_current or agent.state != "thinking":
        ensure_free(agent)
    if task.state == "pending":
        task = programs.start_task(task.id)
    if task.state != "active":
        hint = "complete what it depends on first" if task.state == "blocked" else "make a new task"
        raise NotApplicable(f"task {task.name!r} is {task.state}", hint)
    if not is_current:
        return programs.assign(agent.id, task.id), programs.get(task.id)
    if agent.state == "thinking":  # whoever was at it is gone: the turn they were in has failed, or will
        agent = programs.acting_as(agent.name, hold).step_agent(agent.id, "wait", reason="taken up again")
    return agent, task


class TaskWork:
    """One agent's work on one task, in one session."""

    def __init__(self, turns: AgentTurns, task: Program, workspace: str | None) -> None:
        self._turns, self._task, self._workspace = turns, task, workspace
        self._programs, self._context, self._agent = turns.programs, turns.context, turns.agent
        self._session = turns.agent.current_session or ""
        config = turns.agent.config if isinstance(turns.agent.config, dict) else {}
        self._harness: dict[str, Any] = config.get("harness") or {}

    async def run(self) -> InvocationResult:
        message, count = await self._first_message(), self._agent.turn_count or 0
        max_turns = self._harness.get("maxTurns", DEFAULT_MAX_TURNS)
        unmet = ["it was not answered"]
        while count < max_turns:
            reply = await self._turns.think(self._session, message, after="wait")
            count += 1
            unmet = await self._unmet_criteria(reply.reply.text)
            if not unmet:
                await self._turns.step("complete")
                return await self._report(count, reply)
            if not self._harness.get("reflectOnFailure"):
                return await self._give_up("criteria_unmet", f"not met: {'; '.join(unmet)}", count, reply)
            message = reflection(unmet)
            await self._checkpoint(count, reply, message)
        reason = f"{max_turns} turns were not enough: {'; '.join(unmet)}"
        return await self._give_up("turns_spent", reason, count, None)

    async def _first_message(self) -> str:
        """The task itself, what a checkpoint says comes next, or that it goes on."""
        head = (await self._context.ledger.session(self._session)).head
        if head is None:
            return task_brief(self._task)
        saved = await self._context.across(lambda: self._programs.load_checkpoint(self._agent.id))
        is_here = isinstance(saved, dict) and saved.get("head") == head
        return str(saved["next"]) if is_here else resumed_brief(self._task)

    async def _unmet_criteria(self, answer: str) -> list[str]:
        """What does not hold yet; where nothing is left, the task is completed."""
        await self._turns.step("execute", "checking the success criteria")
        commands = CriterionCommands(self._context.variable)
        try:
            await self._context.across(
                lambda: self._programs.complete_task(
                    self._task.id, answer=answer, workspace=self._workspace, run=commands.run
                )
            )
        except asyncio.CancelledError:
            commands.cancel()
            raise
        except CriteriaUnmet as error:
            return list(error.told)
        except WeftError as error:
            await self._fail_agent(type(error).__name__, str(error))
            raise
        return []

    async def _checkpoint(self, count: int, reply: TurnReply, message: str) -> None:
        every = self._harness.get("checkpointEvery")
        if every and count % every == 0:
            state = {"task": self._task.name, "session": self._session, "head": reply.turn.id, "next": message}
            await self._context.across(lambda: self._programs.save_checkpoint(self._agent.id, state))

    async def _give_up(self, code: str, reason: str, count: int, reply: TurnReply | None) -> InvocationResult:
        await self._context.across(lambda: self._programs.fail_task(self._task.id, reason=reason))
        await self._fail_agent(code, reason)
        return await self._report(count, reply, reason)

    async def _fail_agent(self, code: str, message: str) -> None:
        await self._context.across(lambda: self._programs.fail_agent(self._agent.id, message, code=code))

    async def _report(self, count: int, reply: TurnReply | None, reason: str | None = None) -> InvocationResult:
        """The task as it is now, and the last verdict on each of its criteria."""
        task = await self._context.get(self._task.id)
        checks = await self._context.across(lambda: self._programs.checks(self._task.id))
        last_checks = {check.criterion: check for check in checks}
        fields = {
            "task": task.name,
            "state": task.state,
            "assignee": self._agent.name,
            "session": self._session,
            "turns": count,
            "answer": None if reply is None else reply.reply.text,
            "reason": reason,
            "criteria": [
                {"criterion": check.criterion, "type": check.type, "passed": check.passed, "observed": check.observed}
                for _, check in sorted(last_checks.items())
            ],
        }
        result = {name: value for name, value in fields.items() if value is not None}
        return InvocationResult(program=task.name, kind=task.kind, result=result, sent=reply)
