"""A policy over recorded calls: compared with what was decided, or with what the policies in force would decide."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.ledger.test_approvals import asking
from weft.ledger.api.ledger import Ledger
from weft.ledger.model import ToolCall
from weft.runtime.policies.policy_decisions import PolicyInForce, PolicyInterpreters, default_source
from weft.runtime.policies.policy_tests import Backtest, BacktestRun, call_subjects, tool_name

STRICT = (
    "import json, sys\ncall = json.load(sys.stdin)\n"
    "decision = 'allow' if call['name'] == 'read' else 'deny_abort'\n"
    "print(json.dumps({'decision': decision, 'rationale': 'only reading'}))"
)


def backtest(ledger: Ledger, interpreters: PolicyInterpreters, source: str, **period: Any) -> Backtest:
    counts: list[int] = []
    policy = PolicyInForce(id="x", name="x", source=source)
    report = asyncio.run(BacktestRun(ledger, interpreters, policy).run(progress=counts.append, **period))
    assert counts == list(range(1, report.calls + 1))
    return report


def test_calls_are_compared_with_the_record_and_else_with_the_policies_in_force(
    ledger: Ledger, interpreters: PolicyInterpreters
) -> None:
    asking(ledger)  # a recorded question about `ls`
    calls: list[dict[str, Any]] = [
        {"name": "Bash", "id": f"b{number}", "arguments": {"command": "git status"}} for number in range(3)
    ]
    calls.append({"name": "Read", "id": "r", "arguments": {"file_path": "/w/a.py"}})
    calls.append({"name": "mcp__hub__list", "id": "m", "arguments": {}})
    ledger.record_turn(query="look around", response="done", session="imported", tool_calls=calls)
    report = backtest(ledger, interpreters, STRICT)
    assert (report.turns, report.calls, report.recorded, report.errors) == (2, 6, 1, 0)
    assert report.decisions == {"allow": 1, "ask": 0, "deny_continue": 0, "deny_abort": 5}
    groups = [(one.tool, one.before, one.after, one.calls, one.uses) for one in report.groups]
    assert groups == [
        ("shell", "allow", "deny_abort", 3, ("git status",)),
        ("hub/list", "ask", "deny_abort", 1, ()),
        ("shell", "ask", "deny_abort", 1, ("ls",)),
    ]
    assert report.changed == 5
    same = backtest(ledger, interpreters, default_source())
    assert [(one.tool, one.before, one.after) for one in same.groups] == [("shell", "ask", "allow")]  # the recorded one
    assert backtest(ledger, interpreters, STRICT, until="2001-01-01").calls == 0
    broken = backtest(ledger, interpreters, "1 / 0")
    assert (broken.errors, broken.decisions["allow"]) == (6, 0)


@pytest.mark.parametrize(
    ("name", "arguments", "tool", "subjects"),
    [
        ("Bash", {"command": "ls && git status"}, "shell", ("ls", "git status")),
        ("Bash", {"command": "ls $(x)"}, "shell", None),
        ("shell", {"command": ["bash", "-lc", "make test"]}, "shell", ("make test",)),
        ("exec_command", {"cmd": "pwd"}, "shell", ("pwd",)),
        ("Bash", "ls", "shell", None),
        ("Edit", {"file_path": "/w/src/a.py"}, "edit", ("src/a.py",)),
        ("Write", {"file_path": "/elsewhere/a"}, "write", ("/elsewhere/a",)),
        ("write", {}, "write", None),
        (
            "apply_patch",
            {"input": "*** Begin Patch\n*** Update File: /w/a.py\n*** Move to: b.py\n"},
            "edit",
            ("a.py", "b.py"),
        ),
        ("apply_patch", "*** Add File: c.py\r\n+x", "edit", ("c.py",)),
        ("Glob", {"pattern": "*"}, "glob", ()),
        ("WebFetch", {"url": "https://example.org"}, "fetch_url", ("https://example.org",)),
        ("mcp__hub__make", {}, "hub/make", None),
        ("Task", {"prompt": "x"}, "Task", None),
    ],
)
def test_calls_of_other_agents_are_read_as_those_of_the_own_tools(
    name: str, arguments: Any, tool: str, subjects: tuple[str, ...] | None
) -> None:
    call = ToolCall(
        id="e", call_id="c", turn_id="t", name=name, arguments=arguments, status="ok", sequence=0, started_at=0,
        correlation_id="x",
    )  # fmt: skip
    assert tool_name(call) == tool
    assert call_subjects(tool, arguments, "/w") == subjects
