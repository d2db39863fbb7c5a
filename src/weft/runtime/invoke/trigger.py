"""Invokes triggers: one fires now, for whoever invokes it and whoever made it."""

from __future__ import annotations

from msgspec import UNSET

from weft.kernel.clock import SystemClock
from weft.programs.model import Program
from weft.runtime.invoke.invocation import Invocation, InvocationContext, InvocationResult
from weft.runtime.triggers.sender import TriggerSender


async def invoke_trigger(context: InvocationContext, program: Program, invocation: Invocation) -> InvocationResult:
    """Its message is sent, with the input as payload; a broker answers it. Rights are those that all of them have."""
    payload = None if invocation.input is UNSET else invocation.input
    sender = TriggerSender(context.programs, context.execution_context, SystemClock())
    outcome = await context.across(lambda: sender.fire_by_hand(sender.require(program.id), payload))
    firing = outcome.firing
    result = {
        "message": None if firing is None else firing.message,
        "session": None if outcome.admission is None else outcome.admission.session,
        "posted": None if firing is None else firing.posted,
        "paused": outcome.paused,
    }
    return InvocationResult(program=program.name, kind=program.kind, result=result)
