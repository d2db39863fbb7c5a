"""The recorded calls of a thread, decided on by another approval policy. Nothing runs, and no model is asked."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from weft.kernel.enums import Decision
from weft.ledger.api import Ledger
from weft.runtime.policies.backtest import BacktestRun, ComparedCall
from weft.runtime.policies.decider import PolicyInForce
from weft.runtime.policies.interpreter import PolicyInterpreters
from weft.runtime.replay.thread_replay import ThreadRange, full_turns


class ChangedDecision(Struct, frozen=True, kw_only=True):
    """A call that the policy would have decided on otherwise."""

    turn: str
    call: str
    """The provider's id of it."""
    name: str
    """The tool, as it was recorded."""
    arguments: Any
    before: Decision
    after: Decision
    rationale: str
    is_recorded: bool
    """Whether the decision before was recorded; else it is that of the policies in force."""


class PolicyReplay(Struct, frozen=True, kw_only=True):
    """How a policy would have decided about the calls of a thread."""

    thread: str
    """The last turn."""
    recorded_session: str | None
    turns: int
    calls: int
    errors: int
    """About so many calls the policy failed to decide."""
    changed: int
    first: ChangedDecision | None


async def replay_policy(
    ledger: Ledger, interpreters: PolicyInterpreters, policy: PolicyInForce, turns: ThreadRange
) -> PolicyReplay:
    """Have a policy decide about every call of a range, in order."""
    run = BacktestRun(ledger, interpreters, policy)
    full, changed, calls, errors = full_turns(ledger, turns), list[ChangedDecision](), 0, 0
    for turn in full:
        async for compared in run.compare_turn(turn.turn):
            calls += 1
            errors += compared.answer.is_error
            if compared.is_changed:
                changed.append(_changed(turn.turn.id, compared))
    return PolicyReplay(
        thread=turns.last,
        recorded_session=turns.session,
        turns=len(full),
        calls=calls,
        errors=errors,
        changed=len(changed),
        first=changed[0] if changed else None,
    )


def _changed(turn: str, compared: ComparedCall) -> ChangedDecision:
    return ChangedDecision(
        turn=turn,
        call=compared.call.call_id,
        name=compared.call.name,
        arguments=compared.call.arguments,
        before=compared.before,
        after=compared.answer.decision,
        rationale=compared.answer.rationale,
        is_recorded=compared.is_recorded,
    )
