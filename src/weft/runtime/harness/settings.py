"""How an agent works: the limits and habits that its configuration names under `harness`."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from weft.programs.kinds.agent import HARNESS_FIELDS
from weft.programs.model import Program

DEFAULT_MAX_TURNS = 50
DEFAULT_MAX_REFLECTIONS = 3
MICRODOLLARS = 1_000_000


class HarnessSettings(Struct, frozen=True, kw_only=True):
    """Limits that are None do not hold. Money is in micro-dollars."""

    max_turns: int = DEFAULT_MAX_TURNS
    max_tokens: int | None = None
    max_cost: int | None = None
    max_seconds: int | None = None
    reflects: bool = False
    """Whether an answer that does not hold, and a turn that failed, are followed by another turn."""
    max_reflections: int = DEFAULT_MAX_REFLECTIONS
    """So many of these in a row bring nothing new before the work is given up."""
    checkpoint_every: int | None = None
    """After so many turns a checkpoint is saved."""


def harness_of(agent: Program) -> HarnessSettings:
    """Raises InvalidConfig where a configuration that was taken over from elsewhere says something odd."""
    config = agent.config if isinstance(agent.config, dict) else {}
    harness: dict[str, Any] = HARNESS_FIELDS("config.harness", config.get("harness") or {})
    cost = harness.get("maxCost")
    return HarnessSettings(
        max_turns=harness.get("maxTurns", DEFAULT_MAX_TURNS),
        max_tokens=harness.get("maxTokens"),
        max_cost=None if cost is None else round(cost * MICRODOLLARS),
        max_seconds=harness.get("maxSeconds"),
        reflects=bool(harness.get("reflectOnFailure")),
        max_reflections=harness.get("maxReflections", DEFAULT_MAX_REFLECTIONS),
        checkpoint_every=harness.get("checkpointEvery"),
    )
