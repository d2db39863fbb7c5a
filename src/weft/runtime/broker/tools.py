"""Tools as the broker sees them: what a model is told of one, how it is run, and what may be done after a crash."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, get_type_hints

import msgspec
from msgspec import Struct

from weft.kernel.enums import Decision, DecisionSource
from weft.kernel.errors import InvalidInput
from weft.ledger.api import KeptState
from weft.runtime.context import ExecutionContext
from weft.runtime.inference.settings import ToolSpec

BUSY_SECONDS = 0.25
"""So soon is looked again at what somebody else works on."""


class ToolCallContext(Struct, frozen=True, kw_only=True):
    """In which turn a tool is run, by which call, and in whose name."""

    turn: str
    call: str
    """The event that asks for it: the same again where an idempotent tool is run once more after a crash."""
    acting: ExecutionContext | None = None
    is_approved: bool = False
    """Whether a person allowed just this call, having been shown what it would do."""


class Later(Struct, frozen=True, kw_only=True):
    """What a tool gives whose result comes later, from outside: its turn is parked until then, or until a time."""

    why: str = ""
    until_ms: int | None = None
    workers: tuple[str, ...] = ()
    """The sessions of workers whose answers bring it."""
    is_any: bool = False
    """Whether the answer of one of them is enough."""


class CallAnswer(Struct, frozen=True, kw_only=True):
    """What a person answered who was asked about a call; `bound` is the hash of what they were shown."""

    event: str
    is_granted: bool
    bound: str
    abort: bool = False
    reason: str | None = None


class NotYet(Exception):
    """Nothing can be decided about a call now, for somebody else is at work on what it would change: it is asked again
    later."""


class Verdict(Struct, frozen=True, kw_only=True):
    """What may be done with a call, and what says so. With `ask`, `shown` is all that a person is shown of it."""

    decision: Decision
    by: DecisionSource
    bound: str | None = None
    policy: str | None = None
    rationale: str | None = None
    grant: str | None = None
    plan: Any = None
    """What would run, where it can be done again after a crash."""
    shown: str = ""
    subjects: tuple[str, ...] | None = None
    expires_ms: int | None = None
    kept: tuple[KeptState, ...] = ()
    """What resources are like before it runs, to be recorded with the decision."""


class Gate(Protocol):
    """Decides about calls before they run, and runs those that it allowed."""

    async def decide(self, tool: str, arguments: Any, context: ToolCallContext, answer: CallAnswer | None) -> Verdict:
        """What may be done with a call; what goes wrong is no reason to allow. Raises NotYet alone."""

    async def exclusive_key(self, tool: str, arguments: Any) -> str | None:
        """What no two calls may have at once, such as the file that they change; None where nothing is. Calls of one
        answer with one key are decided on and run one after another, in their order. It never raises."""

    async def perform(self, tool: str, arguments: Any, context: ToolCallContext, bound: str, plan: Any = None) -> Any:
        """Run a call, if what would run is what was decided on. `plan` is what was recorded of that: it is carried out
        as it is, once more after a crash."""

    async def recorded(self, kept: Sequence[KeptState] | None) -> None:
        """What was kept around calls is recorded; None: the turn is over, and nothing more will be."""


class Tool(Protocol):
    """What the broker needs of a tool."""

    @property
    def spec(self) -> ToolSpec: ...

    @property
    def is_idempotent(self) -> bool:
        """Whether it may be run again with the same arguments where nobody knows if it was."""

    @property
    def is_read_only(self) -> bool: ...

    @property
    def is_repeatable(self) -> bool:
        """Whether a plan that was recorded may be carried out again: it finds out by itself what is left to do."""

    async def invoke(self, arguments: Any, context: ToolCallContext) -> Any:
        """Its result, as JSON, or `Later`. Whatever it raises is the result that the model is told."""


Tools = Mapping[str, Tool]
NO_TOOLS: Tools = {}


class FunctionTool:
    """A Python function as a tool: its schema comes from its signature, its description from its docstring."""

    def __init__(
        self, function: Callable[..., Any], *, is_idempotent: bool = False, is_read_only: bool = False
    ) -> None:
        self._function, self._is_idempotent, self._is_read_only = function, is_idempotent, is_read_only
        self._spec = ToolSpec(
            name=function.__name__, description=inspect.getdoc(function) or "", schema=schema_of(function)
        )

    @property
    def spec(self) -> ToolSpec:
        return self._spec

    @property
    def is_idempotent(self) -> bool:
        return self._is_idempotent or self._is_read_only

    @property
    def is_read_only(self) -> bool:
        return self._is_read_only

    @property
    def is_repeatable(self) -> bool:
        return False

    async def invoke(self, arguments: Any, context: ToolCallContext) -> Any:
        if not isinstance(arguments, dict):
            raise InvalidInput(f"the arguments of {self._spec.name} are {type(arguments).__name__}", "give an object")
        given = self._checked(arguments)
        if inspect.iscoroutinefunction(self._function):
            return await self._function(**given)
        result = await asyncio.to_thread(self._function, **given)
        return await result if isinstance(result, Awaitable) else result

    def _checked(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Arguments as the signature has them; a model's words are converted and checked before anything runs."""
        signature, hints = inspect.signature(self._function), get_type_hints(self._function)
        unknown = [name for name in arguments if name not in signature.parameters]
        missing = [
            name
            for name, parameter in signature.parameters.items()
            if parameter.default is parameter.empty and name not in arguments
        ]
        if unknown or missing:
            wrong = [*(f"{name} is unknown" for name in unknown), *(f"{name} is missing" for name in missing)]
            raise InvalidInput(f"{self._spec.name}: {', '.join(wrong)}", "call it with the arguments of its schema")
        try:
            return {name: msgspec.convert(value, hints.get(name, Any)) for name, value in arguments.items()}
        except msgspec.ValidationError as error:
            raise InvalidInput(f"{self._spec.name}: {error}", "call it with the arguments of its schema") from None


def schema_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The JSON Schema of a function's arguments."""
    hints = get_type_hints(function)
    properties: dict[str, Any] = {}
    required: list[str] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise InvalidInput(f"{function.__name__} takes {parameter}", "a tool has named arguments only")
        (schema,), _ = msgspec.json.schema_components([hints.get(name, Any)])
        properties[name] = schema
        if parameter.default is parameter.empty:
            required.append(name)
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def tools_of(*tools: Tool) -> Tools:
    """Tools by their names."""
    return {tool.spec.name: tool for tool in tools}
