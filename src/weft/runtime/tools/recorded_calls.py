"""What the calls of a session's past gave, as tools ask for it: by the id of a call, or the last one of a tool.

Both look from the turn that asks towards the root of its thread. So a fork has what was recorded before it began, and
nothing of the session that it left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from msgspec import UNSET

from weft.kernel.enums import ToolCallStatus
from weft.ledger.api import Ledger
from weft.ledger.model import ToolCall
from weft.runtime.broker.tools import ToolCallContext
from weft.runtime.turns.ledger_port import Crossing

MOST_TURNS = 10_000
"""That are looked through, the newest first."""


class RecordedCalls:
    """Reads one ledger with the rights that it was opened with."""

    def __init__(self, ledger: Ledger, crossing: Crossing) -> None:
        self._ledger, self._crossing = ledger, crossing

    async def result(self, context: ToolCallContext, call: str) -> Any:
        """The result of the newest call with this id that succeeded; UNSET where there is none."""

        def find() -> Any:
            return self._first_result(context, lambda recorded: call in (recorded.call_id, recorded.id))

        return await self._crossing.run(find)

    async def last_result(self, context: ToolCallContext, tool: str) -> Any:
        """The result of the last call of a tool that succeeded; UNSET where there is none."""

        def find() -> Any:
            return self._first_result(context, lambda recorded: recorded.name == tool)

        return await self._crossing.run(find)

    def _first_result(self, context: ToolCallContext, fits: Callable[[ToolCall], bool]) -> Any:
        calls = (call for call in self._calls_back(context.turn) if call.outcome == ToolCallStatus.OK and fits(call))
        return next((call.result for call in calls), UNSET)

    def _calls_back(self, turn: str) -> Iterator[ToolCall]:
        """A turn that a fork left in its middle is read up to there."""
        thread = self._ledger.thread(turn)
        turns, cuts = list(thread.ancestry), thread.cuts
        for ancestor in islice(reversed(turns), MOST_TURNS):
            yield from reversed(self._ledger.tool_calls(cuts.get(ancestor, ancestor)))
