"""Invokes information: its content, or what stands at a path of it, where it fits the query."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from weft.kernel.errors import InvalidInput
from weft.programs.json_values import found_at, parse_path
from weft.programs.lookups import InformationQuery, fits
from weft.programs.model import Program
from weft.runtime.invoke.invocation import Invocation, InvocationContext, InvocationResult
from weft.runtime.invoke.model_settings import ensure_in_use


async def invoke_information(context: InvocationContext, program: Program, invocation: Invocation) -> InvocationResult:
    """Its content; with a path what stands there, with words its content where it has them all, else null."""
    ensure_in_use(program)
    fields = invocation.input if invocation.input is not UNSET else {}
    if not isinstance(fields, dict) or fields.keys() - {"path", "text", "equals"}:
        raise InvalidInput("information is asked with an object", 'give {"path": …}, {"text": …}, or nothing')
    text = fields.get("text", invocation.message)
    query = InformationQuery(text=text, path=fields.get("path"), equals=fields.get("equals", UNSET))
    return InvocationResult(program=program.name, kind=program.kind, result=_answer(program, query))


def _answer(program: Program, query: InformationQuery) -> Any:
    content = program.config.get("content")
    if not fits(program, query):
        return None if query.path is None else []
    return content if query.path is None else list(found_at(content, parse_path(query.path)))
