"""Tells people that a tool call waits for them, by the channel that each of them prefers.

Everybody with the permission `approve` is told, once the request is recorded. What goes wrong is noted and changes
nothing: the request waits all the same, and the turn goes on.
"""

from __future__ import annotations

from collections.abc import Callable

from weft.kernel.enums import ProgramKind
from weft.ledger.api import Approval
from weft.programs.model import PersonRequest, Program
from weft.runtime.invoke.human import channel_of, deliver
from weft.runtime.invoke.invocation import InvocationContext

APPROVE = "approve"
TERMINAL = "terminal"
RequestFor = Callable[[Approval, str], PersonRequest]
"""What a person of this name is told of a request."""


def may_approve(human: Program) -> bool:
    """Whether a person has the right to answer for tool calls, by a configuration that counts here."""
    permissions = human.config.get("permissions") if isinstance(human.config, dict) else None
    return not human.foreign and isinstance(permissions, list) and APPROVE in permissions


async def notify_approvers(
    context: InvocationContext, approval: Approval, request_for: RequestFor, note: Callable[[str], None]
) -> list[str]:
    """The names of those who were told. Whoever prefers a terminal sees it at the one that the turn runs at."""
    people = await context.across(lambda: context.programs.all(ProgramKind.HUMAN))
    notified = []
    for human in people:
        if not may_approve(human) or channel_of(human) == TERMINAL:
            continue
        try:
            await deliver(context, human, request_for(approval, human.name))
        except Exception as error:  # a channel of somebody's own: whatever it does, the turn goes on
            note(f"{human.name} was not told of it: {error}")
        else:
            notified.append(human.name)
    return notified
