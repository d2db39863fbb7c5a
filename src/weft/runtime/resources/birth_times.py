"""When a file or folder came to be, as its file system tells: what tells one from another that came to its place.

The number of a file alone does not: file systems give the number of what was removed to the next that is made.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path
from struct import unpack_from
from typing import Any

_AT_FDCWD, _NO_FOLLOW, _BORN, _BYTES = -100, 0x100, 0x800, 256
_MASK_AT, _BORN_AT = 0, 80
"""Where the answer of `statx` says which of its fields are filled, and where the time of birth stands."""


def birth_time(path: Path) -> int | None:
    """In nanoseconds, without following a link; None where the file system does not tell. Raises OSError where nothing
    is there."""
    status = os.lstat(path)
    birth_seconds: float | None = getattr(status, "st_birthtime", None)  # not on Linux
    if birth_seconds is not None:
        return int(birth_seconds * 1_000_000_000)
    statx = _statx()
    if statx is None:
        return None
    answer = ctypes.create_string_buffer(_BYTES)
    if statx(_AT_FDCWD, os.fsencode(path), _NO_FOLLOW, _BORN, answer) != 0:
        return None
    (filled,) = unpack_from("=I", answer, _MASK_AT)
    seconds, nanoseconds = unpack_from("=qI", answer, _BORN_AT)
    return seconds * 1_000_000_000 + nanoseconds if filled & _BORN else None


@cache
def _statx() -> Any:
    """The system's own call; None where it has none."""
    found = getattr(ctypes.CDLL(None), "statx", None)
    if found is not None:
        found.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_char_p)
    return found
