"""`invoke`, for every kind of program: a table of handlers, with the same keys as the table of kinds.

A model infers, a session sends, an agent works, a task has its assignee work, code runs, a provider lists its models,
information answers, a person is told or asked, a toolset refuses. What is said goes into the ledger as turns; what
fails is raised.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from weft.kernel.errors import NotApplicable
from weft.programs.kinds.agent import AGENT
from weft.programs.kinds.code import CODE
from weft.programs.kinds.human import HUMAN
from weft.programs.kinds.information import INFORMATION
from weft.programs.kinds.model import MODEL
from weft.programs.kinds.provider import PROVIDER
from weft.programs.kinds.session import SESSION
from weft.programs.kinds.task import TASK
from weft.programs.kinds.toolset import TOOLSET
from weft.programs.kinds.trigger import TRIGGER
from weft.programs.model import Program
from weft.runtime.invoke.agent import invoke_agent
from weft.runtime.invoke.code import invoke_code
from weft.runtime.invoke.human import invoke_human
from weft.runtime.invoke.information import invoke_information
from weft.runtime.invoke.invocation import Invocation, InvocationContext, InvocationResult
from weft.runtime.invoke.model import invoke_model_program
from weft.runtime.invoke.provider import invoke_provider
from weft.runtime.invoke.session import invoke_session
from weft.runtime.invoke.task import invoke_task
from weft.runtime.invoke.trigger import invoke_trigger


async def refuse_toolset(context: InvocationContext, program: Program, invocation: Invocation) -> InvocationResult:
    """A toolset is a list that agents and sessions name; there is nothing in it to run."""
    raise NotApplicable(f"{program.name!r} is a toolset, which cannot be invoked", "invoke an agent that names it")


Handler = Callable[[InvocationContext, Program, Invocation], Awaitable[InvocationResult]]
HANDLERS: dict[str, Handler] = {
    CODE.name: invoke_code,
    PROVIDER.name: invoke_provider,
    MODEL.name: invoke_model_program,
    SESSION.name: invoke_session,
    AGENT.name: invoke_agent,
    TASK.name: invoke_task,
    INFORMATION.name: invoke_information,
    HUMAN.name: invoke_human,
    TOOLSET.name: refuse_toolset,
    TRIGGER.name: invoke_trigger,
}
NO_ARGUMENTS = Invocation()


async def invoke(context: InvocationContext, name: str, invocation: Invocation = NO_ARGUMENTS) -> InvocationResult:
    """Invoke a program by its name or address."""
    program = await context.get(name)
    return await HANDLERS[program.kind](context, program, invocation)
