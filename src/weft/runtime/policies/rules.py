"""Adds a line to the list ALLOW of a policy: what a person allows for good becomes a proposal of the same policy.

Nothing but that one line changes, which is checked by reading the new text again.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence

from weft.kernel.authority import split_tool_rule

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
    tree = _parsed(source)
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
        tree = _parsed(text)
        assert tree is not None
        for node in tree.body:
            if _assigns_allow(node):
                node.value = ast.Constant(None)  # type: ignore[attr-defined]
        trees.append(ast.dump(tree))
    return trees[0] == trees[1]


def _parsed(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
