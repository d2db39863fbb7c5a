"""Work on a task that somebody waits for: the same moves as the broker's job performs, by whoever asked for the work.

The agent is held meanwhile, so that a broker leaves it alone; if this process dies, a broker goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from weft.kernel.authority import LOCAL
from weft.kernel.clock import Clock, SystemClock
from weft.kernel.errors import Action, LedgerError, NotApplicable, StoreError, WeftError
from weft.ledger.api import Admission, InboxMessage, Lease, Runs
from weft.programs.foreign import ensure_own
from weft.programs.model import Program
from weft.programs.programs import Programs
from weft.runtime.broker.plans import Planner, Sending
from weft.runtime.broker.schedule import BUSY_SECONDS
from weft.runtime.harness.facts import WorkFacts
from weft.runtime.harness.leases import hold_agent
from weft.runtime.harness.moves import ENDED_STATES, AwaitAnswer, AwaitWorkers, GiveUpWork, Move, Rest, Say, StandStill
from weft.runtime.harness.performing import MovePerformer, WorkRequest
from weft.runtime.sandbox.command_runner import CommandRunner
from weft.runtime.turns.ledger_port import RuntimeLedger
from weft.runtime.turns.messages import answer_admitted, broker_of, to_the_end
from weft.runtime.turns.recorded_replies import TurnReply

if TYPE_CHECKING:
    from weft.runtime.inference.attempt import OnToken

OnProgress = Callable[[WorkFacts, Move], None]
"""Called with what is recorded of the work before each move, and with the move."""

OnAdmitted = Callable[[Admission], Awaitable[None]]
"""Called with each message of the work before its answer is awaited."""


class FinishedWork(Struct, frozen=True, kw_only=True):
    """What came of the work on a task: the task as it is now, what is recorded of the work, and its last answer."""

    task: Program
    facts: WorkFacts
    reply: TurnReply | None = None
    """The last answer."""
    admission: Admission | None = None
    """The receipt for the message that it answers."""
    reason: str | None = None
    """Why it was given up."""


class TaskWork:
    """Works on tasks in one process, until their criteria hold or the harness ends it."""

    def __init__(
        self,
        ledger: RuntimeLedger,
        programs: Programs,
        planner: Planner,
        runner: CommandRunner,
        *,
        clock: Clock | None = None,
        on_token: OnToken | None = None,
        on_progress: OnProgress | None = None,
        on_admitted: OnAdmitted | None = None,
    ) -> None:
        self._ledger, self._programs, self._planner = ledger, programs, planner
        self._clock, self._on_token, self._on_progress = clock or SystemClock(), on_token, on_progress
        self._on_admitted = on_admitted
        self._performer, self._runs = MovePerformer(programs, ledger.crossing, runner), Runs(programs.ledger)

    async def run(
        self, agent: Program, task: Program, request: WorkRequest, *, session: str | None = None
    ) -> FinishedWork:
        """Begin or go on with the work. `session` is the label of the session that it is begun in. Raises what ended
        it before the harness did, such as the failure of a turn."""
        ensure_own(task)
        crossing = self._ledger.crossing
        async with hold_agent(self._programs, crossing, agent, task.id) as lease:
            begin = partial(_begin, self._programs, agent.id, task.id, lease, session)
            await to_the_end(crossing.run(begin))
            try:
                return await self._run(agent.id, lease, request)
            except asyncio.CancelledError:
                with suppress(LedgerError):  # somebody else has moved the agent meanwhile
                    await to_the_end(self._stand_still(agent.id, lease))
                raise

    async def _stand_still(self, agent: str, lease: Lease) -> None:
        """Whoever is cancelled leaves the agent waiting."""
        facts = await self._performer.facts(agent)
        if facts is not None:
            await self._performer.perform(facts, StandStill("interrupted"), lease)

    async def _run(self, agent: str, lease: Lease, request: WorkRequest) -> FinishedWork:
        is_asked, reply, fault, reason = True, None, None, None
        facts: WorkFacts | None = None
        admission: Admission | None = None
        while True:
            facts_and_move = await self._performer.next_move(agent, self._clock.now_ms(), is_asked=is_asked)
            if facts_and_move is None:
                break
            facts, move = facts_and_move
            is_asked = False
            if self._on_progress is not None:
                self._on_progress(facts, move)
            if isinstance(move, AwaitAnswer):
                if admission is None or admission.message != move.message:
                    admission = await self._ledger.crossing.run(partial(_admission, self._programs, move.message))
                if self._on_admitted is not None:
                    await self._on_admitted(admission)
                reply, fault = await self._answer(admission)
                continue
            if isinstance(move, AwaitWorkers):
                await self._await_workers(move)
                continue
            if isinstance(move, Rest):
                if move.until_ms is None:
                    break
                await asyncio.sleep(max(0, move.until_ms - self._clock.now_ms()) / 1000)
                continue
            admission = await self._performer.perform(facts, move, lease, request) or admission
            if isinstance(move, StandStill):
                raise fault or NotApplicable(move.reason, Action.RESUME_WORK.of(task=facts.task.name))
            if isinstance(move, GiveUpWork):
                reason = move.reason
                break
        assert facts is not None, "the agent had a task"
        task = await self._ledger.crossing.run(partial(self._programs.get, facts.task.id))
        return FinishedWork(task=task, facts=facts, reply=reply, admission=admission, reason=reason)

    async def _await_workers(self, move: AwaitWorkers) -> None:
        """Have the messages answered that wait in the sessions of workers; another broker may do so, too."""
        inbox, run = self._programs.acting_as(LOCAL).ledger.inbox, self._ledger.crossing.run
        waiting = [await run(partial(inbox.list, session=session, limit=1)) for session in move.sessions]
        messages = [message for messages in waiting for message in messages]
        if messages:
            await asyncio.gather(*(self._answer(_receipt(message)) for message in messages))
        else:
            await asyncio.sleep(BUSY_SECONDS)  # their answers are on their way

    async def _answer(self, admission: Admission) -> tuple[TurnReply | None, WeftError | None]:
        """The answer to a message of the work, or what its turn failed with."""
        broker_of(self._ledger).plan_with(self._planner)  # also for what others left in the session
        sending = Sending(planner=self._planner)
        try:
            return await answer_admitted(self._ledger, admission, sending, on_token=self._on_token), None
        except StoreError:  # nothing is known of the turn
            raise
        except WeftError as error:
            _, is_elsewhere = await self._ledger.crossing.run(partial(self._runs.message_state, admission.message))
            if is_elsewhere:  # nobody here answers it
                raise
            return None, error


async def resume_work(ledger: RuntimeLedger, programs: Programs, runner: CommandRunner, agent: Program) -> Move | None:
    """Tell an agent whose work stands still to go on, in the name of whoever asks; a broker answers that. Returns what
    comes next in its work: a `Say` was performed. None where it has no task."""
    performer = MovePerformer(programs, ledger.crossing, runner)
    async with hold_agent(programs, ledger.crossing, agent) as lease:
        facts_and_move = await performer.next_move(agent.id, SystemClock().now_ms(), is_asked=True)
        if facts_and_move is None:
            return None
        facts, move = facts_and_move
        if isinstance(move, Say | GiveUpWork):  # whatever else is due, a broker does without being asked
            await performer.perform(facts, move, lease, WorkRequest(authority=programs.ledger.authority))
        return move


def _admission(programs: Programs, message: str) -> Admission:
    return _receipt(programs.ledger.inbox.get(message))


def _receipt(waiting: InboxMessage) -> Admission:
    return Admission(
        message=waiting.id, session=waiting.session, session_id=waiting.session_id, is_fork=False, receipt=None
    )


def ensure_free(agent: Program) -> None:
    """Refuse an agent whose state lets nobody begin with it."""
    hints = {
        "paused": Action.RESUME_AGENT.of(agent=agent.name),
        "error": Action.RESET_AGENT.of(agent=agent.name),
        "thinking": Action.WAIT_FOR_ANSWER_OR_RESET_AGENT.of(agent=agent.name),
    }
    if agent.state in hints:
        raise NotApplicable(f"agent {agent.name!r} is {agent.state}", hints[agent.state])


def _begin(invoker: Programs, agent_id: str, task_id: str, lease: Lease, session: str | None) -> None:
    """The task started and the agent on it, whether for the first time or taken up again."""
    programs = invoker.acting_as(invoker.ledger.authority, lease)
    agent, task = invoker.get(agent_id), invoker.get(task_id)
    is_current = agent.current_task == task.name
    if is_current and task.state in ENDED_STATES:  # it was left there between the end of its task and its own
        agent = programs.acting_as(agent.name, lease).step_agent(agent.id, "reset", reason="its task is over")
    elif not is_current or agent.state != "thinking":
        ensure_free(agent)
    if task.state == "pending":
        task = programs.start_task(task.id)
    if task.state != "active":
        hint = "complete what it depends on first" if task.state == "blocked" else "make a new task"
        raise NotApplicable(f"task {task.name!r} is {task.state}", hint)
    if not is_current:
        programs.assign(agent.id, task.id, session=session)
