"""How much is read of what a stranger wrote: bytes, things, seconds, nesting and the memory of one text.

`ReadLimits` are the numbers of one kind of input; `ReadBudget` counts what one reading of it has taken and raises
LimitExceeded at the first step beyond them. A text of JSON is measured before it is parsed, since a few bytes of it
become a hundred times as many in memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from msgspec import Struct

from weft.kernel.errors import LimitExceeded

KIB, MIB, GIB = 1024, 1024**2, 1024**3


class ReadLimits(Struct, frozen=True, kw_only=True):
    """The limits of one kind of input, and what its owner can do about one that is larger."""

    bytes: int = 64 * GIB
    """That come out of one input, unpacked."""
    free_bytes: int = 256 * MIB
    """Come out of any input, however small it is."""
    ratio: int = 200
    """So many bytes more come out for each byte that was read."""
    held_bytes: int = 256 * MIB
    """Of one line, value, document or file beside a source: it is in memory as a whole."""
    values: int = 4 * MIB
    """Of one JSON text: each takes some 64 bytes of memory or more."""
    nesting: int = 1000
    """Levels of one JSON text: the parsers of Weft go no deeper."""
    entries: int = 1 * MIB
    """Members of an archive, or files that one session is spread over."""
    seconds: int = 120
    bytes_a_second: int = 128 * 1024
    """So many bytes that were read give one more second."""
    advice: str = "split it, and read the parts"


class ReadBudget:
    """What one reading may take. Without a clock the time is not limited."""

    def __init__(self, limits: ReadLimits, monotonic: Callable[[], float] | None = None) -> None:
        self.limits = limits
        self._monotonic = monotonic
        self._begun = 0.0 if monotonic is None else monotonic()
        self._read_bytes, self._bytes, self._entries = 0, 0, 0

    def note_read(self, count: int) -> None:
        """So many more bytes of the input were read, or can be."""
        self._read_bytes += count

    def take_bytes(self, count: int) -> None:
        """So many more bytes came out of it."""
        self._bytes += count
        limits = self.limits
        most = min(limits.bytes, limits.free_bytes + limits.ratio * self._read_bytes)
        if self._bytes > most:
            what = f"{self._read_bytes} bytes unpack to {self._bytes} or more" if self._read_bytes else "its bytes"
            raise LimitExceeded(what, self._bytes, most, limits.advice)

    def take_entries(self, count: int = 1) -> None:
        self._entries += count
        if self._entries > self.limits.entries:
            raise LimitExceeded("the things in it", self._entries, self.limits.entries, self.limits.advice)

    def check_held(self, size: int, what: str = "a part of it in bytes") -> None:
        """Is something of this size held in memory as a whole?"""
        if size > self.limits.held_bytes:
            raise LimitExceeded(what, size, self.limits.held_bytes, self.limits.advice)

    def check_time(self) -> None:
        if self._monotonic is None:
            return
        most = self.limits.seconds + self._read_bytes // self.limits.bytes_a_second
        passed = self._monotonic() - self._begun
        if passed > most:
            raise LimitExceeded("the seconds that reading it takes", int(passed), most, self.limits.advice)


FEW_QUOTES = 2**16
"""A text of so few strings is quickly copied without them; of one with more each string would be a part to join."""
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\Z)', re.DOTALL)
_STRING_OR_SIGN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{,]', re.DOTALL)
_QUOTE = b'"'[0]


def json_values(text: bytes | memoryview, most: int) -> int:
    """How many values a JSON text holds, or a number above `most` where there are more. Linear, and without memory of
    its own. A text has no more values than bytes, so a short one is not looked at."""
    if len(text) <= most:
        return min(len(text), most)
    data = bytes(text)
    count = 1 + data.count(b",") + data.count(b"[") + data.count(b"{")
    if count <= most:
        return count
    if data.count(b'"') <= FEW_QUOTES:
        bare = _STRING.sub(b"", data)
        return 1 + bare.count(b",") + bare.count(b"[") + bare.count(b"{")
    count = 1
    for sign in _STRING_OR_SIGN.finditer(data):
        count += data[sign.start()] != _QUOTE
        if count > most:
            break
    return count


def check_json(text: bytes | memoryview, limits: ReadLimits) -> None:
    """Raises LimitExceeded for a text that would take too much memory once it is parsed."""
    if len(text) > limits.held_bytes:
        raise LimitExceeded("a JSON text in bytes", len(text), limits.held_bytes, limits.advice)
    if (count := json_values(text, limits.values)) > limits.values:
        raise LimitExceeded("the values of a JSON text", count, limits.values, limits.advice)
