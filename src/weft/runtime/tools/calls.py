"""One call of a tool: exactly what it would do, before it runs, and what came of it.

`plan` reads, and changes nothing. What it gives names everything that decides what will run: the words of a command,
its folder and variables, the bytes that a file has now and would have then. An approval is bound to the hash of that.
`perform` does what a plan says and nothing else; it refuses where the world is no longer as the plan says.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import msgspec
from msgspec import Struct

from weft.kernel.contents import dumps
from weft.ledger.api import KeptState
from weft.ledger.model import FileNote, ImagePart, LintNote
from weft.runtime.broker.tools import Later, Tool, ToolCallContext
from weft.runtime.inference.settings import ToolSpec
from weft.runtime.tools.threads import in_thread

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
