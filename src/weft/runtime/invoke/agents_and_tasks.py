"""Agents and tasks invoked: an agent thinks in its session until a task's criteria hold, within its harness.

Every state it passes is an event before what it stands for: thinking while a model is asked, executing while criteria
are checked, waiting where something outside failed or the work was interrupted. Run again, the work goes on in the
same session, by the last checkpoint or else from where the session stands. Tools are not offered to the model here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from weft.kernel.advice import Action
from weft.kernel.enums import CriterionType, ProgramKind
from weft.kernel.errors import AgentBusy, CriteriaUnmet, NotApplicable, WeftError
from weft.ledger.views.lease_rows import Lease
from weft.programs.criteria import CommandResult
from weft.programs.foreign import ensure_own
from weft.programs.model import Program
from weft.programs.programs import Programs
from weft.runtime.invoke.human import invoke_human
from weft.runtime.invoke.invocation import Invocation, InvocationContext, InvocationResult
from weft.runtime.invoke.model_settings import ConfiguredModel
from weft.runtime.invoke.models_and_sessions import agent_context, default_model, message_of, question, told
from weft.runtime.sandbox.bubblewrap import find_sandbox, run_sandboxed
from weft.runtime.sandbox.processes import Ending, Limits
from weft.runtime.turns.messages import TurnReply, renewed, send, to_the_end

ENDED = ("completed", "failed")
MOST_TURNS = 50
"""Where a harness says nothing."""


async def invoke_agent(shop: InvocationContext, program: Program, given: Invocation) -> InvocationResult:
    """A task to work on, its current one where there is no message, or a message in its own session."""
    task = given.task or (program.current_task if given.message is None else None)
    if task is not None:
        return await _worked(shop, program, await shop.get(task, ProgramKind.TASK), given)
    said = message_of(given, "agent")
    async with _held(shop, program) as hold:
        return await _answered(shop, await shop.get(program.id), said, given, hold)


async def _answered(
    shop: InvocationContext, agent: Program, said: Any, given: Invocation, hold: Lease
) -> InvocationResult:
    _ensure_free(agent)
    desk = _Desk(shop, agent, await _model(shop, agent, given), given, hold)
    session = agent.current_session or f"{agent.name}:main"
    sent = await desk.think(session, said, after="reset" if agent.current_task is None else "wait")
    await desk.step("complete" if agent.current_task is None else "wait")
    return InvocationResult(program=agent.name, kind=agent.kind, result=told(sent), sent=sent)


@asynccontextmanager
async def _held(shop: InvocationContext, agent: Program, task: Program | None = None) -> AsyncIterator[Lease]:
    """Nobody else runs this agent meanwhile, in this process or another."""
    own = shop.programs.acting_as(agent.name)
    taken: list[Lease] = []
    try:
        await to_the_end(
            shop.across(lambda: taken.append(own.hold_agent(agent.id, task=None if task is None else task.id)))
        )
        async with renewed(partial(shop.across, partial(own.renew_agent, taken[0]))):
            yield taken[0]
    finally:
        for hold in taken:  # also where the task was cancelled before it heard of it
            with suppress(AgentBusy):  # it was taken from us; whoever has it now keeps it
                await to_the_end(shop.across(partial(own.release_agent, hold)))


async def invoke_task(shop: InvocationContext, program: Program, given: Invocation) -> InvocationResult:
    """Its assignee gets to work: an agent until the criteria hold, a person by being told of it."""
    assignee = program.config.get("assignee") if isinstance(program.config, dict) else None
    if assignee is None:
        raise NotApplicable(f"task {program.name!r} is nobody's", Action.ASSIGN_TASK.of(task=program.name))
    found = await shop.get(assignee)
    if found.kind is ProgramKind.AGENT:
        return await _worked(shop, found, program, given)
    notice = await invoke_human(shop, found, Invocation(message=brief(program), about=program.id))
    result = {"task": program.name, "state": program.state, "assignee": found.name, **notice.result}
    return InvocationResult(program=program.name, kind=program.kind, result=result)


def _ensure_free(agent: Program) -> None:
    hints = {
        "paused": Action.RESUME_AGENT,
        "error": Action.RESET_AGENT,
        "thinking": Action.WAIT_FOR_ANSWER_OR_RESET_AGENT,
    }
    if agent.state in hints:
        raise NotApplicable(f"agent {agent.name!r} is {agent.state}", hints[agent.state].of(agent=agent.name))


async def _model(shop: InvocationContext, agent: Program, given: Invocation) -> ConfiguredModel:
    name = given.model or default_model(agent)
    if name is None:
        raise NotApplicable(f"agent {agent.name!r} has no model", Action.SET_AGENT_MODEL.of(agent=agent.name))
    return await shop.model(name, agent_context(shop.context, agent))


class _Desk:
    """An agent at work: its steps are its own, in its own name."""

    def __init__(
        self, shop: InvocationContext, agent: Program, model: ConfiguredModel, given: Invocation, hold: Lease
    ) -> None:
        self.shop, self.agent, self._model, self._given = shop, agent, model, given
        self.own = shop.programs.acting_as(agent.name, hold)

    async def step(self, verb: str, reason: str | None = None) -> Program:
        return await self.shop.across(lambda: self.own.step_agent(self.agent.id, verb, reason=reason))

    async def think(self, session: str, said: Any, after: str) -> TurnReply:
        """One turn. `after` is the step that a failure leaves the agent with."""
        await self.step("think")
        try:
            return await send(
                self.shop.ledger,
                self.shop.inference,
                session,
                question(self._model, said, self._given, self.agent),
                on_token=self.shop.on_token,
                context=self._model.context,
            )
        except BaseException as error:  # whatever it is, nobody thinks here any more
            with suppress(WeftError):  # somebody else has moved the agent meanwhile; what happened matters more
                await to_the_end(self.step(after, _words(error)))
            raise


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if isinstance(error, WeftError) else type(error).__name__


async def _worked(shop: InvocationContext, agent: Program, task: Program, given: Invocation) -> InvocationResult:
    ensure_own(task)
    model = await _model(shop, agent, given)
    async with _held(shop, agent, task) as hold:
        working, begun = await shop.across(lambda: _begun(shop.programs, agent.id, task.id, hold))
        return await _Job(_Desk(shop, working, model, given, hold), begun, given.workspace).run()


def _begun(whose: Programs, worker: str, work: str, hold: Lease) -> tuple[Program, Program]:
    """The task started and the agent on it, whether for the first time or taken up again."""
    programs, agent, task = whose.acting_as(whose.ledger.authority, hold), whose.get(worker), whose.get(work)
    own = agent.current_task == task.name
    if own and task.state in ENDED:  # it was left there between the end of its task and its own
        agent = programs.acting_as(agent.name, hold).step_agent(agent.id, "reset", reason="its task is over")
    elif not own or agent.state != "thinking":
        _ensure_free(agent)
    if task.state == "pending":
        task = programs.start_task(task.id)
    if task.state != "active":
        hint = "complete what it depends on first" if task.state == "blocked" else "make a new task"
        raise NotApplicable(f"task {task.name!r} is {task.state}", hint)
    if not own:
        return programs.assign(agent.id, task.id), programs.get(task.id)
    if agent.state == "thinking":  # whoever was at it is gone: the turn they were in has failed, or will
        agent = programs.acting_as(agent.name, hold).step_agent(agent.id, "wait", reason="taken up again")
    return agent, task


class _Job:
    """One agent, one task, one session."""

    def __init__(self, desk: _Desk, task: Program, workspace: str | None) -> None:
        self._desk, self._task, self._workspace = desk, task, workspace
        self._own, self._shop = desk.own, desk.shop
        self._session = desk.agent.current_session or ""
        config = desk.agent.config if isinstance(desk.agent.config, dict) else {}
        self._harness: dict[str, Any] = config.get("harness") or {}

    async def run(self) -> InvocationResult:
        said, turns = await self._first_words(), self._desk.agent.turn_count or 0
        most = self._harness.get("maxTurns", MOST_TURNS)
        unmet = ["it was not answered"]
        while turns < most:
            sent = await self._desk.think(self._session, said, after="wait")
            turns += 1
            unmet = await self._checked(sent.reply.text)
            if not unmet:
                await self._desk.step("complete")
                return await self._report(turns, sent)
            if not self._harness.get("reflectOnFailure"):
                return await self._given_up("criteria_unmet", f"not met: {'; '.join(unmet)}", turns, sent)
            said = reflection(unmet)
            await self._checkpoint(turns, sent, said)
        return await self._given_up("turns_spent", f"{most} turns were not enough: {'; '.join(unmet)}", turns, None)

    async def _first_words(self) -> str:
        """The task itself, what a checkpoint says comes next, or that it goes on."""
        head = (await self._shop.ledger.session(self._session)).head
        if head is None:
            return brief(self._task)
        saved = await self._shop.across(lambda: self._own.load_checkpoint(self._desk.agent.id))
        is_there = isinstance(saved, dict) and saved.get("head") == head
        return str(saved["next"]) if is_there else going_on(self._task)

    async def _checked(self, answer: str) -> list[str]:
        """What does not hold yet; where nothing is left, the task is completed."""
        await self._desk.step("execute", "checking the success criteria")
        try:
            await self._shop.across(
                lambda: self._own.complete_task(
                    self._task.id, answer=answer, workspace=self._workspace, run=run_criterion
                )
            )
        except CriteriaUnmet as error:
            return list(error.told)
        except WeftError as error:
            await self._failed(type(error).__name__, str(error))
            raise
        return []

    async def _checkpoint(self, turns: int, sent: TurnReply, said: str) -> None:
        every = self._harness.get("checkpointEvery")
        if every and turns % every == 0:
            state = {"task": self._task.name, "session": self._session, "head": sent.turn.id, "next": said}
            await self._shop.across(lambda: self._own.save_checkpoint(self._desk.agent.id, state))

    async def _given_up(self, code: str, reason: str, turns: int, sent: TurnReply | None) -> InvocationResult:
        await self._shop.across(lambda: self._own.fail_task(self._task.id, reason=reason))
        await self._failed(code, reason)
        return await self._report(turns, sent, reason)

    async def _failed(self, code: str, message: str) -> None:
        await self._shop.across(lambda: self._own.fail_agent(self._desk.agent.id, message, code=code))

    async def _report(self, turns: int, sent: TurnReply | None, reason: str | None = None) -> InvocationResult:
        """The task as it is now, and the last verdict on each of its criteria."""
        task = await self._shop.get(self._task.id)
        checks = await self._shop.across(lambda: self._own.checks(self._task.id))
        last = {one.criterion: one for one in checks}
        result = {
            "task": task.name,
            "state": task.state,
            "assignee": self._desk.agent.name,
            "session": self._session,
            "turns": turns,
            "answer": None if sent is None else sent.reply.text,
            "reason": reason,
            "criteria": [
                {"criterion": one.criterion, "type": one.type, "passed": one.passed, "observed": one.observed}
                for _, one in sorted(last.items())
            ],
        }
        found = {name: value for name, value in result.items() if value is not None}
        return InvocationResult(program=task.name, kind=task.kind, result=found, sent=sent)


_LISTS = (("inputs", "You are given"), ("outputs", "Wanted"), ("constraints", "Keep to"))


def brief(task: Program) -> str:
    """A task as the first message of the session that it is worked on in."""
    config = task.config if isinstance(task.config, dict) else {}
    spec: dict[str, Any] = config.get("spec") or {}
    parts = [f"Task: {config.get('title', task.name)}"]
    parts += [_listed(words, spec[name]) for name, words in _LISTS if spec.get(name)]
    criteria = spec.get("successCriteria") or []
    parts += [_listed("It is done when", map(_criterion, criteria))] if criteria else []
    return "\n\n".join([*parts, "Answer with the final result alone."])


def going_on(task: Program) -> str:
    """The same to an agent that was at it before."""
    return f"{brief(task)}\n\nYou have begun already: go on from there."


def reflection(unmet: Iterable[str]) -> str:
    """What is said after an answer that does not hold."""
    return "\n\n".join([_listed("Not done yet", unmet), "Think about why, then give the whole final answer again."])


def _listed(words: str, items: Iterable[Any]) -> str:
    return "\n".join([f"{words}:", *(f"- {item}" for item in items)])


def _criterion(one: dict[str, Any]) -> str:
    where = f"the file {one['path']}" if "path" in one else "the answer"
    match one["type"]:
        case CriterionType.FILE_EXISTS:
            return f"{where} exists"
        case CriterionType.WORD_COUNT:
            bounds = [f"at least {one['min']}"] if "min" in one else []
            bounds += [f"at most {one['max']}"] if "max" in one else []
            return f"{where} has {' and '.join(bounds)} words"
        case CriterionType.CONTAINS:
            return f"{where} contains {one['text']!r}"
        case CriterionType.JSON_SCHEMA:
            return f"{where} is JSON that fits the schema {one['schema']}"
        case _:
            return f"the command {one['command']!r} ends with {one.get('exitCode', 0)}"


SECONDS = 60.0


def run_criterion(command: str | list[str], folder: Path, timeout: float | None) -> CommandResult:
    """As `complete_task` takes it: called where no event loop runs, in a thread that may wait."""
    return asyncio.run(_run(command, folder, timeout))


async def _run(command: str | list[str], folder: Path, timeout: float | None) -> CommandResult:
    argv = command if isinstance(command, list) else ["/bin/sh", "-c", command]
    limits = Limits(seconds=SECONDS if timeout is None else timeout)
    outcome = await run_sandboxed(await find_sandbox(), argv, workspace=folder, limits=limits)
    return CommandResult(
        exit_code=outcome.code if outcome.ending is Ending.EXITED else None,
        stdout=outcome.stdout.decode(errors="replace"),
        stderr=outcome.stderr.decode(errors="replace"),
    )
