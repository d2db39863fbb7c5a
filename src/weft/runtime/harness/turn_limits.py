"""What the harness of an agent leaves for the next turn of its work: time and money."""

from __future__ import annotations

from functools import partial

from msgspec import Struct

from weft.ledger.api import Runs, SessionStanding
from weft.programs.assignments import load_assignment
from weft.programs.model import Program
from weft.programs.programs import Programs
from weft.runtime.harness.facts import WorkReader
from weft.runtime.harness.settings import harness_of
from weft.runtime.inference.budgets import Budget
from weft.runtime.turns.ledger_port import Crossing

SHORTEST_SECONDS = 0.001


class TurnLimits(Struct, frozen=True):
    """None does not limit."""

    seconds: float | None = None
    budget: Budget | None = None


NO_LIMITS = TurnLimits()


def turn_limits(programs: Programs, crossing: Crossing, agent: Program | None, standing: SessionStanding) -> TurnLimits:
    """What is left for a turn of a session, where the agent works on its task there, or a worker of that work does, and
    its harness limits that. The money is that of the whole work: all of its turns share it."""
    if agent is None or load_assignment(programs.ledger, agent.id) is None:
        return NO_LIMITS
    settings = harness_of(agent)
    if settings.max_seconds is None and settings.max_cost is None:
        return NO_LIMITS
    facts = WorkReader(programs).facts(agent.id)
    if facts is None or facts.assignment.session != Runs(programs.ledger).top_session(standing.id):
        return NO_LIMITS
    seconds = None if settings.max_seconds is None else max(settings.max_seconds - facts.seconds, SHORTEST_SECONDS)
    if settings.max_cost is None:
        return TurnLimits(seconds)
    read = partial(_spent, Runs(programs.ledger), facts.assignment.session, facts.assignment.n)
    return TurnLimits(seconds, Budget(money=settings.max_cost, read_spent=partial(crossing.run, read)))


def _spent(runs: Runs, session: str, since: int) -> int:
    """Micro-dollars that the work has cost, with its workers."""
    return runs.work_spending(session, since).cost or 0
