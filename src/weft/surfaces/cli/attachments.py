"""Files that go with a message: text as a part of its own, an image as an image."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path

from weft.kernel.enums import FileKind, MessageRole
from weft.kernel.errors import InvalidInput
from weft.ledger.model import FileNote, ImagePart, NewMessage, Part, TextPart

MAX_FILE_BYTES = 16 * 1024 * 1024
IMAGES = ((b"\x89PNG\r\n\x1a\n", "png"), (b"\xff\xd8\xff", "jpeg"), (b"GIF8", "gif"))


def message_with(text: str, files: Sequence[str], workspace: str | None = None) -> NewMessage:
    """A message of a user with the contents of these files; each is noted as attached. `workspace` is the folder that
    it is sent from."""
    context = None if workspace is None else {"workspace": workspace}
    if not files:
        return NewMessage(role=MessageRole.USER, content=text, context=context)
    parts: list[Part] = [TextPart(text), *map(_part, files)]
    notes = tuple(FileNote(kind=FileKind.ATTACHED, path=file) for file in files)
    return NewMessage(role=MessageRole.USER, content=tuple(parts), files=notes, context=context)


def image_part(file: str) -> ImagePart:
    """The image in a file. Raises InvalidInput where the file holds none."""
    part = _part(file)
    if not isinstance(part, ImagePart):
        raise InvalidInput(f"{file} is no image", "a message of a room holds text and images; say the text itself")
    return part


def _part(file: str) -> Part:
    data = _bytes(file)
    if (kind := _image_kind(data)) is not None:
        return ImagePart(f"data:image/{kind};base64,{b64encode(data).decode()}")
    try:
        return TextPart(f"File {file}:\n{data.decode()}")
    except UnicodeDecodeError:
        hint = "attach text in UTF-8, or an image: PNG, JPEG, GIF or WebP"
        raise InvalidInput(f"{file} is neither text nor an image", hint) from None


def _bytes(file: str) -> bytes:
    path = Path(file)
    if not path.is_file():
        raise InvalidInput(f"{file} is no file", "name a file that is there")
    with path.open("rb") as opened:
        data = opened.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise InvalidInput(f"{file} is larger than {MAX_FILE_BYTES // 2**20} MiB", "attach the part that matters")
    return data


def _image_kind(data: bytes) -> str | None:
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "webp"
    return next((kind for start, kind in IMAGES if data.startswith(start)), None)
