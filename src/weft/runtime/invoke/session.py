"""Invokes sessions: a message is answered as the session's layers configure it, and becomes a turn of the session."""

from __future__ import annotations

from weft.kernel.errors import Action, NotApplicable
from weft.programs.model import Program
from weft.runtime.configuration.gathering import TurnRequest
from weft.runtime.invoke.invocation import Invocation, InvocationContext, InvocationResult
from weft.runtime.invoke.model import message_of, reply_result


async def invoke_session(context: InvocationContext, program: Program, invocation: Invocation) -> InvocationResult:
    """To its default model, or to another one for this message; its owner's soul is the system prompt."""
    message = message_of(invocation, "session")
    ensure_open(program)
    configuration = await context.configuration(TurnRequest(session=program.id, overrides=invocation.overrides))
    configuration.require_model()
    reply = await context.send(program.name, message, invocation.overrides)
    return reply_result(program, reply)


def ensure_open(session: Program) -> None:
    """Refuse a session that takes no turns before anything is looked up or asked."""
    if session.state == "paused":
        raise NotApplicable(f"session {session.name!r} is paused", Action.RESUME_SESSION.of(session=session.name))
    if session.state == "completed":
        raise NotApplicable(f"session {session.name!r} is completed", "fork it, or make a new session")
    if session.deleted:
        raise NotApplicable(f"session {session.name!r} is deleted", Action.RESTORE_SESSION.of(session=session.name))
