"""Turns what a person allowed once into a proposed policy: the one in force, with one more line."""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence

from msgspec import Struct

from weft.kernel.authority import split_tool_rule
from weft.kernel.enums import ProgramKind
from weft.kernel.errors import NotApplicable, NotFound
from weft.ledger.api import Approval, Ledger, Policy
from weft.programs.programs import Programs
from weft.runtime.policies.policy_decisions import DEFAULT_NAME, default_source

# --- Adds a line to the list ALLOW of a policy: what a person allows for good becomes a proposal of the same policy.

ALLOW_NAME = "ALLOW"
_PATTERN_CHARACTERS = frozenset("*?")


def rules_for(tool: str, subjects: Sequence[str] | None) -> tuple[str, ...] | None:
    """The lines that allow exactly this use of a tool again. None where no line says exactly that: it is not known
    what the call is used on, or that holds a character which stands for others in a pattern."""
    if subjects is None or not subjects:
        return None
    if any(_PATTERN_CHARACTERS & set(subject) or subject != subject.strip() or not subject for subject in subjects):
        return None
    rules = tuple(dict.fromkeys(f"{tool}({subject})" for subject in subjects))
    return None if any(split_tool_rule(rule) is None for rule in rules) else rules


def proposed_rule(source: str, pattern: str) -> str | None:
    """The source of a policy with one more line in its list ALLOW. None where it has no such list of texts, where the
    line is in it already, or where the pattern is none."""
    if split_tool_rule(pattern) is None or not pattern.isprintable():
        return None
    lines = _allow_list(source)
    if lines is None:
        return None
    present, node = lines
    if pattern in present or node.end_lineno is None or node.end_col_offset is None:
        return None
    rows = source.splitlines(keepends=True)
    place = sum(len(row.encode()) for row in rows[: node.end_lineno - 1]) + node.end_col_offset - 1
    data = source.encode()
    before = data[:place].decode().rstrip()
    comma = "" if before.endswith(("[", ",")) else ","
    proposal = f"{before}{comma}\n    {json.dumps(pattern, ensure_ascii=False)},\n{data[place:].decode()}"
    return proposal if _is_same_but_for(source, proposal, [*present, pattern]) else None


def _allow_list(source: str) -> tuple[list[str], ast.List] | None:
    tree = _parse_source(source)
    nodes = [] if tree is None else [node.value for node in tree.body if _assigns_allow(node)]  # type: ignore[attr-defined]
    if len(nodes) != 1 or not isinstance(nodes[0], ast.List):
        return None
    texts = [item.value for item in nodes[0].elts if isinstance(item, ast.Constant) and isinstance(item.value, str)]
    return (texts, nodes[0]) if len(texts) == len(nodes[0].elts) else None


def _assigns_allow(node: ast.stmt) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return any(isinstance(target, ast.Name) and target.id == ALLOW_NAME for target in targets)


def _is_same_but_for(source: str, proposal: str, allowed: list[str]) -> bool:
    """Whether the proposal is the same program with this list."""
    old, new = _allow_list(source), _allow_list(proposal)
    if old is None or new is None or new[0] != allowed:
        return False
    trees = []
    for text in (source, proposal):
        tree = _parse_source(text)
        assert tree is not None
        for node in tree.body:
            if _assigns_allow(node):
                node.value = ast.Constant(None)  # type: ignore[attr-defined]
        trees.append(ast.dump(tree))
    return trees[0] == trees[1]


def _parse_source(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


# --- Turns what a person allowed once into a proposed policy: the policy in force, with one more line per use of the
# tool.

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
    proposals = [_rule_proposal(policy, rules) for policy in _in_force(ledger, approval)]
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


def _rule_proposal(policy: Policy | None, rules: tuple[str, ...]) -> RuleProposal | None:
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
