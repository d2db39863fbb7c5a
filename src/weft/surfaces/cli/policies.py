"""What the commands about approval policies have in common: which source is meant, its tests, what is shown."""

from __future__ import annotations

import asyncio
import difflib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from weft.kernel.errors import InvalidInput
from weft.surfaces.cli.figures import counted
from weft.surfaces.cli.progress import progress
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.plain_text import safe_lines

if TYPE_CHECKING:
    from weft.kernel.events import PolicyTests
    from weft.ledger.api import Ledger, Policy
    from weft.runtime.policies.policy_decisions import PolicyInForce, PolicyInterpreters
    from weft.runtime.policies.policy_tests import OwnTestResult, PolicyOutline
    from weft.surfaces.cli.call import Call

DEFAULT = "default"
LARGEST_FILE_BYTES = 1024 * 1024
STATE_STYLES = {"active": "good", "proposal": "warn", "rejected": "dim", "replaced": "dim"}


def read_policy_file(file: str) -> str:
    """The source in a file, or with - on standard input."""
    try:
        if file == "-":
            data = sys.stdin.buffer.read(LARGEST_FILE_BYTES + 1)
        else:
            with open(file, "rb") as stream:
                data = stream.read(LARGEST_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}", "name a file with a policy") from None
    if len(data) > LARGEST_FILE_BYTES:
        raise InvalidInput(f"{file} is larger than {LARGEST_FILE_BYTES} bytes", "make the policy shorter")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InvalidInput(f"{file} is not UTF-8", "save it as UTF-8") from None


def file_policy(file: str) -> PolicyInForce:
    from weft.runtime.policies.policy_decisions import PolicyInForce

    return PolicyInForce(id=None, name=Path(file).stem, source=read_policy_file(file))


def named_policy(ledger: Ledger, name: str) -> PolicyInForce:
    """A policy of the ledger, the one that comes with weft, or a file that ends in .py."""
    from weft.runtime.policies.policy_decisions import PolicyInForce, default_source

    if name.endswith(".py"):
        return file_policy(name)
    if name == DEFAULT:
        return PolicyInForce(id=None, name=DEFAULT, source=default_source())
    policy = ledger.policies.get(name)
    return PolicyInForce(id=policy.id, name=policy.name, source=source_of(policy))


def source_of(policy: Policy) -> str:
    """Raises InvalidInput where it is gone."""
    if policy.source is None:
        raise InvalidInput(f"the source of the policy {policy.name!r} was erased", "propose it again")
    return policy.source


def new_interpreters(call: Call) -> PolicyInterpreters:
    from weft.runtime.policies.policy_decisions import PolicyInterpreters
    from weft.surfaces.cli.sandbox_access import command_runner, nearby_ledger

    return PolicyInterpreters(command_runner(nearby_ledger(call.ledger)))


def tested(call: Call, source: str) -> tuple[PolicyOutline, list[OwnTestResult]]:
    """Read a policy and run its own tests, in the sandbox."""
    from weft.runtime.policies.policy_tests import read_outline, run_own_tests

    interpreters = new_interpreters(call)

    async def work() -> tuple[PolicyOutline, list[OwnTestResult]]:
        outline = await read_outline(interpreters.runner, source)
        with progress(call, "test the policy") as bar:
            return outline, await run_own_tests(interpreters, source, outline.tests, progress=bar.counted)

    try:
        return asyncio.run(work())
    finally:
        interpreters.stop()


def tests_line(counts: PolicyTests) -> Line:
    if not counts.total:
        return [Span("it has no tests", "warn")]
    style = "bad" if counts.failed else "good"
    return [Span(f"{counts.passed} of {counted(counts.total, 'test')} passed", style)]


def failed_lines(results: Sequence[OwnTestResult]) -> Iterator[Line]:
    for result in results:
        if not result.has_passed:
            answer = result.answer
            what = "failed" if answer.is_error else answer.decision.value
            yield [
                Span("failed ", "bad"),
                f"{result.test.name}: expected {result.test.decision.value}, was {what} ({answer.rationale})",
            ]


def source_lines(source: str) -> list[Line]:
    """With control and bidirectional characters escaped, line by line."""
    return [[line] for line in safe_lines(source)]


def difference_lines(before: str, after: str, name: str) -> list[Line]:
    styles = {"+": "good", "-": "bad", "@": "dim"}
    lines = difflib.unified_diff(safe_lines(before), safe_lines(after), "in force", name, lineterm="")
    return [[Span(line, styles.get(line[:1], ""))] for line in lines]


def present(call: Call, lines: Sequence[Line], yes: bool) -> None:
    """Show a person what they are asked about; nobody is asked without having been shown it."""
    if not (yes and (call.quiet or call.json)):
        for line in lines:
            click.echo(call.screen.render(line), err=True)
