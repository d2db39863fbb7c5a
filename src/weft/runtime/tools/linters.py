"""Linters that run after a file was written: which, on what, and what they found.

Linters are the user's configuration: never a model's, never a workspace's. Each runs in the sandbox, by a function that
is given. What it prints was made from a model's file, so it is read as a stranger's text. A linter that fails takes
nothing back: the file is written, and the model is told that it was not checked.
"""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import Struct

from weft.kernel.enums import LintSeverity
from weft.kernel.errors import LimitExceeded, WeftError
from weft.kernel.foreign_input import MIB, ReadLimits, check_json
from weft.ledger.model import LintNote
from weft.runtime.sandbox.processes import Ending, ProcessOutcome
from weft.runtime.tools.path_patterns import ANY_FOLDERS, PathPattern
from weft.runtime.tools.results import recordable

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
