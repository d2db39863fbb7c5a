"""Time and chance: the machine's clock and randomness, which everybody else is handed, and times as text."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Protocol

from weft.kernel.errors import InvalidInput

RandomBytes = Callable[[int], bytes]
system_random: RandomBytes = os.urandom


class Clock(Protocol):
    def now_ms(self) -> int:
        """Unix milliseconds; may stand still or go back."""

    def monotonic(self) -> float:
        """Seconds since some moment; never goes back."""

    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class FixedClock:
    """A clock that moves only when told; sleeping moves it at once."""

    def __init__(self, now_ms: int = 0) -> None:
        self._wall_us = now_ms * 1000
        self._elapsed_us = 0

    def now_ms(self) -> int:
        return self._wall_us // 1000

    def monotonic(self) -> float:
        return self._elapsed_us / 1_000_000

    def sleep(self, seconds: float) -> None:
        self._pass(round(seconds * 1_000_000))

    def set(self, now_ms: int) -> None:
        """Move the wall clock, also back; no time passes."""
        self._wall_us = now_ms * 1000

    def tick(self, ms: int = 1) -> None:
        self._pass(ms * 1000)

    def _pass(self, us: int) -> None:
        self._wall_us += us
        self._elapsed_us += us


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
