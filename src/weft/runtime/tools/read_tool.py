"""The tool `read`: a part of a file with the numbers of its lines, an image, or word of what else it is."""

from __future__ import annotations

import base64
from functools import cache
from itertools import islice
from operator import add
from typing import Annotated, Any

from msgspec import Meta, Struct

from weft.kernel.enums import FileKind
from weft.kernel.foreign_input import MIB
from weft.ledger.model import FileNote, ImagePart
from weft.runtime.broker.tools import ToolCallContext
from weft.runtime.tools.calls import CallPlan, StructTool, ToolFailure, ToolOutput
from weft.runtime.tools.differences import shown_bytes
from weft.runtime.tools.threads import in_thread
from weft.runtime.tools.workspace import WorkspaceFolder

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

DESCRIPTION = (
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
        super().__init__("read", DESCRIPTION, ReadArguments)
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
    lines, invalid = _lines(data, offset, limit, column)
    last = offset + len(lines) - 1
    result |= {"first_line": offset, "last_line": last, "text": "\n".join(lines)}
    if invalid:
        result["note"] = f"{invalid} bytes are no UTF-8, and are shown as \\xNN"
    if last < total:
        result["more"] = f"{total - last} lines follow: read on with offset {last + 1}"
    file = FileNote(kind=FileKind.READ, path=path, line_start=offset, line_end=last)
    return ToolOutput(result=result, files=(file,))


def _lines(data: bytes, offset: int, limit: int, column: int) -> tuple[list[str], int]:
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
