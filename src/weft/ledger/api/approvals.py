"""Decisions about tool calls: requests to people and their answers, and the approval policies."""

from __future__ import annotations

from collections.abc import Sequence

from weft.kernel.enums import ApprovalState, GrantScope, PolicyState
from weft.kernel.errors import InvalidInput
from weft.kernel.fields import PolicyTests
from weft.kernel.weft_error import quoted
from weft.ledger.api.base import LedgerPart
from weft.ledger.approvals import policies
from weft.ledger.approvals.model import Approval, CallDecision, NewPolicy, Policy
from weft.ledger.approvals.requests import answer_approval, decisions_of, listed_approvals, load_approval
from weft.ledger.arguments import checked_count, checked_label, checked_member, checked_members, checked_text
from weft.ledger.read.revisions import require
from weft.ledger.write.append import requires

OPEN = (ApprovalState.OPEN.value,)


class Approvals(LedgerPart):
    """`ledger.approvals`: tool calls that wait for a person, and what people answered."""

    def get(self, approval: str) -> Approval:
        """A request by its id, or the beginning of it."""
        with self._store.read() as txn:
            return load_approval(txn, checked_text(approval, "approval"))

    def decisions(self, turn: str) -> list[CallDecision]:
        """What was decided about the tool calls of a turn, in order."""
        id = self._ledger.resolve(checked_text(turn, "turn"))
        with self._store.read() as txn:
            return decisions_of(txn, id)

    def list(
        self, *, session: str | None = None, states: Sequence[str] = OPEN, limit: int = 100, after: int = 0
    ) -> list[Approval]:
        """Requests in these states, the oldest first; `after` is the arrival number of the last one of a page."""
        values = [state.value for state in checked_members(ApprovalState, states, "state")]
        count, position = checked_count(limit, "limit"), checked_count(after, "after")
        with self._store.read() as txn:
            row = None if session is None else require(txn, session)
            number = None if row is None else row.n
            return listed_approvals(txn, values, session=number, limit=count, after=position)

    @requires("approval:answer")
    def grant(
        self, approval: str, *, bound: str | None = None, scope: str = "once", reason: str | None = None
    ) -> Approval:
        """Allow the call, once. `bound` is the hash that was shown: another one is refused. With the scope `session`
        the same use of the tool needs no answer for the rest of the session. Only people answer."""
        self._ledger.trust.ensure("take an approval")
        id = answer_approval(
            self._writer,
            self.get(approval).id,
            is_granted=True,
            bound=None if bound is None else checked_text(bound, "bound"),
            scope=checked_member(GrantScope, scope, "scope"),
            reason=None if reason is None else checked_text(reason, "reason"),
        )
        return self.get(id)

    @requires("approval:answer")
    def deny(self, approval: str, *, abort: bool = False, reason: str | None = None) -> Approval:
        """Refuse the call. The model is told so and goes on; with `abort` its turn ends. Only people answer."""
        if not isinstance(abort, bool):
            raise InvalidInput(f"abort is {quoted(abort)}", "give True or False")
        self._ledger.trust.ensure("take an answer")
        id = answer_approval(
            self._writer,
            self.get(approval).id,
            is_granted=False,
            abort=abort,
            reason=None if reason is None else checked_text(reason, "reason"),
        )
        return self.get(id)


class Policies(LedgerPart):
    """`ledger.policies`: the programs that decide about tool calls."""

    def list(self, *, states: Sequence[str] = ()) -> list[Policy]:
        """Policies in these states, or all; the oldest first."""
        values = [state.value for state in checked_members(PolicyState, states, "state")]
        with self._store.read() as txn:
            return policies.listed_policies(txn, values)

    def get(self, policy: str) -> Policy:
        """A policy by its id or the end of it, else the newest of its name."""
        with self._store.read() as txn:
            return policies.load_policy(txn, checked_text(policy, "policy"))

    def active(self, agent: str | None = None) -> Policy | None:
        """The policy in force for an agent, by its id; without an agent the one for all of them."""
        with self._store.read() as txn:
            return policies.active_policy(txn, None if agent is None else checked_text(agent, "agent"))

    @requires("policy:propose")
    def propose(
        self,
        name: str,
        source: str,
        *,
        agent: str | None = None,
        docstring: str | None = None,
        notes: str | None = None,
        tests: PolicyTests | None = None,
    ) -> Policy:
        """Propose a policy, for one agent or for all; `tests` says how its own tests ended."""
        proposal = NewPolicy(
            name=checked_label(name, "name"),
            source=checked_text(source, "source"),
            docstring=docstring,
            notes=notes,
            agent=None if agent is None else checked_text(agent, "agent"),
        )
        return self.get(policies.propose(self._writer, proposal, _checked_tests(tests)))

    @requires("policy:activate", whole=True)
    def activate(self, policy: str, *, digest: str, tests: PolicyTests, notes: str | None = None) -> Policy:
        """Put a policy in force in place of the one before. `digest` is that of the source that was read; `tests` must
        have passed. Only people do that."""
        self._ledger.trust.ensure("activate a policy")
        counts = _checked_tests(tests)
        if counts is None:
            raise InvalidInput("tests are missing", "run the policy's own tests first")
        name = checked_text(policy, "policy")
        policies.activate(self._writer, name, checked_text(digest, "digest"), counts, notes)
        return self.get(name)

    @requires("policy:activate", whole=True)
    def reject(self, policy: str, *, reason: str | None = None) -> Policy:
        """Refuse a proposed policy. Only people do that."""
        name = checked_text(policy, "policy")
        policies.reject(self._writer, name, reason)
        return self.get(name)

    @requires("policy:activate", whole=True)
    def roll_back(self, policy: str, *, digest: str, reason: str | None = None) -> Policy:
        """Put a policy in force again that was replaced. Only people do that."""
        self._ledger.trust.ensure("activate a policy")
        name = checked_text(policy, "policy")
        policies.roll_back(self._writer, name, checked_text(digest, "digest"), reason)
        return self.get(name)


def _checked_tests(tests: PolicyTests | None) -> PolicyTests | None:
    if tests is not None and not isinstance(tests, PolicyTests):
        raise InvalidInput(f"tests are {quoted(tests)}", "give PolicyTests")
    return tests
