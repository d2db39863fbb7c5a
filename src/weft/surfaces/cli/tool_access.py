"""The tools of the turns that a command runs, made when a turn first names a toolset."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from weft.ledger.api import Ledger, Runs, SessionStanding
from weft.store.private_files import make_folder
from weft.surfaces.cli.resource_access import directory_driver, files_folder, load_resource_settings
from weft.surfaces.cli.sandbox_access import command_runner
from weft.surfaces.cli.trust import trust_store
from weft.surfaces.cli.user_files import user_cache

if TYPE_CHECKING:
    from weft.programs import Programs
    from weft.runtime.assembly.turn_configuration import TurnConfiguration
    from weft.runtime.broker.turn_plans import TurnPlan
    from weft.runtime.egress.execution_context import ExecutionContext
    from weft.runtime.invoke.toolbox import Toolbox
    from weft.runtime.ledger_port import Crossing
    from weft.runtime.tool.gate import OnCall


class ToolAccess:
    """Equips the turns of one process, in one event loop. MCP servers act in the context that `person` gives.
    `on_asked` hears of requests to people, `on_call` of what is decided about calls and how they end."""

    def __init__(
        self,
        ledger: Ledger,
        crossing: Crossing,
        programs: Programs,
        person: Callable[[], ExecutionContext],
        on_asked: Callable[[str], None] | None = None,
        on_call: OnCall | None = None,
    ) -> None:
        self._ledger, self._crossing, self._programs, self._on_asked = ledger, crossing, programs, on_asked
        self._person = person
        self._on_call = on_call
        self._toolbox: Toolbox | None = None

    async def __call__(self, plan: TurnPlan, configuration: TurnConfiguration, standing: SessionStanding) -> None:
        plan.rules_folder = user_cache()
        if configuration.effective.toolset is not None:
            make_folder(files_folder(self._ledger))  # before any tool could make something of its name
            await self.toolbox().equip(plan, configuration, standing)
        if self._on_call is not None and plan.gate is not None:
            from weft.runtime.tool.gate import ObservedGate

            plan.gate = ObservedGate(plan.gate, self._on_call)

    def toolbox(self) -> Toolbox:
        from weft.runtime.invoke.toolbox import Toolbox, ToolboxSettings
        from weft.runtime.tools.mcp_servers import McpServers, notice_recorder
        from weft.surfaces.cli.mcp_servers import load_mcp_servers

        if self._toolbox is None:
            kept, runner = load_resource_settings().snapshots, command_runner(self._ledger)
            servers = McpServers(
                load_mcp_servers,
                acting=self._person(),
                variable=os.environ.get,
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
                    files=directory_driver(self._ledger, kept, runner.protected.secrets) if kept.turns else None,
                    is_trusted_for_work=trust_store().is_trusted_for_work,
                ),
                on_asked=self._on_asked,
            )
        return self._toolbox

    async def aclose(self) -> None:
        if self._toolbox is not None:
            await self._toolbox.aclose()
