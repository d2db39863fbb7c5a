"""Fields of JSON that other programs wrote. A value of another type than expected counts as absent.

How much importers read of one source, of one file beside it, and by one statement on a database.
"""

from __future__ import annotations

import json
from datetime import datetime
from hashlib import sha256
from typing import Any

import orjson
from msgspec import Raw

from weft.kernel.contents import bytes_text, text_bytes
from weft.kernel.errors import LimitExceeded
from weft.kernel.foreign_input import GIB, KIB, MIB, ReadLimits, check_json

# --- How much importers read of one source, of one file beside it, and of one statement on a database.

SOURCE_LIMITS = ReadLimits(
    bytes=64 * GIB,
    free_bytes=256 * MIB,
    ratio=200,
    held_bytes=256 * MIB,
    values=4 * MIB,
    entries=1 * MIB,
    seconds=120,
    bytes_a_second=128 * KIB,
    advice="look at where it comes from; what is to be imported can be unpacked or split, and the parts imported",
)
"""Of one file, archive or database, and of the files that one session is spread over."""

PACKED_MEMBER_LIMITS = ReadLimits(bytes=4 * GIB, free_bytes=256 * KIB, ratio=200, advice=SOURCE_LIMITS.advice)
"""Of a compressed file in an archive, measured against what it takes there."""

STATEMENT_LIMITS = ReadLimits(
    bytes=64 * GIB, free_bytes=16 * MIB, ratio=16, advice="look at where it comes from; its tables repeat themselves"
)
"""Of one statement, measured against the size of the database: no table holds more than its file."""

SIDECAR_BYTES = 64 * MIB
"""Of one file beside a source."""
SESSION_BYTES = 1 * GIB
"""Of all files together that one session is spread over: they are in memory at the same time."""


# --- Fields of JSON that other programs wrote.

JsonObject = dict[str, Any]
Json = bytes | memoryview | Raw
"""A JSON text that has not been read yet."""
SURROUNDINGS = " \t\r\n\0\ufeff"
FIRST_MILLISECONDS = 100_000_000_000
"""Numbers of time from here on (the year 5138 in seconds) count milliseconds."""
DEEPEST_NESTING = 200
FAULTS = {
    "Expecting value": "there is no value where one is expected",
    "Expecting property name": "there is no name in double quotes where one is expected",
    "Expecting ':'": "a colon is missing",
    "Expecting ','": "a comma is missing, or the end of a list or an object",
    "Unterminated string": "a text has no end",
    "Invalid control character": "a control character stands in a text",
    "Invalid \\u": "a \\u is not followed by four digits",
    "Invalid \\e": "a backslash stands before a letter that it does not escape",
    "Extra data": "more follows where it should end",
    "Illegal trailing comma": "a comma stands before the end of a list or an object",
}
"""By the beginnings of what Python's decoder says."""
LONGEST_SPELLED_VALUE = SOURCE_LIMITS.values
"""In characters: a longer text may be JSON of more values than are taken, and stays a text."""


def text(value: Any) -> str | None:
    """A text that is not empty."""
    return value if isinstance(value, str) and value else None


def whole_number(value: Any) -> int | None:
    """A whole number, also one that is written as a fraction (`3.0`)."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    return int(value) if isinstance(value, float) and value.is_integer() else None


def count(value: Any) -> int | None:
    """A number of things: whole, not negative, and exact in every language."""
    return value if type(value) is int and 0 <= value < 2**53 else None


def mapping(value: Any) -> JsonObject:
    return value if isinstance(value, dict) else {}


def sequence(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def names(value: Any) -> tuple[str, ...]:
    """The texts of a list."""
    return tuple(name for name in sequence(value) if isinstance(name, str))


def millis(value: Any) -> int | None:
    """Unix milliseconds of a number that counts them or of a date with its zone."""
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
            return round(moment.timestamp() * 1000) if moment.tzinfo is not None else None
        except (ValueError, OverflowError):
            return None
    number = round(value) if isinstance(value, float) and abs(value) < 1e15 else whole_number(value)
    return number if number is not None and number > 0 else None


def written_time(value: Any) -> tuple[int | None, str | None]:
    """A time stamp as Unix milliseconds; or as its own words, where they name no zone or are no time."""
    if isinstance(value, str) and value:
        time = millis(value)
        return time, value if time is None else None
    return None, None if value is None or value == "" else str(value)[:64]


def seconds_millis(value: Any) -> int | None:
    """Unix milliseconds of a number of seconds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < FIRST_MILLISECONDS:
        return None
    return round(value * 1000)


def epoch_millis(value: Any) -> int | None:
    """Unix milliseconds of a date with its zone, or of a whole number of seconds or of milliseconds."""
    if type(value) is int and 0 < value < FIRST_MILLISECONDS:
        return value * 1000
    return millis(value) if isinstance(value, str) or type(value) is int else None


def present(**values: Any) -> JsonObject | None:
    """Those that are not empty; None if all are."""
    return {name: value for name, value in values.items() if value is not None and value not in ({}, [], "")} or None


def without_none(**values: Any) -> JsonObject:
    """Those that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def json_in_text(value: Any) -> Any:
    """The value that a text spells out as JSON; any other value, and a text that is no JSON, as it is."""
    if not isinstance(value, str) or len(value) > LONGEST_SPELLED_VALUE:
        return value
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        return value


def object_in_text(value: Any) -> Any:
    """The object that a text spells out as JSON; anything else as it is."""
    if not isinstance(value, str) or value.lstrip()[:1] != "{":
        return value
    spelled = json_in_text(value)
    return spelled if isinstance(spelled, dict) else value


def json_value(data: Json) -> Any:
    """The value of a JSON text, also where a strict reader refuses it; raises ValueError if it is none, or if it would
    take too much memory."""
    try:
        check_json(memoryview(data), SOURCE_LIMITS)
    except LimitExceeded as error:
        raise ValueError(str(error)) from error
    try:
        return orjson.loads(memoryview(data))
    except orjson.JSONDecodeError:
        try:
            return json.loads(bytes_text(bytes(data)).strip(SURROUNDINGS), parse_constant=str, strict=False)
        except RecursionError as error:
            raise ValueError("nested too deeply") from error
        except json.JSONDecodeError as error:
            place = f"line {error.lineno}, column {error.colno}"
            raise ValueError(f"not JSON from {place} on: {json_fault(error)}") from error


def json_fault(error: Exception) -> str:
    """What is wrong with a text that Python's decoder refuses, in plain words."""
    if not isinstance(error, json.JSONDecodeError):
        return "nested too deeply" if isinstance(error, RecursionError) else str(error)
    return next((words for beginning, words in FAULTS.items() if error.msg.startswith(beginning)), error.msg)


def json_object(data: Json) -> JsonObject:
    value = json_value(data)
    if not isinstance(value, dict):
        raise ValueError(f"a JSON {type(value).__name__}, not an object")
    return value


def canonical(value: Any) -> bytes:
    """One form for one value, whatever odd letters or numbers it holds."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        words = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=str)
        return text_bytes(words)


def canonical_escaped(value: Any) -> bytes:
    """As `canonical`, but what orjson has no form for (lone surrogates, integers beyond 64 bits, nesting beyond 254) is
    escaped. Claude Code's and Codex's identities were made so from the first; they stay as they are."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        return _escaped(value).encode()


def fingerprint(value: Any, letters: int = 12) -> str:
    """A short name for what has none, made of its canonical form."""
    return sha256(canonical(value)).hexdigest()[:letters]


def storable(value: Any) -> Any:
    """The value, or its text where it is nested too deeply for others to take."""
    if isinstance(value, str | int | None):
        return value
    try:
        orjson.dumps(value)
    except TypeError:
        return _escaped(value) if _is_deep(value) else value
    return value


def _escaped(value: Any) -> str:
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"))
    except RecursionError:
        return "(nested too deeply)"


def _is_deep(value: Any) -> bool:
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > DEEPEST_NESTING:
            return True
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return False


class UniqueKeys:
    """Keys of turns, told apart where a native id repeats: the second turn of `a` is `a~2`."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def claim(self, name: str) -> str:
        key = name
        while key in self._counts:
            self._counts[name] += 1
            key = f"{name}~{self._counts[name]}"
        self._counts[key] = 1
        return key


def global_name(session: str, id: str) -> str:
    """A native id; one so short that other sessions may have it too is put below its session's."""
    return id if len(id) >= 32 else f"{session}/{id}"
