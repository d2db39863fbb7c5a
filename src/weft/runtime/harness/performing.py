"""Moves of an agent's work, performed by whoever holds the agent.

A move that is broken off anywhere is performed again: what it had recorded changes the facts, so that only the rest of
it follows. Messages are admitted under a key of the work and their number in it, so that each is admitted once.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, assert_never

from msgspec import Struct

from weft.kernel.authority import Authority
from weft.kernel.enums import MessageRole
from weft.kernel.errors import AgentBusy, CriteriaUnmet, StoreError, WeftError
from weft.ledger.api import Admission, Lease
from weft.ledger.model import NewMessage
from weft.programs.assignments import TASK_FIELD, WORK_FIELD, chain_of
from weft.programs.programs import Programs
from weft.programs.vouching import ensure_vouched
from weft.runtime.harness.criterion_commands import CriterionCommands
from weft.runtime.harness.facts import WorkFacts, WorkReader
from weft.runtime.harness.moves import (
    AwaitAnswer,
    AwaitWorkers,
    CheckCriteria,
    GiveUpWork,
    Leave,
    Move,
    Rest,
    SaveCheckpoint,
    Say,
    StandStill,
    StartTask,
    next_move,
    pending_calls,
)
from weft.runtime.sandbox.command_runner import CommandRunner
from weft.runtime.turns.ledger_port import Crossing
from weft.runtime.turns.messages import to_the_end


class WorkRequest(Struct, frozen=True, kw_only=True):
    """What whoever asks for the work says of it: in whose name the agent is told, and how its turns are run."""

    authority: Authority | None = None
    """None: in the name of whoever sent the last message of the work, or gave the agent its task."""
    overrides: Any = None
    workspace: str | None = None
    """The folder that it works in, where that is not the task's own."""


NO_REQUEST = WorkRequest()
WORKING_STATES = ("thinking", "executing")
"""The states of an agent from which it begins to wait."""


class MovePerformer:
    """Performs the moves of one ledger's agents."""

    def __init__(self, programs: Programs, crossing: Crossing, runner: CommandRunner) -> None:
        self._programs, self._crossing, self._runner = programs, crossing, runner
        self._reader = WorkReader(programs)

    async def facts(self, agent: str) -> WorkFacts | None:
        return await self._crossing.run(lambda: self._reader.facts(agent))

    async def next_move(self, agent: str, now_ms: int, *, is_asked: bool = False) -> tuple[WorkFacts, Move] | None:
        """What is recorded of an agent's work, and what comes next; None where it has no task."""
        facts = await self.facts(agent)
        return None if facts is None else (facts, next_move(facts, now_ms, is_asked=is_asked))

    async def perform(
        self, facts: WorkFacts, move: Move, lease: Lease, request: WorkRequest = NO_REQUEST
    ) -> Admission | None:
        """Under the lease of the agent; the message's receipt where the agent was told something. Raises what criteria
        that cannot be checked raise."""
        agent, programs = facts.agent, self._programs.acting_as(facts.agent.name, lease)
        match move:
            case StartTask():
                await self._run(partial(programs.start_task, facts.task.id))
            case Say():
                admission: Admission = await self._run(partial(self._say, programs, facts, move, request))
                return admission
            case CheckCriteria():
                await self._check(programs, facts, request.workspace or facts.workspace)
            case SaveCheckpoint():
                await self._run(partial(programs.save_checkpoint, agent.id, checkpoint_state(facts, move.next)))
            case StandStill(reason=reason):
                if agent.state in WORKING_STATES:
                    await self._run(partial(programs.step_agent, agent.id, "wait", reason=reason))
            case GiveUpWork(code=code, reason=reason):
                await self._run(partial(programs.give_up, agent.id, reason, code=code))
            case Leave():
                await self._run(partial(programs.step_agent, agent.id, "reset", reason="its task is over"))
            case Rest() | AwaitAnswer() | AwaitWorkers():
                return None  # somebody else's turn: nothing is done
            case _:
                assert_never(move)
        return None

    async def _run(self, work: Any) -> Any:
        return await to_the_end(self._crossing.run(work))

    def _say(self, programs: Programs, facts: WorkFacts, move: Say, request: WorkRequest) -> Admission:
        """The agent's step stands in the log before the message. What a message of the owner's names as its folder is
        worked in, so a folder that comes of the task is looked at first."""
        if request.workspace is None:
            ensure_vouched(facts.task)
        agent = facts.agent
        is_step_recorded = agent.state == "thinking" and (agent.turn_count or 0) > len(facts.rounds)
        if not is_step_recorded:
            if agent.state == "thinking":
                programs.step_agent(agent.id, "wait", reason=move.reason)
            programs.step_agent(agent.id, "think", reason=move.reason)
        last, overrides = facts.last_harness_round, request.overrides
        if overrides is None and last is not None:
            overrides = last.message.overrides
        workspace = request.workspace or facts.workspace
        message = NewMessage(
            role=MessageRole.USER,
            content=move.text,
            context=None if workspace is None else {"workspace": workspace},
            metadata={WORK_FIELD: move.kind.value, TASK_FIELD: facts.task.id},
        )
        ledger = programs.ledger.acting_as(request.authority or _authority(facts))
        return ledger.inbox.admit(
            message,
            session=facts.assignment.session,
            overrides=overrides,
            key=f"work {facts.assignment.session} {facts.assignment.n} message {facts.harness_messages}",
        )

    async def _check(self, programs: Programs, facts: WorkFacts, workspace: str | None) -> None:
        """Records a verdict on every criterion; where all lease, the task and the agent are done in the same append."""
        last = facts.last
        assert last is not None, "criteria are held against an answer"
        if facts.agent.state == "thinking":
            await self._run(partial(programs.step_agent, facts.agent.id, "execute", reason="checking the criteria"))
        commands = CriterionCommands(self._runner)
        try:
            await self._crossing.run(
                lambda: programs.complete_task(
                    facts.task.id,
                    answer=last.answer,
                    workspace=workspace,
                    run=commands.run,
                    agent=facts.agent.id,
                    turn=last.turn,
                )
            )
        except asyncio.CancelledError:
            commands.cancel()
            raise
        except CriteriaUnmet:
            return
        except (StoreError, AgentBusy):  # nothing is wrong with the work: it is gone on with later
            raise
        except WeftError as error:
            code, words = error.code, str(error)
            await self._run(lambda: programs.fail_agent(facts.agent.id, words, code=code))
            raise


def checkpoint_state(facts: WorkFacts, text: str | None) -> dict[str, Any]:
    """Where the work stands: the agent's plan, what it has reached and spent, and the calls that have not ended."""
    last = facts.last
    return {
        "task": facts.task.name,
        "session": facts.session,
        "head": facts.head,
        "turn": None if last is None else last.turn,
        "next": text,
        "plan": list(facts.plan),
        "progress": {
            "turns": len(facts.rounds),
            "tokens": facts.spent.total,
            "cost": facts.spent.cost,
            "seconds": round(facts.seconds),
            "criteria": [{"criterion": number, "passed": one.passed} for number, one in sorted(facts.verdicts.items())],
        },
        "pendingCalls": pending_calls(facts),
    }


def _authority(facts: WorkFacts) -> Authority:
    """In whose name the agent is told: as it was told before, else in that of whoever gave it the task."""
    last = facts.last_harness_round
    by = facts.assignment.by if last is None else (last.message.sender, *last.message.on_behalf_of)
    return chain_of(by)
