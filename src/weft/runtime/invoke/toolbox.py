"""The tools of a turn, with the gate that guards them, as its toolset and permissions leave them.

Built-ins, MCP servers, code programs of the ledger, and the tools with which an agent has workers:
sessions with no more rights than the turn that asked.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

from msgspec import Meta, Struct, to_builtins

from weft.kernel.authority import TOOL_PREFIX
from weft.kernel.clock import Clock, SystemClock
from weft.kernel.contents import dumps
from weft.kernel.enums import AgentRole, ProgramKind
from weft.kernel.errors import NotApplicable, WeftError, quoted
from weft.ledger.api import (
    MAX_WORKER_DEPTH,
    Approval,
    Ledger,
    NewWorker,
    Policy,
    Runs,
    SessionStanding,
    WorkerSession,
    have_answered,
)
from weft.ledger.model import DEFAULT_AGENT
from weft.programs.program_records import Program, problems_with
from weft.programs.programs import Programs
from weft.runtime.assembly.configuration_layers import WorkerConstraints, constraints_for
from weft.runtime.assembly.turn_configuration import TurnConfiguration, ensure_in_use, may_write_unattended
from weft.runtime.broker.turn_plans import TurnPlan
from weft.runtime.egress.execution_context import ExecutionContext
from weft.runtime.inference.model_requests import ToolSpec
from weft.runtime.ledger_port import Executor
from weft.runtime.policies.policy_decisions import (
    PolicyCall,
    PolicyContext,
    PolicyDecision,
    PolicyInterpreters,
    decide,
    policies_in_force,
)
from weft.runtime.resources.local_drivers import DirectoryDriver
from weft.runtime.resources.workspace_snapshots import WorkspaceSnapshots
from weft.runtime.sandbox.command_runner import CODE_LIMITS, CodeOutcome, CommandRunner, Language, run_code
from weft.runtime.sandbox.git_view import GitPrograms
from weft.runtime.sandbox.hidden_places import HiddenFiles
from weft.runtime.sandbox.processes import Ending, Limits
from weft.runtime.sandbox.profiles import READ_ONLY_PROFILE, SandboxProfile
from weft.runtime.tool.gate import CallContainment, IsTrusted, ToolGate
from weft.runtime.tool.recorded_results import RecordedCalls
from weft.runtime.tool.tool_contract import (
    CallPlan,
    GivenFunctions,
    LaterResult,
    PlannedTool,
    StructTool,
    ToolCallContext,
    ToolFailure,
    ToolOutput,
    WorkspaceKeeper,
    in_thread,
)
from weft.runtime.tool.toolsets import WithheldBy, WithheldTools, find_toolset, is_offered
from weft.runtime.tool.workspace import WorkspaceFolder
from weft.runtime.tools.fetch_url import FetchUrlTool
from weft.runtime.tools.mcp_servers import McpServers
from weft.runtime.tools.shell import ShellTool
from weft.runtime.tools.workspace_tools import Linters, LinterSettings, session_tools, workspace_tools

# --- Code programs of the ledger as tools: JavaScript, TypeScript and Python, run in the sandbox.

CODE_TOOL_PREFIX = "code/"
_ANY_INPUT = {
    "type": "object",
    "properties": {"input": {"description": "What the program is called with, as JSON."}},
    "required": ["input"],
    "additionalProperties": False,
}
"""The schema of a program that has none of its own."""

LoadProgram = Callable[[str], Awaitable[Program]]
"""A program by its id, as it is now. Raises a WeftError where it is not there."""


class CodeProgramTool:
    """One published code program."""

    is_idempotent = True
    """It reaches nothing that it could change."""
    is_read_only = True
    is_repeatable = True

    def __init__(
        self, program: Program, load: LoadProgram, *, runner: CommandRunner, limits: Limits = CODE_LIMITS
    ) -> None:
        self._code_program = ensure_in_use(program)
        self._load, self._runner, self._limits = load, runner, limits
        schema = program.config.get("inputSchema")
        self._has_schema = schema is not None
        description = str(program.config.get("description") or f"The program {program.name}.")
        self._spec = ToolSpec(
            name=CODE_TOOL_PREFIX + program.name,
            description=description,
            schema=schema if self._has_schema else _ANY_INPUT,
        )

    @property
    def spec(self) -> ToolSpec:
        return self._spec

    async def plan(self, arguments: Any, context: ToolCallContext) -> CallPlan:
        """Raises NotAllowed where whoever acts may not run this program."""
        if context.acting is not None:
            context.acting.ensure_allowed(f"code:{self._code_program.name}")
        problems = await in_thread(lambda: problems_with(arguments, self._spec.schema))
        if problems:
            raise ToolFailure("invalid_arguments", problems[0], {"problems": problems})
        input = arguments if self._has_schema else arguments["input"]
        exact = {**_program_identity(await self._current_program()), "input": input}
        shown = f"{self._spec.name} version {exact['version']}\n{dumps(input).decode()}"
        return CallPlan(
            tool=self._spec.name, exact=exact, subjects=(dumps(input).decode(),), shown=shown, is_read_only=True
        )

    async def _current_program(self) -> Program:
        """The program as it is now, which must be the one that was offered to the model."""
        try:
            current = ensure_in_use(await self._load(self._code_program.id))
        except WeftError as error:
            raise ToolFailure("changed", str(error)) from None
        if _program_identity(current) != _program_identity(self._code_program):
            raise ToolFailure(
                "changed", f"{current.name} was changed since it was offered", {"version": current.version}
            )
        return current

    async def perform(self, plan: CallPlan, context: ToolCallContext) -> ToolOutput:
        current = await self._current_program()
        if plan.exact != {**_program_identity(current), "input": plan.exact["input"]} or plan.tool != self._spec.name:
            raise ToolFailure("changed", f"{current.name} is not what was planned")
        began = time.monotonic()
        outcome = await run_code(
            self._runner,
            _program_language(current),
            current.config["source"],
            plan.exact["input"],
            self._limits,
        )
        return ToolOutput(result=_tool_result(outcome), duration_ms=round(1000 * (time.monotonic() - began)))

    async def invoke(self, arguments: Any, context: ToolCallContext) -> Any:
        return (await self.perform(await self.plan(arguments, context), context)).result


def _program_language(program: Program) -> Language:
    return Language(program.config.get("language", Language.JAVASCRIPT))


def _program_identity(program: Program) -> dict[str, Any]:
    """What decides what runs."""
    return {
        "program": program.id,
        "version": program.version,
        "language": str(_program_language(program)),
        "source": hashlib.sha256(str(program.config["source"]).encode()).hexdigest(),
        "configuration": hashlib.sha256(dumps(program.config)).hexdigest(),
    }


def _tool_result(outcome: CodeOutcome) -> dict[str, Any]:
    printed = {"printed": outcome.printed} if outcome.printed else {}
    if outcome.succeeded:
        return {"result": outcome.result, **printed}
    code = "failed" if outcome.ending is Ending.EXITED else str(outcome.ending)
    raise ToolFailure(code, outcome.error or "", printed)


# --- The tools with which an agent has workers: `spawn`, `await_workers` and `message_worker`.

SPAWN, AWAIT, MESSAGE = "spawn", "await_workers", "message_worker"
TASK_CHARACTERS = 100_000
PATTERN_CHARACTERS = 1000
LONGEST_WAIT_SECONDS = 7 * 24 * 3600
QUEUE = "the workers of this session"
"""Calls that bring answers run one after another: each answer is brought once."""
SPAWN_DESCRIPTION = (
    "Start a worker on a task of its own. It sees the task and nothing else of this conversation, so say everything "
    "that it needs. It works beside you, with no more rights than you have; `await_workers` brings its answer. "
    "`tools` leaves it with fewer tools. Returns the worker's name."
)
AWAIT_DESCRIPTION = (
    "Wait for workers and get what they answered. Without `workers`, all that you spawned. With `any`, the first "
    "answer is enough. Each answer is given once. After `timeout_seconds` you go on without them; their answers then "
    "come as messages."
)
MESSAGE_DESCRIPTION = "Send another message to a worker that you spawned. `await_workers` brings its answer."

Name = Annotated[str, Meta(min_length=1, max_length=100, pattern="^[A-Za-z0-9_.-]+$")]
Patterns = Annotated[tuple[Annotated[str, Meta(max_length=PATTERN_CHARACTERS)], ...], Meta(max_length=100)]
Text = Annotated[str, Meta(min_length=1, max_length=TASK_CHARACTERS)]
Constrain = Callable[[tuple[str, ...] | None], WorkerConstraints]
"""What a worker of the turn may do at most, where it is to be left with these patterns of tools."""


class SpawnArguments(Struct, frozen=True, forbid_unknown_fields=True):
    task: Annotated[str, Meta(min_length=1, max_length=TASK_CHARACTERS, description="All that the worker is told.")]
    name: Annotated[Name, Meta(description="A short name for it.")] | None = None
    tools: Annotated[Patterns, Meta(description="Patterns of tools it may use.")] | None = None


class AwaitArguments(Struct, frozen=True, forbid_unknown_fields=True):
    workers: Annotated[tuple[str, ...], Meta(max_length=100, description="Names of workers.")] | None = None
    any: bool = False
    timeout_seconds: Annotated[float, Meta(gt=0, le=LONGEST_WAIT_SECONDS)] | None = None


class MessageArguments(Struct, frozen=True, forbid_unknown_fields=True):
    worker: str
    text: Text


class SpawnTool(StructTool[SpawnArguments]):
    """Starts workers."""

    is_idempotent = True
    is_repeatable = True

    def __init__(self, runs: Runs, crossing: Executor, constrain: Constrain) -> None:
        super().__init__(SPAWN, SPAWN_DESCRIPTION, SpawnArguments)
        self._runs, self._crossing, self._constrain = runs, crossing, constrain

    def plan_of(self, arguments: SpawnArguments) -> CallPlan:
        constraints = self._constrain(arguments.tools)
        exact = {"task": arguments.task, "name": arguments.name, "constraints": constraints.record()}
        shown = f"start a worker{f' named {arguments.name}' if arguments.name else ''}:\n{arguments.task}"
        return CallPlan(tool=SPAWN, exact=exact, shown=shown)

    async def perform(self, plan: CallPlan, context: ToolCallContext) -> ToolOutput:
        new = NewWorker(
            turn=context.turn,
            call=context.call,
            task=plan.exact["task"],
            name=plan.exact["name"],
            constraints=plan.exact["constraints"],
        )
        worker = await self._crossing.run(partial(self._runs.spawn, new))
        return ToolOutput(result={"worker": worker.label}, spawned=worker.session, is_untrusted=False)


class SessionWorkers:
    """The workers of the session that a turn belongs to, by the names that its model knows them by."""

    def __init__(self, runs: Runs, crossing: Executor, session: str) -> None:
        self._runs, self._crossing, self._session = runs, crossing, session

    async def named(self, names: tuple[str, ...] | None) -> list[WorkerSession]:
        workers = {
            worker.label: worker for worker in await self._crossing.run(partial(self._runs.workers, self._session))
        }
        if names is None:
            return list(workers.values())
        missing = [name for name in names if name not in workers]
        if missing:
            known = ", ".join(workers) or "none"
            raise ToolFailure("unknown_worker", f"you spawned no worker {quoted(missing[0], 100)}; there are: {known}")
        return [workers[name] for name in dict.fromkeys(names)]


class AwaitTool(StructTool[AwaitArguments]):
    """Brings the answers of workers."""

    is_idempotent = True
    is_read_only = True

    def __init__(self, runs: Runs, crossing: Executor, workers: SessionWorkers, clock: Clock) -> None:
        super().__init__(AWAIT, AWAIT_DESCRIPTION, AwaitArguments)
        self._runs, self._crossing, self._workers, self._clock = runs, crossing, workers, clock

    def plan_of(self, arguments: AwaitArguments) -> CallPlan:
        exact = {
            "workers": None if arguments.workers is None else list(arguments.workers),
            "any": arguments.any,
            "timeout_seconds": arguments.timeout_seconds,
        }
        return CallPlan(tool=AWAIT, exact=exact, shown="wait for workers", is_read_only=True)

    async def exclusive_key(self, arguments: Any) -> str:
        """Calls that bring answers wait for each other."""
        return QUEUE

    async def perform(self, plan: CallPlan, context: ToolCallContext) -> ToolOutput | LaterResult:
        names = plan.exact["workers"]
        workers = await self._workers.named(None if names is None else tuple(names))
        if not have_answered(workers, is_any=plan.exact["any"]):
            return self._defer_wait(plan, workers)
        replies = [
            (worker, await self._crossing.run(partial(self._runs.worker_reply, answer)))
            for worker in workers
            if worker.is_idle
            for answer in worker.ready
        ]
        result = {
            "answers": [
                {
                    "worker": worker.label,
                    "status": reply.status,
                    "answer": reply.text,
                    **({} if reply.error is None else {"error": reply.error}),
                }
                for worker, reply in replies
            ],
            "running": [worker.label for worker in workers if not worker.is_idle],
        }
        return ToolOutput(
            result=result,
            awaited=tuple(reply.id for _, reply in replies),
            is_untrusted=any(reply.is_untrusted for _, reply in replies),
        )

    def _defer_wait(self, plan: CallPlan, workers: list[WorkerSession]) -> LaterResult:
        seconds = plan.exact["timeout_seconds"]
        running = [worker for worker in workers if not worker.is_idle]
        return LaterResult(
            why=f"waits for {', '.join(worker.label for worker in running)}",
            until_ms=None if seconds is None else self._clock.now_ms() + round(seconds * 1000),
            workers=tuple(worker.session for worker in workers),
            is_any=plan.exact["any"],
        )


class MessageTool(StructTool[MessageArguments]):
    """Sends messages to workers."""

    is_idempotent = True
    is_repeatable = True

    def __init__(self, runs: Runs, crossing: Executor, workers: SessionWorkers) -> None:
        super().__init__(MESSAGE, MESSAGE_DESCRIPTION, MessageArguments)
        self._runs, self._crossing, self._workers = runs, crossing, workers

    def plan_of(self, arguments: MessageArguments) -> CallPlan:
        exact = {"worker": arguments.worker, "text": arguments.text}
        return CallPlan(tool=MESSAGE, exact=exact, shown=f"to {arguments.worker}:\n{arguments.text}")

    async def perform(self, plan: CallPlan, context: ToolCallContext) -> ToolOutput:
        (worker,) = await self._workers.named((plan.exact["worker"],))
        send = partial(self._runs.send_to_worker, context.turn, worker.session, plan.exact["text"], context.call)
        await self._crossing.run(send)
        return ToolOutput(result={"sent_to": worker.label}, is_untrusted=False)


# --- The tools of a turn, with the gate that guards them: built-ins, code programs and MCP servers, as far as the
# toolset and the permissions of the turn leave them.

T = TypeVar("T")
OnAsked = Callable[[str], None]


class ToolboxSettings(Struct, frozen=True, kw_only=True):
    """What the person on whose machine tools run has configured."""

    linters: tuple[LinterSettings, ...] = ()
    files: DirectoryDriver | None = None
    """Keeps what workspaces are like after each call that may change them; None: nothing is kept."""
    is_trusted_for_work: IsTrusted | None = None
    """Which folders that person trusts for work; None: none."""
    unconfined_by: str | None = None
    """The person who granted that tools run without a sandbox, where an agent's permissions say so."""


class SourcedTool(Struct, frozen=True):
    """A tool, and where it comes from: `built in`, `code`, or the name of an MCP server."""

    tool: PlannedTool
    source: str


class Toolbox:
    """Equips the turns of one broker. Whatever is started for them is started by `runner`."""

    def __init__(
        self,
        ledger: Ledger,
        crossing: Executor,
        programs: Programs,
        runner: CommandRunner,
        *,
        servers: McpServers | None = None,
        settings: ToolboxSettings | None = None,
        functions: GivenFunctions | None = None,
        on_asked: OnAsked | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._ledger, self._crossing, self._programs, self._servers = ledger, crossing, programs, servers
        self._settings, self._on_asked = settings or ToolboxSettings(), on_asked
        self._functions, self._clock = functions or GivenFunctions(), clock or SystemClock()
        self._runner, self._interpreters = runner, PolicyInterpreters(runner)
        self._reads = SharedReads(crossing)

    async def aclose(self) -> None:
        self._interpreters.stop()
        if self._servers is not None:
            await self._servers.aclose()

    async def equip(self, plan: TurnPlan, configuration: TurnConfiguration, standing: SessionStanding) -> None:
        """Give a planned turn its tools, and the gate that decides about their calls."""
        toolset, given = configuration.effective.toolset, self._given_tools(plan, configuration)
        if plan.model.provider.is_embedded or not (configuration.has_tools or given):
            if plan.model.provider.is_embedded and configuration.has_tools:
                why, agent = "the embedded model calls no tools", configuration.persona_name
                note_withheld(plan, [WithheldTools(WithheldBy.EMBEDDED_MODEL, why, agent)])
            return
        configured = await self.tools(configuration, plan.setting.workspace) if configuration.has_tools else []
        offered, withheld = self._attended_tools(plan, configuration, [*configured, *given])
        missing = withheld_tools(
            configuration, plan.setting.workspace, [*withheld, *(tool.spec.name for tool in offered)]
        )
        for why in dict.fromkeys(withheld.values()):
            names = tuple(name for name, reason in withheld.items() if reason == why)
            missing.append(WithheldTools(WithheldBy.UNATTENDED, why, configuration.persona_name, names))
        note_withheld(plan, missing)
        plan.tools = {tool.spec.name: tool for tool in offered}
        plan.setting.toolset = toolset or plan.setting.toolset
        if configuration.role is None and SPAWN in plan.tools and plan.setting.role is AgentRole.UNIFIED:
            plan.setting.role = AgentRole.MANAGER
        circumstances = PolicyContext(
            agent=configuration.persona_name,
            session=standing.label,
            workspace=plan.setting.workspace,
            toolset=toolset,
            on_behalf_of=tuple(str(principal) for principal in configuration.context.on_behalf_of),
        )
        containment = await self._turn_containment(plan, configuration, standing)
        plan.gate = ToolGate(
            {tool.spec.name: tool for tool in offered},
            partial(self._ask_policies, None if configuration.persona is None else configuration.persona.id),
            _SessionHistory(self._ledger, self._crossing, standing.id),
            circumstances=circumstances,
            clock=self._clock,
            keeper=self._workspace_keeper(standing.id, plan.setting.workspace, containment),
            workspace=None if plan.setting.workspace is None else Path(plan.setting.workspace),
            withheld=withheld,
            containment=containment,
            hidden_files=None if plan.setting.workspace is None else self._hidden_files(Path(plan.setting.workspace)),
        )
        plan.on_asked = self._on_asked

    def _given_tools(self, plan: TurnPlan, configuration: TurnConfiguration) -> list[PlannedTool]:
        """The functions that were given with the message. Raises FunctionElsewhere where this process has one not, and
        InvalidInput or NotApplicable where the turn may not use one."""
        given: list[PlannedTool] = list(self._functions.tools(configuration.functions, is_owners=plan.is_owners))
        names = [tool.spec.name for tool in given]
        if given and plan.model.provider.is_embedded:
            raise NotApplicable("the embedded model calls no tools", "name another model, or send it without tools")
        for name in names:
            if not is_offered(configuration.context.authority, name):
                who = f"the permissions of agent {configuration.persona_name!r}, of its session or of the message"
                raise NotApplicable(f"{who} do not allow the tool {name!r}", "allow it there, or send without it")
        return given

    def _attended_tools(
        self, plan: TurnPlan, configuration: TurnConfiguration, tools: list[PlannedTool]
    ) -> tuple[list[PlannedTool], dict[str, str]]:
        """The tools that a turn is offered, and why others are withheld: whose words began it decides, whatever its
        configuration allows."""
        if plan.unattended is None or may_write_unattended(configuration.persona):
            return tools, {}
        reason = plan.unattended.reason(configuration.persona_name)
        withheld = {tool.spec.name: reason for tool in tools if not tool.is_read_only}
        return [tool for tool in tools if tool.is_read_only], withheld

    async def _turn_containment(
        self, plan: TurnPlan, configuration: TurnConfiguration, standing: SessionStanding
    ) -> CallContainment | None:
        """None where the person trusts no folder for work."""
        is_trusted = self._settings.is_trusted_for_work
        if is_trusted is None:
            return None
        agent, why_not_theirs = configuration.persona, None
        if not plan.is_owners:
            why_not_theirs = "the owner of the ledger did not begin this turn"
        elif agent is not None and (agent.foreign or agent.created_by != DEFAULT_AGENT):
            why_not_theirs = f"the agent {agent.name!r} was made by somebody else"
        elif not await self._crossing.run(partial(Runs(self._ledger).is_session_from_here, standing.id)):
            why_not_theirs = "the session began in another ledger"
        runner = self._runner
        return CallContainment(is_trusted, runner.protected, runner.person.git_person, why_not_theirs)

    def _workspace_keeper(
        self, session: str, workspace: str | None, containment: CallContainment | None
    ) -> WorkspaceKeeper | None:
        """Where calls may go unasked all is kept that they can change."""
        files = self._settings.files
        if files is None or workspace is None:
            return None
        place = os.path.realpath(workspace)
        is_whole = None if containment is None else partial(containment.may_hold, place)
        return WorkspaceSnapshots(self._ledger, self._crossing, files, session, Path(workspace), is_whole=is_whole)

    async def tools(self, configuration: TurnConfiguration, workspace: str | None) -> list[PlannedTool]:
        """Those that some use of may be allowed, in a fixed order, so that requests extend each other."""
        authority = configuration.context.authority
        available = await self.available(configuration, workspace)
        return [one.tool for one in available if is_offered(authority, one.tool.spec.name)]

    @property
    def troubles(self) -> Mapping[str, str]:
        """MCP servers that could not be used when tools were last listed, and why."""
        return {} if self._servers is None else self._servers.troubles

    async def available(self, configuration: TurnConfiguration, workspace: str | None) -> list[SourcedTool]:
        """Every tool that there is for such a turn, whatever the permissions leave of it. Where it has no toolset and
        its agent is allowed none, it is those that the agent lists."""
        if configuration.effective.toolset is None and not configuration.gives_allowed_tools:
            return [SourcedTool(tool, "code") for tool in await self._code_tools(configuration)]
        acting = configuration.context
        profile = configuration.effective.permissions.sandbox.profile(granted_by=self._settings.unconfined_by)
        tools: list[PlannedTool] = []
        if workspace is not None:
            tools += self._workspace_tools(Path(workspace), profile, acting)
        tools += session_tools(RecordedCalls(self._ledger, self._crossing))
        tools.append(FetchUrlTool(profile))
        tools += await self._worker_tools(configuration, workspace)
        sourced = [SourcedTool(tool, "built in") for tool in tools]
        sourced += [SourcedTool(tool, "code") for tool in await self._code_tools(configuration)]
        if self._servers is not None:
            served = await self._servers.tools()
            sourced += [SourcedTool(served[name], served[name].server) for name in sorted(served)]  # type: ignore[arg-type,attr-defined]
        return sourced

    def _hidden_files(self, workspace: Path) -> HiddenFiles:
        return HiddenFiles(workspace, self._runner.protected.secrets, self._runner.person.covered_places)

    def _workspace_tools(
        self, folder: Path, profile: SandboxProfile, acting: ExecutionContext
    ) -> Sequence[PlannedTool]:
        workspace = WorkspaceFolder(folder, withheld=self._runner.protected.withheld)
        folder = workspace.root  # what a link leads to later was not asked about
        linters = None
        if self._settings.linters:
            run = partial(self._runner.run, READ_ONLY_PROFILE, workspace=folder, folder=str(folder))
            linters = Linters(self._settings.linters, str(folder), run)

        def may_read(path: str) -> bool:
            return acting.authority.allows(f"{TOOL_PREFIX}read", path)

        programs = GitPrograms(folder, self._runner.person.git_person)
        files = workspace_tools(workspace, linters, may_read, self._hidden_files(folder), programs)
        if profile.is_read_only:
            files = tuple(tool for tool in files if tool.is_read_only)
        return [*files, ShellTool(folder, profile=profile, runner=self._runner, programs=programs)]

    async def _worker_tools(self, configuration: TurnConfiguration, workspace: str | None) -> list[PlannedTool]:
        """None for a worker that is as deep as workers may be."""
        session, runs = "" if configuration.session is None else configuration.session.id, Runs(self._ledger)
        worker = await self._crossing.run(partial(runs.worker, session))
        if worker is not None and worker.depth >= MAX_WORKER_DEPTH:
            return []
        named = [layer.values["toolset"] for layer in configuration.effective.layers if "toolset" in layer.values]
        toolsets = await self._crossing.run(
            lambda: [find_toolset(self._programs, name) for name in dict.fromkeys(named)]
        )
        of_workers = tuple(dict.fromkeys(toolset.workers or toolset.name for toolset in toolsets))

        def constrain(tools: tuple[str, ...] | None) -> WorkerConstraints:
            return constraints_for(configuration.effective, of_workers, tools, workspace)

        workers = SessionWorkers(runs, self._crossing, session)
        return [
            SpawnTool(runs, self._crossing, constrain),
            AwaitTool(runs, self._crossing, workers, self._clock),
            MessageTool(runs, self._crossing, workers),
        ]

    async def _code_tools(self, configuration: TurnConfiguration) -> list[PlannedTool]:
        """The code programs that the agent's configuration lists."""
        programs = [await self._code_program(name) for name in configuration.agent_tools]
        return [CodeProgramTool(program, self._code_program, runner=self._runner) for program in programs]

    async def _code_program(self, name: str) -> Program:
        return await self._crossing.run(partial(self._programs.get, name, ProgramKind.CODE))

    async def _ask_policies(self, agent: str | None, call: PolicyCall) -> PolicyDecision:
        own, everybodys = await self._reads.read(agent, partial(self._active_policies, agent))
        return await decide(self._interpreters, call, policies_in_force(own, everybodys))

    def _active_policies(self, agent: str | None) -> tuple[Policy | None, Policy | None]:
        policies = self._ledger.policies
        return None if agent is None else policies.active(agent), policies.active()


FOLDER_TOOLS = ("read", "list", "glob", "grep", "write", "edit", "shell")
"""The tools that a turn has in a folder alone."""
READ_ONLY_LEAVES_OUT = ("write", "edit")


def withheld_tools(
    configuration: TurnConfiguration, workspace: str | None, offered: Sequence[str]
) -> list[WithheldTools]:
    """Of a turn that works in this folder and is offered these tools."""
    agent, effective = configuration.persona_name, configuration.effective
    if not configuration.has_tools:
        why = "somebody else than the ledger's owner has configured the agent, and what they allow opens nothing"
        return [WithheldTools(WithheldBy.NOT_THE_OWNERS, why, agent)] if configuration.allowed_tools else []
    if effective.toolset is None and not configuration.gives_allowed_tools:
        return []
    authority = configuration.context.authority
    missing = [name for name in FOLDER_TOOLS if name not in offered and is_offered(authority, name)]
    if workspace is None and missing:
        return [WithheldTools(WithheldBy.NO_FOLDER, "the turn works in no folder", agent, tuple(missing))]
    if left_out := tuple(name for name in missing if name in READ_ONLY_LEAVES_OUT):
        sandbox = effective.permissions.sandbox.text
        return [WithheldTools(WithheldBy.SANDBOX, f"the sandbox is {sandbox}", agent, left_out)]
    if not offered:
        source = "the agent" if effective.toolset is None else f"toolset {effective.toolset!r}"
        why = f"no tool that there is fits what {source} and the permissions allow"
        return [WithheldTools(WithheldBy.NOTHING_FITS, why, agent)]
    return []


def note_withheld(plan: TurnPlan, withheld: Sequence[WithheldTools]) -> None:
    """Have the turn's record say why it has not the tools that somebody may expect."""
    if withheld:
        config = plan.setting.effective_config or {}
        plan.setting.effective_config = {**config, "withheld": [to_builtins(tools) for tools in withheld]}


class SharedReads:
    """Reads the ledger once for all who ask the same in one pass of the event loop, such as the calls of one answer.
    Whoever asks after a reading has begun has another one made."""

    def __init__(self, crossing: Executor) -> None:
        self._crossing = crossing
        self._asked: dict[Any, asyncio.Task[Any]] = {}

    async def read(self, what: Any, call: Callable[[], T]) -> T:
        reading = self._asked.get(what)
        if reading is None:
            reading = self._asked[what] = asyncio.ensure_future(self._read_once(what, call))
        result: T = await asyncio.shield(reading)
        return result

    async def _read_once(self, what: Any, call: Callable[[], T]) -> T:
        del self._asked[what]
        return await self._crossing.run(call)


class _SessionHistory:
    """See `CallHistory`."""

    def __init__(self, ledger: Ledger, crossing: Executor, session: str) -> None:
        self._runs, self._crossing, self._session = Runs(ledger), crossing, session
        self._reads = SharedReads(crossing)

    async def is_untrusted(self, turn: str) -> bool:
        return await self._reads.read(turn, partial(self._runs.is_untrusted, turn))

    async def session_grants(self) -> Sequence[Approval]:
        return await self._crossing.run(partial(self._runs.session_grants, self._session))
