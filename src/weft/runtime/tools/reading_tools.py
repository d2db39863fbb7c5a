"""The tools `read`, `list`, `glob` and `grep`: what is in the files and folders of the workspace.

What text is shown as, and the difference between two versions of it, line by line, stand here as
well.
"""

from __future__ import annotations

import base64
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import islice
from operator import add
from typing import Annotated, Any, Protocol, TypeVar

from msgspec import Meta, Struct

from weft.kernel.enums import FileKind
from weft.kernel.errors import LimitExceeded, Unsupported
from weft.kernel.foreign_input import MIB, ReadBudget
from weft.ledger.model import FileNote, ImagePart
from weft.runtime.policies.default_policy import is_secret
from weft.runtime.sandbox.hidden_places import HiddenFiles
from weft.runtime.tool.tool_contract import CallPlan, StructTool, ToolCallContext, ToolFailure, ToolOutput, in_thread
from weft.runtime.tool.workspace import ANY_FOLDERS, FolderWalk, PathPattern, States, WorkspaceFolder, parts_of

# --- The difference between two versions of a file, line by line, in the unified form that people know.

CONTEXT_LINES = 3
MOST_COMPARED_LINES = 50_000
"""Of both versions, without what they begin and end with."""
MOST_CHANGED_LINES = 800
"""Lines that are taken out and put in; the search takes the square of it."""
MOST_COMPARISONS = 2_000_000
NO_NEWLINE = "\\ No newline at end of file"


class ChangedLines(Struct, frozen=True):
    """Lines `old_start` to `old_end` of the one version stand as `new_start` to `new_end` in the other; counted from
    0, the ends are not part of it."""

    old_start: int
    old_end: int
    new_start: int
    new_end: int


def shown_bytes(data: bytes) -> str:
    """As text; bytes that are no UTF-8 are shown as `\\xNN`."""
    return data.decode(errors="backslashreplace")


class FileDifference:
    """What the new bytes of a file change; `before` is None where there is no file yet. With `is_whole` nothing is
    compared: all of the one is taken out and all of the other put in."""

    def __init__(self, path: str, before: bytes | None, after: bytes, *, is_whole: bool = False) -> None:
        self._path, self._is_new = path, before is None
        before = before or b""
        start = 0 if is_whole else _same_start(before, after)
        old_end, new_end = (len(before), len(after)) if is_whole else _same_end(before, after, start)
        self._first_line = before.count(b"\n", 0, start)
        self._lead = _last_lines(before[:start])
        self._tail = _first_lines(before[old_end:])
        self._old, self._new = before[start:old_end], after[start:new_end]
        self._has_many = is_whole or _line_count(self._old) + _line_count(self._new) > MOST_COMPARED_LINES
        self.changes = self._changes()

    def _changes(self) -> list[ChangedLines]:
        """In lines of the whole file."""
        base, old_count, new_count = self._first_line, _line_count(self._old), _line_count(self._new)
        pairs = [] if self._has_many else _staying_lines(_byte_lines(self._old), _byte_lines(self._new))
        changes: list[ChangedLines] = []
        old_at, new_at = 0, 0
        for old_line, new_line in [*pairs, (old_count, new_count)]:
            if old_line > old_at or new_line > new_at:
                changes.append(ChangedLines(base + old_at, base + old_line, base + new_at, base + new_line))
            old_at, new_at = old_line + 1, new_line + 1
        return changes

    def ranges(self, most: int) -> list[list[int]]:
        """The first and the last line of each range of the new file that was changed, from 1; where there are more
        than `most`, what lies between the further ones is joined."""
        ranges = [[change.new_start + 1, max(change.new_end, change.new_start + 1)] for change in self.changes]
        return ranges if len(ranges) <= most else [*ranges[: most - 1], [ranges[most - 1][0], ranges[-1][1]]]

    def unified(self) -> str:
        """Empty where nothing changes."""
        if not self.changes and not self._is_new:
            return ""
        lead, tail = _byte_lines(self._lead), _byte_lines(self._tail)
        base = self._first_line - len(lead)
        head = f"--- {'/dev/null' if self._is_new else f'a/{self._path}'}\n+++ b/{self._path}\n"
        if self._has_many:
            (change,) = self.changes
            place = _place(change.old_start - len(lead), change.old_end + len(tail), change, len(lead), len(tail))
            parts = ((" ", self._lead), ("-", self._old), ("+", self._new), (" ", self._tail))
            return head + place + "".join(_marked(sign, part) for sign, part in parts)
        old, new = [*lead, *_byte_lines(self._old), *tail], [*lead, *_byte_lines(self._new), *tail]
        return head + "".join(_hunk_text(hunk, old, new, base) for hunk in _hunks(self.changes))


def _same_start(before: bytes, after: bytes) -> int:
    """How many bytes of whole lines both begin with."""
    same, beyond = 0, min(len(before), len(after)) + 1
    while beyond - same > 1:
        middle = (same + beyond) // 2
        same, beyond = (middle, beyond) if before[same:middle] == after[same:middle] else (same, middle)
    return same if same == len(before) == len(after) else before.rfind(b"\n", 0, same) + 1


def _same_end(before: bytes, after: bytes, start: int) -> tuple[int, int]:
    """Where the whole lines begin that both end with, in each of them; not before `start`."""
    old, new = len(before), len(after)
    same, beyond = 0, min(old, new) - start + 1
    while beyond - same > 1:
        middle = (same + beyond) // 2
        is_same = before[old - middle : old - same] == after[new - middle : new - same]
        same, beyond = (middle, beyond) if is_same else (same, middle)
    old, new = old - same, new - same
    if all(at == start or data[at - 1 : at] == b"\n" for data, at in ((before, old), (after, new))):
        return old, new
    line_end = before.find(b"\n", old)
    rest = len(before) - line_end - 1 if line_end >= 0 else 0
    return len(before) - rest, len(after) - rest


def _byte_lines(data: bytes) -> list[bytes]:
    """With their ends; only a line feed ends one."""
    *lines, last = data.split(b"\n")
    return [line + b"\n" for line in lines] + ([last] if last else [])


def _line_count(data: bytes) -> int:
    return data.count(b"\n") + (data[-1:] not in (b"", b"\n"))


def _first_lines(data: bytes) -> bytes:
    position = 0
    for _ in range(CONTEXT_LINES):
        line_end = data.find(b"\n", position)
        if line_end < 0:
            return data
        position = line_end + 1
    return data[:position]


def _last_lines(data: bytes) -> bytes:
    """`data` ends with a line feed, or is empty."""
    position = len(data)
    for _ in range(CONTEXT_LINES):
        if position <= 0:
            break
        position = data.rfind(b"\n", 0, position - 1) + 1
    return data[position:]


def _staying_lines(old: Sequence[bytes], new: Sequence[bytes]) -> list[tuple[int, int]]:
    """The pairs of lines that stay, in order; none where finding them would take too long."""
    furthest: dict[int, int] = {1: 0}
    trace: list[dict[int, int]] = []
    comparisons = 0
    for distance in range(min(len(old) + len(new), MOST_CHANGED_LINES) + 1):
        trace.append(furthest.copy())
        for diagonal in range(-distance, distance + 1, 2):
            before = _diagonal_before(furthest, diagonal, distance)
            begin = furthest[before] + (before < diagonal)
            x, y = begin, begin - diagonal
            while x < len(old) and y < len(new) and old[x] == new[y]:
                x, y = x + 1, y + 1
            furthest[diagonal] = x
            if x >= len(old) and y >= len(new):
                return _pairs_back(trace, len(old), len(new))
            comparisons += x - begin
        if comparisons > MOST_COMPARISONS:
            break
    return []


def _diagonal_before(furthest: dict[int, int], diagonal: int, distance: int) -> int:
    """From which diagonal this one is reached: by a line put in from the one above, by one taken out from below."""
    is_put_in = diagonal == -distance or (diagonal != distance and furthest[diagonal - 1] < furthest[diagonal + 1])
    return diagonal + 1 if is_put_in else diagonal - 1


def _pairs_back(trace: Sequence[dict[int, int]], x: int, y: int) -> list[tuple[int, int]]:
    pairs: list[tuple[int, int]] = []
    for distance in range(len(trace) - 1, -1, -1):
        before = _diagonal_before(trace[distance], x - y, distance)
        before_x = trace[distance][before]
        before_y = before_x - before
        while x > before_x and y > before_y:
            x, y = x - 1, y - 1
            pairs.append((x, y))
        x, y = before_x, before_y
    return pairs[::-1]


def _hunks(changes: Sequence[ChangedLines]) -> Iterator[list[ChangedLines]]:
    """Changes whose surrounding lines would touch stand together."""
    hunk: list[ChangedLines] = []
    for change in changes:
        if hunk and change.old_start - hunk[-1].old_end > 2 * CONTEXT_LINES:
            yield hunk
            hunk = []
        hunk.append(change)
    if hunk:
        yield hunk


def _hunk_text(hunk: Sequence[ChangedLines], old: Sequence[bytes], new: Sequence[bytes], base: int) -> str:
    """`old` and `new` begin with line `base` of the file."""
    start = max(base, hunk[0].old_start - CONTEXT_LINES)
    end = min(base + len(old), hunk[-1].old_end + CONTEXT_LINES)
    ends = ChangedLines(hunk[0].old_start, hunk[-1].old_end, hunk[0].new_start, hunk[-1].new_end)
    text = [_place(start, end, ends, hunk[0].old_start - start, end - hunk[-1].old_end)]
    position = start
    for change in hunk:
        text.append(_marked(" ", b"".join(old[position - base : change.old_start - base])))
        text.append(_marked("-", b"".join(old[change.old_start - base : change.old_end - base])))
        text.append(_marked("+", b"".join(new[change.new_start - base : change.new_end - base])))
        position = change.old_end
    text.append(_marked(" ", b"".join(old[position - base : end - base])))
    return "".join(text)


def _place(start: int, end: int, change: ChangedLines, lead: int, tail: int) -> str:
    return f"@@ -{_range(start, end)} +{_range(change.new_start - lead, change.new_end + tail)} @@\n"


def _range(start: int, end: int) -> str:
    """As `diff` writes it: from 1, the number of lines only where it is not 1, and an empty range after a line."""
    count = end - start
    return f"{start + 1}" if count == 1 else f"{start + bool(count)},{count}"


def _marked(sign: str, data: bytes) -> str:
    """Each line with its sign before it."""
    if not data:
        return ""
    text = shown_bytes(data)
    ends = text.endswith("\n")
    marked = sign + (text[:-1] if ends else text).replace("\n", f"\n{sign}")
    return f"{marked}\n" if ends else f"{marked}\n{NO_NEWLINE}\n"


# --- The tool `read`: a part of a file with the numbers of its lines, an image, or word of what else it is.

MOST_LINES = 2000
LINE_CHARACTERS = 2000
TEXT_CHARACTERS = 40_000
"""Of all lines together. A line more is told and not shown."""
IMAGE_BYTES = 5 * MIB
"""The largest image that is shown: providers take no larger ones."""
_LOOKED_AT_BYTES = 8192
_BLOCK_BYTES = 64 * 1024
_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)

READ_DESCRIPTION = (
    "Read a file of the workspace. Gives lines with their numbers, from `offset` on; an image is shown. "
    "Where more follows, `more` says how to read on."
)


class ReadArguments(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    path: Annotated[str, Meta(description="Of the file, from the workspace.")]
    offset: Annotated[int, Meta(ge=1, description="The first line, from 1.")] = 1
    limit: Annotated[int, Meta(ge=1, le=MOST_LINES, description="How many lines.")] = MOST_LINES
    column: Annotated[int, Meta(ge=1, description="Where to begin in each line, in characters from 1.")] = 1


class ReadTool(StructTool[ReadArguments]):
    """Read-only. Its plan names the resolved path and the lines; the bytes are those of the moment it is performed."""

    is_idempotent = True
    is_read_only = True
    is_repeatable = True

    def __init__(self, workspace: WorkspaceFolder) -> None:
        super().__init__("read", READ_DESCRIPTION, ReadArguments)
        self._workspace = workspace

    def plan_of(self, arguments: ReadArguments) -> CallPlan:
        path = self._workspace.resolve(arguments.path)
        if not path.exists:
            raise ToolFailure("not_found", f"{arguments.path!r} is not there")
        exact = {
            "workspace": str(self._workspace.root),
            "path": path.text,
            "offset": arguments.offset,
            "limit": arguments.limit,
            "column": arguments.column,
        }
        return CallPlan(
            tool=self.spec.name, exact=exact, subjects=(path.text,), shown=f"read {path.text}", is_read_only=True
        )

    async def perform(self, plan: CallPlan, context: ToolCallContext) -> ToolOutput:
        return await in_thread(lambda: self._perform(plan.exact))

    def _perform(self, exact: dict[str, Any]) -> ToolOutput:
        path = exact["path"]
        data = self._workspace.read(path).data
        media_type = image_type(data)
        if media_type is not None:
            return _image(path, data, media_type)
        if is_binary(data):
            result = {"path": path, "bytes": len(data), "note": "a binary file; its bytes are not shown"}
            return ToolOutput(result=result, files=(FileNote(kind=FileKind.READ, path=path),))
        return _text(path, data, exact["offset"], exact["limit"], exact["column"])


def is_binary(data: bytes) -> bool:
    return b"\0" in data[:_LOOKED_AT_BYTES]


def image_type(data: bytes) -> str | None:
    """By its first bytes, whatever its name is."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((media_type for magic, media_type in _MAGIC if data.startswith(magic)), None)


def _image(path: str, data: bytes, media_type: str) -> ToolOutput:
    result = {"path": path, "bytes": len(data), "media_type": media_type}
    files = (FileNote(kind=FileKind.READ, path=path),)
    if len(data) > IMAGE_BYTES:
        note = f"an image of more than {IMAGE_BYTES} bytes is not shown"
        return ToolOutput(result={**result, "note": note}, files=files)
    url = f"data:{media_type};base64,{base64.b64encode(data).decode('ascii')}"
    return ToolOutput(result={**result, "note": "the image is shown"}, images=(ImagePart(url),), files=files)


def _text(path: str, data: bytes, offset: int, limit: int, column: int) -> ToolOutput:
    total = data.count(b"\n") + (not data.endswith(b"\n") and bool(data))
    result: dict[str, Any] = {"path": path, "total_lines": total}
    if offset > total:
        note = "the file is empty" if not total else f"the file has only {total} lines"
        files = () if total else (FileNote(kind=FileKind.READ, path=path),)
        return ToolOutput(result={**result, "text": "", "note": note}, files=files)
    lines, invalid = _numbered_lines(data, offset, limit, column)
    last = offset + len(lines) - 1
    result |= {"first_line": offset, "last_line": last, "text": "\n".join(lines)}
    if invalid:
        result["note"] = f"{invalid} bytes are no UTF-8, and are shown as \\xNN"
    if last < total:
        result["more"] = f"{total - last} lines follow: read on with offset {last + 1}"
    file = FileNote(kind=FileKind.READ, path=path, line_start=offset, line_end=last)
    return ToolOutput(result=result, files=(file,))


def _numbered_lines(data: bytes, offset: int, limit: int, column: int) -> tuple[list[str], int]:
    """Numbered lines, as many as there is room for, at least one; and how many bytes of them are no UTF-8."""
    position = line_start(data, offset)
    lines = _plain_lines(data, position, limit) if column == 1 else None
    invalid = 0
    if lines is None:
        lines, invalid = _marked_lines(data, position, limit, column)
    return _numbered(lines, offset), invalid


def _numbered(lines: list[str], first: int) -> list[str]:
    if first + len(lines) <= MOST_LINES:
        return list(map(add, islice(_number_texts(), first - 1, None), lines))
    return [f"{number}\t{line}" for number, line in enumerate(lines, first)]


@cache
def _number_texts() -> list[str]:
    """The numbers of the first lines, as they stand before a line."""
    return [f"{number}\t" for number in range(1, MOST_LINES + 1)]


def _plain_lines(data: bytes, position: int, limit: int) -> list[str] | None:
    """Decoded at once; None where a line is to be cut, a byte is no UTF-8, or not all of them have room."""
    end = data.find(b"\n", position + TEXT_CHARACTERS)
    block = data[position : len(data) if end < 0 else end + 1]
    try:
        text = block.decode()
    except UnicodeDecodeError:
        return None
    pieces = text.split("\n", limit)
    lines = pieces[:-1] if len(pieces) > limit or not pieces[-1] else pieces
    has_room = len(text) <= TEXT_CHARACTERS or sum(map(len, lines)) <= TEXT_CHARACTERS
    if not has_room or max(map(len, lines)) > LINE_CHARACTERS:
        return None
    return [line.removesuffix("\r") for line in lines] if "\r" in text else lines


def _marked_lines(data: bytes, position: int, limit: int, column: int) -> tuple[list[str], int]:
    lines: list[str] = []
    room, invalid = TEXT_CHARACTERS, 0
    while position < len(data) and len(lines) < limit:
        end = data.find(b"\n", position)
        end = len(data) if end < 0 else end
        line, wrong = _shown_line(data[position:end].removesuffix(b"\r"), column)
        room -= len(line)
        if room < 0 and lines:
            break
        lines.append(line)
        invalid += wrong
        position = end + 1
    return lines, invalid


def _shown_line(line: bytes, column: int) -> tuple[str, int]:
    text = shown_bytes(line)
    invalid = 0 if text.isascii() and "\\" not in text else _invalid_bytes(line)
    rest = text[column - 1 :]
    if len(rest) <= LINE_CHARACTERS:
        return rest, invalid
    left_out, following = len(rest) - LINE_CHARACTERS, column + LINE_CHARACTERS
    mark = f" [{left_out} characters of this line left out; column {following} reads on]"
    return rest[:LINE_CHARACTERS] + mark, invalid


def _invalid_bytes(line: bytes) -> int:
    try:
        line.decode()
    except UnicodeDecodeError:
        return sum("\udc80" <= sign <= "\udcff" for sign in line.decode(errors="surrogateescape"))
    return 0


def line_start(data: bytes, number: int) -> int:
    """Where a line begins, counted from 1. Whole blocks are counted, not looked through line by line."""
    position, missing = 0, number - 1
    while missing:
        count = data.count(b"\n", position, position + _BLOCK_BYTES)
        if count < missing:
            missing -= count
            position += _BLOCK_BYTES
            if position >= len(data):
                return len(data)
            continue
        while missing:
            position = data.find(b"\n", position) + 1
            missing -= 1
    return position


# --- The tools `list` and `glob`: what is in a folder, and which files of the workspace fit a pattern.

MOST_ENTRIES = 1000
"""That one call shows."""
MOST_NOTES = 100
"""Files that one call notes as referenced or read."""
INCOMPLETE = "not everything was looked at: name a smaller folder"
LIST_DESCRIPTION = (
    "List a folder of the workspace. A folder's name ends in `/`, that of a link in `@`. "
    "Where more follows, `more` says how to read on."
)
GLOB_DESCRIPTION = (
    "Find files of the workspace by a pattern over their paths: `*` and `?` within a name, `[a-z]`, `{a,b}`, and `**` "
    "for any folders, as in `src/**/*.py`. Links, `.git` and what `.gitignore` names are left out."
)


class ListArguments(Struct, frozen=True, forbid_unknown_fields=True):
    path: Annotated[str, Meta(description="Of the folder, from the workspace.")] = "."
    offset: Annotated[int, Meta(ge=1, description="The first entry, from 1.")] = 1


class GlobArguments(Struct, frozen=True, forbid_unknown_fields=True):
    pattern: Annotated[str, Meta(description="Over the paths of files, from the folder.")]
    path: Annotated[str, Meta(description="Of the folder to look in, from the workspace.")] = "."
    offset: Annotated[int, Meta(ge=1, description="The first path, from 1.")] = 1


FindArguments = TypeVar("FindArguments", bound=Struct)


class FindTool(StructTool[FindArguments]):
    """What tools that look through a folder have in common."""

    is_idempotent = True
    is_read_only = True
    is_repeatable = True

    def __init__(
        self,
        name: str,
        description: str,
        arguments: type[FindArguments],
        workspace: WorkspaceFolder,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(name, description, arguments)
        self.workspace, self._monotonic = workspace, monotonic

    def budget(self) -> ReadBudget:
        return ReadBudget(self.workspace.limits, self._monotonic)

    def resolved_plan(self, path: str, exact: dict[str, Any]) -> CallPlan:
        resolved = self.workspace.resolve(path)
        if not resolved.exists:
            raise ToolFailure("not_found", f"{path!r} is not there")
        name, where = self.spec.name, resolved.text
        words = [name, *([exact["pattern"]] if "pattern" in exact else ()), where]
        return CallPlan(
            tool=name,
            exact={"workspace": str(self.workspace.root), "path": where, **exact},
            subjects=(where,),
            shown=" ".join(words),
            is_read_only=True,
        )

    async def perform(self, plan: CallPlan, context: ToolCallContext) -> ToolOutput:
        return await in_thread(lambda: self.look(plan.exact))

    @abstractmethod
    def look(self, exact: dict[str, Any]) -> ToolOutput:
        """Do what a plan says, in a thread."""


class ListTool(FindTool[ListArguments]):
    def __init__(self, workspace: WorkspaceFolder) -> None:
        super().__init__("list", LIST_DESCRIPTION, ListArguments, workspace)

    def plan_of(self, arguments: ListArguments) -> CallPlan:
        return self.resolved_plan(arguments.path, {"offset": arguments.offset})

    def look(self, exact: dict[str, Any]) -> ToolOutput:
        path, offset = exact["path"], exact["offset"]
        names = [entry.shown for entry in FolderWalk(self.workspace, self.budget()).entries(path)]
        return ToolOutput(result={"path": path, **_page(names, offset, "entries")})


class GlobTool(FindTool[GlobArguments]):
    def __init__(self, workspace: WorkspaceFolder) -> None:
        super().__init__("glob", GLOB_DESCRIPTION, GlobArguments, workspace)

    def plan_of(self, arguments: GlobArguments) -> CallPlan:
        PathPattern(arguments.pattern)
        return self.resolved_plan(arguments.path, {"pattern": arguments.pattern, "offset": arguments.offset})

    def look(self, exact: dict[str, Any]) -> ToolOutput:
        path, offset = exact["path"], exact["offset"]
        walk = FolderWalk(self.workspace, self.budget())
        paths = sorted(matching_files(walk, path, PathPattern(exact["pattern"])))
        result = {"path": path, **_page(paths, offset, "files")}
        if not walk.is_complete:
            result["note"] = INCOMPLETE
        notes = [FileNote(kind=FileKind.REFERENCED, path=file) for file in result["files"][:MOST_NOTES]]
        return ToolOutput(result=result, files=tuple(notes))


def matching_files(walk: FolderWalk, path: str, pattern: PathPattern) -> list[str]:
    """Files beneath a folder whose paths from there fit. A folder below which none can fit is not opened."""
    top = parts_of(path)
    states: dict[tuple[str, ...], States] = {top: pattern.start}

    def enters(folder: tuple[str, ...]) -> bool:
        following = pattern.after(states[folder[:-1]], folder[-1])
        if following:
            states[folder] = following
        return bool(following)

    return [
        file
        for file in walk.files(path, enters)
        for *folder, name in [file.split("/")]
        if pattern.is_match(pattern.after(states[tuple(folder)], name))
    ]


def _page(items: list[str], offset: int, what: str) -> dict[str, Any]:
    shown = items[offset - 1 : offset - 1 + MOST_ENTRIES]
    page: dict[str, Any] = {what: shown, "total": len(items)}
    following = offset + len(shown)
    if shown and following <= len(items):
        page["more"] = f"{len(items) - following + 1} more: read on with offset {following}"
    return page


# --- The tool `grep`: lines of files in the workspace that fit a regular expression.

LONGEST_EXPRESSION = 1000
EXPRESSION_MEMORY_BYTES = 8 * MIB
MOST_INSTRUCTIONS = 2000
"""Of a compiled expression."""
PIECE_STEPS = 30_000_000
"""Instructions times bytes that are searched between two looks at the clock."""
LONGEST_SHOWN_LINE = 500
MOST_MATCHES = 10_000
"""Lines that are counted; then the search ends."""
MOST_CONTEXT = 10
GREP_DESCRIPTION = (
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


class CompiledExpression(Protocol):
    """What is used of a compiled expression of RE2."""

    @property
    def programsize(self) -> int: ...

    def search(self, text: bytes, pos: int, endpos: int) -> Any: ...


def compiled_expression(pattern: str, *, ignore_case: bool = False) -> CompiledExpression:
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
        expression: CompiledExpression = re2.compile(b"(?m)" + pattern.encode(), options)
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
    path holds here too. Files that commonly hold secrets, and those that commands do not see, it looks through only
    where one is named."""

    def __init__(
        self,
        workspace: WorkspaceFolder,
        may_read: Callable[[str], bool] = lambda _: True,
        hidden_files: HiddenFiles | None = None,
    ) -> None:
        super().__init__("grep", GREP_DESCRIPTION, GrepArguments, workspace)
        self._may_read, self._hidden_files = may_read, hidden_files

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
        is_hidden = None if self._hidden_files is None else self._hidden_files.look()
        search = FileSearch(expression, self.budget(), exact["offset"], exact["limit"], exact["context"])
        walk = FolderWalk(self.workspace, search.budget)
        unread = 0
        try:
            for path in self._files(walk, exact):
                try:
                    if is_hidden is not None and path != exact["path"] and is_hidden(path):
                        raise ToolFailure("not_permitted", f"{path!r} is hidden from commands")
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

    def __init__(
        self, expression: CompiledExpression, budget: ReadBudget, offset: int, limit: int, context: int
    ) -> None:
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
