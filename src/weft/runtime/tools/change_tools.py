"""The tools `write` and `edit`: they give a file of the workspace new bytes.

A plan holds the digest of the bytes that the file has and of those that it would have, and all that the new ones are
made from. `perform` makes them again: it writes where the file is as planned, does nothing where it has the new bytes
already, and refuses otherwise. So a plan may be performed again after a crash, and its output is the same.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, Any, TypeVar

from msgspec import Meta, Struct

from weft.kernel.enums import FileKind
from weft.kernel.foreign_input import MIB, ReadBudget
from weft.kernel.permission_subjects import self_running, self_running_words
from weft.ledger.model import FileNote
from weft.runtime.broker.tools import ToolCallContext
from weft.runtime.tools.calls import CallPlan, StructTool, ToolFailure, ToolOutput
from weft.runtime.tools.differences import FileDifference
from weft.runtime.tools.linters import Linters, LintReport
from weft.runtime.tools.threads import in_thread
from weft.runtime.tools.workspace import FileBytes, WorkspaceFolder, digest_of

MOST_RANGES = 20
"""Ranges of changed lines that are told and noted; what lies between further ones is joined to the last."""
MOST_PLACES = 10
"""Occurrences whose lines the failure of an ambiguous edit tells."""
MOST_COMPARED_BYTES = 1 * MIB
"""Of a file in which a text that is not found is looked for with other white space."""
WRITE_DESCRIPTION = (
    "Write a file of the workspace: `content` is all of it. Folders that are missing are made. "
    "Use edit to change a part of a file."
)
EDIT_DESCRIPTION = (
    "Replace a text in a file of the workspace. `old_text` must stand there exactly once, with its white space, "
    "unless replace_all is true. Lines are separated by a line feed, also in files whose lines end in CRLF."
)


class WriteArguments(Struct, frozen=True, forbid_unknown_fields=True):
    path: Annotated[str, Meta(description="Of the file, from the workspace.")]
    content: Annotated[str, Meta(description="All that the file is to hold.")]


class EditArguments(Struct, frozen=True, forbid_unknown_fields=True):
    path: Annotated[str, Meta(description="Of the file, from the workspace.")]
    old_text: Annotated[str, Meta(min_length=1, description="What stands there now.")]
    new_text: Annotated[str, Meta(description="What is to stand there.")]
    replace_all: Annotated[bool, Meta(description="Replace every occurrence.")] = False


ChangeArguments = TypeVar("ChangeArguments", bound=Struct)


class ChangeTool(StructTool[ChangeArguments]):
    """What both have in common: from the bytes of one file to new ones."""

    is_repeatable = True

    def __init__(
        self,
        name: str,
        description: str,
        arguments: type[ChangeArguments],
        workspace: WorkspaceFolder,
        linters: Linters | None,
    ) -> None:
        super().__init__(name, description, arguments)
        self._workspace, self._linters = workspace, linters

    @abstractmethod
    def changed_bytes(self, exact: dict[str, Any], present: bytes | None) -> bytes:
        """The new bytes of a file. Raises ToolFailure where they cannot be made from those it has."""

    async def exclusive_key(self, arguments: Any) -> str:
        """See `ExclusiveTool`: its path without links."""
        return await in_thread(lambda: self._workspace.resolve(self.path_of(self._converted(arguments))).text)

    @abstractmethod
    def path_of(self, arguments: ChangeArguments) -> str: ...

    async def perform(self, plan: CallPlan, context: ToolCallContext) -> ToolOutput:
        await in_thread(lambda: self._change(plan.exact, context.call))
        commands = plan.exact["linters"]
        report = LintReport() if self._linters is None else await self._linters.check(commands)
        return self._output(plan.exact, report)

    def _plan(self, path: str, change: dict[str, Any]) -> CallPlan:
        resolved = self._workspace.resolve(path)
        if not resolved.parts:
            raise ToolFailure("is_folder", f"{path!r} is the workspace itself")
        present = self._workspace.read_if_there(resolved.text) if resolved.exists else None
        before = None if present is None else present.data
        after = self.changed_bytes({"path": resolved.text, **change}, before)
        difference = FileDifference(resolved.text, before, after)
        exact = {
            "workspace": str(self._workspace.root),
            "path": resolved.text,
            "before": None if before is None else digest_of(before),
            "after": digest_of(after),
            "bytes": len(after),
            "lines": difference.ranges(MOST_RANGES),
            "linters": [] if self._linters is None else self._linters.commands_for(resolved.text),
            **change,
        }
        words = self_running_words(self_running([resolved.text]))
        shown = f"{difference.unified()}\n\n{words}" if words else difference.unified()
        subjects, root = (resolved.text,), exact["workspace"]
        return CallPlan(tool=self.spec.name, exact=exact, subjects=subjects, shown=shown, confined_to=root)

    def _change(self, exact: dict[str, Any], call: str) -> None:
        path, before, after = exact["path"], exact["before"], exact["after"]
        present: FileBytes | None = self._workspace.read_if_there(path)
        digest = None if present is None else present.digest
        if digest not in (before, after):
            raise ToolFailure("changed", f"{path!r} has changed since this call was planned: read it again")
        data = None if present is None else present.data
        if data is None or digest != after:
            data = self.changed_bytes(exact, data)
        if digest_of(data) != after:
            raise ToolFailure("changed", f"the plan for {path!r} does not give the bytes that it names")
        self._workspace.replace(path, data, before=before, token=call)

    def _output(self, exact: dict[str, Any], report: LintReport) -> ToolOutput:
        path, ranges = exact["path"], exact["lines"]
        result = {
            "path": path,
            "bytes": exact["bytes"],
            "created": exact["before"] is None,
            "changed_lines": [f"{first}-{last}" if last > first else f"{first}" for first, last in ranges],
            **report.result_fields(),
        }
        notes = tuple(
            FileNote(kind=FileKind.WRITTEN, path=path, line_start=first, line_end=last) for first, last in ranges
        )
        files = notes or (FileNote(kind=FileKind.WRITTEN, path=path),)
        return ToolOutput(result=result, files=files, lints=report.notes, is_untrusted=bool(report.notes))


class WriteTool(ChangeTool[WriteArguments]):
    """Idempotent: the file holds the same bytes however often it is written."""

    is_idempotent = True

    def __init__(self, workspace: WorkspaceFolder, linters: Linters | None = None) -> None:
        super().__init__("write", WRITE_DESCRIPTION, WriteArguments, workspace, linters)

    def path_of(self, arguments: WriteArguments) -> str:
        return arguments.path

    def plan_of(self, arguments: WriteArguments) -> CallPlan:
        return self._plan(arguments.path, {"content": arguments.content})

    def changed_bytes(self, exact: dict[str, Any], present: bytes | None) -> bytes:
        return encoded(exact["content"], "content")


class EditTool(ChangeTool[EditArguments]):
    """Not idempotent: what it replaces is gone once it has run, or there once more."""

    def __init__(self, workspace: WorkspaceFolder, linters: Linters | None = None) -> None:
        super().__init__("edit", EDIT_DESCRIPTION, EditArguments, workspace, linters)

    def path_of(self, arguments: EditArguments) -> str:
        return arguments.path

    def plan_of(self, arguments: EditArguments) -> CallPlan:
        change = {
            "old_text": arguments.old_text,
            "new_text": arguments.new_text,
            "replace_all": arguments.replace_all,
        }
        return self._plan(arguments.path, change)

    def changed_bytes(self, exact: dict[str, Any], present: bytes | None) -> bytes:
        path = exact["path"]
        if present is None:
            raise ToolFailure("not_found", f"{path!r} is not there: use write to make it")
        old, new = encoded(exact["old_text"], "old_text"), encoded(exact["new_text"], "new_text")
        if old == new:
            raise ToolFailure("no_change", "old_text and new_text are the same")
        if has_crlf_throughout(present):
            old, new = _with_crlf(old), _with_crlf(new)
        first = present.find(old)
        if first < 0:
            raise ToolFailure("text_not_found", _not_found(path, present, old))
        if not exact["replace_all"] and present.find(old, first + 1) >= 0:
            raise ToolFailure("text_not_unique", _not_unique(path, present, old))
        size = len(present) + present.count(old) * (len(new) - len(old))
        ReadBudget(self._workspace.limits).check_held(size, f"the bytes of {path!r}")
        return present.replace(old, new)


def encoded(text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ToolFailure("invalid_arguments", f"{what} has a lone surrogate, which no file can hold") from None


def has_crlf_throughout(data: bytes) -> bool:
    """Whether every line that ends, ends in CRLF."""
    ends = data.count(b"\n")
    return ends > 0 and ends == data.count(b"\r\n")


def _with_crlf(data: bytes) -> bytes:
    return data.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")


def _not_found(path: str, present: bytes, old: bytes) -> str:
    message = f"old_text does not stand in {path!r}"
    words = old.split() if len(present) <= MOST_COMPARED_BYTES else []
    if words and b" ".join(words) in b" ".join(present.split()):
        return f"{message}; it does with other white space or line ends: copy it as read shows it, without the numbers"
    return message


def _not_unique(path: str, present: bytes, old: bytes) -> str:
    lines: list[int] = []
    position, line = present.find(old), 1
    counted = 0
    while position >= 0 and len(lines) < MOST_PLACES:
        line += present.count(b"\n", counted, position)
        counted = position
        lines.append(line)
        position = present.find(old, position + 1)
    count = f"more than {MOST_PLACES}" if position >= 0 else str(len(lines))
    places = ", ".join(map(str, lines))
    return (
        f"old_text stands in {path!r} {count} times, in lines {places}: give more of its surroundings, or replace_all"
    )
