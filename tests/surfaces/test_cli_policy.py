"""`weft policy`, and docs/permissions.md, whose policy and commands are run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.sandbox import machine_sandbox
from tests.surfaces.shell import Shell
from tests.surfaces.test_cli_docs import run_example
from weft.runtime.policies.policy_decisions import DECISION_SECONDS, POLICY_LIMITS, RATIONALE_CHARACTERS, default_source
from weft.runtime.sandbox.processes import MIB

PERMISSIONS = (Path(__file__).parents[2] / "docs" / "permissions.md").read_text()
PAGE = PERMISSIONS.partition("\n## Approval policies\n")[2].partition("\n## ")[0]
READER = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
EXAMPLES = [
    example
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    for example in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
]
HIDDEN = "\u202e"


@pytest.fixture
def policies(weft: Shell) -> Shell:
    machine_sandbox()
    assert READER is not None
    Path("reader.py").write_text(READER[1])
    return weft


def masked(text: str) -> str:
    """Ids and times as they are on every machine."""
    return re.sub(r"\b[0-9A-HJKMNP-TV-Z]{8}\b", "ID", re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d{4}", "TIME", text))


def test_the_page_says_what_the_commands_do(policies: Shell) -> None:
    bash = [{"name": "Bash", "id": f"b{number}", "arguments": {"command": "git status"}} for number in range(2)]
    edit = {"name": "Edit", "id": "e", "arguments": {"file_path": "src/a.py"}}
    read = {"name": "Read", "id": "r", "arguments": {"file_path": "src/a.py"}}
    policies.record("look", tool_calls=[*bash, edit, read])
    assert len(EXAMPLES) > 8
    for line, output in EXAMPLES:
        answer = run_example(policies, line)
        assert answer.code == (1 if "backtest" in line else 0), f"{line}\n{answer.err}"
        assert masked(answer.out) == masked(output), line
    assert f"{RATIONALE_CHARACTERS:,} characters" in PAGE
    assert DECISION_SECONDS == 1.0
    assert f"{POLICY_LIMITS.memory // MIB} MiB and {POLICY_LIMITS.processes} processes" in PAGE


def test_activation_shows_the_source_escaped_and_needs_a_yes_to_exactly_it(policies: Shell) -> None:
    source = Path("reader.py").read_text() + f"# {HIDDEN} reversed\n"
    Path("hidden.py").write_text(source)
    policy = policies.json("policy", "propose", "hidden.py", "--notes", "n")
    assert (policy["state"], policy["docstring"], policy["tests_passed"]) == (
        "proposal", "Allows nothing but reading.", 2
    )  # fmt: skip
    refused = policies("policy", "activate", "hidden", "--quiet")
    assert refused.code != 0
    assert "\\u202e reversed" in refused.err
    assert HIDDEN not in refused.err
    assert policy["digest"] in refused.err
    assert policies.json("policy", "list", "--state", "active") == []
    activated = policies("policy", "activate", "hidden", "--yes")
    assert "2 of 2 tests passed" in activated.err
    shown = policies.json("policy", "show")
    assert (shown["uri"], shown["source"]) == ("resource://approval-policy/policy.py", source)
    assert (shown["digest"], shown["state"]) == (policy["digest"], "active")
    next_one = policies.json("policy", "propose", "reader.py")
    assert "-# \\u202e reversed" in policies("policy", "activate", next_one["id"]).err


def test_the_policy_that_comes_with_weft_is_put_in_force_again(policies: Shell) -> None:
    none = policies("policy", "rollback", "default", "--yes")
    assert (none.code, "the one that comes with weft" in none.err) == (4, True), none
    policies.json("policy", "propose", "reader.py")
    never = policies("policy", "rollback", "reader")
    assert (never.code, "it was never in force" in never.err, "import json" in never.err) == (4, True, False)
    policies.json("policy", "activate", "reader", "--yes")
    for verb, words in (("rollback", "'reader' is in force"), ("activate", "'reader' is active")):
        early = policies("policy", verb, "reader")
        assert (early.code, words in early.err, "import json" in early.err) == (4, True, False), early
    refused = policies("policy", "rollback", "default")
    assert (refused.code, "-reads = call" in refused.err) == (4, True), refused.err
    assert policies.json("policy", "show")["name"] == "reader"
    assert len(policies.json("policy", "list")) == 1
    back = policies.json("policy", "rollback", "default", "--yes", "--reason", "too strict")
    assert (back["name"], back["state"], back["tests_failed"]) == ("default", "active", 0)
    assert policies.json("policy", "show")["source"] == default_source()
    assert policies("policy", "rollback", "default", "--yes").code == 4
    policies.json("agent", "create", "bot")
    policies.json("policy", "propose", "reader.py", "--agent", "bot")
    policies.json("policy", "activate", "reader", "--yes")
    assert policies("--as", "bot", "policy", "rollback", "default", "--agent", "bot", "--yes").code != 0
    assert policies.json("policy", "rollback", "default", "--agent", "bot", "--yes")["agent"] == "bot"
    assert policies.json("policy", "show", "--agent", "bot")["source"] == default_source()
    assert policies("policy", "rollback", "reader", "--agent", "bot").code == 2


def test_a_policy_whose_tests_fail_is_proposed_with_that_and_not_activated(policies: Shell) -> None:
    Path("broken.py").write_text(Path("reader.py").read_text().replace('"allow" if reads', '"ask" if reads'))
    tested = policies("policy", "test", "broken.py", "--json")
    assert tested.code == 1
    report = tested.json
    assert (report["passed"], report["failed"], report["docstring"]) == (1, 1, "Allows nothing but reading.")
    assert [(test["passed"], test["expected"], test["decision"]) for test in report["tests"]] == [
        (False, "allow", "ask"),
        (True, "deny_continue", "deny_continue"),
    ]
    proposed = policies("policy", "propose", "broken.py")
    assert proposed.code == 0
    assert "expected allow, was ask" in proposed.out
    assert policies("policy", "activate", "broken", "--yes").code != 0
    assert policies.json("policy", "list", "--state", "active") == []
    Path("empty.py").write_text("print()")
    assert policies("policy", "test", "empty.py").code == 1
    Path("wrong.py").write_bytes(b"\xff")
    for words in (("test", "wrong.py"), ("test", "missing.py"), ("show", "nothing"), ("backtest", "nothing")):
        assert policies("policy", *words).code not in (0, 1), words


def test_an_agent_proposes_and_does_not_decide(policies: Shell) -> None:
    assert policies("agent", "create", "bot").code == 0
    proposed = policies("--as", "bot", "policy", "propose", "reader.py", "--agent", "bot")
    assert proposed.code == 0, proposed.err
    for words in (("activate", "reader", "--yes"), ("reject", "reader")):
        assert policies("--as", "bot", "policy", *words).code != 0
    assert policies("policy", "activate", "reader", "--yes").code == 0
    assert policies.json("policy", "show")["name"] == "default"
    assert policies.json("policy", "show")["source"] == default_source()
    assert policies.json("policy", "show", "--agent", "bot")["name"] == "reader"
    assert [one["name"] for one in policies.json("policy", "history", "--agent", "bot")] == ["reader"]
    assert policies.json("policy", "history") == []
