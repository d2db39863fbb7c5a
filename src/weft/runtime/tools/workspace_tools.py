"""The tools `write` and `edit`, and the list of all built-in tools of a workspace.

Linters run after a file was written. The built-in tools on what a session has recorded are listed
beside them.
"""

from __future__ import annotations

import os
import re
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Sequence
from enum import StrEnum
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from weft.kernel.enums import FileKind, LintSeverity
from weft.kernel.errors import LimitExceeded, WeftError
from weft.kernel.foreign_input import MIB, ReadBudget, ReadLimits, check_json
from weft.kernel.permission_subjects import self_running, self_running_words
from weft.ledger.model import FileNote, LintNote
from weft.runtime.policies.default_policy import is_secret
from weft.runtime.sandbox.git_view import GitPrograms
from weft.runtime.sandbox.hidden_places import HiddenFiles
from weft.runtime.sandbox.processes import Ending, ProcessOutcome
from weft.runtime.tool.recorded_results import ReadResultTool, RecordedCalls, TodoTool, recordable
from weft.runtime.tool.tool_contract import (
    CallPlan,
    PlannedTool,
    StructTool,
    ToolCallContext,
    ToolFailure,
    ToolOutput,
    in_thread,
)
from weft.runtime.tool.workspace import ANY_FOLDERS, FileBytes, PathPattern, WorkspaceFolder, digest_of
from weft.runtime.tools.reading_tools import FileDifference, GlobTool, GrepTool, ListTool, ReadTool

# --- Linters that run after a file was written: which, on what, and what they found.

OUTPUT_LIMITS = ReadLimits(held_bytes=4 * MIB, values=100_000, nesting=100)
MOST_LINTS = 50
"""Of one write; what is beyond is counted."""
MESSAGE_CHARACTERS = 500
LARGEST_NUMBER = 2**31
PATH_WORD = "{path}"
"""Stands in a command for the file's path; without it the path is the last word."""
_FINDING = re.compile(r"([^:]+):(\d{1,9})(?::(\d{1,9}))?:?\s(.+)")
_LEADING_SEVERITY = re.compile(r"(error|warning|info|note|hint)\b:?\s*", re.IGNORECASE)

RunLinter = Callable[[Sequence[str]], Awaitable[ProcessOutcome]]
"""Runs a command in the sandbox, with the workspace as its folder."""


class LintFormat(StrEnum):
    RUFF = "ruff"
    ESLINT = "eslint"
    LINES = "lines"
    """`file:line:column: message`, as most programs print."""


class LinterSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One linter of the user's configuration. A pattern without a `/` fits in any folder."""

    pattern: str
    command: tuple[str, ...]
    format: LintFormat = LintFormat.LINES


class LintReport(Struct, frozen=True, kw_only=True):
    """What the linters of one write found, and which of them gave no answer."""

    notes: tuple[LintNote, ...] = ()
    problems: tuple[str, ...] = ()
    left_out: int = 0

    def result_fields(self) -> dict[str, Any]:
        """For the result that the model sees; nothing where no linter ran or none found anything."""
        fields: dict[str, Any] = {}
        if self.notes:
            fields["lints"] = [_line_of(note) for note in self.notes]
        if self.left_out:
            fields["more_lints"] = self.left_out
        if self.problems:
            fields["lint_problems"] = list(self.problems)
        return fields


def _line_of(note: LintNote) -> str:
    place = ":".join(str(part) for part in (note.path, note.start_line, note.start_col) if part is not None)
    source = f" ({note.source})" if note.source else ""
    return f"{place}: {note.severity or LintSeverity.WARNING}: {note.message}{source}"


class Linters:
    """The linters of one workspace."""

    def __init__(self, settings: Sequence[LinterSettings], place: str, run: RunLinter) -> None:
        self._place, self._run = place.rstrip("/"), run
        self._settings = [(_file_pattern(setting.pattern), setting) for setting in settings]

    def commands_for(self, path: str) -> list[dict[str, Any]]:
        """What will run after a write of this path, as a plan holds it. A name that begins with `-` is no option."""
        word = f"./{path}"
        return [
            {"command": _with_path(setting.command, word), "format": setting.format.value}
            for pattern, setting in self._settings
            if pattern.matches(path.split("/"))
        ]

    async def check(self, commands: Sequence[dict[str, Any]]) -> LintReport:
        notes: list[LintNote] = []
        problems: list[str] = []
        for planned in commands:
            command = planned["command"]
            try:
                outcome = await self._run(command)
                notes += findings(outcome, LintFormat(planned["format"]), self._place)
            except (WeftError, msgspec.DecodeError) as error:
                problems.append(f"{command[0]} gave no answer that can be read: {recordable(str(error))[:200]}")
        kept = tuple(notes[:MOST_LINTS])
        return LintReport(notes=kept, problems=tuple(problems), left_out=len(notes) - len(kept))


def _file_pattern(pattern: str) -> PathPattern:
    return PathPattern(pattern if "/" in pattern else f"{ANY_FOLDERS}/{pattern}")


def _with_path(command: Sequence[str], path: str) -> list[str]:
    if any(PATH_WORD in word for word in command):
        return [word.replace(PATH_WORD, path) for word in command]
    return [*command, path]


def findings(outcome: ProcessOutcome, format: LintFormat, place: str) -> list[LintNote]:
    """What a linter printed, as notes. Raises where it was ended, or printed something else."""
    if outcome.ending is not Ending.EXITED:
        raise LimitExceeded(f"the linter was ended ({outcome.ending})", 1, 0)
    if len(outcome.stdout) > OUTPUT_LIMITS.held_bytes:
        raise LimitExceeded("the bytes of its output", len(outcome.stdout), OUTPUT_LIMITS.held_bytes)
    if format is LintFormat.LINES:
        return list(_of_lines(outcome.stdout + b"\n" + outcome.stderr, place))
    check_json(outcome.stdout, OUTPUT_LIMITS)
    return list((_of_ruff if format is LintFormat.RUFF else _of_eslint)(outcome.stdout, place))


class _Spot(Struct, frozen=True):
    row: int | None = None
    column: int | None = None


class _RuffFinding(Struct, frozen=True):
    message: str
    filename: str | None = None
    code: str | None = None
    location: _Spot | None = None
    end_location: _Spot | None = None


class _EslintMessage(Struct, frozen=True, rename="camel"):
    message: str
    rule_id: str | None = None
    severity: int = 1
    line: int | None = None
    column: int | None = None
    end_line: int | None = None
    end_column: int | None = None


class _EslintFile(Struct, frozen=True, rename="camel"):
    file_path: str
    messages: list[_EslintMessage]


def _of_ruff(output: bytes, place: str) -> Iterator[LintNote]:
    for finding in msgspec.json.decode(output, type=list[_RuffFinding]):
        start, end = finding.location or _Spot(), finding.end_location or _Spot()
        is_warning = finding.code is not None and finding.code != "invalid-syntax"
        yield _note(
            path=_inner_path(finding.filename, place),
            message=finding.message,
            source=f"ruff {finding.code}" if finding.code else "ruff",
            numbers=(start.row, start.column, end.row, end.column),
            severity=LintSeverity.WARNING if is_warning else LintSeverity.ERROR,
        )


def _of_eslint(output: bytes, place: str) -> Iterator[LintNote]:
    for file in msgspec.json.decode(output, type=list[_EslintFile]):
        for message in file.messages:
            yield _note(
                path=_inner_path(file.file_path, place),
                message=message.message,
                source=f"eslint {message.rule_id}" if message.rule_id else "eslint",
                numbers=(message.line, message.column, message.end_line, message.end_column),
                severity=LintSeverity.ERROR if message.severity > 1 else LintSeverity.WARNING,
            )


def _of_lines(output: bytes, place: str) -> Iterator[LintNote]:
    for line in output.decode(errors="backslashreplace").split("\n"):
        finding = _FINDING.fullmatch(line[: 4 * MESSAGE_CHARACTERS].strip())
        if finding is None:
            continue
        path, row, column = finding.groups()[:3]
        message = finding[4].lstrip()
        severity = LintSeverity.WARNING
        leading = _LEADING_SEVERITY.match(message)
        if leading is not None and leading.end() < len(message):
            word = leading[1].lower()
            severity, message = LintSeverity("info" if word == "note" else word), message[leading.end() :]
        numbers = (int(row), int(column) if column else None, None, None)
        yield _note(path=_inner_path(path, place), message=message, source=None, numbers=numbers, severity=severity)


def _note(
    *, path: str | None, message: str, source: str | None, numbers: Sequence[int | None], severity: LintSeverity
) -> LintNote:
    start_line, start_col, end_line, end_col = (
        number if number is not None and 0 < number < LARGEST_NUMBER else None for number in numbers
    )
    return LintNote(
        path=path,
        message=recordable(message)[:MESSAGE_CHARACTERS],
        source=None if source is None else recordable(source)[:100],
        start_line=start_line,
        start_col=start_col,
        end_line=end_line,
        end_col=end_col,
        severity=severity,
    )


def _inner_path(path: str | None, place: str) -> str | None:
    """From the workspace; None for a file that lies elsewhere."""
    if path is None:
        return None
    text = os.path.normpath(recordable(path).removeprefix(f"{place}/"))
    return None if text.startswith(("/", "../")) or text in (".", "..") else text[:4096]


# --- The tools `write` and `edit`: they give a file of the workspace new bytes.

MOST_RANGES = 20
"""Ranges of changed lines that are told and noted; what lies between further ones is joined to the last."""
MOST_PLACES = 10
"""Occurrences whose lines the failure of an ambiguous edit tells."""
MOST_SECRET_BYTES = 16 * 1024
"""Of a file that may not be read unasked: a change of a larger one is shown as a whole."""
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
    """What both have in common: from the bytes of one file to new ones.

    A plan is made before anybody is asked, and whether there is one is told to the model. So of a file that may not be
    read unasked neither that nor how long it is to be shown depends on how its bytes compare with the arguments."""

    is_repeatable = True

    def __init__(
        self,
        name: str,
        description: str,
        arguments: type[ChangeArguments],
        workspace: WorkspaceFolder,
        linters: Linters | None,
        programs: GitPrograms | None,
        hidden_files: HiddenFiles | None,
    ) -> None:
        super().__init__(name, description, arguments)
        self._workspace, self._linters, self._hidden_files = workspace, linters, hidden_files
        self._self_running = self_running if programs is None else programs.self_running

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
        is_secret_file = before is not None and self._may_hold_secrets(resolved.text, path)
        try:
            after = self.changed_bytes({"path": resolved.text, **change}, before)
        except (ToolFailure, LimitExceeded) as error:
            if not is_secret_file:
                raise
            return self._plan_of(resolved.text, before, None, [], str(error), change)
        is_whole = is_secret_file and max(len(before or b""), len(after)) > MOST_SECRET_BYTES
        difference = FileDifference(resolved.text, before, after, is_whole=is_whole)
        return self._plan_of(resolved.text, before, after, difference.ranges(MOST_RANGES), difference.unified(), change)

    def _plan_of(
        self,
        path: str,
        before: bytes | None,
        after: bytes | None,
        lines: list[list[int]],
        shown: str,
        change: dict[str, Any],
    ) -> CallPlan:
        """`after` None: it fails once it is performed."""
        exact = {
            "workspace": str(self._workspace.root),
            "path": path,
            "before": None if before is None else digest_of(before),
            "after": None if after is None else digest_of(after),
            "bytes": None if after is None else len(after),
            "lines": lines,
            "linters": [] if self._linters is None else self._linters.commands_for(path),
            **change,
        }
        words = self_running_words(self._self_running([path]))
        shown = f"{shown}\n\n{words}" if words else shown
        return CallPlan(
            tool=self.spec.name,
            exact=exact,
            subjects=(path,),
            shown=shown,
            confined_to=exact["workspace"],
            varying=("before", "after", "bytes", "lines", "linters", *change),
        )

    def _may_hold_secrets(self, path: str, asked: str) -> bool:
        return is_secret(path) or (self._hidden_files is not None and self._hidden_files.is_hidden(path, asked))

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

    def __init__(
        self,
        workspace: WorkspaceFolder,
        linters: Linters | None = None,
        programs: GitPrograms | None = None,
        hidden_files: HiddenFiles | None = None,
    ) -> None:
        super().__init__("write", WRITE_DESCRIPTION, WriteArguments, workspace, linters, programs, hidden_files)

    def path_of(self, arguments: WriteArguments) -> str:
        return arguments.path

    def plan_of(self, arguments: WriteArguments) -> CallPlan:
        return self._plan(arguments.path, {"content": arguments.content})

    def changed_bytes(self, exact: dict[str, Any], present: bytes | None) -> bytes:
        return encoded(exact["content"], "content")


class EditTool(ChangeTool[EditArguments]):
    """Not idempotent: what it replaces is gone once it has run, or there once more."""

    def __init__(
        self,
        workspace: WorkspaceFolder,
        linters: Linters | None = None,
        programs: GitPrograms | None = None,
        may_read: Callable[[str], bool] = lambda _: True,
        hidden_files: HiddenFiles | None = None,
    ) -> None:
        super().__init__("edit", EDIT_DESCRIPTION, EditArguments, workspace, linters, programs, hidden_files)
        self._may_read = may_read

    def path_of(self, arguments: EditArguments) -> str:
        return arguments.path

    def plan_of(self, arguments: EditArguments) -> CallPlan:
        change = {
            "old_text": arguments.old_text,
            "new_text": arguments.new_text,
            "replace_all": arguments.replace_all,
        }
        # whether a text stands in a file is a part of what reading it shows
        if not self._may_read(self._workspace.resolve(arguments.path).text):
            raise ToolFailure("not_permitted", f"{arguments.path!r} may not be read, so no text in it is replaced")
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


# --- The built-in tools that work on the files of one workspace and on what the session has recorded.


def workspace_tools(
    workspace: WorkspaceFolder,
    linters: Linters | None = None,
    may_read: Callable[[str], bool] = lambda _: True,
    hidden_files: HiddenFiles | None = None,
    programs: GitPrograms | None = None,
) -> tuple[PlannedTool, ...]:
    """Those that read and change files. `may_read` says of a path whether `read` would be permitted on it,
    `hidden_files` which files commands do not see, `programs` what the person's git runs there."""
    return (
        ReadTool(workspace),
        WriteTool(workspace, linters, programs, hidden_files),
        EditTool(workspace, linters, programs, may_read, hidden_files),
        ListTool(workspace),
        GlobTool(workspace),
        GrepTool(workspace, may_read, hidden_files),
    )


def session_tools(calls: RecordedCalls) -> tuple[PlannedTool, ...]:
    """Those that read what earlier calls gave."""
    return TodoTool(calls.last_result), ReadResultTool(calls.result)
