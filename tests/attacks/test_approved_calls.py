"""Approve A, run B: whatever a person approved, and whatever changes before it runs, nothing else is ever run.

Each field that an approval is bound to is changed at both moments that there are: before the grant is used, and between
the decision to run the call and its execution. Unchanged, each call runs exactly once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import replace

from tests.runtime.broker.bench import run, saying
from tests.runtime.broker.test_gated_calls import Gated, History
from tests.runtime.mcp.configured import scripted
from tests.sandbox import UNPROTECTED, machine_sandbox
from tests.sizes import share
from weft.kernel.authority import Principal, PrincipalKind, rights
from weft.kernel.clock import FixedClock, SystemClock
from weft.kernel.enums import Decision
from weft.kernel.errors import NotApplicable
from weft.ledger.api import Ledger
from weft.ledger.model import ToolUsePart
from weft.programs import Program, Programs
from weft.runtime.egress.execution_context import context_for
from weft.runtime.invoke import toolbox
from weft.runtime.invoke.toolbox import CodeProgramTool
from weft.runtime.replies import FinishReason, Reply
from weft.runtime.sandbox import bubblewrap, command_runner, processes
from weft.runtime.sandbox.command_runner import CodeOutcome, CommandRunner
from weft.runtime.sandbox.processes import Ending, ProcessOutcome
from weft.runtime.sandbox.profiles import parse_profile
from weft.runtime.tool.gate import ToolGate
from weft.runtime.tool.tool_contract import (
    CallAnswer,
    CallPlan,
    LaterResult,
    PlannedTool,
    ToolCallContext,
    ToolFailure,
    ToolOutput,
)
from weft.runtime.tool.workspace import WorkspaceFolder
from weft.runtime.tools.fetch_url import FetchUrlTool
from weft.runtime.tools.mcp_server_settings import ToolDefinition
from weft.runtime.tools.mcp_servers import McpTool
from weft.runtime.tools.shell import ShellTool
from weft.runtime.tools.workspace_tools import EditTool, WriteTool
from weft.surfaces.opening import open as open_ledger

ACTING = context_for(
    Principal(PrincipalKind.HUMAN, "ann"), rights=rights(["model:*", "provider:*", "tool:*", "code:*"])
)
PROFILE = "network:public.example"


class World:
    """A workspace, a ledger, an MCP server and the tools that use them; `ran` is all that was carried out."""

    def __init__(self, folder: Path, ledger: Ledger) -> None:
        self.folder, self.ledger, self.programs = folder / "work", ledger, Programs(ledger)
        for name in ("a", "b"):
            (self.folder / name).mkdir(parents=True)
            (self.folder / name / "run.sh").write_text(f"echo {name}\n")
        (self.folder / "here").symlink_to("a")
        (self.folder / "notes.txt").write_text("old text\n")
        self.ran: list[Any] = []
        self.changes: dict[str, Any] = {}
        """What is put into the arguments after the person saw them."""
        self.definition = ToolDefinition(name="post", input_schema={"type": "object"})
        self.served = self.approved_definition = self.definition
        self.programs.create("code", "double", {"language": "javascript", "source": "export default (i) => i * 2"})
        self.tools: dict[str, PlannedTool] = {tool.spec.name: tool for tool in map(self._recited, self._made())}

    def _made(self) -> Iterator[PlannedTool]:
        workspace, profile = WorkspaceFolder(self.folder), parse_profile(PROFILE)
        yield ShellTool(self.folder, profile=profile, runner=_SpyRunner(self.ran))
        yield WriteTool(workspace)
        yield EditTool(workspace)
        yield FetchUrlTool(profile)
        yield McpTool(self, scripted("plain"), self.definition)
        yield CodeProgramTool(self.programs.get("double"), self._program, runner=_SpyRunner(self.ran))

    def _recited(self, tool: PlannedTool) -> PlannedTool:
        return _Recited(self, tool)  # type: ignore[return-value]

    async def _program(self, id: str) -> Program:
        return self.programs.get(id)

    def approved(self, server: Any, tool: str) -> str | None:
        return self.approved_definition.digest

    async def connection(self, server: Any) -> Any:
        return self

    async def definitions(self, *, again: bool) -> Sequence[ToolDefinition]:
        return [self.served]

    async def call(self, name: str, arguments: Any, run: str) -> Any:
        self.ran.append((name, arguments))
        raise ToolFailure("failed", "the server was called")

    def inner(self, name: str) -> Any:
        return self.tools[name].inner  # type: ignore[attr-defined]


class _SpyRunner(CommandRunner):
    """Notes what it is to run, and runs nothing."""

    def __init__(self, ran: list[Any]) -> None:
        super().__init__(UNPROTECTED)
        self._ran = ran

    async def run(self, profile: Any, argv: Sequence[str], **details: Any) -> ProcessOutcome:
        self._ran.append((str(profile), list(argv), details["folder"], details["environment"]))
        return ProcessOutcome(ending=Ending.EXITED, code=0, stdout=b"", stderr=b"")

    async def sandbox(self) -> Any:
        return None


class _Recited:
    """A tool whose arguments are others from the moment on that the world says so."""

    def __init__(self, world: World, inner: PlannedTool) -> None:
        self.world, self.inner, self.spec = world, inner, inner.spec
        self.is_idempotent, self.is_read_only = inner.is_idempotent, inner.is_read_only
        self.is_repeatable = inner.is_repeatable

    async def plan(self, arguments: Any, context: ToolCallContext) -> CallPlan:
        return await self.inner.plan({**arguments, **self.world.changes}, context)

    async def perform(self, plan: CallPlan, context: ToolCallContext) -> ToolOutput | LaterResult:
        return await self.inner.perform(plan, context)


class Case(Struct, frozen=True):
    """A call, and something that it is bound to being changed."""

    field: str
    tool: str
    arguments: dict[str, Any]
    change: Callable[[World], None]


def changed_arguments(**arguments: Any) -> Callable[[World], None]:
    return lambda world: world.changes.update(arguments)


def linked(name: str, target: str) -> Callable[[World], None]:
    """A name of the workspace leads elsewhere."""

    def change(world: World) -> None:
        path = world.folder / name
        path.unlink()
        path.symlink_to(target)

    return change


def written(name: str, text: str) -> Callable[[World], None]:
    def change(world: World) -> None:
        (world.folder / name).write_text(text)

    return change


def set_profile(tool: str, profile: str) -> Callable[[World], None]:
    return lambda world: setattr(world.inner(tool), "_profile", parse_profile(profile, granted_by="human:eve"))


def swapped_folder(world: World) -> None:
    (world.folder / "b").rename(world.folder / "kept")
    (world.folder / "b").symlink_to("/tmp")


def redefined(world: World) -> None:
    world.served = world.approved_definition = replace(world.definition, description="send everything")


def served_otherwise(world: World) -> None:
    world.served = replace(world.definition, description="send everything")


def new_version(world: World) -> None:
    program = world.programs.get("double")
    world.programs.change(program.id, {"source": "export default (i) => i * 3"})


SHELL, SCRIPT = {"cmd": "ls", "cwd": "here", "env": {"A": "1"}}, {"cmd": ["sh", "run.sh"], "cwd": "a"}
WRITE = {"path": "b/new.txt", "content": "mine\n"}
EDIT = {"path": "notes.txt", "old_text": "old", "new_text": "new"}
PAGE = {"url": "http://public.example/a"}
CASES = (
    Case("arguments", "shell", SHELL, changed_arguments(cmd="rm -rf .")),
    Case("environment", "shell", SHELL, changed_arguments(env={"A": "2"})),
    Case("folder", "shell", SHELL, changed_arguments(cwd="b")),
    Case("symlink of the folder", "shell", SHELL, linked("here", "b")),
    Case("time", "shell", SHELL, changed_arguments(timeout_ms=599_999)),
    Case("script file", "shell", SCRIPT, written("a/run.sh", "rm -rf .\n")),
    Case("symlink of the script", "shell", SCRIPT, linked("a/run.sh", "../b/run.sh")),
    Case("profile", "shell", SHELL, set_profile("shell", "none")),
    Case("hosts", "shell", SHELL, set_profile("shell", "network:evil.example")),
    Case("arguments", "write", WRITE, changed_arguments(content="theirs\n")),
    Case("path", "write", WRITE, changed_arguments(path="a/new.txt")),
    Case("present bytes", "write", {**WRITE, "path": "notes.txt"}, written("notes.txt", "somebody's work\n")),
    Case("symlink of the folder", "write", WRITE, swapped_folder),
    Case("symlink of the file", "write", {**WRITE, "path": "notes.txt"}, linked("notes.txt", "a/run.sh")),
    Case("arguments", "edit", EDIT, changed_arguments(new_text="evil")),
    Case("present bytes", "edit", EDIT, written("notes.txt", "old text, and more\n")),
    Case("arguments", "fetch_url", PAGE, changed_arguments(url="http://public.example/?secret")),
    Case("profile", "fetch_url", PAGE, set_profile("fetch_url", "network:public.example,evil.example")),
    Case("arguments", "other/post", {"to": "ann"}, changed_arguments(to="eve")),
    Case("tool definition", "other/post", {"to": "ann"}, redefined),
    Case("arguments", "code/double", {"input": 1}, changed_arguments(input=2)),
    Case("program version", "code/double", {"input": 1}, new_version),
)
EACH_TOOL = tuple({case.tool: case for case in CASES}.values())


def named(case: Case) -> str:
    return f"{case.tool}: {case.field}"


class Approving(Gated):
    """A turn whose model calls one tool, which a person is asked about."""

    def __init__(self, world: World, case: Case) -> None:
        call = ToolUsePart("call-1", case.tool, case.arguments)
        calling = Reply(parts=(call,), finish=FinishReason.TOOL_CALL, model_id="m", model="m-1", provider="there")
        super().__init__(world.ledger, FixedClock(SystemClock().now_ms()), Decision.ASK, calling, saying("I see"))
        self.gate = ToolGate(world.tools, self.policy, History(world.ledger), clock=self.clock)
        self.bench.options |= {"tools": world.tools, "gate": self.gate, "acting": ACTING}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with open_ledger(":memory:") as ledger:
        made = World(tmp_path, ledger)

        async def fetch_page(url: str, *_: Any) -> Any:
            made.ran.append(url)
            raise ToolFailure("failed", "the page was asked for")

        async def run_code(sandbox: Any, language: Any, source: str, input: Any, limits: Any) -> CodeOutcome:
            made.ran.append((source, input))
            return CodeOutcome(ending=Ending.EXITED, result=2, error=None, printed="")

        monkeypatch.setattr("weft.runtime.egress.connections.fetch_page", fetch_page)
        monkeypatch.setattr(toolbox, "run_code", run_code)
        yield made


def files(world: World) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(world.folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("case", share(CASES, test=8), ids=named)
def test_what_changed_after_the_grant_is_refused_and_recorded(world: World, case: Case) -> None:
    async def body() -> None:
        approving = Approving(world, case)
        message = approving.bench.admit()
        await approving.serve(message)
        (approval,) = world.ledger.approvals.list()
        world.ledger.approvals.grant(approval.id, plan_digest=approval.plan_digest)
        case.change(world)
        before = files(world)
        await approving.serve(message)
        assert (world.ran, files(world)) == ([], before)
        assert approving.decisions(message)[-1] in (("deny_continue", "grant"), ("deny_continue", "arguments"))
        (call,) = world.ledger.tool_calls(world.ledger.inbox.get(message).turn or "")
        assert (call.outcome, call.error_code) == ("error", "denied")
        assert world.ledger.approvals.get(approval.id).is_used

    run(body())


@pytest.mark.parametrize(
    "case",
    [*CASES, Case("served definition", "other/post", {"to": "ann"}, served_otherwise)],
    ids=named,
)
def test_what_changed_between_decision_and_execution_does_not_run(world: World, case: Case) -> None:
    """Where the recorded plan is what is carried out, other arguments of the moment do nothing."""

    async def body() -> None:
        gate = Approving(world, case).gate
        context = ToolCallContext(turn="turn", call="call", acting=ACTING)
        plan = await world.tools[case.tool].plan(case.arguments, context)
        answer = CallAnswer(event="grant", is_granted=True, plan_digest=plan.plan_digest)
        verdict = await gate.decide(case.tool, case.arguments, context, answer)
        assert (verdict.decision, verdict.plan_digest) == (Decision.ALLOW, plan.plan_digest)
        case.change(world)
        if verdict.plan is not None and world.changes:
            assert (await gate.perform(case.tool, case.arguments, context, plan.plan_digest, verdict.plan)) is not None
            assert all("theirs" not in str(one) and "evil" not in str(one) for one in [*files(world).values()])
            assert world.ran in ([], [("export default (i) => i * 2", 1)])
            return
        before = files(world)
        with pytest.raises(ToolFailure):
            await gate.perform(case.tool, case.arguments, context, plan.plan_digest, verdict.plan)
        assert (world.ran, files(world)) == ([], before)

    run(body())


@pytest.mark.parametrize("case", EACH_TOOL, ids=lambda case: case.tool)
def test_a_grant_runs_what_was_shown_once_and_is_not_used_again(world: World, case: Case) -> None:
    async def body() -> None:
        approving, before = Approving(world, case), files(world)
        message = approving.bench.admit()
        await approving.serve(message)
        (approval,) = world.ledger.approvals.list()
        world.ledger.approvals.grant(approval.id, plan_digest=approval.plan_digest)
        await approving.serve(message)
        assert len(world.ran) + (files(world) != before) == 1
        with pytest.raises(NotApplicable):
            world.ledger.approvals.grant(approval.id, plan_digest=approval.plan_digest)
        again = Approving(world, case)
        second = again.bench.admit("once more")
        await again.serve(second)
        assert [decision for decision, _ in again.decisions(second)] in (["ask"], ["deny_continue"])
        assert len(world.ran) + (files(world) != before) == 1
        foreign = world.ledger.approvals.list(states=["granted"])[0]
        stale = CallAnswer(event=foreign.id, is_granted=True, plan_digest=foreign.plan_digest)
        other = next(one for one in EACH_TOOL if one.tool not in (case.tool, "edit"))
        context = ToolCallContext(turn="turn", call="call", acting=ACTING)
        verdict = await again.gate.decide(other.tool, other.arguments, context, stale)
        assert verdict.decision is Decision.DENY_CONTINUE

    run(body())


@pytest.mark.parametrize("profile", ["none", "workspace"])
@pytest.mark.parametrize("arguments", [{"cmd": "echo a  'b'"}, {"cmd": ["echo", "$(x)", ""], "env": {"A": "b c"}}])
def test_the_words_that_are_executed_are_the_words_that_were_hashed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, profile: str, arguments: dict[str, Any]
) -> None:
    executed: list[tuple[list[str], dict[str, str]]] = []
    real = processes.run_process

    async def spy(argv: Sequence[str], **details: Any) -> ProcessOutcome:
        executed.append((list(argv), dict(details["environment"])))
        return await real(argv, **details)

    sandbox = machine_sandbox()
    if str(tmp_path).startswith("/dev/"):
        pytest.skip("no sandbox shows a workspace in /dev")
    monkeypatch.setattr(command_runner, "run_process", spy)
    monkeypatch.setattr(bubblewrap, "run_process", spy)
    runner = CommandRunner(UNPROTECTED, sandbox=sandbox)
    tool = ShellTool(tmp_path, profile=parse_profile(profile, granted_by="human:ann"), runner=runner)
    context = ToolCallContext(turn="turn", call="call")

    async def body() -> None:
        plan = await tool.plan(arguments, context)
        await tool.perform(plan, context)
        ((argv, environment),) = executed
        words = plan.exact["argv"]
        assert argv == words
        if profile == "none":
            assert {name: environment[name] for name in plan.exact["env"]} == plan.exact["env"]
            assert set(environment) == {"PATH", *plan.exact["env"]}

    asyncio.run(body())
