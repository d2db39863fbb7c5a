"""Moments as text: `2026-11-15T01:58:12.123Z`, always UTC, always milliseconds, years 0001 to 9999."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from functools import lru_cache

from weft.kernel.errors import InvalidInput

_EPOCH = datetime(1970, 1, 1)
_MILLISECOND = timedelta(milliseconds=1)
_fields = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{2}):([0-9]{2}):([0-9]{2})\.([0-9]{3})Z").fullmatch


def iso_from_ms(ms: int) -> str:
    seconds, milliseconds = divmod(ms, 1000)
    return f"{_to_the_second(seconds)}.{milliseconds:03d}Z"


@lru_cache(maxsize=1024)
def ms_from_iso(text: str) -> int:
    """The exact inverse of `iso_from_ms`; takes no other spelling of the same moment."""
    match = _fields(text)
    if match is None:
        raise InvalidInput(f"{text!r} is not a time", "write it like 2026-11-15T01:58:12.123Z")
    year, month, day, hour, minute, second, milliseconds = map(int, match.groups())
    try:
        moment = datetime(year, month, day, hour, minute, second)
    except ValueError as error:
        raise InvalidInput(f"{text!r} is not a time: {error}", "write it like 2026-11-15T01:58:12.123Z") from None
    return (moment - _EPOCH) // _MILLISECOND + milliseconds


def is_iso(text: str) -> bool:
    try:
        ms_from_iso(text)
    except InvalidInput:
        return False
    return True


@lru_cache(maxsize=1024)
def _to_the_second(seconds: int) -> str:
    try:
        return (_EPOCH + timedelta(seconds=seconds)).isoformat()
    except OverflowError:
        raise InvalidInput("a time outside the years 0001 to 9999", "count Unix milliseconds") from None
