"""What a policy says of itself: its docstring and its tests, which are run before anybody activates it.

A policy is one file of Python. Its tests are a list at the top level, written as a literal:

    TESTS = [{"name": "…", "call": {"name": "shell", "arguments": {…}, "context": {…}}, "decision": "ask"}]

The file is read in the sandbox, and not run for that: it may have been written by anybody to harm its reader.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from weft.kernel.contents import loads
from weft.kernel.enums import Decision
from weft.kernel.errors import InvalidInput, WeftError
from weft.kernel.events import PolicyTests
from weft.runtime.policies.contract import DECISION_SECONDS, PolicyAnswer, PolicyCall
from weft.runtime.policies.interpreter import PolicyInterpreters
from weft.runtime.sandbox.bubblewrap import run_sandboxed
from weft.runtime.sandbox.command_runner import CommandRunner
from weft.runtime.sandbox.processes import MIB, Limits
from weft.runtime.sandbox.visible_files import SystemFiles, interpreter_files

MOST_TESTS = 1_000
_READER_LIMITS = Limits(seconds=10, output=8 * MIB, memory=512 * MIB, processes=4)
_HINT = 'write TESTS = [{"name": …, "call": {"name": …, "arguments": …, "context": …}, "decision": …}]'
_READER = """\
import ast, json, sys
outline = {"docstring": None, "tests": None, "error": None}
try:
    tree = ast.parse(sys.stdin.buffer.read(), "policy.py")
    outline["docstring"] = ast.get_docstring(tree)
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == "TESTS" for target in targets):
            outline["tests"] = ast.literal_eval(node.value)
    text = json.dumps(outline, allow_nan=False)
except SyntaxError as error:
    text = json.dumps({"docstring": None, "tests": None, "error": f"line {error.lineno}: {error.msg}"})
except (ValueError, TypeError, RecursionError, MemoryError) as error:
    text = json.dumps({"docstring": None, "tests": None, "error": f"{type(error).__name__}: {error}"})
sys.stdout.write(text)
"""


class OwnTest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A call, and what the policy is to decide about it."""

    name: str
    call: PolicyCall
    decision: Decision


class PolicyOutline(Struct, frozen=True, kw_only=True):
    """What can be read in a policy without running it."""

    docstring: str | None
    tests: tuple[OwnTest, ...]


class OwnTestResult(Struct, frozen=True, kw_only=True):
    """How one test ended."""

    test: OwnTest
    answer: PolicyAnswer

    @property
    def has_passed(self) -> bool:
        """An error is not the refusal that a test asks for."""
        return not self.answer.is_error and self.answer.decision is self.test.decision


class _Outline(Struct, frozen=True):
    docstring: str | None
    tests: Any
    error: str | None


async def read_outline(runner: CommandRunner, source: str) -> PolicyOutline:
    """Docstring and tests of a policy. Raises InvalidInput where it is no Python, or its tests are none."""
    python = Path(sys.executable).resolve()
    readable, hidden = interpreter_files()
    outcome = await run_sandboxed(
        await runner.sandbox(),
        [str(python), "-I", "-S", "-B", "-c", _READER],
        runner.protected,
        readable=[*readable, python],
        hidden=hidden,
        system=SystemFiles.LIBRARIES,
        stdin=source.encode(),
        limits=_READER_LIMITS,
    )
    if not outcome.succeeded:
        raise InvalidInput("the policy cannot be read as Python", "make it simpler")
    try:
        outline = msgspec.convert(loads(outcome.stdout), _Outline)
    except (WeftError, msgspec.ValidationError) as error:
        raise InvalidInput(f"the tests of the policy are not JSON: {error}", _HINT) from None
    if outline.error is not None:
        raise InvalidInput(f"the policy cannot be read: {outline.error}", "mend it")
    return PolicyOutline(docstring=outline.docstring, tests=_checked_tests(outline.tests))


async def run_own_tests(
    interpreters: PolicyInterpreters,
    source: str,
    tests: tuple[OwnTest, ...],
    *,
    seconds: float = DECISION_SECONDS,
    progress: Callable[[int, int], None] | None = None,
) -> list[OwnTestResult]:
    """Run the tests as calls would be decided, in their order."""
    interpreter = await interpreters.of(source)
    results = []
    for done, test in enumerate(tests, 1):
        results.append(OwnTestResult(test=test, answer=await interpreter.decide(test.call, seconds)))
        if progress is not None:
            progress(done, len(tests))
    return results


def counts_of_tests(results: list[OwnTestResult]) -> PolicyTests:
    """As they are recorded."""
    passed = sum(result.has_passed for result in results)
    return PolicyTests(total=len(results), passed=passed, failed=len(results) - passed)


def _checked_tests(tests: Any) -> tuple[OwnTest, ...]:
    if tests is None:
        return ()
    try:
        checked = msgspec.convert(tests, tuple[OwnTest, ...])
    except msgspec.ValidationError as error:
        raise InvalidInput(f"the tests of the policy are wrong: {error}", _HINT) from None
    if len(checked) > MOST_TESTS:
        raise InvalidInput(f"the policy has {len(checked)} tests", f"keep at most {MOST_TESTS}")
    return checked
