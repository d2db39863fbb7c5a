"""Toolsets: named lists of tool patterns with the sandbox that their tools run in; agents and sessions name one."""

from __future__ import annotations

from weft.kernel import program_kinds
from weft.programs.kinds.kind import KindRow
from weft.programs.kinds.turn_defaults import LIMIT_CHECKS

TOOLSET = KindRow(
    facts=program_kinds.TOOLSET,
    required=("tools",),
    fields={"tools": LIMIT_CHECKS["tools"], "sandbox": LIMIT_CHECKS["sandbox"]},
    machine_part=lambda config: config.get("sandbox"),
)
