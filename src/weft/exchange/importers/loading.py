"""JSON texts of others, read also where a strict reader refuses them: constants that JSON lacks, lone surrogates, bytes
that are no text, control characters, marks and zeros around it."""

from __future__ import annotations

import json
from typing import Any

import orjson
from msgspec import Raw

from weft.kernel.contents import bytes_text

Json = bytes | memoryview | Raw
"""A JSON text that has not been read yet."""
AROUND = " \t\r\n\0\ufeff"


def loaded(data: Json) -> Any:
    """The value of a JSON text, also where a strict reader refuses it; raises ValueError if it is none."""
    try:
        return orjson.loads(memoryview(data))
    except orjson.JSONDecodeError:
        try:
            return json.loads(bytes_text(bytes(data)).strip(AROUND), parse_constant=str, strict=False)
        except RecursionError as error:
            raise ValueError("nested too deeply") from error


def loaded_object(data: Json) -> dict[str, Any]:
    value = loaded(data)
    if not isinstance(value, dict):
        raise ValueError(f"a JSON {type(value).__name__}, not an object")
    return value
