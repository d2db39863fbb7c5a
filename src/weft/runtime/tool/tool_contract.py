"""A tool as models, brokers and the gate see it: its specification, a call's plan, its outcome.

A call is planned, decided on, planned again and performed. Short synchronous steps run in threads.
Results are recorded as they came; where a model is shown one, secrets in it are marked.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import update_wrapper
from typing import Annotated, Any, Generic, ParamSpec, Protocol, TypeVar, get_type_hints, overload, runtime_checkable
from weakref import WeakKeyDictionary

import msgspec
from msgspec import Struct

from weft.kernel.clock import SystemClock
from weft.kernel.contents import dumps
from weft.kernel.enums import Decision, DecisionSource
from weft.kernel.errors import InvalidInput, quoted
from weft.ledger.api import KeptState
from weft.ledger.model import OWN_SERVER, FileNote, ImagePart, LintNote
from weft.runtime.egress.execution_context import ExecutionContext
from weft.runtime.inference.model_requests import FunctionReference, ToolSpec

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
        self._loop.run_in_executor(None, self._work_through)
        self._loop.call_later(JOIN_SECONDS, self._tell_at_once)

    def _tell_at_once(self) -> None:
        """A moment has passed: what is done is told at once from now on, and what still waits gets another thread."""
        self._is_slow = True
        self._settle_futures()
        if self._waiting:
            self.start()

    def _work_through(self) -> None:
        while True:
            try:
                call, future = self._waiting.popleft()
            except IndexError:  # another thread took the last
                return
            if not future.cancelled():
                self._outcomes.append((future, *_outcome_of(call)))
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


def _outcome_of(call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
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


class LaterResult(Struct, frozen=True, kw_only=True):
    """What a tool gives whose result comes later, from outside: its turn is parked until then, or until a time."""

    why: str = ""
    until_ms: int | None = None
    workers: tuple[str, ...] = ()
    """The sessions of workers whose answers bring it."""
    is_any: bool = False
    """Whether the answer of one of them is enough."""


class CallAnswer(Struct, frozen=True, kw_only=True):
    """What a person answered who was asked about a call; `plan_digest` is the hash of what they were shown."""

    event: str
    is_granted: bool
    plan_digest: str
    abort: bool = False
    reason: str | None = None


class NotYet(Exception):
    """Nothing can be decided about a call now, for somebody else is at work on what it would change: it is asked again
    later."""


class Verdict(Struct, frozen=True, kw_only=True):
    """What may be done with a call, and what says so. With `ask`, `shown` is all that a person is shown of it."""

    decision: Decision
    by: DecisionSource
    plan_digest: str | None = None
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

    async def perform(
        self, tool: str, arguments: Any, context: ToolCallContext, plan_digest: str, plan: Any = None
    ) -> Any:
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
        """Its result, as JSON, or `LaterResult`. Whatever it raises is the result that the model is told."""


SEPARATOR = "/"
"""Between the name of a server, or `code`, and the name that a tool has there."""


def server_of(tool: str) -> str:
    """Where a tool of this name runs: at a server, as a code program, or in this runtime."""
    server, separator, _ = tool.partition(SEPARATOR)
    return server if separator and server else OWN_SERVER


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
        given = self._checked_arguments(arguments)
        if inspect.iscoroutinefunction(self._function):
            return await self._function(**given)
        result = await asyncio.to_thread(self._function, **given)
        return await result if isinstance(result, Awaitable) else result

    def _checked_arguments(self, arguments: dict[str, Any]) -> dict[str, Any]:
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
    is_callers: bool = False
    """Whether it runs a function that the program gave which sent the message: it is allowed unless it `asks`, or a
    policy denies it."""
    asks: bool = False
    """Whether each call is asked about."""
    varying: tuple[str, ...] = ()
    """The names in `exact` of what may be otherwise in the same use of the tool, once that is allowed for a session."""

    @property
    def plan_digest(self) -> str:
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


def unknown_tool(tool: str) -> ToolFailure:
    """What a model is told that calls a tool which it was not offered."""
    return ToolFailure("unknown_tool", f"there is no tool {quoted(tool)}: call one that is offered")


def ensure_object(tool: str, arguments: Any) -> None:
    """Refuse arguments that are no object, in words by which the model can mend them. Raises ToolFailure."""
    if isinstance(arguments, dict):
        return
    why = f"they are {type(arguments).__name__}, not an object"
    if isinstance(arguments, str):
        try:
            json.loads(arguments)
        except json.JSONDecodeError as error:
            why = f"they are no JSON: {error}"
    raise ToolFailure("malformed_arguments", f"the arguments of {quoted(tool)}: {why}. Call it again with an object")


class PlannedTool(Tool, Protocol):
    """A tool that says what a call would do before it does it. Its `invoke` plans and performs."""

    async def plan(self, arguments: Any, context: ToolCallContext) -> CallPlan:
        """Raises ToolFailure or a WeftError where the arguments cannot be meant."""

    async def perform(self, plan: CallPlan, context: ToolCallContext) -> ToolOutput | LaterResult:
        """Do it; `LaterResult` where the outcome comes from outside. Raises ToolFailure where it ended badly, or where
        what the plan says no longer holds."""


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
    async def perform(self, plan: CallPlan, context: ToolCallContext) -> ToolOutput | LaterResult: ...

    async def invoke(self, arguments: Any, context: ToolCallContext) -> Any:
        plan = await self.plan(arguments, context)
        output = await self.perform(plan, context)
        return output if isinstance(output, LaterResult) else output.result

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


# --- Functions of the program that sends a message, as tools: they run in its process, outside of the sandbox.

CALLER = "caller"
"""Where such a tool runs, as the record of a call names it."""
CALLERS_PLACE = "in the process of the program that gave it, outside of the sandbox"
_FUNCTION_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_ARGUMENT_SECTION = re.compile(r"^(?:Args|Arguments|Parameters):[ \t]*$", re.M)
_ARGUMENT_LINE = re.compile(r"^\s+\*{0,2}(\w+)(?:\s*\([^)]*\))?:\s*(.*)$")
_FIELD_LINE = re.compile(r"^\s*:param\s+(?:[^:]*\s)?(\w+):\s*(.*)$")
_PLAIN_DEFAULTS = (type(None), bool, int, float, str)
P = ParamSpec("P")
R = TypeVar("R")


class FunctionElsewhere(Exception):
    """A turn needs a function that only another program has: nobody in this process goes on with it."""

    def __init__(self, names: Sequence[str]) -> None:
        listed = ", ".join(map(repr, names))
        super().__init__(f"it needs {listed}, which only a program runs that was given the same function")
        self.awaited_process = f"a process that has the tool{'s' if len(names) > 1 else ''} {listed}"
        """What its turn waits for."""


class DeclaredTool(Generic[P, R]):
    """A Python function that models may call: `@weft.tool` makes it. Called, it is the function itself."""

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str | None = None,
        reads: bool = False,
        idempotent: bool = False,
        asks: bool = False,
    ) -> None:
        self.function, self.reads, self.asks = function, reads, asks
        self.idempotent = idempotent or reads
        self.name: str = name or str(getattr(function, "__name__", ""))
        if not _FUNCTION_NAME.fullmatch(self.name):
            raise InvalidInput(f"{quoted(self.name)} is no name of a tool", "give it one of letters, digits, _ and -")
        self.description, told = _told_of(inspect.getdoc(function) or "")
        self._arguments = _arguments_of(function, self.name, told)
        self.schema = struct_schema(self._arguments)
        self.digest = hashlib.sha256(dumps({"name": self.name, "schema": self.schema})).hexdigest()
        update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    @property
    def reference(self) -> FunctionReference:
        return FunctionReference(self.name, self.digest)

    def checked_arguments(self, arguments: Any) -> dict[str, Any]:
        """Arguments as the signature has them. Raises ToolFailure."""
        try:
            given = msgspec.convert(arguments, self._arguments, strict=False)
        except msgspec.ValidationError as error:
            raise ToolFailure("invalid_arguments", f"{self.name}: {error}") from None
        return {name: getattr(given, name) for name in self._arguments.__struct_fields__}


@overload
def tool(function: Callable[P, R]) -> DeclaredTool[P, R]: ...
@overload
def tool(
    *, name: str | None = None, reads: bool = False, idempotent: bool = False, asks: bool = False
) -> Callable[[Callable[P, R]], DeclaredTool[P, R]]: ...
def tool(
    function: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    reads: bool = False,
    idempotent: bool = False,
    asks: bool = False,
) -> Any:
    """Declare a function as a tool: its schema comes from its signature, what models are told of it from its docstring.
    `reads`: it changes nothing; `idempotent`: it may be run again where nobody knows whether it ran; `asks`: a person,
    or the program's callback, allows each call."""

    def declare(function: Callable[..., Any]) -> DeclaredTool[..., Any]:
        return DeclaredTool(function, name=name, reads=reads, idempotent=idempotent, asks=asks)

    return declare if function is None else declare(function)


def declared_tool(function: Any) -> DeclaredTool[..., Any]:
    """What a program gives as a tool: a declared function, or a plain one, of which nothing is declared."""
    if isinstance(function, DeclaredTool):
        return function
    if not callable(function):
        raise InvalidInput(f"a tool is {type(function).__name__}", "give functions")
    return DeclaredTool(function)


def _told_of(text: str) -> tuple[str, dict[str, str]]:
    """What a docstring says of a function, and of each of its arguments: in a section `Args:`, or in lines `:param`."""
    told: dict[str, str] = {}
    lines: list[str] = []
    name, is_section = "", False
    for line in text.splitlines():
        if _ARGUMENT_SECTION.match(line):
            name, is_section = "", True
        elif (named := _FIELD_LINE.match(line) or (_ARGUMENT_LINE.match(line) if is_section else None)) is not None:
            name, told[named[1]] = named[1], named[2]
        elif is_section and name and line.strip() and line[:1].isspace():
            told[name] += f" {line.strip()}"
        else:
            is_section = is_section and (not line.strip() or line[:1].isspace())
            lines.append(line)
    return "\n".join(lines).strip(), told


def _arguments_of(function: Callable[..., Any], name: str, told: Mapping[str, str]) -> type[Struct]:
    """A Struct of the arguments of a function."""
    try:
        hints = get_type_hints(function, include_extras=True)
        parameters = inspect.signature(function).parameters
    except (NameError, TypeError, ValueError) as error:
        raise InvalidInput(f"the signature of {name} cannot be read: {error}", "annotate it with known types") from None
    fields: list[tuple[str, Any, Any]] = []
    for parameter in parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise InvalidInput(f"{name} takes {parameter}", "a tool has named arguments only")
        kind = hints.get(parameter.name, Any)
        if parameter.name in told:
            kind = Annotated[kind, msgspec.Meta(description=told[parameter.name])]
        fields.append((parameter.name, kind, _field_default(parameter.default)))
    try:
        return msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)
    except TypeError as error:
        raise InvalidInput(f"the arguments of {name} have no JSON form: {error}", "give them types of JSON") from None


def _field_default(default: Any) -> Any:
    if default is inspect.Parameter.empty:
        return msgspec.NODEFAULT
    return default if isinstance(default, _PLAIN_DEFAULTS) else msgspec.field(default_factory=lambda: default)


RunFunction = Callable[[Callable[..., Any], dict[str, Any]], Awaitable[Any]]
"""Runs a function of a program, plain or asynchronous, where that program wants it run."""


class CallersTool:
    """A function of the program that sends a message as a tool: planned, decided on and recorded as any other."""

    is_repeatable = False

    def __init__(self, declared: DeclaredTool[..., Any], run: RunFunction) -> None:
        self._declared, self._run, self.reference = declared, run, declared.reference
        self.spec = ToolSpec(name=declared.name, description=declared.description, schema=declared.schema)

    @property
    def is_idempotent(self) -> bool:
        return self._declared.idempotent

    @property
    def is_read_only(self) -> bool:
        return self._declared.reads

    async def plan(self, arguments: Any, context: ToolCallContext) -> CallPlan:
        await in_thread(lambda: self._declared.checked_arguments(arguments))
        declared = self._declared
        return CallPlan(
            tool=declared.name,
            exact={"function": declared.name, "digest": declared.digest, "arguments": arguments, "runs": CALLERS_PLACE},
            shown=f"the function {declared.name}, {CALLERS_PLACE}",
            is_read_only=declared.reads,
            is_callers=True,
            asks=declared.asks,
        )

    async def perform(self, plan: CallPlan, context: ToolCallContext) -> ToolOutput:
        clock = SystemClock()
        started = clock.monotonic()
        given = self._declared.checked_arguments(plan.exact["arguments"])
        result = await self._run(self._declared.function, given)
        return ToolOutput(result=_json_of(result), duration_ms=round((clock.monotonic() - started) * 1000))

    async def invoke(self, arguments: Any, context: ToolCallContext) -> Any:
        return (await self.perform(await self.plan(arguments, context), context)).result


def _json_of(result: Any) -> Any:
    """What a function gave, as JSON; what has no such form is told as its text."""
    try:
        return msgspec.to_builtins(result, str_keys=True)
    except TypeError:
        return str(result)


_NO_FUNCTIONS: Mapping[FunctionReference, CallersTool] = {}


class GivenFunctions:
    """The functions that the programs of this process gave with messages, by what stands with the messages."""

    def __init__(self) -> None:
        self._tools: dict[FunctionReference, CallersTool] = {}
        self._own: ContextVar[Mapping[FunctionReference, CallersTool]] = ContextVar(
            "own functions", default=_NO_FUNCTIONS
        )

    def add(self, declared: DeclaredTool[..., Any], run: RunFunction) -> CallersTool:
        """Where nobody awaits the answer to a message any longer, what was given last under its reference runs."""
        given = self._tools[declared.reference] = CallersTool(declared, run)
        return given

    @contextmanager
    def preferring(self, own: Sequence[CallersTool]) -> Iterator[None]:
        """While a turn is planned, the very functions that came with its message: two of one name and schema may
        differ in what they hold."""
        token = self._own.set({tool.reference: tool for tool in own})
        try:
            yield
        finally:
            self._own.reset(token)

    @property
    def references(self) -> frozenset[FunctionReference]:
        """Everything that was given here."""
        return frozenset(self._tools)

    def tools(self, wanted: Sequence[FunctionReference], *, is_owners: bool) -> list[CallersTool]:
        """Raises FunctionElsewhere where one was never given here. A message that is not the ledger owner's has those
        alone that came with it: who wrote it could have named any, and they run unasked, outside of the sandbox."""
        own = self._own.get()
        if not is_owners and any(one not in own for one in wanted):
            raise InvalidInput(
                "only whoever opened the ledger gives a message functions that another program runs",
                "send it without, or from the program that has them",
            )
        known = {**self._tools, **own}
        if missing := [one.name for one in wanted if one not in known]:
            raise FunctionElsewhere(missing)
        return [known[one] for one in wanted]


# --- A tool call that waits for whoever sent the message: what they are shown, and what they answer.


class PendingCall(Struct, frozen=True, kw_only=True):
    """A tool call that waits for an answer: `weft.allow()` or `weft.deny("reason")`."""

    id: str
    """The approval, as `ledger.approvals` has it."""
    tool: str
    arguments: Any
    why: str
    """Why it is asked."""
    shown: str
    """All that would run, as a person is shown it."""
    agent: str
    session: str | None
    turn: str


class PermissionAnswer(Struct, frozen=True, kw_only=True):
    """An answer to a tool call that waits: `weft.allow` and `weft.deny` make it."""

    is_granted: bool
    reason: str | None = None
    scope: str = "once"
    abort: bool = False


def allow(*, scope: str = "once", reason: str | None = None) -> PermissionAnswer:
    """Let a tool call run, as it was shown. With the scope `session` the same use of the tool is not asked about again
    in its session."""
    return PermissionAnswer(is_granted=True, scope=scope, reason=reason)


def deny(reason: str | None = None, *, abort: bool = False) -> PermissionAnswer:
    """Refuse a tool call. The model is told the reason and goes on; with `abort` the turn ends."""
    return PermissionAnswer(is_granted=False, reason=reason, abort=abort)


Answer = PermissionAnswer
