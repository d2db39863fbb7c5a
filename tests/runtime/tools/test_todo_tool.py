"""The list of what is to be done is what the last call that succeeded gave."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import UNSET

from tests.runtime.tools.conftest import call
from weft.runtime.tool.recorded_results import MOST_ITEMS, TodoTool
from weft.runtime.tool.tool_contract import ToolCallContext, ToolFailure


def tool(last: Any = UNSET) -> TodoTool:
    async def last_result(context: ToolCallContext, name: str) -> Any:
        assert name == "todo"
        return last

    return TodoTool(last_result)


def test_the_list_of_the_last_call_is_shown_and_replaced() -> None:
    items = [{"text": "read", "status": "done"}, {"text": "mend", "status": "in_progress"}]
    written = call(tool(), items=items).result
    assert written == {"items": items}
    assert call(tool(written)).result == written
    assert call(tool(written), items=[{"text": "test"}]).result == {"items": [{"text": "test", "status": "pending"}]}
    assert call(tool(written), items=[]).result == {"items": []}


@pytest.mark.parametrize("last", [UNSET, None, "text", {"items": "x"}, {"items": [{"text": 1}]}])
def test_without_a_list_there_is_an_empty_one(last: Any) -> None:
    assert call(tool(last)).result == {"items": []}


@pytest.mark.parametrize(
    "items",
    [
        [{"text": "a", "status": "in_progress"}] * 2,
        [{"text": "a", "status": "finished"}],
        [{"text": ""}],
        [{"text": "a", "path": "/etc/passwd"}],
        [{"text": "a"}] * (MOST_ITEMS + 1),
        "a",
    ],
)
def test_a_list_that_cannot_be_meant_is_refused(items: Any) -> None:
    with pytest.raises(ToolFailure) as failure:
        call(tool(), items=items)
    assert failure.value.code == "invalid_arguments"


def test_the_schema_names_every_field() -> None:
    schema = tool().spec.schema
    assert schema["$defs"]["TodoStatus"]["enum"] == ["done", "dropped", "in_progress", "pending"]
    assert schema["additionalProperties"] is False
