"""Code programs of the ledger as tools: JavaScript, TypeScript and Python, run in the sandbox.

A program is offered as `code/NAME`, with the JSON Schema in its `inputSchema`. A plan is pinned to the version and the
digest of the source; where the program was changed, withdrawn or deleted since, it is not run.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Callable
from typing import Any

from weft.kernel.contents import dumps
from weft.kernel.errors import WeftError
from weft.programs.json_values import problems_with
from weft.programs.model import Program
from weft.runtime.broker.tools import ToolCallContext
from weft.runtime.inference.settings import ToolSpec
from weft.runtime.invoke.model_settings import ensure_in_use
from weft.runtime.sandbox.code_programs import CODE_LIMITS, CodeOutcome, Language, run_code
from weft.runtime.sandbox.command_runner import CommandRunner
from weft.runtime.sandbox.processes import Ending, Limits
from weft.runtime.tools.calls import CallPlan, ToolFailure, ToolOutput
from weft.runtime.tools.threads import in_thread

CODE_TOOL_PREFIX = "code/"
_ANY_INPUT = {
    "type": "object",
    "properties": {"input": {"description": "What the program is called with, as JSON."}},
    "required": ["input"],
    "additionalProperties": False,
}
"""The schema of a program that has none of its own."""

LoadProgram = Callable[[str], Awaitable[Program]]
"""A program by its id, as it is now. Raises a WeftError where it is not there."""


class CodeProgramTool:
    """One published code program."""

    is_idempotent = True
    """It reaches nothing that it could change."""
    is_read_only = True
    is_repeatable = True

    def __init__(
        self, program: Program, load: LoadProgram, *, runner: CommandRunner, limits: Limits = CODE_LIMITS
    ) -> None:
        self._program = ensure_in_use(program)
        self._load, self._runner, self._limits = load, runner, limits
        schema = program.config.get("inputSchema")
        self._has_schema = schema is not None
        description = str(program.config.get("description") or f"The program {program.name}.")
        self._spec = ToolSpec(
            name=CODE_TOOL_PREFIX + program.name,
            description=description,
            schema=schema if self._has_schema else _ANY_INPUT,
        )

    @property
    def spec(self) -> ToolSpec:
        return self._spec

    async def plan(self, arguments: Any, context: ToolCallContext) -> CallPlan:
        """Raises NotAllowed where whoever acts may not run this program."""
        if context.acting is not None:
            context.acting.ensure_allowed(f"code:{self._program.name}")
        problems = await in_thread(lambda: problems_with(arguments, self._spec.schema))
        if problems:
            raise ToolFailure("invalid_arguments", problems[0], {"problems": problems})
        input = arguments if self._has_schema else arguments["input"]
        exact = {**_identity(await self._current()), "input": input}
        shown = f"{self._spec.name} version {exact['version']}\n{dumps(input).decode()}"
        return CallPlan(
            tool=self._spec.name, exact=exact, subjects=(dumps(input).decode(),), shown=shown, is_read_only=True
        )

    async def _current(self) -> Program:
        """The program as it is now, which must be the one that was offered to the model."""
        try:
            current = ensure_in_use(await self._load(self._program.id))
        except WeftError as error:
            raise ToolFailure("changed", str(error)) from None
        if _identity(current) != _identity(self._program):
            raise ToolFailure(
                "changed", f"{current.name} was changed since it was offered", {"version": current.version}
            )
        return current

    async def perform(self, plan: CallPlan, context: ToolCallContext) -> ToolOutput:
        current = await self._current()
        if plan.exact != {**_identity(current), "input": plan.exact["input"]} or plan.tool != self._spec.name:
            raise ToolFailure("changed", f"{current.name} is not what was planned")
        began = time.monotonic()
        outcome = await run_code(
            self._runner,
            _language(current),
            current.config["source"],
            plan.exact["input"],
            self._limits,
        )
        return ToolOutput(result=_result(outcome), duration_ms=round(1000 * (time.monotonic() - began)))

    async def invoke(self, arguments: Any, context: ToolCallContext) -> Any:
        return (await self.perform(await self.plan(arguments, context), context)).result


def _language(program: Program) -> Language:
    return Language(program.config.get("language", Language.JAVASCRIPT))


def _identity(program: Program) -> dict[str, Any]:
    """What decides what runs."""
    return {
        "program": program.id,
        "version": program.version,
        "language": str(_language(program)),
        "source": hashlib.sha256(str(program.config["source"]).encode()).hexdigest(),
        "configuration": hashlib.sha256(dumps(program.config)).hexdigest(),
    }


def _result(outcome: CodeOutcome) -> dict[str, Any]:
    printed = {"printed": outcome.printed} if outcome.printed else {}
    if outcome.succeeded:
        return {"result": outcome.result, **printed}
    code = "failed" if outcome.ending is Ending.EXITED else str(outcome.ending)
    raise ToolFailure(code, outcome.error or "", printed)
