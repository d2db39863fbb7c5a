"""Decides about a tool call by the approval policies in force.

The agent's own policy and the one for all agents are both asked, and the stricter answer holds: a refusal over a
question, a question over a permission. Where neither is in force, the policy that comes with weft decides. A policy
that came from another ledger is never run, and one that cannot be run refuses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from msgspec import Struct

from weft.kernel.enums import Decision
from weft.kernel.errors import WeftError
from weft.ledger.api import Policy
from weft.runtime.policies.contract import DECISION_SECONDS, PolicyAnswer, PolicyCall, failed_answer
from weft.runtime.policies.interpreter import PolicyInterpreters

DEFAULT_NAME = "default"
STRICTNESS = (Decision.ALLOW, Decision.ASK, Decision.DENY_CONTINUE, Decision.DENY_ABORT)


class PolicyInForce(Struct, frozen=True, kw_only=True):
    """A policy that is asked. The one that comes with weft has no id."""

    id: str | None
    name: str
    source: str | None
    """None where it was erased; then it refuses."""


class PolicyDecision(Struct, frozen=True, kw_only=True):
    """What the policies decide together, why, and which one it was."""

    decision: Decision
    rationale: str
    policy: str | None
    """The id; None for the policy that comes with weft."""
    policy_name: str
    is_error: bool = False


@cache
def default_source() -> str:
    """The policy that comes with weft."""
    return files("weft.runtime.policies").joinpath("default_policy.py").read_text(encoding="utf-8")


def policies_in_force(own: Policy | None, everybodys: Policy | None) -> tuple[PolicyInForce, ...]:
    """Of the active policy of an agent and that for all agents, those that are asked; never none."""
    chosen = tuple(
        PolicyInForce(id=policy.id, name=policy.name, source=policy.source)
        for policy in (own, everybodys)
        if policy is not None and policy.is_own
    )
    return chosen or (PolicyInForce(id=None, name=DEFAULT_NAME, source=default_source()),)


async def decide(
    interpreters: PolicyInterpreters,
    call: PolicyCall,
    policies: Sequence[PolicyInForce],
    seconds: float = DECISION_SECONDS,
) -> PolicyDecision:
    """Ask all of them at once. The strictest answer holds; of equals, that of the policy named first."""
    answers = await asyncio.gather(*(_answer(interpreters, call, policy, seconds) for policy in policies))
    decisions = [
        PolicyDecision(
            decision=answer.decision,
            rationale=answer.rationale,
            policy=policy.id,
            policy_name=policy.name,
            is_error=answer.is_error,
        )
        for policy, answer in zip(policies, answers, strict=True)
    ]
    return max(decisions, key=lambda one: STRICTNESS.index(one.decision))


async def _answer(
    interpreters: PolicyInterpreters, call: PolicyCall, policy: PolicyInForce, seconds: float
) -> PolicyAnswer:
    if policy.source is None:
        return failed_answer("its source was erased")
    try:
        return await (await interpreters.of(policy.source)).decide(call, seconds)
    except WeftError as error:
        return failed_answer(f"it could not be run: {error}")
