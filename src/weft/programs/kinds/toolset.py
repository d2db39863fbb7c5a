"""Toolsets: named lists of tool patterns with the sandbox that their tools run in; agents and sessions name one."""

from __future__ import annotations

from typing import Any

from weft.kernel import program_events
from weft.kernel.errors import InvalidInput
from weft.programs.config_fields import filled
from weft.programs.kinds.kind import KindRow
from weft.programs.kinds.turn_defaults import LIMIT_CHECKS
from weft.programs.machine_names import NOTHING, SANDBOX
from weft.programs.machine_names import TOOLSET as TOOLSET_NAME

BUILT_IN_TOOLSETS = ("manager", "worker", "full")
"""Names that stand for no program: these are always there, and cannot be changed."""


def refuse_built_in(name: str, config: Any) -> None:
    if name.casefold() in BUILT_IN_TOOLSETS:
        raise InvalidInput(f"the toolset {name.casefold()!r} is built in", "choose another name")


TOOLSET = KindRow(
    facts=program_events.TOOLSET,
    required=("tools",),
    fields={"tools": LIMIT_CHECKS["tools"], "sandbox": LIMIT_CHECKS["sandbox"], "workers": filled},
    refuse_name=refuse_built_in,
    machine={**dict.fromkeys(("tools.allow", "tools.deny"), NOTHING), "sandbox": SANDBOX, "workers": TOOLSET_NAME},
)
