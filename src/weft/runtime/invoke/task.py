"""Invokes tasks: the assignee gets to work, an agent until the criteria hold, a person by being told of it."""

from __future__ import annotations

from weft.kernel.enums import ProgramKind
from weft.kernel.errors import Action, NotApplicable
from weft.programs.foreign import ensure_own
from weft.programs.model import Program
from weft.runtime.harness.work_messages import task_brief
from weft.runtime.invoke.agent import work_on_task
from weft.runtime.invoke.human import invoke_human
from weft.runtime.invoke.invocation import Invocation, InvocationContext, InvocationResult


async def invoke_task(context: InvocationContext, program: Program, invocation: Invocation) -> InvocationResult:
    ensure_own(program)
    name = program.config.get("assignee") if isinstance(program.config, dict) else None
    if name is None:
        raise NotApplicable(f"task {program.name!r} is nobody's", Action.ASSIGN_TASK.of(task=program.name))
    assignee = await context.get(name)
    if assignee.kind == ProgramKind.AGENT:
        return await work_on_task(context, assignee, program, invocation)
    notice = await invoke_human(context, assignee, Invocation(message=task_brief(program), about=program.id))
    result = {"task": program.name, "state": program.state, "assignee": assignee.name, **notice.result}
    return InvocationResult(program=program.name, kind=program.kind, result=result)
