"""One call of a tool: exactly what it would do, before it runs, and what came of it.

`plan` reads, and changes nothing. What it gives names everything that decides what will run: the words of a command,
its folder and variables, the bytes that a file has now and would have then. An approval is bound to the hash of that.
`perform` does what a plan says and nothing else; it refuses where the world is no longer as the plan says.
"""

from __future__ import annotations

import hashlib
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from weft.kernel.canonical import dumps
from weft.ledger.model import FileNote, ImagePart, LintNote
from weft.runtime.broker.tools import Tool, ToolCallContext


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


class ToolFailure(Exception):
    """A call that ended badly; the model is told the code, the message and the details."""

    def __init__(self, code: str, message: str, details: Any = msgspec.UNSET) -> None:
        super().__init__(message)
        self.code, self.message, self.details = code, message, details


class PlannedTool(Tool, Protocol):
    """A tool that says what a call would do before it does it. Its `invoke` plans and performs."""

    async def plan(self, arguments: Any, context: ToolCallContext) -> CallPlan:
        """Raises ToolFailure or a WeftError where the arguments cannot be meant."""

    async def perform(self, plan: CallPlan, context: ToolCallContext) -> ToolOutput:
        """Do it. Raises ToolFailure where it ended badly, or where what the plan says no longer holds."""
