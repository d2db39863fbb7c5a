"""Several policies decide together: the strictest holds, strangers' policies never run, and no sandbox means no."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from tests.sandbox import UNPROTECTED
from weft.kernel.enums import Decision
from weft.kernel.errors import Unsupported
from weft.ledger.api.ledger import Ledger
from weft.runtime.policies.policy_decisions import (
    WARM_INTERPRETERS,
    PolicyCall,
    PolicyContext,
    PolicyDecision,
    PolicyInForce,
    PolicyInterpreters,
    decide,
    default_source,
    policies_in_force,
)
from weft.runtime.sandbox import command_runner
from weft.runtime.sandbox.command_runner import CommandRunner

ECHO = (
    "import json, sys\ncall = json.load(sys.stdin)\n"
    "print(json.dumps({'decision': call['arguments'][%d], 'rationale': 'policy %d'}))"
)
OWN, EVERYBODYS = (PolicyInForce(id=f"id{n}", name=f"policy{n}", source=ECHO % (n, n)) for n in range(2))


def decided(interpreters: PolicyInterpreters, call: PolicyCall, *policies: PolicyInForce) -> PolicyDecision:
    return asyncio.run(decide(interpreters, call, policies, 30))


def test_the_strictest_of_two_policies_holds(interpreters: PolicyInterpreters) -> None:
    strictness = ["allow", "ask", "deny_continue", "deny_abort"]
    for own in strictness:
        for everybodys in strictness:
            answer = decided(interpreters, PolicyCall(name="a", arguments=[own, everybodys]), OWN, EVERYBODYS)
            winner = 0 if strictness.index(own) >= strictness.index(everybodys) else 1
            assert answer.decision == [own, everybodys][winner]
            assert (answer.policy, answer.rationale) == (f"id{winner}", f"policy {winner}")


def test_a_policy_that_fails_refuses_though_the_other_one_allows(interpreters: PolicyInterpreters) -> None:
    for source in ("1 / 0", None):
        broken = PolicyInForce(id="broken", name="broken", source=source)
        answer = decided(interpreters, PolicyCall(name="a", arguments=["allow", "allow"]), OWN, broken)
        assert (answer.decision, answer.policy, answer.is_error) == (Decision.DENY_CONTINUE, "broken", True)


def test_the_default_decides_where_no_policy_is_in_force_and_strangers_never_do(
    ledger: Ledger, interpreters: PolicyInterpreters
) -> None:
    policy = ledger.policies.propose("open", "print()")
    stranger = msgspec.structs.replace(policy, is_own=False)
    for own, everybodys in ((None, None), (stranger, None), (None, stranger), (stranger, stranger)):
        (default,) = policies_in_force(own, everybodys)
        assert (default.id, default.source) == (None, default_source())
    assert [one.id for one in policies_in_force(stranger, policy)] == [policy.id]
    assert [one.id for one in policies_in_force(policy, policy)] == [policy.id, policy.id]
    call = PolicyCall(name="read", arguments={}, context=PolicyContext(subjects=("a",)))
    answer = decided(interpreters, call, *policies_in_force(None, None))
    assert (answer.decision, answer.policy, answer.policy_name) == (Decision.ALLOW, None, "default")


def test_without_a_sandbox_every_call_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def none(**_: object) -> object:
        raise Unsupported("there is no sandbox here", "install one")

    monkeypatch.setattr(command_runner, "find_sandbox", none)
    answer = decided(PolicyInterpreters(CommandRunner(UNPROTECTED)), PolicyCall(name="a", arguments=["allow"]), OWN)
    assert (answer.decision, answer.is_error) == (Decision.DENY_CONTINUE, True)
    assert "no sandbox" in answer.rationale


def test_only_so_many_interpreters_are_held_ready(interpreters: PolicyInterpreters) -> None:
    async def work() -> bool:
        first = await interpreters.of("# 0")
        same = await interpreters.of("# 0")
        for n in range(WARM_INTERPRETERS):
            await interpreters.of(f"# {n + 1}")
        return first is same and first is not await interpreters.of("# 0")

    assert asyncio.run(work())
