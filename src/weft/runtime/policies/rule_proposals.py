"""Turns what a person allowed once into a proposed policy: the policy in force, with one more line per use of the tool.

Nothing is in force by that: a person reads the proposal and activates it. Where an agent has a policy of its own beside
that of all agents, both are asked, so both get the line.
"""

from __future__ import annotations

import ast

from msgspec import Struct

from weft.kernel.enums import ProgramKind
from weft.kernel.errors import NotApplicable, NotFound
from weft.ledger.api import Approval, Ledger, Policy
from weft.programs.programs import Programs
from weft.runtime.policies.decider import DEFAULT_NAME, default_source
from weft.runtime.policies.rules import proposed_rule, rules_for

ELSE = "approve it once, or for the session"


class RuleProposal(Struct, frozen=True, kw_only=True):
    """The source of a policy with the lines in it, not proposed yet."""

    name: str
    agent: str | None
    source: str
    rules: tuple[str, ...]
    docstring: str | None


def rule_proposals(ledger: Ledger, approval: Approval) -> list[RuleProposal]:
    """One for each policy in force that does not allow the call by such lines. Raises NotApplicable where no line says
    exactly what was asked for."""
    rules = rules_for(approval.tool, approval.subjects)
    if rules is None:
        raise NotApplicable(f"no rule says exactly what {approval.tool!r} would be used on", ELSE)
    proposals = [_proposal(policy, rules) for policy in _in_force(ledger, approval)]
    listed = [proposal for proposal in proposals if proposal is not None]
    if not listed:
        raise NotApplicable("no policy in force has a list that the rule can stand in", ELSE)
    return listed


def propose_rules(ledger: Ledger, approval: Approval, proposals: list[RuleProposal]) -> list[Policy]:
    """Record the proposals."""
    return [
        ledger.policies.propose(
            proposal.name,
            proposal.source,
            agent=proposal.agent,
            docstring=proposal.docstring,
            notes=f"allows {', '.join(proposal.rules)}; approved as {approval.id[:12]}",
        )
        for proposal in proposals
    ]


def _in_force(ledger: Ledger, approval: Approval) -> list[Policy | None]:
    """The agent's own policy and that for all agents; None stands for the one that comes with weft."""
    try:
        agent = Programs(ledger).get(approval.agent, ProgramKind.AGENT).id
    except NotFound:
        agent = None
    own = None if agent is None else ledger.policies.active(agent)
    policies = [policy for policy in (own, ledger.policies.active()) if policy is not None]
    return [*policies] or [None]


def _proposal(policy: Policy | None, rules: tuple[str, ...]) -> RuleProposal | None:
    source = default_source() if policy is None else policy.source
    is_changed = False
    for rule in rules:
        changed = None if source is None else proposed_rule(source, rule)
        source, is_changed = (source, is_changed) if changed is None else (changed, True)
    if source is None or not is_changed:
        return None
    if policy is None:
        docstring = ast.get_docstring(ast.parse(default_source()))
        return RuleProposal(name=DEFAULT_NAME, agent=None, source=source, rules=rules, docstring=docstring)
    return RuleProposal(name=policy.name, agent=policy.agent, source=source, rules=rules, docstring=policy.docstring)
