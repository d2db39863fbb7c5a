"""The policy that comes with weft: its own tests pass, warm and cold, and a person's answer adds one line to it."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.runtime.policies.misbehaving import POLICIES, SMUGGLED
from tests.sandbox import UNPROTECTED, machine_sandbox
from tests.sizes import share
from weft.kernel.enums import Decision
from weft.kernel.errors import InvalidInput
from weft.kernel.events import PolicyTests
from weft.runtime.policies.default_policy import decide
from weft.runtime.policies.policy_decisions import (
    INPUT_BYTES,
    PolicyCall,
    PolicyContext,
    PolicyInterpreters,
    ScriptEnding,
    ScriptOutcome,
    call_document,
    default_source,
    proposed_rule,
    read_answer,
    rules_for,
)
from weft.runtime.policies.policy_tests import OwnTestResult, counts_of_tests, read_outline, run_own_tests
from weft.runtime.sandbox.command_runner import CommandRunner
from weft.runtime.sandbox.hidden_places import HOLDING, SECRET_FILES


def outline_and_results(interpreters: PolicyInterpreters, source: str) -> tuple[str | None, list[OwnTestResult]]:
    async def work() -> tuple[str | None, list[OwnTestResult]]:
        outline = await read_outline(CommandRunner(UNPROTECTED, sandbox=machine_sandbox()), source)
        return outline.docstring, await run_own_tests(interpreters, source, outline.tests, seconds=30)

    return asyncio.run(work())


def cold(source: str, document: bytes, tmp_path: Path) -> ScriptOutcome:
    """`python3 policy.py < call.json`."""
    policy = tmp_path / "policy.py"
    policy.write_text(source)
    run = subprocess.run([sys.executable, "-I", "-S", policy], input=document, capture_output=True, check=False)
    return ScriptOutcome(ending=ScriptEnding.EXITED, code=run.returncode, stdout=run.stdout, stderr=run.stderr)


def shell(*subjects: str) -> PolicyCall:
    return PolicyCall(name="shell", arguments={}, context=PolicyContext(subjects=subjects))


def test_the_default_policy_passes_its_tests_warm_and_decides_the_same_cold(
    interpreters: PolicyInterpreters, tmp_path: Path
) -> None:
    docstring, results = outline_and_results(interpreters, default_source())
    assert docstring is not None
    assert docstring.startswith("The approval policy")
    assert [result.test.name for result in results if not result.has_passed] == []
    counts = counts_of_tests(results)
    assert counts == PolicyTests(total=len(results), passed=len(results), failed=0)
    assert {result.test.decision for result in results} == set(Decision) - {Decision.DENY_ABORT}
    for result in results[::4]:
        assert read_answer(cold(default_source(), call_document(result.test.call), tmp_path)) == result.answer


OF_THE_SANDBOX = re.compile(
    "parent|ptrace|network|outlives|input_|bomb|leave|crash_of|kill|hang|sleep|loop|flood|handlers|endless|gigabyte"
)
"""Policies that would harm or hang outside of it, or are told apart only there."""


SHOWING = (
    "git show HEAD:.env", "git show HEAD:a/.ENV", "git show :.env", "git log -L1,5:.env", "git diff --no-index . /etc",
    "git log -p -- '*.env'", "git diff -- ':(glob)**/.e*'", "grep -rn x .", "grep -inR x", "grep --rec x",
    "grep -d recurse x .", "grep --directories=recurse x", "grep --dereference-recursive x", "grep -f.env a",
    "grep --di=recurse x .",
    "grep --file=.env a", "grep -rn x '--include=*.env' .", "grep -rn x '--include=*.local'", "grep -r x '--include=*'",
    "grep -rn x '--include=*.py' '--inc=*'", "grep -rn x '--include=*.json'", "grep -rn x '--include=*.py' .env",
)  # fmt: skip
"""Commands that are listed by their first word, and may show secrets."""
NOT_SHOWING = (
    "git show HEAD:src/a.py", "git show HEAD", "git diff HEAD~1 -- src", "git log '--format=%h*'", "grep -n x a.py",
    "grep 'a.*b' src/x.py", "grep -rn x '--include=*.py' '--include=*.md' src",
)  # fmt: skip


def test_the_default_policy_asks_about_commands_that_may_show_secrets() -> None:
    assert [command for command in SHOWING if decide("shell", [command], {})[0] != "ask"] == []
    assert [command for command in NOT_SHOWING if decide("shell", [command], {})[0] != "allow"] == []
    assert decide("shell", ["git show HEAD:.env"], {})[1] == "it may show secrets"


def test_a_policy_that_fails_warm_fails_in_the_same_way_cold(tmp_path: Path) -> None:
    names = [name for name in POLICIES if not OF_THE_SANDBOX.search(name)]
    assert len(names) > 25
    for name in share(names, test=8):
        policy = POLICIES[name]
        answer = read_answer(cold(policy.source, call_document(SMUGGLED), tmp_path))
        assert answer.is_error, name
        assert policy.why in answer.rationale, name


def decided(interpreters: PolicyInterpreters, source: str, *calls: PolicyCall) -> list[Decision]:
    async def work() -> list[Decision]:
        interpreter = await interpreters.of(source)
        return [(await interpreter.decide(call, 30)).decision for call in calls]

    return asyncio.run(work())


def test_a_persons_answer_becomes_one_more_line_of_the_same_policy(interpreters: PolicyInterpreters) -> None:
    source = default_source()
    (rule,) = rules_for("shell", ["make test"]) or ()
    proposal = proposed_rule(source, rule)
    assert proposal is not None
    changed = set(proposal.splitlines()) ^ set(source.splitlines())
    assert changed == {'    "shell(make test)",'}
    calls = [shell("make test"), shell("make test x"), shell("make test", "make")]
    assert decided(interpreters, source, *calls) == [Decision.ASK] * 3
    assert decided(interpreters, proposal, *calls) == [Decision.ALLOW, Decision.ASK, Decision.ASK]
    assert proposed_rule(proposal, rule) is None


@pytest.mark.parametrize(
    "source",
    [
        "",
        "ALLOW = ['a'] + ['b']",
        "ALLOW = [name]",
        "ALLOW = []\nALLOW = []",
        "def f():\n    ALLOW = []",
        "ALLOW = [",
        "(" * 5000,
    ],
)
def test_no_line_is_added_where_there_is_no_one_list(source: str) -> None:
    assert proposed_rule(source, "shell(make)") is None


@pytest.mark.parametrize(
    ("source", "proposal"),
    [
        ("ALLOW = []", 'ALLOW = [\n    "shell(make)",\n]'),
        ("x = 'é'; ALLOW = ['ä']; y = 1", "x = 'é'; ALLOW = ['ä',\n    \"shell(make)\",\n]; y = 1"),
        ("ALLOW: list[str] = ['a',]  # ]", "ALLOW: list[str] = ['a',\n    \"shell(make)\",\n]  # ]"),
    ],
)
def test_a_line_is_added_whatever_is_around_the_list(source: str, proposal: str) -> None:
    assert proposed_rule(source, "shell(make)") == proposal


def test_a_line_cannot_say_more_than_the_call_did() -> None:
    assert rules_for("shell", ["rm a*"]) is None
    assert rules_for("shell", None) is None
    assert rules_for("shell", []) is None
    for pattern in ('shell(")]\nimport os\n("', 'x", "*', "a b", ""):
        assert proposed_rule("ALLOW = []", pattern) is None
    quoted = proposed_rule("ALLOW = []", 'shell(echo "a", "b")')
    assert quoted == 'ALLOW = [\n    "shell(echo \\"a\\", \\"b\\")",\n]'


@pytest.mark.parametrize(
    "source",
    [
        "this is no Python at all",
        "TESTS = [1, 2]",
        "TESTS = [{'name': 'x', 'call': {'name': 'a'}, 'decision': 'permit'}]",
        "TESTS = [{'name': 'x', 'call': {'name': 'a', 'context': {'nonce': 1}}, 'decision': 'ask'}]",
        "TESTS = print('run')",
        "TESTS = [{1, 2}]",
        "TESTS = " + "[" * 150 + "]" * 150,
        "x = " + "-" * 100_000 + "1",
    ],
)
def test_tests_that_are_none_are_refused_and_not_run(source: str) -> None:
    with pytest.raises(InvalidInput):
        asyncio.run(read_outline(CommandRunner(UNPROTECTED, sandbox=machine_sandbox()), source))


def test_a_policy_that_fails_passes_no_test_that_asks_for_a_refusal(interpreters: PolicyInterpreters) -> None:
    source = "TESTS = [{'name': 'refuses', 'call': {'name': 'a'}, 'decision': 'deny_continue'}]\n1 / 0"
    docstring, results = outline_and_results(interpreters, source)
    assert docstring is None
    assert counts_of_tests(results) == PolicyTests(total=1, passed=0, failed=1)


def test_a_call_that_no_policy_can_be_shown_is_refused(interpreters: PolicyInterpreters) -> None:
    calls = [PolicyCall(name="shell", arguments={"cmd": "x" * INPUT_BYTES}), PolicyCall(name="a", arguments=2**70)]
    assert decided(interpreters, default_source(), *calls) == [Decision.DENY_CONTINUE] * 2


def test_what_a_policy_is_shown_is_the_contract() -> None:
    document = msgspec.json.decode(call_document(shell("ls")))
    assert sorted(document) == ["arguments", "context", "name"]
    assert sorted(document["context"]) == sorted(
        (
            "agent session turn workspace toolset on_behalf_of is_untrusted read_only is_contained not_contained"
            " subjects hidden shown"
        ).split()
    )


@pytest.mark.parametrize("pattern", [*SECRET_FILES, *HOLDING])
def test_a_file_that_the_sandbox_hides_from_commands_is_asked_about(pattern: str) -> None:
    for name in (pattern.replace("*", "x"), f"deep/down/{pattern.replace('*', 'x')}"):
        assert decide("read", [name], {})[0] == "ask", name
        assert decide("write", [name], {"is_contained": True})[0] == "ask", name
        assert decide("shell", [f"cat {name}"], {})[0] == "ask", name
