"""The broker's job that goes on with the work of agents: it performs each move that is due, on behalf of nobody who
waits for it."""

from __future__ import annotations

import asyncio
from functools import partial

from msgspec import Struct

from weft.kernel.clock import Clock, SystemClock
from weft.kernel.enums import InboxState
from weft.kernel.errors import AgentBusy, IllegalTransition, NotFound, StoreError, WeftError, error_code
from weft.ledger.api import Runs
from weft.programs.assignments import agents_at_work, load_assignment
from weft.programs.programs import Programs
from weft.runtime.broker.background import OnJobError
from weft.runtime.harness.leases import hold_agent
from weft.runtime.harness.moves import AwaitAnswer, AwaitWorkers, Rest
from weft.runtime.harness.performing import MovePerformer
from weft.runtime.sandbox.command_runner import CommandRunner
from weft.runtime.turns.ledger_port import Crossing

BUSY_MS = 5000
"""How soon an agent is looked at again that somebody else runs."""
FIRST_PAUSE_MS = 1000
LONGEST_PAUSE_MS = 60_000
"""After a failed move its agent rests for the first pause; for twice as long after each further one in a row."""
MAX_FAILURES = 3
"""So often in a row a move may fail before its agent stands in an error."""


class AgentTrouble(Struct, frozen=True):
    """Moves of one agent that failed, one after the other."""

    failures: int
    until_ms: int
    """When the next one is tried."""
    words: str | None = None
    """What people were told of it last."""


class HarnessJob:
    """A `BackgroundJob`. Of several brokers the one performs a move that holds the agent. What one agent's move fails
    with is told of, and keeps that agent alone waiting."""

    name = "the work of agents"

    def __init__(
        self,
        programs: Programs,
        crossing: Crossing,
        runner: CommandRunner,
        *,
        clock: Clock | None = None,
        on_error: OnJobError | None = None,
    ) -> None:
        self._programs, self._crossing, self._clock = programs, crossing, clock or SystemClock()
        self._performer, self._on_error = MovePerformer(programs, crossing, runner), on_error
        self._troubles: dict[str, AgentTrouble] = {}
        self._awaited: dict[str, tuple[int, str]] = {}
        """By agent, its assignment and the message whose turn is to end before anything else can come next."""
        self._runs = Runs(programs.ledger)

    async def run_due(self, now_ms: int) -> int | None:
        """Raises where it cannot be read which agents are at work."""
        agents = await self._crossing.run(lambda: agents_at_work(self._programs.ledger))
        for agent in {*self._troubles, *self._awaited}.difference(agents):
            self._troubles.pop(agent, None)
            self._awaited.pop(agent, None)
        dues = await asyncio.gather(*map(self._go_on, agents))
        return min((due_ms for due_ms in dues if due_ms is not None), default=None)

    async def _go_on(self, agent: str) -> int | None:
        """Perform the moves of one agent until a turn is to be answered or nothing is due; when that is."""
        trouble = self._troubles.get(agent)
        if trouble is not None and self._clock.now_ms() < trouble.until_ms:
            return trouble.until_ms
        try:
            while True:
                due_ms = await self._move(agent)
                self._troubles.pop(agent, None)
                if due_ms is not NOW:
                    return due_ms
        except AgentBusy:
            return self._clock.now_ms() + BUSY_MS
        except Exception as error:  # whatever it is, the other agents go on
            return await self._after_error(agent, error)

    async def _after_error(self, agent: str, error: Exception) -> int:
        """When the agent is looked at again. One whose moves fail again and again stands in an error, which a person
        sees; not so where the ledger cannot be read or written, which is no fault of the agent."""
        before = self._troubles.get(agent)
        failures = 1 if before is None else before.failures + 1
        is_final = failures >= MAX_FAILURES and not isinstance(error, StoreError)
        words = f"{type(error).__name__}: {error}"
        if is_final:
            try:
                fail = partial(self._programs.fail_agent, agent, str(error) or words, code=error_code(error))
                await self._crossing.run(fail)
            except IllegalTransition:  # it stands in an error already
                pass
            except WeftError as second:
                error, words = second, f"{type(second).__name__}: {second}"
        # somebody may just have moved the agent: that is told of where it does not go away
        is_reported = is_final or not isinstance(error, IllegalTransition | NotFound)
        if is_reported and self._on_error is not None and (before is None or words != before.words):
            self._on_error(f"the work of agent {await self._agent_name(agent)}", error)
        pause_ms = min(FIRST_PAUSE_MS << min(failures - 1, 16), LONGEST_PAUSE_MS)
        until_ms = self._clock.now_ms() + pause_ms
        self._troubles[agent] = AgentTrouble(failures, until_ms, words if is_reported else None)
        return until_ms

    async def _agent_name(self, agent: str) -> str:
        try:
            return (await self._crossing.run(partial(self._programs.get, agent))).name
        except WeftError:  # its id says which one it is
            return agent

    async def _move(self, agent: str) -> int | None:
        if await self._is_awaited(agent):
            return None
        facts_and_move = await self._performer.next_move(agent, self._clock.now_ms())
        if facts_and_move is None:
            return None
        facts, move = facts_and_move
        if isinstance(move, AwaitAnswer) and facts.settings.checkpoint_every is None:
            self._awaited[agent] = (facts.assignment.n, move.message)
        if isinstance(move, Rest | AwaitAnswer | AwaitWorkers):
            return move.until_ms if isinstance(move, Rest) else None
        async with hold_agent(self._programs, self._crossing, facts.agent, facts.task.id) as lease:
            again = await self._performer.next_move(agent, self._clock.now_ms())
            if again is not None:
                await self._performer.perform(*again, lease)
        return NOW

    async def _is_awaited(self, agent: str) -> bool:
        """Whether a turn is still to be answered: while it runs there is much news, and nothing to do."""
        awaited = self._awaited.get(agent)
        if awaited is None:
            return False
        is_awaited = await self._crossing.run(lambda: self._is_under_way(agent, *awaited))
        if not is_awaited:
            del self._awaited[agent]
        return is_awaited

    def _is_under_way(self, agent: str, number: int, message: str) -> bool:
        assignment = load_assignment(self._programs.ledger, agent)
        if assignment is None or assignment.n != number or self._programs.get(assignment.task).state != "active":
            return False
        return self._runs.message_state(message)[0] in (InboxState.QUEUED, InboxState.TAKEN)


NOW = -1
"""Another move may be due at once."""
