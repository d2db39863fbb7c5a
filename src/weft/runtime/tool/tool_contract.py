"""A tool as models, brokers and the gate see it: its specification, a call's plan, its outcome.

A call is planned, decided on, planned again and performed. Short synchronous steps run in threads.
Results are recorded as they came; where a model is shown one, secrets in it are marked.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar, get_type_hints, runtime_checkable
from weakref import WeakKeyDictionary

import msgspec
from msgspec import Struct

from weft.kernel.contents import dumps
from weft.kernel.enums import Decision, DecisionSource
from weft.kernel.errors import InvalidInput
from weft.ledger.api import KeptState
from weft.ledger.model import FileNote, ImagePart, LintNote
from weft.runtime.egress.execution_context import ExecutionContext
from weft.runtime.inference.model_requests import ToolSpec

# --- Runs the short synchronous steps of tools in threads, so that the event loop never waits for a file or a parser.

T = TypeVar("T")
JOIN_SECONDS = 0.002
"""After so long another thread joins, again and again until nothing waits."""


class _StepBatch:
    """What was asked for in one pass of an event loop, in the order in which it was asked for."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[tuple[Callable[[], Any], asyncio.Future[Any]]] = deque()
        self._outcomes: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        """What is done and not told yet: quick steps are told together."""
        self._is_slow = False

    def add(self, call: Callable[[], T]) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self._loop.create_future()
        self._waiting.append((call, future))
        return future

    def start(self) -> None:
        self._loop.run_in_executor(None, self._work)
        self._loop.call_later(JOIN_SECONDS, self._join)

    def _join(self) -> None:
        """A moment has passed: what is done is told at once from now on, and what still waits gets another thread."""
        self._is_slow = True
        self._settle_futures()
        if self._waiting:
            self.start()

    def _work(self) -> None:
        while True:
            try:
                call, future = self._waiting.popleft()
            except IndexError:  # another thread took the last
                return
            if not future.cancelled():
                self._outcomes.append((future, *_outcome(call)))
            if self._is_slow or not self._waiting:
                self._loop.call_soon_threadsafe(self._settle_futures)

    def _settle_futures(self) -> None:
        while self._outcomes:
            future, result, error = self._outcomes.popleft()
            if future.cancelled():
                continue
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)


def _outcome(call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return call(), None
    except BaseException as error:  # whatever it is, it is raised where the step is awaited
        return None, error


_batches: WeakKeyDictionary[asyncio.AbstractEventLoop, _StepBatch] = WeakKeyDictionary()
"""The batch of each event loop that is being filled."""


async def in_thread(call: Callable[[], T]) -> T:
    """What a synchronous call gives, from a thread. Where the task that awaits it is cancelled before a thread took
    the call, it is not made."""
    loop = asyncio.get_running_loop()
    batch = _batches.get(loop)
    if batch is None:
        batch = _batches[loop] = _StepBatch(loop)
        loop.call_soon(_hand_over, loop)
    return await batch.add(call)


def _hand_over(loop: asyncio.AbstractEventLoop) -> None:
    _batches.pop(loop).start()


# --- Tools as the broker sees them: what a model is told of one, how it is run, and what may be done after a crash.

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


# --- One call of a tool: exactly what it would do, before it runs, and what came of it.

Arguments = TypeVar("Arguments", bound=Struct)


class CallPlan(Struct, frozen=True, kw_only=True):
    """What one call would do. The same arguments in the same circumstances give the same plan."""

    tool: str
    exact: dict[str, Any]
    """Everything that decides what will run, as JSON."""
    subjects: tuple[str, ...] | None = ()
    """What the call is used on, as patterns in brackets are compared with it: the simple commands of a shell line, a
    path in the workspace, a URL. None: that cannot be told, so no such pattern allows it and every one denies it."""
    shown: str = ""
    """For whoever approves it: the command, or the difference that it makes to a file."""
    is_read_only: bool = False
    confined_to: str | None = None
    """The folder, without links on its way, beyond which the sandbox or the tool itself lets it change nothing and
    reach nothing; None: it can do more."""
    uncovers: tuple[str, ...] = ()
    """Files that are hidden from commands and that it reads where a person approves it; to read them is its purpose."""
    is_outward: bool = False
    """Whether it can carry something out of the machine: a request to a server, a command that reaches the network."""

    @property
    def bound(self) -> str:
        """The hash of exactly what will run."""
        return hashlib.sha256(dumps({"tool": self.tool, "exact": self.exact})).hexdigest()


class ToolOutput(Struct, frozen=True, kw_only=True):
    """What came of a call: its result as JSON, and what it did to files."""

    result: Any = None
    images: tuple[ImagePart, ...] = ()
    files: tuple[FileNote, ...] = ()
    lints: tuple[LintNote, ...] = ()
    duration_ms: int | None = None
    is_untrusted: bool = True
    """Whether a stranger may have written what it gave. Only what a tool says of itself alone is trusted."""
    spawned: str | None = None
    """The session of the worker that it started."""
    awaited: tuple[str, ...] = ()
    """The answers of workers that it brings."""
    kept: tuple[KeptState, ...] = ()
    """What resources were like after it."""


class ToolFailure(Exception):
    """A call that ended badly; the model is told the code, the message and the details."""

    def __init__(self, code: str, message: str, details: Any = msgspec.UNSET) -> None:
        super().__init__(message)
        self.code, self.message, self.details = code, message, details
        self.kept: tuple[KeptState, ...] = ()
        """What resources were like after it."""


class PlannedTool(Tool, Protocol):
    """A tool that says what a call would do before it does it. Its `invoke` plans and performs."""

    async def plan(self, arguments: Any, context: ToolCallContext) -> CallPlan:
        """Raises ToolFailure or a WeftError where the arguments cannot be meant."""

    async def perform(self, plan: CallPlan, context: ToolCallContext) -> ToolOutput | Later:
        """Do it; `Later` where the outcome comes from outside. Raises ToolFailure where it ended badly, or where what
        the plan says no longer holds."""


class WorkspaceKeeper(Protocol):
    """Keeps what a workspace is like around calls that may change it."""

    async def before(self, turn: str) -> tuple[KeptState, ...]:
        """A call of a turn that may change it is allowed: what is to be recorded with the decision. Raises NotYet while
        somebody else is at work in it."""

    async def why_not_whole(self, turn: str) -> str | None:
        """After `before`: why not all can be taken back that a command changes in the workspace; None: it can."""

    async def begin(self, turn: str) -> None:
        """Such a call is about to run; the decision is recorded."""

    async def after(self) -> tuple[KeptState, ...]:
        """It ran: what is to be recorded with its result."""

    async def recorded(self, kept: Sequence[KeptState] | None) -> None:
        """What `before` and `after` gave is recorded, so that it may be thrown away like anything else; None: all of
        it, or it never will be."""


@runtime_checkable
class ExclusiveTool(Protocol):
    """A tool whose calls wait for other calls of the same answer, such as for those that change the same file."""

    async def exclusive_key(self, arguments: Any) -> str:
        """What no two calls may have at once: of a tool that changes a file, that file. Raises ToolFailure where the
        arguments name none."""


class StructTool(ABC, Generic[Arguments]):
    """The base of planned tools whose arguments are the fields of a Struct: their schema is made from it, and what a
    model sends is converted to it before anything is looked at."""

    is_idempotent = False
    is_read_only = False
    is_repeatable = False

    def __init__(self, name: str, description: str, arguments: type[Arguments]) -> None:
        self._arguments = arguments
        self._spec = ToolSpec(name=name, description=description, schema=struct_schema(arguments))

    @property
    def spec(self) -> ToolSpec:
        return self._spec

    async def plan(self, arguments: Any, context: ToolCallContext) -> CallPlan:
        return await in_thread(lambda: self.plan_of(self._converted(arguments)))

    @abstractmethod
    def plan_of(self, arguments: Arguments) -> CallPlan:
        """What a call would do. It is called in a thread: arguments that take long hold up nobody else."""

    @abstractmethod
    async def perform(self, plan: CallPlan, context: ToolCallContext) -> ToolOutput | Later: ...

    async def invoke(self, arguments: Any, context: ToolCallContext) -> Any:
        plan = await self.plan(arguments, context)
        output = await self.perform(plan, context)
        return output if isinstance(output, Later) else output.result

    def _converted(self, arguments: Any) -> Arguments:
        """Numbers and truth values that a model wrote as texts are taken too."""
        try:
            return msgspec.convert(arguments, self._arguments, strict=False)
        except msgspec.ValidationError as error:
            raise ToolFailure("invalid_arguments", f"{self._spec.name}: {error}") from None


def struct_schema(arguments: type[Struct]) -> dict[str, Any]:
    """The JSON Schema of a Struct, without the names that Python has for it."""
    _, components = msgspec.json.schema_components([arguments], ref_template="#/$defs/{name}")
    schema = dict(components.pop(arguments.__name__))
    for part in (schema, *components.values()):
        part.pop("title", None)
    schema.pop("description", None)
    return {**schema, "$defs": components} if components else schema
