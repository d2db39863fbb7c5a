"""Code and information invoked: a program runs on its input, what is known answers a query."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from weft.kernel.errors import CodeFailed, InvalidInput
from weft.programs.json_paths import found_at, parse_path
from weft.programs.model import Program
from weft.programs.querying import InformationQuery, fits
from weft.runtime.invoke.invocation import Invocation, InvocationContext, InvocationResult
from weft.runtime.invoke.model_settings import ensure_in_use
from weft.runtime.sandbox.bubblewrap import find_sandbox
from weft.runtime.sandbox.code_programs import Language, run_code


async def invoke_code(shop: InvocationContext, program: Program, given: Invocation) -> InvocationResult:
    """Run it in the sandbox with a JSON input; a message is an input that is text."""
    config = ensure_in_use(program).config
    shop.context.ensure_allowed(f"code:{program.name}")
    language = Language(config.get("language", Language.JAVASCRIPT))
    value = given.input if given.input is not UNSET else given.message
    outcome = await run_code(await find_sandbox(), language, config["source"], value)
    if not outcome.succeeded:
        raise CodeFailed(program.name, outcome.error or "", outcome.printed)
    result = {"result": outcome.result, **({"printed": outcome.printed} if outcome.printed else {})}
    return InvocationResult(program=program.name, kind=program.kind, result=result)


async def invoke_information(shop: InvocationContext, program: Program, given: Invocation) -> InvocationResult:
    """Its content; with a path what stands there, with words its content where it has them all, else null."""
    ensure_in_use(program)
    asked = given.input if given.input is not UNSET else {}
    if not isinstance(asked, dict) or asked.keys() - {"path", "text", "equals"}:
        raise InvalidInput("information is asked with an object", 'give {"path": …}, {"text": …}, or nothing')
    words = asked.get("text", given.message)
    question = InformationQuery(text=words, path=asked.get("path"), equals=asked.get("equals", UNSET))
    content = program.config.get("content")
    return InvocationResult(program=program.name, kind=program.kind, result=_answer(program, question, content))


def _answer(program: Program, question: InformationQuery, content: Any) -> Any:
    if not fits(program, question):
        return None if question.path is None else []
    return content if question.path is None else list(found_at(content, parse_path(question.path)))
