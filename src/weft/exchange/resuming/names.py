"""Ids of written records. They follow from the turn that they stand for, so that a thread which is written twice has
the same ids in both files, as a session has that its tool has copied."""

from __future__ import annotations

import re
from hashlib import sha256
from uuid import UUID

_is_call_id = re.compile(r"[A-Za-z0-9_-]{1,64}").fullmatch
_no_name = re.compile(r"[^A-Za-z0-9_-]")
_TIME_BITS = 48


def _digest(*parts: object) -> bytes:
    return sha256("\n".join(["weft.resume.1", *map(str, parts)]).encode("utf-8", "surrogatepass")).digest()


def random_uuid(seed: bytes) -> str:
    return str(UUID(bytes=seed[:16], version=4))


def timed_uuid(ms: int, seed: bytes) -> str:
    """Version 7: it sorts by its time."""
    number = (max(ms, 0) & ((1 << _TIME_BITS) - 1)) << 80 | int.from_bytes(seed[:10], "big")
    return str(UUID(int=number & ~(0xF << 76) & ~(0x3 << 62) | 0x7 << 76 | 0x2 << 62))


def uuid_for(*parts: object) -> str:
    return random_uuid(_digest(*parts))


def timed_uuid_for(ms: int, *parts: object) -> str:
    return timed_uuid(ms, _digest(*parts))


def hex_for(*parts: object) -> str:
    return _digest(*parts).hex()[:24]


class CallIds:
    """Call ids that providers take, each used once in a file."""

    def __init__(self, prefix: str) -> None:
        self._prefix, self._taken = prefix, set[str]()

    def take(self, native: str, turn: str) -> str:
        """The call's own id, if it can stay."""
        found, again = native, 0
        while not _is_call_id(found) or found in self._taken:
            found, again = f"{self._prefix}{hex_for(turn, native, again)}", again + 1
        self._taken.add(found)
        return found

    def note(self, native: str) -> None:
        self._taken.add(native)


def tool_name(name: str) -> str:
    return _no_name.sub("_", name)[:64] or "tool"
