"""An open ledger that can act, put together in one place for commands and for the library: whose
programs they are, in whose name they run, with which tools, and what plans its turns.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct

from weft.kernel.clock import SystemClock
from weft.kernel.events import Usage
from weft.ledger.api import (
    AttemptReset,
    Ledger,
    Runs,
    SessionStanding,
    TextAdded,
    ToolFinished,
    ToolStarted,
)
from weft.programs.programs import Programs
from weft.runtime.invoke.invocation import InvocationContext
from weft.runtime.tool.tool_contract import FunctionElsewhere, GivenFunctions, PendingCall
from weft.store.private_files import make_folder
from weft.surfaces.cli.chat.models import other_models, turn_planner
from weft.surfaces.cli.user_files import trust_store, user_cache
from weft.surfaces.cli.work.sandbox_access import (
    command_runner,
    directory_driver,
    files_folder,
    load_resource_settings,
    resource_controller,
)

if TYPE_CHECKING:
    from weft.aio.ledger import AsyncLedger
    from weft.programs.program_records import Resolver
    from weft.runtime.assembly.turn_configuration import TurnConfiguration, TurnRequest
    from weft.runtime.broker.broker import BackgroundJob, BackgroundJobs
    from weft.runtime.broker.turn_plans import TurnPlan
    from weft.runtime.egress.execution_context import ExecutionContext
    from weft.runtime.inference.inference import Inference
    from weft.runtime.invoke.toolbox import Toolbox
    from weft.runtime.ledger_port import Executor
    from weft.runtime.tool.gate import OnCall
    from weft.store.replicas import TrustStore


def user_trust() -> TrustStore:
    """What the person trusts whose program this is, as their command line keeps it: a ledger that is made with
    `weft.open(path, trust=weft.user_trust())` is trusted there."""
    return trust_store()


# --- The tools of turns, made when a turn first names a toolset.


class ToolAccess:
    """Equips the turns of one process, in one event loop. MCP servers act in the context that `person` gives.
    `on_asked` hears of requests to people, `on_call` of what is decided about calls and how they end."""

    def __init__(
        self,
        ledger: Ledger,
        crossing: Executor,
        programs: Programs,
        person: Callable[[], ExecutionContext],
        on_asked: Callable[[str], None] | None = None,
        on_call: OnCall | None = None,
        *,
        variable: Resolver = os.environ.get,
        functions: GivenFunctions | None = None,
    ) -> None:
        self._functions = functions
        self._ledger, self._crossing, self._programs, self._on_asked = ledger, crossing, programs, on_asked
        self._person, self._variable = person, variable
        self._on_call = on_call
        self._toolbox: Toolbox | None = None

    async def __call__(self, plan: TurnPlan, configuration: TurnConfiguration, standing: SessionStanding) -> None:
        plan.rules_folder = user_cache()
        if configuration.has_tools:
            make_folder(files_folder(self._ledger))  # before any tool could make something of its name
        if configuration.has_tools or configuration.functions:
            await self.toolbox().equip(plan, configuration, standing)
        elif configuration.allowed_tools:
            from weft.runtime.invoke.toolbox import note_withheld, withheld_tools

            note_withheld(plan, withheld_tools(configuration, plan.setting.workspace, ()))
        if self._on_call is not None and plan.gate is not None:
            from weft.runtime.tool.gate import ObservedGate

            plan.gate = ObservedGate(plan.gate, self._on_call)

    def toolbox(self) -> Toolbox:
        from weft.runtime.invoke.toolbox import Toolbox, ToolboxSettings
        from weft.runtime.tools.mcp_servers import McpServers, notice_recorder
        from weft.surfaces.cli.credentials import load_mcp_servers, variable_of_programs

        if self._toolbox is None:
            limits, runner = load_resource_settings().snapshots, command_runner(self._ledger)
            servers = McpServers(
                load_mcp_servers,
                acting=self._person(),
                variable=variable_of_programs(self._variable),
                runner=runner,
                on_notice=notice_recorder(Runs(self._ledger), self._crossing),
            )
            self._toolbox = Toolbox(
                self._ledger,
                self._crossing,
                self._programs,
                runner,
                servers=servers,
                settings=ToolboxSettings(
                    files=directory_driver(self._ledger, limits, runner.protected.secrets) if limits.turns else None,
                    is_trusted_for_work=trust_store().is_trusted_for_work,
                ),
                functions=self._functions,
                on_asked=self._on_asked,
            )
        return self._toolbox

    async def aclose(self) -> None:
        if self._toolbox is not None:
            await self._toolbox.aclose()


# --- An open ledger that can act.


class ActingLedger:
    """An open ledger with what its turns are planned and answered by, in one event loop. `person` gives the context of
    whoever opened it. `on_asked` hears of requests to people, `on_call` of what is decided about calls and how they
    end; without `has_tools` no tool is made for its turns."""

    def __init__(
        self,
        mirror: AsyncLedger,
        inference: Inference,
        *,
        person: Callable[[Programs], ExecutionContext],
        variable: Resolver = os.environ.get,
        on_asked: Callable[[str], None] | None = None,
        on_call: OnCall | None = None,
        has_tools: bool = True,
    ) -> None:
        self.mirror, self.ledger, self.inference = mirror, mirror.sync, inference
        self._on_asked, self._rung, self._variable = on_asked, set[asyncio.Event](), variable
        self.programs = Programs(self.ledger)
        self.person = person(self.programs)
        self.runner = command_runner(self.ledger)
        self.people = InvocationContext(
            mirror,
            self.programs,
            mirror.crossing,
            inference,
            variable=variable,
            runner=self.runner,
            context=self.person,
        )
        """How people are told of something."""
        self.functions = GivenFunctions()
        """What the program that has the ledger open gave with its messages."""
        self.tools = ToolAccess(
            self.ledger,
            mirror.crossing,
            self.programs,
            lambda: self.person,
            self._tell_of_request,
            on_call,
            variable=variable,
            functions=self.functions,
        )
        self.planner = turn_planner(
            self.programs,
            mirror,
            inference,
            variable=variable,
            person=lambda: self.person,
            equip=self.tools if has_tools else _leave_plain,
        )

    async def aclose(self) -> None:
        await self.tools.aclose()

    def configuration(self, request: TurnRequest) -> TurnConfiguration:
        """What a turn would be configured with. Reads the ledger."""
        from weft.runtime.assembly.turn_configuration import LayerReader

        models = other_models(self.programs, self._variable)
        reader = LayerReader(self.programs, self.inference, self._variable, self.person, models)
        return reader.configuration(request)

    def _tell_of_request(self, approval: str) -> None:
        if self._on_asked is not None:
            self._on_asked(approval)
        for event in self._rung:
            event.set()

    @contextmanager
    def told_of_requests(self, event: asyncio.Event) -> Iterator[None]:
        """Meanwhile the event is set with each request to a person that this process records."""
        self._rung.add(event)
        try:
            yield
        finally:
            self._rung.discard(event)

    def background_jobs(
        self, on_error: Callable[[str, Exception], None], on_untold: Callable[[str, Exception], None]
    ) -> BackgroundJobs:
        """What a broker over this ledger does beside answering. `on_error` hears what a job failed with, `on_untold`
        which person was not told of being mentioned. It reads the ledger."""
        from weft.runtime.agent_harness import HarnessJob
        from weft.runtime.broker.broker import BackgroundJobs
        from weft.runtime.invoke.handlers import MentionNotices
        from weft.runtime.invoke.trigger_firing import TriggerSender
        from weft.runtime.invoke.trigger_job import TriggerJob
        from weft.runtime.resources.controller import ResourceJob

        crossing = self.mirror.crossing
        jobs: list[BackgroundJob] = [
            HarnessJob(self.programs, crossing, self.runner, on_error=on_error),
            TriggerJob(TriggerSender(self.programs, self.person, SystemClock()), crossing),
            ResourceJob(self.ledger, crossing, partial(resource_controller, self.ledger)),
            MentionNotices(self.people, on_untold),
        ]
        return BackgroundJobs(jobs, on_error=on_error)


async def _leave_plain(_: TurnPlan, configuration: TurnConfiguration, __: SessionStanding) -> None:
    """Leaves a planned turn without tools."""
    if configuration.functions:
        raise FunctionElsewhere([function.name for function in configuration.functions])


# --- What comes of a message that a program sends.


class AnsweredTurn(Struct, frozen=True, kw_only=True):
    """What `ledger.send` gives: the turn that answered a message, and its answer."""

    id: str
    """The turn."""
    text: str
    thinking: str = ""
    session: str
    """The label of the session that the turn is in."""
    session_id: str
    message: str
    """The message, by its id in the inbox."""
    is_fork: bool = False
    """Whether the session was made for the message, as a fork."""
    model: str
    provider: str
    finish: str
    """Why the model stopped: `stop`, `length` or `content_filter`."""
    usage: Usage
    """The tokens of the whole turn, as far as they were reported."""
    cost: int | None = None
    """Micro-dollars of the whole turn, with the prices that are shipped; None where there is none for it."""
    value: Any = None
    """The answer as the type that it was asked for with `returns`."""


Approve: TypeAlias = Callable[[PendingCall], Any]
"""Gives an `Answer`, at once or awaited."""
StreamPart: TypeAlias = TextAdded | AttemptReset | ToolStarted | ToolFinished | PendingCall | AnsweredTurn
Note: TypeAlias = Callable[[StreamPart], None]
OnError: TypeAlias = Callable[[str, Exception], None]
