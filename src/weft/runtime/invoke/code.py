"""Invokes code: it runs in the sandbox on a JSON input."""

from __future__ import annotations

from msgspec import UNSET

from weft.kernel.errors import CodeFailed
from weft.programs.model import Program
from weft.runtime.invoke.invocation import Invocation, InvocationContext, InvocationResult
from weft.runtime.invoke.model_settings import ensure_in_use
from weft.runtime.sandbox.code_programs import Language, run_code


async def invoke_code(context: InvocationContext, program: Program, invocation: Invocation) -> InvocationResult:
    """Run it in the sandbox with a JSON input; a message is an input that is text."""
    config = ensure_in_use(program).config
    context.execution_context.ensure_allowed(f"code:{program.name}")
    language = Language(config.get("language", Language.JAVASCRIPT))
    value = invocation.input if invocation.input is not UNSET else invocation.message
    outcome = await run_code(context.runner, language, config["source"], value)
    if not outcome.succeeded:
        raise CodeFailed(program.name, outcome.error or "", outcome.printed)
    result = {"result": outcome.result, **({"printed": outcome.printed} if outcome.printed else {})}
    return InvocationResult(program=program.name, kind=program.kind, result=result)
