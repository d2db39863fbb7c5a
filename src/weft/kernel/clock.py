"""Time and chance: the machine's clock and randomness, which everybody else is handed, times as text, and ULIDs."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import lru_cache
from threading import Lock
from typing import Protocol

from weft.kernel.errors import InvalidInput

RandomBytes = Callable[[int], bytes]
system_random: RandomBytes = os.urandom


class Clock(Protocol):
    """The time now, and waiting. Everything that needs time is handed one."""

    def now_ms(self) -> int:
        """Unix milliseconds; may stand still or go back."""

    def monotonic(self) -> float:
        """Seconds since some moment; never goes back."""

    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's clock."""

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


ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_RANDOM_BITS = 80
_RANDOM_BYTES = 10
_END = 1 << 128
LAST_ULID = _END - 1
_PAIRS = tuple(high + low for high in ALPHABET for low in ALPHABET)
_NUMBERS = {pair: number for number, pair in enumerate(_PAIRS)}
_TO_BASE_32 = str.maketrans(ALPHABET, "0123456789ABCDEFGHIJKLMNOPQRSTUV")
_matches = re.compile(f"[0-7][{ALPHABET}]{{25}}").fullmatch


class RepeatedIds:
    """Ids of one piece of work: when it is run again because nothing came of it, it gets the same ones, so that of
    all its runs at most one can be kept."""

    def __init__(self, source: UlidSource) -> None:
        self._source = source
        self._minted: list[tuple[int, str]] = []
        self._next = 0

    def begin(self) -> RepeatedIds:
        """From the first on."""
        self._next = 0
        return self

    def mint(self, room: int = 1) -> str:
        if self._next == len(self._minted) or self._minted[self._next][0] != room:
            self._minted[self._next :] = [(room, self._source.mint(room))]
        self._next += 1
        return self._minted[self._next - 1][1]

    def skip(self) -> None:
        """These are taken: others, from elsewhere."""
        self._minted = []
        self._source.skip()


class UlidSource:
    """Mints strictly increasing ULIDs; safe to share between threads, not between processes."""

    def __init__(self, now_ms: Callable[[], int], random_bytes: Callable[[int], bytes]) -> None:
        self._now_ms = now_ms
        self._random_bytes = random_bytes
        self._lock = Lock()
        self._last = -1

    def mint(self, room: int = 1) -> str:
        """The next ULID; it and the `room - 1` that follow it are never minted again."""
        with self._lock:
            now = max(self._now_ms(), 0)
            value = self._fresh(now) if now > self._last >> _RANDOM_BITS else self._last + 1
            letters = encode(value)
            self._last = value + room - 1
            return letters

    def skip(self) -> None:
        """Go on from fresh random bits, one millisecond ahead: somebody else minted what this source did."""
        with self._lock:
            ahead = max(self._now_ms(), (self._last >> _RANDOM_BITS) + 1)
            if ahead >> 48:
                raise _out_of_range()
            self._last = self._fresh(ahead)

    def _fresh(self, ms: int) -> int:
        return ms << _RANDOM_BITS | int.from_bytes(self._random_bytes(_RANDOM_BYTES), "big")


def encode(value: int) -> str:
    """The 26 letters of a 128-bit number."""
    if value >> 128:
        raise _out_of_range()
    high, low = value >> 60, value & 0xFFF_FFFF_FFFF_FFFF
    pairs = _PAIRS
    return (
        f"{pairs[high >> 60]}{pairs[high >> 50 & 1023]}{pairs[high >> 40 & 1023]}{pairs[high >> 30 & 1023]}"
        f"{pairs[high >> 20 & 1023]}{pairs[high >> 10 & 1023]}{pairs[high & 1023]}"
        f"{pairs[low >> 50]}{pairs[low >> 40 & 1023]}{pairs[low >> 30 & 1023]}"
        f"{pairs[low >> 20 & 1023]}{pairs[low >> 10 & 1023]}{pairs[low & 1023]}"
    )


def decode(text: str) -> int:
    if not is_ulid(text):
        raise InvalidInput(f"{text!r} is not a ULID", f"a ULID is 26 of {ALPHABET}, the first at most 7")
    return int(text.translate(_TO_BASE_32), 32)


def offset(ulid: str, by: int) -> str:
    """The ULID that lies `by` after this one: how messages are numbered within their turn's room."""
    last = _NUMBERS[ulid[-2:]] + by
    if 0 <= last < 1024:
        return ulid[:-2] + _PAIRS[last]
    return encode((int(ulid.translate(_TO_BASE_32), 32) + by) % _END)


def is_ulid(text: str) -> bool:
    return _matches(text) is not None


def is_ulid_ending(text: str) -> bool:
    """Whether people may mean a ULID by this: its last letters, six at least, in either case, or all of them."""
    return 6 <= len(text) <= 26 and text.isascii() and text.isalnum()


def from_digest(digest: bytes) -> str:
    """The first 128 bits of a digest in ULID letters; its milliseconds mean nothing."""
    if len(digest) < 16:
        raise InvalidInput(
            f"a digest of {len(digest)} bytes is too short for a ULID; it takes 16", "give a whole SHA-256"
        )
    return encode(int.from_bytes(digest[:16], "big"))


def _out_of_range() -> InvalidInput:
    return InvalidInput("a ULID is a number from 0 to 2^128-1", "check that the clock counts milliseconds")
