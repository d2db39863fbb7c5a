"""Values of a foreign file taken as what they should be, or not at all."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta, timezone
from hashlib import sha256
from typing import Any

import orjson

from weft.exchange.importers.values import mapping

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)  # noqa: UP017 - the alias hides what it is
_MS = timedelta(milliseconds=1)
_UUID7 = re.compile(r"([0-9a-f]{8})-([0-9a-f]{4})-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
_MILLISECONDS_FROM = 100_000_000_000
"""Numbers from here on (the year 5138 in seconds) count milliseconds."""


def whole(value: Any) -> int | None:
    return value if type(value) is int else None


def moment(value: Any) -> int | None:
    """Unix milliseconds of a time that names its zone, or of a number of seconds or milliseconds."""
    if isinstance(value, str):
        try:
            found = datetime.fromisoformat(value)
        except ValueError:
            return None
        return None if found.tzinfo is None else (found - _EPOCH) // _MS
    if type(value) is not int or value <= 0:
        return None
    return value if value >= _MILLISECONDS_FROM else value * 1000


def duration_ms(value: Any) -> int | None:
    """A length of time as Codex writes it: `{"secs", "nanos"}`."""
    parts = mapping(value)
    secs, nanos = whole(parts.get("secs")), whole(parts.get("nanos"))
    return None if secs is None else secs * 1000 + (nanos or 0) // 1_000_000


def born_ms(id: str | None) -> int | None:
    """When a UUID of version 7 was made."""
    match = _UUID7.fullmatch(id) if id else None
    return int(match[1] + match[2], 16) if match else None


def dump(value: Any) -> bytes:
    """One form for one value; what orjson has no form for (lone surrogates, huge numbers) is escaped instead."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        try:
            return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
        except RecursionError:
            return b'"nested too deeply"'


def digest(value: Any) -> str:
    return sha256(dump(value)).hexdigest()[:32]


def object_text(value: str) -> Any:
    """The object that a text spells out, or the text itself."""
    if value.lstrip()[:1] != "{":
        return value
    try:
        found = orjson.loads(value)
    except (orjson.JSONDecodeError, RecursionError):
        return value
    return found if isinstance(found, dict) else value


def present(**facts: Any) -> dict[str, Any]:
    """Only what was said."""
    return {name: fact for name, fact in facts.items() if fact is not None}
