"""A policy over the recorded calls: which of them would have been decided otherwise.

A call is compared with what was recorded of it. Where no decision is recorded, as of imported turns, it is compared
with what the policies in force would decide. The same use of a tool is decided once, however often it was recorded.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator

from msgspec import Struct

from weft.kernel.enums import Decision, DecisionSource
from weft.kernel.events import ToolCallRequested
from weft.ledger.api import Ledger
from weft.ledger.model import ToolCall, Turn
from weft.runtime.policies.contract import PolicyCall, call_document
from weft.runtime.policies.decider import PolicyDecision, PolicyInForce, decide, policies_in_force
from weft.runtime.policies.interpreter import PolicyInterpreters
from weft.runtime.policies.recorded_calls import policy_call

BACKTEST_SECONDS = 5.0
"""A decision may take longer here than where a turn waits for it."""
EXAMPLES = 3
_TURNS_AT_ONCE = 200


class BacktestGroup(Struct, frozen=True, kw_only=True):
    """Calls of one tool that would go from one decision to another for one reason."""

    tool: str
    before: Decision
    after: Decision
    rationale: str
    calls: int
    uses: tuple[str, ...]
    """What some of them were used on."""
    turns: tuple[str, ...]


class Backtest(Struct, frozen=True, kw_only=True):
    """How a policy would have decided about the recorded calls."""

    turns: int
    calls: int
    recorded: int
    """Of so many calls a decision was recorded."""
    errors: int
    """About so many calls the policy failed to decide."""
    decisions: dict[str, int]
    changed: int
    groups: tuple[BacktestGroup, ...]
    """The changed calls, the most frequent first."""


class ComparedCall(Struct, frozen=True, kw_only=True):
    """A recorded call, what was decided about it, and what the policy would decide."""

    call: ToolCall
    asked: PolicyCall
    before: Decision
    answer: PolicyDecision
    is_recorded: bool
    """Whether a decision was recorded; else the policies in force decided."""

    @property
    def is_changed(self) -> bool:
        return self.answer.decision is not self.before


class _ChangedCalls(Struct):
    calls: int
    uses: list[str]
    turns: list[str]


class BacktestRun:
    """Goes through the ledger, and counts."""

    def __init__(
        self, ledger: Ledger, interpreters: PolicyInterpreters, policy: PolicyInForce, agent: str | None = None
    ) -> None:
        self._ledger, self._interpreters, self._policy, self._agent = ledger, interpreters, policy, agent
        self._answers: dict[tuple[tuple[PolicyInForce, ...], bytes], PolicyDecision] = {}
        self._in_force: dict[str, tuple[PolicyInForce, ...]] = {}
        self._groups: dict[tuple[str, Decision, Decision, str], _ChangedCalls] = {}
        self._decisions = dict.fromkeys(Decision, 0)
        self._turns = self._calls = self._recorded = self._errors = 0

    async def run(
        self, *, since: str | None = None, until: str | None = None, progress: Callable[[int], None] | None = None
    ) -> Backtest:
        """Compare every call in turns of this time."""
        for turn in self._turns_with_calls(since, until):
            self._turns += 1
            async for compared in self.compare_turn(turn):
                self._count(compared, turn)
                if progress is not None:
                    progress(self._calls)
        return self._report()

    async def compare_turn(self, turn: Turn) -> AsyncIterator[ComparedCall]:
        """The calls of a turn in their order."""
        recorded = self._recorded_decisions(turn)
        for call in self._ledger.tool_calls(turn.id):
            yield await self._compare(turn, call, recorded.get(call.sequence))

    def _turns_with_calls(self, since: str | None, until: str | None) -> Iterator[Turn]:
        after: str | None = None
        while True:
            page = self._ledger.find_turns(
                since=since, until=until, persona=self._agent, limit=_TURNS_AT_ONCE, after=after
            )
            yield from (turn for turn in page if turn.tool_call_count)
            after = page.next
            if after is None:
                return

    def _recorded_decisions(self, turn: Turn) -> dict[int, Decision]:
        """What policies decided, by the place of the call in its turn. The rights of a turn are no matter of a policy,
        and a person's answer is to a policy's question."""
        decisions = {
            decision.call: Decision(decision.decision)
            for decision in self._ledger.approvals.decisions(turn.id)
            if decision.by == DecisionSource.POLICY
        }
        if not decisions:
            return {}
        calls = [one.id for one in self._ledger.events(turn.id) if isinstance(one.event, ToolCallRequested)]
        return {sequence: decisions[call] for sequence, call in enumerate(calls) if call in decisions}

    async def _compare(self, turn: Turn, call: ToolCall, recorded: Decision | None) -> ComparedCall:
        asked = policy_call(call, turn, turn.persona_id)
        if recorded is not None:
            answer, before = await self._decided(asked, (self._policy,)), recorded
        else:
            in_force = self._decided(asked, self._policies_of(turn.persona_id))
            answer, present = await asyncio.gather(self._decided(asked, (self._policy,)), in_force)
            before = present.decision
        return ComparedCall(call=call, asked=asked, before=before, answer=answer, is_recorded=recorded is not None)

    def _count(self, compared: ComparedCall, turn: Turn) -> None:
        self._calls += 1
        self._recorded += compared.is_recorded
        self._errors += compared.answer.is_error
        self._decisions[compared.answer.decision] += 1
        if compared.is_changed:
            self._add(compared.asked, compared.before, compared.answer, turn)

    def _policies_of(self, agent: str) -> tuple[PolicyInForce, ...]:
        if agent not in self._in_force:
            policies = self._ledger.policies
            self._in_force[agent] = policies_in_force(policies.active(agent), policies.active())
        return self._in_force[agent]

    async def _decided(self, call: PolicyCall, policies: tuple[PolicyInForce, ...]) -> PolicyDecision:
        key = (policies, call_document(call))
        if key not in self._answers:
            self._answers[key] = await decide(self._interpreters, call, policies, BACKTEST_SECONDS)
        return self._answers[key]

    def _add(self, call: PolicyCall, before: Decision, answer: PolicyDecision, turn: Turn) -> None:
        key = (call.name, before, answer.decision, answer.rationale)
        group = self._groups.setdefault(key, _ChangedCalls(0, [], []))
        group.calls += 1
        use = " ; ".join(call.context.subjects or ())
        if use and use not in group.uses and len(group.uses) < EXAMPLES:
            group.uses.append(use)
        if turn.id not in group.turns and len(group.turns) < EXAMPLES:
            group.turns.append(turn.id)

    def _report(self) -> Backtest:
        groups = [
            BacktestGroup(
                tool=tool,
                before=before,
                after=after,
                rationale=rationale,
                calls=group.calls,
                uses=tuple(group.uses),
                turns=tuple(group.turns),
            )
            for (tool, before, after, rationale), group in self._groups.items()
        ]
        groups.sort(key=lambda group: (-group.calls, group.tool, group.before, group.after, group.rationale))
        return Backtest(
            turns=self._turns,
            calls=self._calls,
            recorded=self._recorded,
            errors=self._errors,
            decisions={decision.value: count for decision, count in self._decisions.items()},
            changed=sum(group.calls for group in groups),
            groups=tuple(groups),
        )
