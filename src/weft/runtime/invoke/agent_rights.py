"""An agent as whoever acts: its soul, and the execution context that its permissions leave it."""

from __future__ import annotations

from typing import Any

from weft.kernel.authority import EVERYTHING, Principal, PrincipalKind, Rights, rights
from weft.kernel.enums import ProgramKind
from weft.programs.foreign import ensure_own
from weft.programs.model import Program
from weft.runtime.context import ExecutionContext

_BESIDE_TOOLS = ("model:*", "provider:*", "code:*", "human:*")
"""What an agent may do whatever its tools are."""


def soul_of(agent: Program) -> str | None:
    """What its model is told of itself: the system prompt."""
    identity = agent.config.get("identity") if isinstance(agent.config, dict) else None
    soul = identity.get("soul") if isinstance(identity, dict) else None
    return soul if isinstance(soul, str) and soul.strip() else None


def agent_context(context: ExecutionContext, agent: Program) -> ExecutionContext:
    """The agent, acting for everybody before it, with what its permissions leave of their rights."""
    ensure_own(agent)
    configured = agent.config.get("permissions") if isinstance(agent.config, dict) else None
    permissions = configured if isinstance(configured, dict) else {}
    principal = Principal(PrincipalKind.AGENT, agent.name)
    return context.delegate(principal, rights=_tool_rights(permissions), credentials=permissions.get("credentials"))


def _tool_rights(permissions: dict[str, Any]) -> Rights:
    tools = permissions.get("tools")
    if not isinstance(tools, dict):
        return EVERYTHING
    allowed = [f"tool:{name}" for name in tools.get("allow", ["*"])]
    return rights([*_BESIDE_TOOLS, *allowed], [f"tool:{name}" for name in tools.get("deny", [])])


def actor_context(context: ExecutionContext, actor: Program) -> ExecutionContext:
    """An agent or a person, acting for everybody in this context."""
    if actor.kind == ProgramKind.AGENT:
        return agent_context(context, actor)
    return context.delegate(Principal(PrincipalKind.HUMAN, actor.name))
