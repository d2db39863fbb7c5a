"""The broker's job that goes on with the work of agents: it performs each move that is due, on behalf of nobody who
waits for it."""

from __future__ import annotations

import asyncio

from weft.kernel.clock import Clock, SystemClock
from weft.kernel.enums import InboxState
from weft.kernel.errors import AgentBusy, IllegalTransition, NotFound, StoreError, WeftError
from weft.ledger.api import Runs
from weft.programs.assignments import agents_at_work, load_assignment
from weft.programs.placeholders import Resolver
from weft.programs.programs import Programs
from weft.runtime.harness.leases import hold_agent
from weft.runtime.harness.moves import AwaitAnswer, AwaitWorkers, Rest
from weft.runtime.harness.performing import MovePerformer
from weft.runtime.turns.ledger_port import Crossing

BUSY_MS = 5000
"""How soon an agent is looked at again that somebody else runs."""
MAX_FAILURES = 3
"""So often in a row a move may fail before its agent stands in an error."""


class HarnessJob:
    """A `BackgroundJob`. Of several brokers the one performs a move that holds the agent."""

    name = "the work of agents"

    def __init__(
        self, programs: Programs, crossing: Crossing, variable: Resolver, *, clock: Clock | None = None
    ) -> None:
        self._programs, self._crossing, self._clock = programs, crossing, clock or SystemClock()
        self._performer = MovePerformer(programs, crossing, variable)
        self._failures: dict[str, int] = {}
        self._awaited: dict[str, tuple[int, str]] = {}
        """By agent, its assignment and the message whose turn is to end before anything else can come next."""
        self._runs = Runs(programs.ledger)

    async def run_due(self, now_ms: int) -> int | None:
        """Raises the first error after every agent was gone on with."""
        agents = await self._crossing.run(lambda: agents_at_work(self._programs.ledger))
        outcomes = await asyncio.gather(*map(self._go_on, agents), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return min((one for one in outcomes if isinstance(one, int)), default=None)

    async def _go_on(self, agent: str) -> int | None:
        """Perform the moves of one agent until a turn is to be answered or nothing is due; when that is."""
        try:
            while True:
                due_ms = await self._move(agent)
                self._failures.pop(agent, None)
                if due_ms is not NOW:
                    return due_ms
        except AgentBusy:
            return self._clock.now_ms() + BUSY_MS
        except (IllegalTransition, NotFound):  # somebody moved the agent meanwhile: it is looked at again
            return self._clock.now_ms() + BUSY_MS
        except StoreError:
            raise
        except WeftError as error:
            await self._fail(agent, error)
            raise

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
        async with hold_agent(self._programs, self._crossing, facts.agent, facts.task.id) as hold:
            again = await self._performer.next_move(agent, self._clock.now_ms())
            if again is not None:
                await self._performer.perform(*again, hold)
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

    async def _fail(self, agent: str, error: WeftError) -> None:
        """An agent whose moves fail again and again stands in an error, which a person sees."""
        self._failures[agent] = self._failures.get(agent, 0) + 1
        if self._failures[agent] >= MAX_FAILURES:
            del self._failures[agent]
            await self._crossing.run(lambda: self._programs.fail_agent(agent, str(error), code=type(error).__name__))


NOW = -1
"""Another move may be due at once."""
