"""Invokes models: a message is asked of a model by itself, and becomes a root turn in the session `model:NAME`."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from weft.kernel.errors import Action, InvalidInput
from weft.programs.model import Program
from weft.runtime.invoke.invocation import Invocation, InvocationContext, InvocationResult
from weft.runtime.turns.messages import OutgoingMessage, invoke_model
from weft.runtime.turns.recorded_replies import TurnReply


async def invoke_model_program(
    context: InvocationContext, program: Program, invocation: Invocation
) -> InvocationResult:
    """Ask the very version of the model that was named."""
    message = message_of(invocation, "model")
    address = f"@({program.id}:{program.version})" if program.version else program.id
    model = await context.model(address)
    outgoing = OutgoingMessage(
        message=message, model=model.model, situation=invocation.situation, parameters=invocation.parameters
    )
    reply = await invoke_model(
        context.ledger, context.inference, outgoing, on_token=context.on_token, context=model.context
    )
    return reply_result(program, reply)


def message_of(invocation: Invocation, kind: str) -> Any:
    """The message of an invocation, or an input that is text. Raises InvalidInput where there is none."""
    is_input = invocation.message is None and isinstance(invocation.input, str)
    message = invocation.input if is_input else invocation.message
    if message is None or (isinstance(message, str) and not message.strip()):
        raise InvalidInput(f"a {kind} is invoked with a message", Action.GIVE_MESSAGE)
    return message


def reply_result(program: Program, reply: TurnReply) -> InvocationResult:
    return InvocationResult(program=program.name, kind=program.kind, result=reply_fields(reply), sent=reply)


def reply_fields(sent: TurnReply) -> dict[str, Any]:
    """A reply as JSON; what is not known is left out. `model` is the model as it was asked for, `modelId` the name by
    which its provider answered, as in the configuration of a model."""
    reply = sent.reply
    fields = {
        "text": reply.text,
        "thinking": reply.thinking or None,
        "finish": str(reply.finish),
        "model": reply.model_id,
        "modelId": reply.model,
        "provider": reply.provider,
        "usage": None if reply.usage is None else msgspec.to_builtins(reply.usage),
        "usageFault": reply.usage_fault or None,
        "requestId": reply.request_id,
        "latencyMs": reply.latency_ms,
        "situation": reply.situation,
        "cost": reply.cost,
        "turn": sent.turn.id,
        "session": sent.turn.session,
        "attempts": len(reply.attempts),
    }
    return {name: value for name, value in fields.items() if value is not None and value is not UNSET}
