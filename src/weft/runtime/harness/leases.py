"""Who runs an agent: nobody else does while its lease is held, in this process or another."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial

from weft.kernel.errors import AgentBusy
from weft.ledger.api import Lease
from weft.programs.model import Program
from weft.programs.programs import Programs
from weft.runtime.turns.ledger_port import Crossing
from weft.runtime.turns.messages import renewed, to_the_end


@asynccontextmanager
async def hold_agent(
    programs: Programs, crossing: Crossing, agent: Program, task: str | None = None
) -> AsyncIterator[Lease]:
    """Hold an agent, for a task by its id or in general. Raises AgentBusy where somebody else holds it."""
    own, leases = programs.acting_as(agent.name), list[Lease]()
    try:
        await to_the_end(crossing.run(lambda: leases.append(own.hold_agent(agent.id, task=task))))
        async with renewed(partial(crossing.run, partial(own.renew_agent, leases[0]))):
            yield leases[0]
    finally:
        for lease in leases:  # also where the task was cancelled before it heard of it
            with suppress(AgentBusy):  # it was taken from us; whoever has it now keeps it
                await to_the_end(crossing.run(partial(own.release_agent, lease)))
