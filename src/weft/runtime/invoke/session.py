"""Invokes sessions: a message is asked of the session's model, or its owner's, and becomes a turn of the session."""

from __future__ import annotations

from weft.kernel.advice import Action
from weft.kernel.enums import ProgramKind
from weft.kernel.errors import NotApplicable
from weft.ledger.model import DEFAULT_AGENT
from weft.programs.addresses import parse_address
from weft.programs.model import Program
from weft.runtime.invoke.agent_rights import agent_context, soul_of
from weft.runtime.invoke.invocation import Invocation, InvocationContext, InvocationResult
from weft.runtime.invoke.model import default_model, message_of, outgoing_message, reply_result
from weft.runtime.turns.messages import send


async def invoke_session(context: InvocationContext, program: Program, invocation: Invocation) -> InvocationResult:
    """To its default model, or to another one for this message; its owner's soul is the system prompt."""
    message = message_of(invocation, "session")
    ensure_open(program)
    owner = await _owner(context, program)
    acting = context.execution_context if owner is None else agent_context(context.execution_context, owner)
    name = invocation.model or default_model(program) or (default_model(owner) if owner else None)
    if name is None:
        raise NotApplicable(
            f"session {program.name!r} has no model",
            Action.SET_SESSION_MODEL.of(session=program.name),
        )
    model = await context.model(name, acting)
    system, persona = (None, None) if owner is None else (soul_of(owner), owner.name)
    outgoing = outgoing_message(model, message, invocation, system=system, persona=persona)
    reply = await send(
        context.ledger, context.inference, program.name, outgoing, on_token=context.on_token, context=model.context
    )
    return reply_result(program, reply)


def ensure_open(session: Program) -> None:
    """Refuse a session that takes no turns before anything is looked up or asked."""
    if session.state == "paused":
        raise NotApplicable(f"session {session.name!r} is paused", Action.RESUME_SESSION.of(session=session.name))
    if session.state == "completed":
        raise NotApplicable(f"session {session.name!r} is completed", "fork it, or make a new session")
    if session.deleted:
        raise NotApplicable(f"session {session.name!r} is deleted", Action.RESTORE_SESSION.of(session=session.name))


async def _owner(context: InvocationContext, session: Program) -> Program | None:
    """The agent whose session it is, where somebody described one."""
    name = session.config.get("owner") if isinstance(session.config, dict) else None
    if name is None or parse_address(name).name == DEFAULT_AGENT:
        return None
    owner = await context.get(name)
    return owner if owner.kind == ProgramKind.AGENT and owner.version else None
