"""Models and sessions invoked: a question is put, and the turn that it becomes is told."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from weft.kernel.advice import Action
from weft.kernel.authority import EVERYTHING, Principal, PrincipalKind, Rights, rights
from weft.kernel.enums import ProgramKind
from weft.kernel.errors import InvalidInput, NotApplicable
from weft.ledger.model import DEFAULT_AGENT
from weft.programs.addresses import parse_address
from weft.programs.model import Program
from weft.runtime.context import ExecutionContext
from weft.runtime.invoke.invocation import Invocation, InvocationContext, InvocationResult
from weft.runtime.invoke.model_settings import ConfiguredModel
from weft.runtime.turns.messages import OutgoingMessage, TurnReply, invoke_model, send

_BESIDE_TOOLS = ("model:*", "provider:*", "code:*", "human:*")
"""What an agent may do whatever its tools are."""


def message_of(given: Invocation, kind: str) -> Any:
    """What is said: the message, or an input that is text."""
    said = given.input if given.message is None and isinstance(given.input, str) else given.message
    if said is None or (isinstance(said, str) and not said.strip()):
        raise InvalidInput(f"a {kind} is invoked with a message", Action.GIVE_MESSAGE)
    return said


async def invoke_model_program(shop: InvocationContext, program: Program, given: Invocation) -> InvocationResult:
    """Without a session: a root turn in `model:{id}`."""
    said = message_of(given, "model")
    found = await shop.model(_address(program))
    sent = await invoke_model(
        shop.ledger, shop.inference, question(found, said, given), on_token=shop.on_token, context=found.context
    )
    return InvocationResult(program=program.name, kind=program.kind, result=told(sent), sent=sent)


async def invoke_session(shop: InvocationContext, program: Program, given: Invocation) -> InvocationResult:
    """To its default model, or to another one for this message; its owner's soul is the system prompt."""
    said = message_of(given, "session")
    ensure_open(program)
    owner = await _owner(shop, program)
    acting = shop.context if owner is None else agent_context(shop.context, owner)
    name = given.model or default_model(program) or (default_model(owner) if owner else None)
    if name is None:
        raise NotApplicable(
            f"session {program.name!r} has no model",
            Action.SET_SESSION_MODEL.of(session=program.name),
        )
    found = await shop.model(name, acting)
    asked = question(found, said, given, owner)
    sent = await send(shop.ledger, shop.inference, program.name, asked, on_token=shop.on_token, context=found.context)
    return InvocationResult(program=program.name, kind=program.kind, result=told(sent), sent=sent)


def ensure_open(session: Program) -> None:
    """Before anything is looked up or asked; the ledger says the same when a turn begins."""
    if session.state == "paused":
        raise NotApplicable(f"session {session.name!r} is paused", Action.RESUME_SESSION.of(session=session.name))
    if session.state == "completed":
        raise NotApplicable(f"session {session.name!r} is completed", "fork it, or make a new session")
    if session.deleted:
        raise NotApplicable(f"session {session.name!r} is deleted", Action.RESTORE_SESSION.of(session=session.name))


def question(found: ConfiguredModel, said: Any, given: Invocation, agent: Program | None = None) -> OutgoingMessage:
    return OutgoingMessage(
        message=said,
        model=found.model,
        system=None if agent is None else soul_of(agent),
        situation=given.situation,
        parameters=given.parameters,
        persona=DEFAULT_AGENT if agent is None else agent.name,
    )


def soul_of(agent: Program) -> str | None:
    identity = agent.config.get("identity") if isinstance(agent.config, dict) else None
    soul = identity.get("soul") if isinstance(identity, dict) else None
    return soul if isinstance(soul, str) and soul.strip() else None


def agent_context(context: ExecutionContext, agent: Program) -> ExecutionContext:
    """The agent, acting for everybody before it, with what its permissions leave of their rights."""
    permissions = agent.config.get("permissions") if isinstance(agent.config, dict) else None
    given = permissions if isinstance(permissions, dict) else {}
    principal = Principal(PrincipalKind.AGENT, agent.name)
    return context.delegate(principal, rights=_tool_rights(given), credentials=given.get("credentials"))


def _tool_rights(permissions: dict[str, Any]) -> Rights:
    tools = permissions.get("tools")
    if not isinstance(tools, dict):
        return EVERYTHING
    allowed = [f"tool:{name}" for name in tools.get("allow", ["*"])]
    return rights([*_BESIDE_TOOLS, *allowed], [f"tool:{name}" for name in tools.get("deny", [])])


async def _owner(shop: InvocationContext, session: Program) -> Program | None:
    """The agent whose session it is, where somebody described one."""
    name = session.config.get("owner") if isinstance(session.config, dict) else None
    if name is None or parse_address(name).name == DEFAULT_AGENT:
        return None
    found = await shop.get(name)
    return found if found.kind is ProgramKind.AGENT and found.version else None


def default_model(program: Program) -> str | None:
    found = program.config.get("defaultModel") if isinstance(program.config, dict) else None
    return found if isinstance(found, str) else None


def _address(program: Program) -> str:
    """This very version of it."""
    return f"@({program.id}:{program.version})" if program.version else program.id


def told(sent: TurnReply) -> dict[str, Any]:
    """A reply as JSON: what is not known is not there."""
    reply = sent.reply
    usage = None if reply.usage is None else msgspec.to_builtins(reply.usage)
    found = {
        "text": reply.text,
        "thinking": reply.thinking or None,
        "finish": str(reply.finish),
        "model": reply.model,
        "modelId": reply.model_id,
        "provider": reply.provider,
        "usage": usage,
        "usageFault": reply.usage_fault or None,
        "requestId": reply.request_id,
        "latencyMs": reply.latency_ms,
        "situation": reply.situation,
        "cost": reply.cost,
        "turn": sent.turn.id,
        "session": sent.turn.session,
        "attempts": len(reply.attempts),
    }
    return {name: value for name, value in found.items() if value is not None and value is not UNSET}
