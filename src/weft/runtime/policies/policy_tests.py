"""A policy before it is activated: its own tests, and what it would decide about recorded calls."""

from __future__ import annotations

import asyncio
import os.path
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from weft.kernel.contents import loads
from weft.kernel.enums import Decision, DecisionSource
from weft.kernel.errors import InvalidInput, WeftError
from weft.kernel.events import PolicyTests, ToolCallRequested
from weft.kernel.permission_subjects import command_subjects, line_subjects
from weft.ledger.api import Ledger
from weft.ledger.model import ToolCall, Turn, other_server
from weft.runtime.policies.policy_decisions import (
    DECISION_SECONDS,
    PolicyAnswer,
    PolicyCall,
    PolicyContext,
    PolicyDecision,
    PolicyInForce,
    PolicyInterpreters,
    call_document,
    decide,
    policies_in_force,
)
from weft.runtime.sandbox.bubblewrap import run_sandboxed
from weft.runtime.sandbox.command_runner import CommandRunner
from weft.runtime.sandbox.processes import MIB, Limits
from weft.runtime.sandbox.sandbox_plan import SystemFiles, interpreter_files

# --- What a policy says of itself: its docstring and its tests, which are run before anybody activates it.

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


# --- Recorded tool calls as a policy would have been asked about them.

SHELL = "shell"
_SHELL_NAMES = (
    "shell bash exec_command local_shell local_shell_call run_shell_command run_terminal_cmd run_in_terminal "
    "execute_command run_command shell_command container.exec functions.exec"
)
_EDIT_NAMES = (
    "edit multiedit edit_file replace str_replace str_replace_based_edit_tool notebookedit apply_diff apply_patch"
)
_NAMES = {
    SHELL: _SHELL_NAMES,
    "read": "read read_file view read_many_files notebookread",
    "write": "write write_file create create_file write_to_file",
    "edit": _EDIT_NAMES,
    "list": "list ls list_dir list_directory list_files",
    "glob": "glob file_search find_files",
    "grep": "grep grep_search search_file_content codebase_search search_files",
    "fetch_url": "fetch_url webfetch web_fetch fetch",
    "todo": "todo todowrite todo_write todoread update_plan",
}
TOOLS = {name: tool for tool, names in _NAMES.items() for name in names.split()}
"""The tools of this runtime, by what they and their like are called elsewhere, in small letters."""
READ_ONLY = frozenset({"read", "list", "glob", "grep", "todo"})
_COMMAND_FIELDS = ("cmd", "command", "script", "CommandLine")
_PATH_FIELDS = ("path", "file_path", "filePath", "absolute_path", "notebook_path", "target_file", "dir_path")
_PATCH_FIELDS = ("input", "patch", "diff")
_PATCHED_FILE = re.compile(r"^\*\*\* (?:Add File|Update File|Delete File|Move to): ([^\n]+)", re.M)
_MCP_PREFIX, _MCP_JOINT = "mcp__", "__"


def policy_call(call: ToolCall, turn: Turn, agent: str | None) -> PolicyCall:
    """Without the ids of session and turn, so that the same use of a tool is the same call wherever it was made."""
    name = tool_name(call)
    arguments = call.arguments
    context = PolicyContext(
        agent=agent,
        workspace=turn.workspace_path,
        toolset=turn.toolset_name,
        read_only=name in READ_ONLY,
        subjects=call_subjects(name, arguments, turn.workspace_path),
    )
    return PolicyCall(name=name, arguments=arguments, context=context)


def tool_name(call: ToolCall) -> str:
    """As this runtime names it: `SERVER/TOOL` for the tool of a server."""
    if (server := other_server(call.server, call.name)) is not None:
        return f"{server}/{call.name}"
    if call.name.startswith(_MCP_PREFIX):
        server, joint, tool = call.name.removeprefix(_MCP_PREFIX).partition(_MCP_JOINT)
        if joint:
            return f"{server}/{tool}"
    return TOOLS.get(call.name.lower(), call.name)


def call_subjects(tool: str, arguments: Any, workspace: str | None) -> tuple[str, ...] | None:
    """What the call was used on, as far as its arguments tell; None where they do not."""
    fields: Mapping[str, Any] = arguments if isinstance(arguments, Mapping) else {}
    if tool == SHELL:
        return _shell_subjects(_first_field(fields, _COMMAND_FIELDS))
    if tool == "fetch_url":
        url = fields.get("url")
        return (url,) if isinstance(url, str) else None
    if tool not in TOOLS.values():
        return None
    path = _first_field(fields, _PATH_FIELDS)
    paths = [path] if isinstance(path, str) else _patched_files(arguments, fields)
    if paths:
        return tuple(_in_workspace(path, workspace) for path in paths)
    return () if tool in READ_ONLY else None


def _patched_files(arguments: Any, fields: Mapping[str, Any]) -> list[str]:
    """The files that a patch in the form of Codex names."""
    patch = arguments if isinstance(arguments, str) else _first_field(fields, _PATCH_FIELDS)
    return list(dict.fromkeys(map(str.strip, _PATCHED_FILE.findall(patch)))) if isinstance(patch, str) else []


def _shell_subjects(command: Any) -> tuple[str, ...] | None:
    if isinstance(command, str):
        return line_subjects(command)
    if isinstance(command, Sequence) and command and all(isinstance(word, str) for word in command):
        words = [str(word) for word in command]
        is_login_line = len(words) == 3 and words[1] == "-lc"  # as Codex has a shell run every line
        return line_subjects(words[2]) if is_login_line else command_subjects(words)
    return None


def _first_field(fields: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((fields[name] for name in names if name in fields), None)


def _in_workspace(path: str, workspace: str | None) -> str:
    """Relative to the workspace, where it lies there."""
    if workspace is None or not os.path.isabs(path):
        return path
    relative = os.path.relpath(path, workspace)
    return path if relative.startswith("..") else relative


# --- A policy over the recorded calls: which of them would have been decided otherwise.

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
                self._count_call(compared, turn)
                if progress is not None:
                    progress(self._calls)
        return self._backtest_report()

    async def compare_turn(self, turn: Turn) -> AsyncIterator[ComparedCall]:
        """The calls of a turn in their order."""
        recorded = self._recorded_decisions(turn)
        for call in self._ledger.tool_calls(turn.id):
            yield await self._compare_call(turn, call, recorded.get(call.sequence))

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

    async def _compare_call(self, turn: Turn, call: ToolCall, recorded: Decision | None) -> ComparedCall:
        asked = policy_call(call, turn, turn.persona_id)
        if recorded is not None:
            answer, before = await self._decide_once(asked, (self._policy,)), recorded
        else:
            in_force = self._decide_once(asked, self._policies_of(turn.persona_id))
            answer, present = await asyncio.gather(self._decide_once(asked, (self._policy,)), in_force)
            before = present.decision
        return ComparedCall(call=call, asked=asked, before=before, answer=answer, is_recorded=recorded is not None)

    def _count_call(self, compared: ComparedCall, turn: Turn) -> None:
        self._calls += 1
        self._recorded += compared.is_recorded
        self._errors += compared.answer.is_error
        self._decisions[compared.answer.decision] += 1
        if compared.is_changed:
            self._add_to_group(compared.asked, compared.before, compared.answer, turn)

    def _policies_of(self, agent: str) -> tuple[PolicyInForce, ...]:
        if agent not in self._in_force:
            policies = self._ledger.policies
            self._in_force[agent] = policies_in_force(policies.active(agent), policies.active())
        return self._in_force[agent]

    async def _decide_once(self, call: PolicyCall, policies: tuple[PolicyInForce, ...]) -> PolicyDecision:
        key = (policies, call_document(call))
        if key not in self._answers:
            self._answers[key] = await decide(self._interpreters, call, policies, BACKTEST_SECONDS)
        return self._answers[key]

    def _add_to_group(self, call: PolicyCall, before: Decision, answer: PolicyDecision, turn: Turn) -> None:
        key = (call.name, before, answer.decision, answer.rationale)
        group = self._groups.setdefault(key, _ChangedCalls(0, [], []))
        group.calls += 1
        use = " ; ".join(call.context.subjects or ())
        if use and use not in group.uses and len(group.uses) < EXAMPLES:
            group.uses.append(use)
        if turn.id not in group.turns and len(group.turns) < EXAMPLES:
            group.turns.append(turn.id)

    def _backtest_report(self) -> Backtest:
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
