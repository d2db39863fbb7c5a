"""Plans the turns that a command has answered: as they are configured, and those of the triage agent by triage."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from weft.chat.triage import TriagePlanner
from weft.runtime.egress.execution_context import ExecutionContext
from weft.runtime.inference.inference import Inference
from weft.runtime.invoke.turn_planner import ConfiguredPlanner, Equip, sender_context
from weft.surfaces.cli.chat.models import ModelChoice, other_models
from weft.surfaces.cli.trust import trusted_rules

if TYPE_CHECKING:
    from weft.aio.ledger import AsyncLedger
    from weft.programs import Programs
    from weft.programs.program_records import Resolver


def turn_planner(
    programs: Programs,
    ledger: AsyncLedger,
    inference: Inference,
    *,
    variable: Resolver,
    person: Callable[[], ExecutionContext],
    equip: Equip,
    on_default: Callable[[ModelChoice], None] | None = None,
) -> TriagePlanner:
    """For a person at the terminal. `person` gives their context, `equip` the tools of a turn; `on_default` hears which
    model was chosen where nothing names one."""
    planner = ConfiguredPlanner(
        programs,
        ledger,
        inference,
        variable=variable,
        acting=lambda message: sender_context(person(), programs, message),
        other_models=other_models(programs, variable, on_default),
        rules_of=trusted_rules(),
        equip=equip,
    )
    return TriagePlanner(planner, ledger.sync, ledger.crossing, inference)
