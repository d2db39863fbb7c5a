"""Reading fields of JSON that others wrote: a value of another type than expected counts as absent."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import orjson

from weft.kernel.contents import text_bytes


def text(value: Any) -> str | None:
    """A text that says something."""
    return value if isinstance(value, str) and value else None


def whole(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    return int(value) if isinstance(value, float) and value.is_integer() else None


def mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def sequence(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def millis(value: Any) -> int | None:
    """Unix milliseconds of a number that counts them or of a date with its zone."""
    if isinstance(value, str):
        try:
            when = datetime.fromisoformat(value)
            return round(when.timestamp() * 1000) if when.tzinfo is not None else None
        except (ValueError, OverflowError):
            return None
    number = round(value) if isinstance(value, float) and abs(value) < 1e15 else whole(value)
    return number if number is not None and number > 0 else None


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
