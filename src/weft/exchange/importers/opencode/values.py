"""Values of JSON that others wrote: one of another type than expected counts as absent."""

from __future__ import annotations

import json
from typing import Any

import orjson
from msgspec import Raw

from weft.kernel.contents import bytes_text, text_bytes

Json = bytes | memoryview | Raw
"""A JSON text that has not been read yet."""


def text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def whole(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    return int(value) if isinstance(value, float) and value.is_integer() else None


def millis(value: Any) -> int | None:
    number = round(value) if isinstance(value, float) and abs(value) < 1e15 else whole(value)
    return number if number is not None and number > 0 else None


def mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def sequence(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def present(**values: Any) -> dict[str, Any] | None:
    """Those that say something; None if none does."""
    return {name: value for name, value in values.items() if value is not None and value not in ({}, [], "")} or None


def canonical(value: Any) -> bytes:
    """One form for one value, whatever odd letters or numbers it holds."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        words = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=str)
        return text_bytes(words)


def loaded(data: Json) -> Any:
    """The value of a JSON text, also where a strict reader refuses it; raises ValueError if it is none."""
    try:
        return orjson.loads(memoryview(data))
    except orjson.JSONDecodeError:
        try:
            return json.loads(bytes_text(bytes(data)), parse_constant=str, strict=False)
        except RecursionError as error:
            raise ValueError("nested too deeply") from error


def loaded_object(data: Json) -> dict[str, Any]:
    value = loaded(data)
    if not isinstance(value, dict):
        raise ValueError(f"a JSON {type(value).__name__}, not an object")
    return value
