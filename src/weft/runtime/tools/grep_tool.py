"""The tool `grep`: lines of files in the workspace that fit a regular expression.

The expression is a model's. RE2 matches it in time that grows with the text alone, never with what the text could mean;
how much there is to do for each byte is limited by the size of the compiled expression. The clock is looked at between
pieces that take no longer than a moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Protocol

from msgspec import Meta, Struct

from weft.kernel.enums import FileKind
from weft.kernel.errors import LimitExceeded, Unsupported
from weft.kernel.foreign_input import MIB, ReadBudget
from weft.ledger.model import FileNote
from weft.runtime.policies.default_policy import is_secret
from weft.runtime.tools.calls import CallPlan, ToolFailure, ToolOutput
from weft.runtime.tools.differences import shown_bytes
from weft.runtime.tools.find_tools import INCOMPLETE, MOST_NOTES, FindTool
from weft.runtime.tools.folder_walk import FolderWalk
from weft.runtime.tools.path_patterns import ANY_FOLDERS, PathPattern
from weft.runtime.tools.read_tool import is_binary
from weft.runtime.tools.workspace import WorkspaceFolder, parts_of

LONGEST_EXPRESSION = 1000
EXPRESSION_MEMORY_BYTES = 8 * MIB
MOST_INSTRUCTIONS = 2000
"""Of a compiled expression."""
PIECE_STEPS = 30_000_000
"""Instructions times bytes that are searched between two looks at the clock."""
LONGEST_SHOWN_LINE = 500
TEXT_CHARACTERS = 40_000
"""Of what one call shows."""
MOST_MATCHES = 10_000
"""Lines that are counted; then the search ends."""
MOST_CONTEXT = 10
DESCRIPTION = (
    "Search files of the workspace for lines that fit a regular expression (RE2 syntax: no backreferences, no "
    "lookaround). Gives `path:line: text`; surrounding lines stand as `path-line- text`. Links, binary files, `.git` "
    "and what `.gitignore` names are left out. Where more follows, `more` says how to read on."
)
_HINT = "install it with `pip install 'weft[tools]'`"


class GrepArguments(Struct, frozen=True, forbid_unknown_fields=True):
    pattern: Annotated[str, Meta(description="The regular expression; a line feed never fits.")]
    path: Annotated[str, Meta(description="Of a folder or a file, from the workspace.")] = "."
    include: Annotated[
        tuple[str, ...], Meta(description="Only files of these patterns: `*.py`, or `src/**/*.py` from the folder.")
    ] = ()
    exclude: Annotated[tuple[str, ...], Meta(description="No files of these patterns.")] = ()
    ignore_case: bool = False
    context: Annotated[int, Meta(ge=0, le=MOST_CONTEXT, description="Lines to show before and after each.")] = 0
    limit: Annotated[int, Meta(ge=1, le=1000, description="How many fitting lines are shown.")] = 200
    offset: Annotated[int, Meta(ge=1, description="The first fitting line that is shown, from 1.")] = 1


class Expression(Protocol):
    """What is used of a compiled expression of RE2."""

    @property
    def programsize(self) -> int: ...

    def search(self, text: bytes, pos: int, endpos: int) -> Any: ...


def compiled_expression(pattern: str, *, ignore_case: bool = False) -> Expression:
    """Raises ToolFailure for what is no expression, or too large a one."""
    try:
        import re2
    except ModuleNotFoundError as error:
        raise Unsupported(f"searching by regular expressions needs the package {error.name}", _HINT) from None
    if not pattern or len(pattern) > LONGEST_EXPRESSION or "\0" in pattern:
        raise ToolFailure("invalid_pattern", f"an expression has 1 to {LONGEST_EXPRESSION} characters, none of them 0")
    options = re2.Options()
    options.max_mem, options.log_errors = EXPRESSION_MEMORY_BYTES, False
    options.never_nl, options.never_capture, options.case_sensitive = True, True, not ignore_case
    try:
        expression: Expression = re2.compile(b"(?m)" + pattern.encode(), options)
    except UnicodeEncodeError:
        raise ToolFailure("invalid_pattern", "an expression has no lone surrogates") from None
    except re2.error as error:
        reason = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else str(error)
        raise ToolFailure("invalid_pattern", f"this is no regular expression of RE2: {reason}") from None
    if expression.programsize > MOST_INSTRUCTIONS:
        raise ToolFailure("invalid_pattern", "this expression is too large: repeat less in it")
    return expression


class GrepTool(FindTool[GrepArguments]):
    """It shows what is in files, so it looks only through those that `may_read` allows: a rule that denies reading a
    path holds here too. Files that commonly hold secrets it looks through only where one is named."""

    def __init__(self, workspace: WorkspaceFolder, may_read: Callable[[str], bool] = lambda _: True) -> None:
        super().__init__("grep", DESCRIPTION, GrepArguments, workspace)
        self._may_read = may_read

    def plan_of(self, arguments: GrepArguments) -> CallPlan:
        compiled_expression(arguments.pattern, ignore_case=arguments.ignore_case)
        for pattern in (*arguments.include, *arguments.exclude):
            PathPattern(pattern)
        exact = {
            "pattern": arguments.pattern,
            "include": list(arguments.include),
            "exclude": list(arguments.exclude),
            "ignore_case": arguments.ignore_case,
            "context": arguments.context,
            "limit": arguments.limit,
            "offset": arguments.offset,
        }
        return self.resolved_plan(arguments.path, exact)

    def look(self, exact: dict[str, Any]) -> ToolOutput:
        expression = compiled_expression(exact["pattern"], ignore_case=exact["ignore_case"])
        search = FileSearch(expression, self.budget(), exact["offset"], exact["limit"], exact["context"])
        walk = FolderWalk(self.workspace, search.budget)
        unread = 0
        try:
            for path in self._files(walk, exact):
                try:
                    data = self._data(path, is_named=path == exact["path"])
                except (ToolFailure, LimitExceeded) as error:
                    if path == exact["path"]:
                        raise ToolFailure("unreadable", str(error)) from error
                    unread += 1
                    continue
                search.look_through(path, data)
        except LimitExceeded:
            walk.is_complete = False
        return search.output(exact["path"], walk.is_complete, unread + walk.unreadable)

    def _data(self, path: str, is_named: bool) -> bytes:
        if not self._may_read(path) or (is_secret(path) and not is_named):
            raise ToolFailure("not_permitted", f"{path!r} may not be read")
        return self.workspace.read(path).data

    def _files(self, walk: FolderWalk, exact: dict[str, Any]) -> Iterator[str]:
        """All that are to be looked through. A file that is named is, whatever the patterns say."""
        path = exact["path"]
        try:
            with self.workspace.folder(path):
                depth = len(parts_of(path))
        except ToolFailure as failure:
            if failure.code != "changed":
                raise
            yield path  # no folder: what it is now is found out when it is read
            return
        include, exclude = _file_patterns(exact["include"]), _file_patterns(exact["exclude"])
        for file in walk.files(path, lambda _: True):
            parts = file.split("/")[depth:]
            is_included = not include or any(pattern.matches(parts) for pattern in include)
            if is_included and not any(pattern.matches(parts) for pattern in exclude):
                yield file


def _file_patterns(patterns: Sequence[str]) -> list[PathPattern]:
    """One without a `/` fits in any folder."""
    return [PathPattern(pattern if "/" in pattern else f"{ANY_FOLDERS}/{pattern}") for pattern in patterns]


class FileSearch:
    """What one search has found so far, and as much of it as is shown."""

    def __init__(self, expression: Expression, budget: ReadBudget, offset: int, limit: int, context: int) -> None:
        self.budget = budget
        self._expression, self._offset, self._limit, self._context = expression, offset, limit, context
        self._piece_bytes = PIECE_STEPS // max(expression.programsize, 10)
        self._text: list[str] = []
        self._characters = 0
        self._shown, self._matches, self._files, self._cut_lines = 0, 0, 0, 0
        self._notes: list[FileNote] = []

    def look_through(self, path: str, data: bytes) -> None:
        if is_binary(data):
            return
        lines: list[tuple[int, int, int]] = []
        before = self._matches
        try:
            for line in self._matching_lines(data):
                if self._matches == MOST_MATCHES:
                    raise LimitExceeded("the lines that fit", MOST_MATCHES + 1, MOST_MATCHES)
                self._matches += 1
                has_room = self._shown < self._limit and self._characters < TEXT_CHARACTERS
                if self._matches >= self._offset and has_room:
                    self._shown += 1
                    self._characters += min(line[2] - line[1], LONGEST_SHOWN_LINE) + len(path)
                    lines.append(line)
        finally:
            self._files += self._matches > before
            self._show(path, data, lines)

    def _matching_lines(self, data: bytes) -> Iterator[tuple[int, int, int]]:
        """The number of each line that fits, where it begins and where it ends."""
        number, counted = 1, 0
        for begin, end in self._pieces(data):
            self.budget.check_time()
            position = begin
            while position <= end and (match := self._expression.search(data, position, end)) is not None:
                if match.start() == len(data) and data.endswith(b"\n"):
                    break  # after the last line there is no other
                start = data.rfind(b"\n", 0, match.start()) + 1
                line_end = data.find(b"\n", match.start())
                line_end = len(data) if line_end < 0 else line_end
                number += data.count(b"\n", counted, start)
                counted = start
                yield number, start, line_end
                position = line_end + 1

    def _pieces(self, data: bytes) -> Iterator[tuple[int, int]]:
        """Whole lines, as many as are searched in a moment; of a longer line its beginning."""
        position = 0
        while position < len(data):
            end = position + self._piece_bytes
            if end >= len(data):
                yield position, len(data)
                return
            last = data.rfind(b"\n", position, end)
            if last >= position:
                yield position, last
                position = last + 1
                continue
            self._cut_lines += 1
            yield position, end
            following = data.find(b"\n", end)
            position = len(data) if following < 0 else following + 1

    def _show(self, path: str, data: bytes, lines: Sequence[tuple[int, int, int]]) -> None:
        shown_to = 0
        for index, (number, start, end) in enumerate(lines):
            if self._context and self._text and number - self._context > shown_to + 1:
                self._text.append("--")
            before = _lines_before(data, start, min(self._context, number - 1 - shown_to))
            first = number - len(before)
            self._text += [f"{path}-{first + place}- {_cut(line)}" for place, line in enumerate(before)]
            self._text.append(f"{path}:{number}: {_cut(data[start:end])}")
            following = lines[index + 1][0] if index + 1 < len(lines) else number + self._context + 1
            after = _lines_after(data, end, min(self._context, following - number - 1))
            self._text += [f"{path}-{number + 1 + place}- {_cut(line)}" for place, line in enumerate(after)]
            self._characters += sum(min(len(line), LONGEST_SHOWN_LINE) for line in (*before, *after))
            shown_to = number + len(after)
            self._note(path, first, shown_to)

    def _note(self, path: str, first: int, last: int) -> None:
        """Lines that follow each other are one note."""
        if self._notes and self._notes[-1].path == path and self._notes[-1].line_end == first - 1:
            first = self._notes.pop().line_start or first
        if len(self._notes) < MOST_NOTES:
            self._notes.append(FileNote(kind=FileKind.READ, path=path, line_start=first, line_end=last))

    def output(self, path: str, is_complete: bool, unread: int) -> ToolOutput:
        result: dict[str, Any] = {
            "path": path, "matches": self._matches, "files": self._files, "text": "\n".join(self._text)
        }  # fmt: skip
        following = self._offset + self._shown
        if self._shown and following <= self._matches:
            result["more"] = f"{self._matches - following + 1} more lines fit: read on with offset {following}"
        notes = [] if is_complete else [INCOMPLETE]
        if unread:
            notes.append(
                f"{unread} files or folders could not be read, may not be read, may hold secrets or are too large"
            )
        if self._cut_lines:
            notes.append(f"of {self._cut_lines} long lines only the first {self._piece_bytes} bytes were searched")
        if notes:
            result["note"] = "; ".join(notes)
        return ToolOutput(result=result, files=tuple(self._notes))


def _cut(line: bytes) -> str:
    text = shown_bytes(line[: 4 * LONGEST_SHOWN_LINE].removesuffix(b"\r"))
    if len(text) <= LONGEST_SHOWN_LINE:
        return text
    return f"{text[:LONGEST_SHOWN_LINE]} [the rest of this line is left out: it has {len(line)} bytes]"


def _lines_before(data: bytes, start: int, count: int) -> list[bytes]:
    lines: list[bytes] = []
    while count > len(lines) and start > 0:
        begin = data.rfind(b"\n", 0, start - 1) + 1
        lines.append(data[begin : start - 1])
        start = begin
    return lines[::-1]


def _lines_after(data: bytes, end: int, count: int) -> list[bytes]:
    lines: list[bytes] = []
    while count > len(lines) and end + 1 < len(data):
        following = data.find(b"\n", end + 1)
        following = len(data) if following < 0 else following
        lines.append(data[end + 1 : following])
        end = following
    return lines
