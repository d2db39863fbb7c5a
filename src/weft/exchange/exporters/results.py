"""What a tool gave back, as pieces of text and images; and values as JSON that is fit to read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from weft.exchange.exporters.images import image_address, image_note
from weft.kernel.contents import showable

DEEPEST = 300


class Image(Struct, frozen=True):
    """An image of a tool's result."""

    url: str


def pieces_of(value: Any) -> Iterator[str | Image]:
    """A text as it is; a list of a provider's blocks one by one; anything else as JSON."""
    if value is None:
        return
    if isinstance(value, str):
        yield value
    elif isinstance(value, list) and value and all(isinstance(part, dict) and "type" in part for part in value):
        for part in value:
            yield _piece(part)
    else:
        yield as_json(value)


def _piece(part: dict[str, Any]) -> str | Image:
    if part["type"] == "text" and isinstance(text := part.get("text"), str):
        return text
    url = image_address(part)
    return as_json(part) if url is None else Image(url)


def result_text(value: Any) -> str:
    """The same as one text, with a note for each image."""
    return "\n".join(piece if isinstance(piece, str) else image_note(piece.url) for piece in pieces_of(value))


def as_json(value: Any) -> str:
    """A value as people read it; where it is nested out of all proportion, on one line."""
    try:
        return showable(json.dumps(value, ensure_ascii=False, indent=None if is_deep(value) else 2))
    except RecursionError:
        return "(nested too deep to be shown)"


def is_deep(value: Any) -> bool:
    """Is it nested deeper than a ledger keeps values? Texts that tools hand over as arguments may be."""
    level = [value]
    for _ in range(DEEPEST):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return False
    return True


def json_line(value: Any) -> bytes:
    """One JSON value on one line, exactly: lone surrogates and integers of any size are kept, as JSON can."""
    import orjson

    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
