"""What the harness of an agent leaves for the next turn of its work: time and money."""

from __future__ import annotations

from msgspec import Struct

from weft.ledger.api import Runs, SessionStanding
from weft.programs.assignments import load_assignment
from weft.programs.model import Program
from weft.programs.programs import Programs
from weft.runtime.harness.facts import WorkReader
from weft.runtime.harness.settings import harness_of
from weft.runtime.inference.budgets import Budget

SHORTEST_SECONDS = 0.001


class TurnLimits(Struct, frozen=True):
    """None does not limit."""

    seconds: float | None = None
    budget: Budget | None = None


NO_LIMITS = TurnLimits()


def turn_limits(programs: Programs, agent: Program | None, standing: SessionStanding) -> TurnLimits:
    """What is left for a turn of a session, where the agent works on its task there, or a worker of that work does, and
    its harness limits that."""
    if agent is None or load_assignment(programs.ledger, agent.id) is None:
        return NO_LIMITS
    settings = harness_of(agent)
    if settings.max_seconds is None and settings.max_cost is None:
        return NO_LIMITS
    facts = WorkReader(programs).facts(agent.id)
    if facts is None or facts.assignment.session != Runs(programs.ledger).top_session(standing.id):
        return NO_LIMITS
    seconds = None if settings.max_seconds is None else max(settings.max_seconds - facts.seconds, SHORTEST_SECONDS)
    money = None if settings.max_cost is None else max(settings.max_cost - (facts.spent.cost or 0), 0)
    return TurnLimits(seconds, None if money is None else Budget(money=money))
