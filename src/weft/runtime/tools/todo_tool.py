"""The tool `todo`: the agent's own list of what is to be done.

The list is the result of the last call of the session that succeeded. It lies in no file, so a fork and a resumed
session have it, each from its own past.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from weft.runtime.broker.tools import ToolCallContext
from weft.runtime.tools.calls import CallPlan, StructTool, ToolFailure, ToolOutput
from weft.runtime.tools.results import recordable

MOST_ITEMS = 100
DESCRIPTION = (
    "Keep a list of what is to be done. `items` replaces the whole list; without it the list is shown. At most one "
    "item is in_progress. Use it for work of several steps, and update it as soon as a step is done."
)

LastResult = Callable[[ToolCallContext, str], Awaitable[Any]]
"""The result of the last call of a tool that succeeded, on the path of a context's turn; UNSET where there is none."""


class TodoStatus(StrEnum):
    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    DONE = "done"
    DROPPED = "dropped"


class TodoItem(Struct, frozen=True, forbid_unknown_fields=True):
    text: Annotated[str, Meta(min_length=1, max_length=1000)]
    status: TodoStatus = TodoStatus.PENDING


class TodoArguments(Struct, frozen=True, forbid_unknown_fields=True):
    items: Annotated[tuple[TodoItem, ...], Meta(max_length=MOST_ITEMS, description="The whole list.")] | None = None


class TodoTool(StructTool[TodoArguments]):
    """Changes nothing but what is recorded of its own calls."""

    is_idempotent = True
    is_read_only = True
    is_repeatable = True

    def __init__(self, last_result: LastResult) -> None:
        super().__init__("todo", DESCRIPTION, TodoArguments)
        self._last_result = last_result

    def plan_of(self, arguments: TodoArguments) -> CallPlan:
        items = arguments.items
        if items is not None and sum(item.status is TodoStatus.IN_PROGRESS for item in items) > 1:
            raise ToolFailure("invalid_arguments", "at most one item is in_progress")
        exact = {"items": None if items is None else recordable(msgspec.to_builtins(items))}
        shown = "show the list" if items is None else "\n".join(f"{item.status}: {item.text}" for item in items)
        return CallPlan(tool=self.spec.name, exact=exact, shown=shown, is_read_only=True)

    async def perform(self, plan: CallPlan, context: ToolCallContext) -> ToolOutput:
        items = plan.exact["items"]
        if items is None:
            items = items_of(await self._last_result(context, self.spec.name))
        return ToolOutput(result={"items": items}, is_untrusted=False)


def items_of(result: Any) -> list[dict[str, str]]:
    """The list in a recorded result; an empty one where there is none."""
    try:
        recorded = msgspec.convert(result, TodoArguments)
    except msgspec.ValidationError:
        return []
    return [msgspec.to_builtins(item) for item in recorded.items or ()]
