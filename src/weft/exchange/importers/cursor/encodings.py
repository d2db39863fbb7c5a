"""Values as Cursor keeps them: JSON in texts and blobs, sometimes twice encoded; URIs of VS Code; images as bytes.

Of protobuf's wire format there is just enough to follow the nodes of a store: fields by number, bytes and numbers
alone.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from weft.exchange.importers.records.values import json_value, mapping, sequence, text
from weft.kernel.contents import text_bytes

ENCODED_TIMES = 2
"""How often a value may have been encoded over again."""
IMAGE_SIGNATURES = {
    b"\x89PNG": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
    b"RIFF": "image/webp",
}
LARGEST_IMAGE_BYTES = 32 * 1024 * 1024


def decoded(value: Any) -> Any:
    """The JSON value in a row; raises ValueError where there is none."""
    for _ in range(ENCODED_TIMES):
        if not isinstance(value, str | bytes):
            break
        value = json_value(value if isinstance(value, bytes) else text_bytes(value))
        if not (isinstance(value, str) and value.lstrip().startswith(("{", "["))):
            break
    return value


def value_in_text(value: Any) -> Any:
    """What a field holds that should be JSON in a text: its value, or the text itself where it is none."""
    if not isinstance(value, str):
        return value
    try:
        return decoded(value) if value.strip() else None
    except ValueError:
        return value


def path_of(uri: Any) -> str | None:
    """The path that a URI names, in any of the forms in which VS Code writes them."""
    if isinstance(uri, str):
        return _path_of_text(uri)
    fields = mapping(uri)
    return text(fields.get("fsPath")) or text(fields.get("_fsPath")) or text(fields.get("path"))


def _path_of_text(uri: str) -> str | None:
    if not uri.startswith(("file:", "vscode-remote:")):
        return uri or None
    try:
        path = unquote(urlsplit(uri).path)
    except ValueError:
        return uri
    has_drive = len(path) > 2 and path[0] == "/" and path[2] == ":"
    return path[1:] if has_drive else path or None


def image_url(data: Any, mime: str | None = None) -> str | None:
    """An image as a data URL, from whatever its bytes were written as."""
    if isinstance(data, str) and data.startswith(("data:image/", "https://")):
        return data
    found = _bytes(data)
    if not found:
        return None
    media_type = next((kind for sign, kind in IMAGE_SIGNATURES.items() if found.startswith(sign)), mime)
    return f"data:{media_type or 'application/octet-stream'};base64,{base64.b64encode(found).decode()}"


def _bytes(data: Any) -> bytes | None:
    """Base64, hex beside its type, a list of numbers, or the object that JavaScript makes of one."""
    try:
        if isinstance(data, str):
            return base64.b64decode(data, validate=True)
        if isinstance(data, Mapping) and isinstance(data.get("hex"), str):
            return bytes.fromhex(data["hex"])
        if isinstance(data, Mapping):
            data = sequence(data.get("data")) or [data[str(at)] for at in range(len(data))]
        numbers = sequence(data)[:LARGEST_IMAGE_BYTES]
        return bytes(numbers) if all(isinstance(number, int) for number in numbers) else None
    except (KeyError, ValueError, TypeError, binascii.Error):
        return None


VARINT, EIGHT, BYTES, FOUR = 0, 1, 2, 5


def wire_fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Each field with its number; raises ValueError where the bytes are no such message."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if number == 0:
            raise ValueError("a field without a number")
        if kind == VARINT:
            value, at = _varint(data, at)
            yield number, value
            continue
        size = 8 if kind == EIGHT else 4 if kind == FOUR else None
        if kind == BYTES:
            size, at = _varint(data, at)
        if size is None or at + size > len(data):
            raise ValueError("a field of no known kind or size")
        yield number, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 64:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise ValueError("a number without an end")
