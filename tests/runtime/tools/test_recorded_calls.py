"""What earlier calls gave is found along the thread of the turn that asks, and nowhere else."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from weft.aio.crossing import Pool
from weft.kernel.events import ToolResult
from weft.ledger.api import Ledger
from weft.runtime.tool.recorded_results import RecordedCalls
from weft.runtime.tool.tool_contract import ToolCallContext, ToolFailure
from weft.runtime.tools.workspace_tools import session_tools

LONG = "x" * 60_000


def turn_with(ledger: Ledger, *calls: tuple[str, str, Any], session: str = "main") -> str:
    """A turn with calls of tools: name, id, and result; None for one that failed."""
    with ledger.begin_turn(session=session) as writer:
        writer.message("q")
        writer.response("a")
        for name, id, result in calls:
            call = writer.tool_call(name, {}, id=id)
            if result is None:
                writer.tool_result(call, error="broken")
            else:
                writer.tool_result(call, result)
        writer.finish()
        return writer.id


def use(ledger: Ledger, turn: str, tool: str, **arguments: Any) -> Any:
    async def run() -> Any:
        pool = Pool()
        tools = {tool.spec.name: tool for tool in session_tools(RecordedCalls(ledger, pool))}
        try:
            return await tools[tool].invoke(arguments, ToolCallContext(turn=turn, call="01CALL"))
        finally:
            await pool.close(lambda: None)

    return asyncio.run(run())


def todo(*texts: str) -> dict[str, Any]:
    return {"items": [{"text": text, "status": "pending"} for text in texts]}


def test_the_list_is_that_of_the_last_call_that_succeeded(ledger: Ledger) -> None:
    first = turn_with(ledger, ("todo", "c1", todo("a")), ("todo", "c2", todo("a", "b")))
    assert use(ledger, first, "todo") == todo("a", "b")
    second = turn_with(ledger, ("todo", "c1", None), ("read", "c2", {"items": []}))
    assert use(ledger, second, "todo") == todo("a", "b")
    assert use(ledger, turn_with(ledger, session="other"), "todo") == {"items": []}


def test_a_fork_has_the_list_of_its_own_past(ledger: Ledger) -> None:
    first = turn_with(ledger, ("todo", "c1", todo("a")), ("todo", "c2", todo("b")))
    turn_with(ledger, ("todo", "c1", todo("c")))
    ledger.fork(first, label="fork")
    forked = turn_with(ledger, session="fork")
    assert use(ledger, forked, "todo") == todo("b")
    results = [event.id for event in ledger.events(first) if isinstance(event.event, ToolResult)]
    ledger.fork(results[0], label="middle")
    assert use(ledger, turn_with(ledger, session="middle"), "todo") == todo("a")


def test_a_long_result_is_read_on_by_the_id_that_the_model_knows(ledger: Ledger) -> None:
    first = turn_with(ledger, ("shell", "call_1", {"rc": 0, "stdout": LONG + "end"}))
    assert use(ledger, first, "read_result", call="call_1", at="/stdout", offset=60_001)["text"] == "end"
    newer = turn_with(ledger, ("shell", "call_1", "again"), ("shell", "call_2", None))
    assert use(ledger, newer, "read_result", call="call_1")["text"] == "again"
    with pytest.raises(ToolFailure, match="no result of a call"):
        use(ledger, newer, "read_result", call="call_2")
    elsewhere = turn_with(ledger, session="other")
    with pytest.raises(ToolFailure, match="no result of a call"):
        use(ledger, elsewhere, "read_result", call="call_1")
