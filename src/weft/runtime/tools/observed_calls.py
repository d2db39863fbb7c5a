"""Tool calls as whoever watches a turn hears of them: what was decided about each, and how it ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from weft.kernel.enums import Decision
from weft.kernel.errors import error_code
from weft.ledger.api import KeptState
from weft.runtime.broker.tools import CallAnswer, Gate, ToolCallContext, Verdict
from weft.runtime.tools.calls import ToolFailure

SUBJECT_FIELDS = ("cmd", "path", "url", "pattern", "query", "call")
"""Arguments that say what a call is about; the first that is there counts."""
OK = "ok"


class ObservedCall(Struct, frozen=True, kw_only=True):
    """A decision about a call, or with `outcome` the end of one."""

    tool: str
    about: str
    decision: Decision | None = None
    by: str | None = None
    rationale: str | None = None
    outcome: str | None = None
    """`ok`, or the code of the error."""
    message: str | None = None


OnCall = Callable[[ObservedCall], None]


class ObservedGate:
    """A gate that tells of every decision, and of every end of a call."""

    def __init__(self, gate: Gate, on_call: OnCall) -> None:
        self._gate, self._on_call = gate, on_call

    async def decide(self, tool: str, arguments: Any, context: ToolCallContext, answer: CallAnswer | None) -> Verdict:
        """See `Gate`."""
        verdict = await self._gate.decide(tool, arguments, context, answer)
        self._on_call(
            ObservedCall(
                tool=tool,
                about=call_subject(arguments),
                decision=verdict.decision,
                by=str(verdict.by),
                rationale=verdict.rationale,
            )
        )
        return verdict

    async def exclusive_key(self, tool: str, arguments: Any) -> str | None:
        """See `Gate`."""
        return await self._gate.exclusive_key(tool, arguments)

    async def recorded(self, kept: Sequence[KeptState] | None) -> None:
        """See `Gate`."""
        await self._gate.recorded(kept)

    async def perform(self, tool: str, arguments: Any, context: ToolCallContext, bound: str, plan: Any = None) -> Any:
        """See `Gate`."""
        about = call_subject(arguments)
        try:
            output = await self._gate.perform(tool, arguments, context, bound, plan)
        except Exception as error:  # whatever it is, it is told of and goes on its way
            code = error.code if isinstance(error, ToolFailure) else error_code(error)
            self._on_call(ObservedCall(tool=tool, about=about, outcome=code, message=str(error)))
            raise
        self._on_call(ObservedCall(tool=tool, about=about, outcome=OK))
        return output


def call_subject(arguments: Any) -> str:
    """What a call is about, for reading: nothing is decided by it."""
    fields = arguments if isinstance(arguments, dict) else {}
    for name in SUBJECT_FIELDS:
        value = fields.get(name)
        if isinstance(value, str):
            return value
        if isinstance(value, list):
            return " ".join(map(str, value))
    return ""
