"""Code programs as tools: offered with their schema, pinned to what was planned, run in the sandbox."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.sandbox import UNPROTECTED, machine_sandbox
from weft.kernel.authority import Principal, PrincipalKind, rights
from weft.kernel.errors import InvalidConfig, NotAllowed, NotApplicable
from weft.programs.program_records import Program
from weft.runtime.egress.execution_context import context_for
from weft.runtime.invoke.toolbox import CodeProgramTool
from weft.runtime.sandbox.command_runner import CommandRunner
from weft.runtime.tool.tool_contract import ToolCallContext, ToolFailure

CONTEXT = ToolCallContext(turn="turn", call="call")
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
DOUBLE = {
    "javascript": "export default (input) => input.n * 2",
    "typescript": "export default (input: { n: number }) => input.n * 2",
    "python": "def main(input):\n    print('doubling')\n    return input['n'] * 2",
}


class CodeLedger:
    """A ledger with code programs, and tools of them."""

    def __init__(self, path: Path) -> None:
        self.ledger = weft.open(path)
        self.programs = self.ledger.programs

    def create(self, name: str, source: str, language: str = "javascript", **fields: Any) -> Program:
        config = {"language": language, "source": source, **fields}
        self.programs.create("code", name, config)
        return self.programs.get(name)

    def tool(self, program: Program) -> CodeProgramTool:
        async def load(program_id: str) -> Program:
            return self.programs.get(program_id)

        return CodeProgramTool(program, load, runner=CommandRunner(UNPROTECTED, sandbox=machine_sandbox()))


@pytest.fixture
def code(tmp_path: Path) -> CodeLedger:
    return CodeLedger(tmp_path / "ledger.db")


def test_programs_of_each_language_are_tools_with_their_schema(code: CodeLedger) -> None:
    for language, source in DOUBLE.items():
        tool = code.tool(
            code.create(f"double-{language}", source, language, inputSchema=SCHEMA, description="Doubles.")
        )
        assert (tool.spec.name, tool.spec.description) == (f"code/double-{language}", "Doubles.")
        assert tool.spec.schema == SCHEMA
        answer = asyncio.run(tool.invoke({"n": 21}, CONTEXT))
        assert answer == {"result": 42, **({"printed": "doubling\n"} if language == "python" else {})}


def test_a_program_without_a_schema_takes_any_input(code: CodeLedger) -> None:
    tool = code.tool(code.create("length", "export default (input) => input.length"))
    plan = asyncio.run(tool.plan({"input": [1, 2]}, CONTEXT))
    assert plan.exact["input"] == [1, 2]
    assert plan.subjects == ("[1,2]",)
    for arguments in ({"inputs": 1}, [1], None, {}):
        with pytest.raises(ToolFailure) as raised:
            asyncio.run(tool.plan(arguments, CONTEXT))
        assert raised.value.code == "invalid_arguments"


def test_arguments_are_held_against_the_schema_before_anything_runs(code: CodeLedger) -> None:
    tool = code.tool(code.create("double", DOUBLE["javascript"], inputSchema=SCHEMA))
    with pytest.raises(ToolFailure) as raised:
        asyncio.run(tool.plan({"n": "21"}, CONTEXT))
    assert raised.value.code == "invalid_arguments"


@pytest.mark.parametrize("schema", [1, {"type": "array"}, {"type": "object", "properties": 3}, {}])
def test_a_schema_that_no_tool_can_have_is_refused(code: CodeLedger, schema: Any) -> None:
    with pytest.raises(InvalidConfig):
        code.create("odd", "export default 1", inputSchema=schema)


def test_a_changed_or_deleted_program_is_not_run(code: CodeLedger) -> None:
    for step in ("change", "delete"):
        program = code.create(f"double-{step}", DOUBLE["javascript"], inputSchema=SCHEMA)
        tool = code.tool(program)
        plan = asyncio.run(tool.plan({"n": 1}, CONTEXT))
        if step == "change":
            code.programs.change(program.name, {"source": "export default () => 'evil'"})
        else:
            code.programs.delete(program.name)
        for attempt in (tool.perform(plan, CONTEXT), tool.plan({"n": 1}, CONTEXT)):
            with pytest.raises(ToolFailure) as raised:
                asyncio.run(attempt)
            assert raised.value.code == "changed"


def test_a_plan_of_another_program_or_version_is_not_run(code: CodeLedger) -> None:
    one, other = (code.tool(code.create(name, DOUBLE["javascript"], inputSchema=SCHEMA)) for name in ("one", "other"))
    plan = asyncio.run(one.plan({"n": 1}, CONTEXT))
    with pytest.raises(ToolFailure, match="not what was planned"):
        asyncio.run(other.perform(plan, CONTEXT))


def test_the_rights_of_whoever_acts_hold(code: CodeLedger) -> None:
    tool = code.tool(code.create("double", DOUBLE["javascript"], inputSchema=SCHEMA))
    acting = context_for(Principal(PrincipalKind.HUMAN, "ada")).child(rights=rights(["tool:*"]))
    with pytest.raises(NotAllowed):
        asyncio.run(tool.plan({"n": 1}, ToolCallContext(turn="turn", call="call", acting=acting)))


def test_a_draft_is_no_tool(code: CodeLedger) -> None:
    code.programs.create("code", "sketch", {"source": "export default 1"}, draft=True)
    with pytest.raises(NotApplicable, match="draft"):
        code.tool(code.programs.get("sketch"))


def test_a_failing_program_tells_its_error(code: CodeLedger) -> None:
    tool = code.tool(code.create("failing", "export default () => { throw new Error('on purpose') }"))
    with pytest.raises(ToolFailure, match="on purpose") as raised:
        asyncio.run(tool.invoke({"input": 1}, CONTEXT))
    assert raised.value.code == "failed"
