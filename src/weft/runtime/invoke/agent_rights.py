"""An agent as whoever acts: its soul, and the execution context that its permissions leave it."""

from __future__ import annotations

from weft.kernel.authority import Principal, PrincipalKind
from weft.kernel.enums import ProgramKind
from weft.programs.foreign import ensure_own
from weft.programs.model import Program
from weft.runtime.configuration.permissions import limits_of
from weft.runtime.context import ExecutionContext


def soul_of(agent: Program) -> str | None:
    """What its model is told of itself: the system prompt."""
    identity = agent.config.get("identity") if isinstance(agent.config, dict) else None
    soul = identity.get("soul") if isinstance(identity, dict) else None
    return soul if isinstance(soul, str) and soul.strip() else None


def agent_context(context: ExecutionContext, agent: Program) -> ExecutionContext:
    """The agent, acting for everybody before it, with what its permissions leave of their rights."""
    return limited_by(context.delegate(Principal(PrincipalKind.AGENT, agent.name)), agent)


def limited_by(context: ExecutionContext, agent: Program) -> ExecutionContext:
    """The same principals, with what the permissions of an agent among them leave of their rights."""
    ensure_own(agent)
    configured = agent.config.get("permissions") if isinstance(agent.config, dict) else None
    limits = limits_of(configured)
    return context.child(rights=limits.rights(), credentials=limits.credentials)


def actor_context(context: ExecutionContext, actor: Program) -> ExecutionContext:
    """An agent or a person, acting for everybody in this context."""
    if actor.kind == ProgramKind.AGENT:
        return agent_context(context, actor)
    return context.delegate(Principal(PrincipalKind.HUMAN, actor.name))
