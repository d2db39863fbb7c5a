"""Images in messages and results: which of them are safe to embed, and what stands for the others.

Safe are pixels in a format that cannot run, carry or fetch anything, and whose bytes are what their type says.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any

from msgspec import Struct

_DATA = re.compile(r"data:image/(\w+);base64,", re.IGNORECASE)
_BEGINNINGS = {
    "png": (b"\x89PNG\r\n\x1a\n",),
    "jpeg": (b"\xff\xd8\xff",),
    "gif": (b"GIF87a", b"GIF89a"),
    "webp": (b"RIFF",),
    "bmp": (b"BM",),
}
_SUFFIXES = {"jpeg": ".jpg"}
SHOWN = 80


class Raster(Struct, frozen=True):
    """An image of pixels, by its format and its bytes."""

    format: str
    data: bytes

    @property
    def media_type(self) -> str:
        return f"image/{self.format}"

    @property
    def suffix(self) -> str:
        return _SUFFIXES.get(self.format, f".{self.format}")

    @property
    def base64(self) -> str:
        return base64.b64encode(self.data).decode()


def raster_in(url: str) -> Raster | None:
    """The pixels in a `data:` address; None where it is another address, another format, or not what it says."""
    found = _DATA.match(url)
    if found is None:
        return None
    name = found[1].lower()
    name = "jpeg" if name == "jpg" else name
    try:
        data = base64.b64decode("".join(url[found.end() :].split()), validate=True)
    except (binascii.Error, ValueError):
        return None
    if not data.startswith(_BEGINNINGS.get(name, ())) or (name == "webp" and data[8:12] != b"WEBP"):
        return None
    return Raster(name, data)


def is_web_address(url: str) -> bool:
    return re.fullmatch(r"https?://[^\s<>\"'`\\\x00-\x20]+", url, re.IGNORECASE) is not None


def image_note(url: str) -> str:
    """What stands where an image cannot."""
    if url.lower().startswith("data:"):
        kind = url[5:SHOWN].partition(",")[0].partition(";")[0]
        return f"[image: {kind or 'of no type'}, {len(url):,} letters]"
    return f"[image: {url[:SHOWN]}{'…' if len(url) > SHOWN else ''}]"


def image_address(part: dict[str, Any]) -> str | None:
    """The address of an image in any of the ways that providers write one in a tool's result."""
    if "image" not in str(part.get("type")):
        return None
    source = part.get("source", part)
    if isinstance(source, dict) and isinstance(data := source.get("data"), str):
        kind = source.get("media_type") or source.get("mimeType") or source.get("mime_type")
        return f"data:{kind};base64,{data}" if isinstance(kind, str) else None
    for holder in (part, source):
        for name in ("image_url", "url"):
            url = holder.get(name) if isinstance(holder, dict) else None
            url = url.get("url") if isinstance(url, dict) else url
            if isinstance(url, str):
                return url
    return None
