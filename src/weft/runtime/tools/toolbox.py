"""The tools of a turn, with the gate that guards them: built-ins, code programs and MCP servers, as far as the toolset
and the permissions of the turn leave them.

A turn has tools where a toolset is named. Tools for files and commands need a workspace. The embedded model is offered
none, since it does not call them reliably.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct

from weft.kernel.authority import TOOL_PREFIX
from weft.kernel.clock import Clock, SystemClock
from weft.kernel.enums import AgentRole, ProgramKind
from weft.ledger.api import MAX_WORKER_DEPTH, Approval, Ledger, Policy, Runs, SessionStanding
from weft.ledger.model import DEFAULT_AGENT
from weft.programs.model import Program
from weft.programs.programs import Programs
from weft.runtime.broker.plans import TurnPlan
from weft.runtime.configuration.gathering import TurnConfiguration
from weft.runtime.configuration.unattended import may_write_unattended
from weft.runtime.context import ExecutionContext
from weft.runtime.mcp.servers import McpServers
from weft.runtime.policies.contract import PolicyCall, PolicyContext
from weft.runtime.policies.decider import PolicyDecision, decide, policies_in_force
from weft.runtime.policies.interpreter import PolicyInterpreters
from weft.runtime.resources.directory_driver import DirectoryDriver
from weft.runtime.resources.workspace_snapshots import WorkspaceSnapshots
from weft.runtime.sandbox.command_runner import CommandRunner
from weft.runtime.sandbox.profiles import READ_ONLY_PROFILE, SandboxProfile
from weft.runtime.tools.calls import PlannedTool, WorkspaceKeeper
from weft.runtime.tools.code_tools import CodeProgramTool
from weft.runtime.tools.containment import Containment, IsTrusted
from weft.runtime.tools.fetch_url import FetchUrlTool
from weft.runtime.tools.gate import ToolGate
from weft.runtime.tools.linters import Linters, LinterSettings
from weft.runtime.tools.recorded_calls import RecordedCalls
from weft.runtime.tools.shell import ShellTool
from weft.runtime.tools.toolsets import find_toolset, is_offered
from weft.runtime.tools.workspace import WorkspaceFolder
from weft.runtime.tools.workspace_tools import session_tools, workspace_tools
from weft.runtime.turns.ledger_port import Crossing
from weft.runtime.workers.constraints import WorkerConstraints, constraints_for
from weft.runtime.workers.tools import SPAWN, AwaitTool, MessageTool, SessionWorkers, SpawnTool

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
        crossing: Crossing,
        programs: Programs,
        runner: CommandRunner,
        *,
        servers: McpServers | None = None,
        settings: ToolboxSettings | None = None,
        on_asked: OnAsked | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._ledger, self._crossing, self._programs, self._servers = ledger, crossing, programs, servers
        self._settings, self._on_asked = settings or ToolboxSettings(), on_asked
        self._clock = clock or SystemClock()
        self._runner, self._interpreters = runner, PolicyInterpreters(runner)
        self._reads = SharedReads(crossing)

    async def aclose(self) -> None:
        self._interpreters.stop()
        if self._servers is not None:
            await self._servers.aclose()

    async def equip(self, plan: TurnPlan, configuration: TurnConfiguration, standing: SessionStanding) -> None:
        """Give a planned turn its tools, and the gate that decides about their calls."""
        toolset = configuration.effective.toolset
        if toolset is None or plan.model.provider.is_embedded:
            return
        offered, withheld = self._attended(plan, configuration, await self.tools(configuration, plan.setting.workspace))
        plan.tools = {tool.spec.name: tool for tool in offered}
        plan.setting.toolset = toolset
        if SPAWN in plan.tools and plan.setting.role is AgentRole.UNIFIED:
            plan.setting.role = AgentRole.MANAGER
        circumstances = PolicyContext(
            agent=configuration.persona_name,
            session=standing.label,
            workspace=plan.setting.workspace,
            toolset=toolset,
            on_behalf_of=tuple(str(principal) for principal in configuration.context.on_behalf_of),
        )
        containment = await self._containment(plan, configuration, standing)
        plan.gate = ToolGate(
            {tool.spec.name: tool for tool in offered},
            partial(self._ask_policies, None if configuration.persona is None else configuration.persona.id),
            _SessionHistory(self._ledger, self._crossing, standing.id),
            circumstances=circumstances,
            clock=self._clock,
            keeper=self._keeper(standing.id, plan.setting.workspace, containment),
            workspace=None if plan.setting.workspace is None else Path(plan.setting.workspace),
            withheld=withheld,
            containment=containment,
        )
        plan.on_asked = self._on_asked

    def _attended(
        self, plan: TurnPlan, configuration: TurnConfiguration, tools: list[PlannedTool]
    ) -> tuple[list[PlannedTool], dict[str, str]]:
        """The tools that a turn is offered, and why others are withheld: whose words began it decides, whatever its
        configuration allows."""
        if plan.unattended is None or may_write_unattended(configuration.persona):
            return tools, {}
        reason = plan.unattended.reason(configuration.persona_name)
        withheld = {tool.spec.name: reason for tool in tools if not tool.is_read_only}
        return [tool for tool in tools if tool.is_read_only], withheld

    async def _containment(
        self, plan: TurnPlan, configuration: TurnConfiguration, standing: SessionStanding
    ) -> Containment | None:
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
        return Containment(is_trusted, runner.protected.secrets, runner.person.git_person, why_not_theirs)

    def _keeper(self, session: str, workspace: str | None, containment: Containment | None) -> WorkspaceKeeper | None:
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
        """Every tool that there is for such a turn, whatever the permissions leave of it."""
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

    def _workspace_tools(
        self, folder: Path, profile: SandboxProfile, acting: ExecutionContext
    ) -> Sequence[PlannedTool]:
        workspace = WorkspaceFolder(folder, withheld=self._runner.protected.withheld)
        linters = None
        if self._settings.linters:
            run = partial(self._runner.run, READ_ONLY_PROFILE, workspace=folder)
            linters = Linters(self._settings.linters, str(folder), run)

        def may_read(path: str) -> bool:
            return acting.authority.allows(f"{TOOL_PREFIX}read", path)

        files = workspace_tools(workspace, linters, may_read)
        if profile.is_read_only:
            files = tuple(tool for tool in files if tool.is_read_only)
        return [*files, ShellTool(folder, profile=profile, runner=self._runner)]

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
        config = None if configuration.persona is None else configuration.persona.config
        names = config.get("tools", []) if isinstance(config, dict) else []
        programs = [await self._program(name) for name in names]
        return [CodeProgramTool(program, self._program, runner=self._runner) for program in programs]

    async def _program(self, name: str) -> Program:
        return await self._crossing.run(partial(self._programs.get, name, ProgramKind.CODE))

    async def _ask_policies(self, agent: str | None, call: PolicyCall) -> PolicyDecision:
        own, everybodys = await self._reads.read(agent, partial(self._policies, agent))
        return await decide(self._interpreters, call, policies_in_force(own, everybodys))

    def _policies(self, agent: str | None) -> tuple[Policy | None, Policy | None]:
        policies = self._ledger.policies
        return None if agent is None else policies.active(agent), policies.active()


class SharedReads:
    """Reads the ledger once for all who ask the same in one pass of the event loop, such as the calls of one answer.
    Whoever asks after a reading has begun has another one made."""

    def __init__(self, crossing: Crossing) -> None:
        self._crossing = crossing
        self._asked: dict[Any, asyncio.Task[Any]] = {}

    async def read(self, what: Any, call: Callable[[], T]) -> T:
        reading = self._asked.get(what)
        if reading is None:
            reading = self._asked[what] = asyncio.ensure_future(self._read(what, call))
        result: T = await asyncio.shield(reading)
        return result

    async def _read(self, what: Any, call: Callable[[], T]) -> T:
        del self._asked[what]
        return await self._crossing.run(call)


class _SessionHistory:
    """See `CallHistory`."""

    def __init__(self, ledger: Ledger, crossing: Crossing, session: str) -> None:
        self._runs, self._crossing, self._session = Runs(ledger), crossing, session
        self._reads = SharedReads(crossing)

    async def is_untrusted(self, turn: str) -> bool:
        return await self._reads.read(turn, partial(self._runs.is_untrusted, turn))

    async def session_grants(self) -> Sequence[Approval]:
        return await self._crossing.run(partial(self._runs.session_grants, self._session))
