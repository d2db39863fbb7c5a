"""`invoke`, for every kind of program: a table of small handlers.

A model infers, a session sends, an agent works, a task has its assignee work, code runs, a provider lists its models,
information answers, a person is told or asked. What is said goes into the ledger as turns; what fails is raised.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from weft.kernel.enums import ProgramKind
from weft.programs.model import Program
from weft.runtime.invoke.agents_and_tasks import invoke_agent, invoke_task
from weft.runtime.invoke.code_and_information import invoke_code, invoke_information
from weft.runtime.invoke.human import invoke_human
from weft.runtime.invoke.invocation import Invocation, InvocationContext, InvocationResult
from weft.runtime.invoke.models_and_sessions import invoke_model_program, invoke_session
from weft.runtime.invoke.provider import invoke_provider

Handler = Callable[[InvocationContext, Program, Invocation], Awaitable[InvocationResult]]
HANDLERS: dict[ProgramKind, Handler] = {
    ProgramKind.CODE: invoke_code,
    ProgramKind.PROVIDER: invoke_provider,
    ProgramKind.MODEL: invoke_model_program,
    ProgramKind.SESSION: invoke_session,
    ProgramKind.AGENT: invoke_agent,
    ProgramKind.TASK: invoke_task,
    ProgramKind.INFORMATION: invoke_information,
    ProgramKind.HUMAN: invoke_human,
}
NOTHING = Invocation()


async def invoke(shop: InvocationContext, name: str, given: Invocation = NOTHING) -> InvocationResult:
    """Invoke a program by its name or address."""
    found = await shop.get(name)
    return await HANDLERS[found.kind](shop, found, given)
