"""An open ledger that can act, put together in one place for commands and for the library: whose
programs they are, in whose name they run, with which tools, and what plans its turns.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct

from weft.kernel.authority import LOCAL
from weft.kernel.clock import SystemClock
from weft.kernel.enums import ResourceCapability, ResourceKind, ResourceLiveness
from weft.kernel.errors import Unsupported
from weft.kernel.events import Usage
from weft.ledger.api import (
    AttemptReset,
    Ledger,
    Resource,
    ResourceRestore,
    Resources,
    Runs,
    SessionStanding,
    Snapshot,
    TextAdded,
    ToolFinished,
    ToolStarted,
)
from weft.ledger.arguments import checked_label, checked_list, checked_member, checked_record, checked_text
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
    resource_drivers,
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
    from weft.runtime.resources.controller import ResourceController
    from weft.runtime.resources.turn_files import ForkedResources, ForkPlanner, PlanLine
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


# --- What the resources of an open ledger are acted on by.


class ActingResources(Resources):
    """`ledger.resources` of a ledger that `weft.open` opened: what is recorded of resources, and what acts on them.
    Only the ledger's owner acts on them, in a ledger that may act."""

    def declare(
        self, place: str, *, kind: str | None = None, name: str | None = None, session: str | None = None
    ) -> Resource:
        """A folder, a file, an address with its scheme, or docker:volume/NAME, docker:container/NAME, docker:image/NAME
        as a resource of a session, else of whoever declares it. What is declared already is described anew."""
        from weft.runtime.resources.drivers import guessed_kind

        controller = self._controller("declare a resource")
        checked_text(place, "place")
        wanted = guessed_kind(place) if kind is None else checked_member(ResourceKind, kind, "kind")
        return controller.add(controller.drivers.of(wanted), place, name=name, session=session)

    def probe(self, resource: str) -> ResourceLiveness:
        """Look whether it is still there, and record that."""
        return self._controller("look at a resource").probe(self.get(resource))

    def take_snapshot(self, resource: str, *, method: str | None = None) -> Snapshot:
        """Keep what it is like now. One that could not be taken is recorded, with its error."""
        record = self.get(resource)
        if not record.can(ResourceCapability.SNAPSHOT):
            raise Unsupported(f"nothing can be kept of a {record.kind.value}", "see what its capabilities name")
        return self._controller("take a snapshot").snapshot(record, method=method)

    def restore(self, snapshot: str, *, place: str | None = None, session: str | None = None) -> ResourceRestore:
        """Bring back what a snapshot kept, as a new resource: at a place, or for a session; without either, over the
        resource itself, of which a snapshot is taken before. One that failed is recorded, with its error."""
        controller, record = self._controller("restore a snapshot"), self.snapshot(snapshot)
        resource, in_place = self.get(record.resource), place is None and session is None
        controller.drivers.ensure_here(resource)
        controller.refuse_unsupported(record, in_place=in_place)
        if place is not None:
            place = controller.absolute_place(resource, checked_text(place, "place"))
        elif session is not None:
            place = controller.drivers.of(resource.kind).new_place(resource, self._ledger.session(session).label)
        else:
            controller.keep_present(resource)
        return controller.restore(record, place=place, session=session)

    def mount(
        self, resource: str, path: str, *, mode: str = "rw", run: str | None = None, container: str | None = None
    ) -> Resource:
        """Record that a turn that runs, or a container, sees it under a path."""
        return self._controller("mount a resource").log.mount(resource, path, mode=mode, run=run, container=container)

    def unmount(self, resource: str, *, run: str | None = None, container: str | None = None) -> Resource:
        """Record that it sees it no more."""
        return self._controller("unmount a resource").log.unmount(resource, run=run, container=container)

    def plan_fork(self, turn: str, label: str) -> list[PlanLine]:
        """What a fork at a turn, with this label, would do with each resource of the session. Nothing is changed."""
        return self._planner().propose(turn, checked_label(label))

    def fork(
        self, turn: str, label: str, plan: Sequence[PlanLine] | None = None, *, agent: str | None = None
    ) -> ForkedResources:
        """A fork at a turn with copies of its resources, by a plan of `plan_fork`, else as that proposes."""
        from weft.runtime.resources.turn_files import PlanLine

        planner = self._planner()
        if plan is None:
            lines = planner.propose(turn, checked_label(label))
        else:
            lines = [checked_record(line, PlanLine, "plan") for line in checked_list(plan, "plan")]
        return planner.carry_out(turn, label, lines, persona=agent)

    def _planner(self) -> ForkPlanner:
        from weft.runtime.resources.turn_files import ForkPlanner

        self._ensure_owner("fork resources")
        return ForkPlanner(self._open_ledger, resource_drivers(self._open_ledger))

    def _controller(self, act: str) -> ResourceController:
        self._ensure_owner(act)
        return resource_controller(self._open_ledger)

    def _ensure_owner(self, act: str) -> None:
        """What lies outside of the ledger is the person's, whoever may do what in it."""
        if self._ledger.authority != LOCAL:
            raise self._ledger.authority.refusal("resource", act)

    @property
    def _open_ledger(self) -> Ledger:
        assert isinstance(self._ledger, Ledger), "the resources of an open ledger"
        return self._ledger


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
