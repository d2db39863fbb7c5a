"""File parts: images a model was shown, and files that a prompt brings along."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from weft.exchange.importers.values import mapping, present, text, whole
from weft.kernel.enums import FileKind
from weft.ledger.model import FileNote, ImagePart

PASTED = frozenset({"clipboard"})
"""What an image is called that never was a file."""


def image(part: dict[str, Any]) -> ImagePart | None:
    url, mime = text(part.get("url")), text(part.get("mime")) or ""
    if url is None or not url.startswith("data:"):
        return None
    return ImagePart(url) if mime.startswith("image/") or url.startswith("data:image/") else None


def reduced(part: dict[str, Any]) -> list[Any]:
    return [part.get("mime"), part.get("filename"), part.get("url")]


def described(part: dict[str, Any]) -> dict[str, Any] | None:
    """Of a file that is no image: what it is; its content is in the verbatim copy alone if it was given by value."""
    url = text(part.get("url")) or ""
    return present(mime=part.get("mime"), filename=part.get("filename"), url=None if url.startswith("data:") else url)


def note(part: dict[str, Any]) -> FileNote | None:
    source = mapping(part.get("source"))
    path, start, end = _location(text(part.get("url")) or "")
    path = path or text(source.get("path")) or text(source.get("uri")) or text(part.get("filename"))
    if path is None or path in PASTED:
        return None
    if start is None and source.get("type") == "symbol":  # a language server's lines count from 0
        range = mapping(source.get("range"))
        first, last = (whole(mapping(range.get(name)).get("line")) for name in ("start", "end"))
        start, end = (None if line is None else line + 1 for line in (first, last))
    return FileNote(kind=FileKind.ATTACHED, path=path, line_start=start, line_end=end)


def _location(url: str) -> tuple[str | None, int | None, int | None]:
    """The path of a file URL and the lines that its query names."""
    if not url.startswith("file:"):
        return None, None, None
    try:
        parts = urlsplit(url)
        asked = parse_qs(parts.query)
    except ValueError:
        return None, None, None
    start, end = (_number(asked.get(name, [""])[0]) for name in ("start", "end"))
    return unquote(parts.path) or None, start, end


def _number(words: str) -> int | None:
    return int(words) if words.isdecimal() and len(words) < 10 else None
