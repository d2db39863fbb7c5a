"""Which processes hold locks on a file, where the system tells: on Linux, by /proc/locks."""

from __future__ import annotations

import os
from pathlib import Path

from msgspec import Struct

_PROC = Path("/proc")


class Holder(Struct, frozen=True):
    """A process that has a lock on a file."""

    pid: int
    name: str
    stopped: bool

    def __str__(self) -> str:
        return f"process {self.pid} ({self.name})" if self.name else f"process {self.pid}"


def holders_of(path: Path) -> list[Holder] | None:
    """Who has locked any part of the file; None where the system does not tell."""
    try:
        place, lines = path.stat(), (_PROC / "locks").read_text().splitlines()
    except FileNotFoundError:
        return [] if (_PROC / "locks").exists() else None
    except OSError:
        return None
    wanted = (os.major(place.st_dev), os.minor(place.st_dev), place.st_ino)
    pids = {int(fields[4]) for fields in map(str.split, lines) if _place(fields) == wanted and fields[4].isdigit()}
    return [_holder(pid) for pid in sorted(pids)]


def _place(fields: list[str]) -> tuple[int, int, int] | None:
    """Lines with an arrow are waiters, not holders."""
    if len(fields) < 6 or fields[1] == "->":
        return None
    try:
        major, minor, inode = fields[5].split(":")
        return int(major, 16), int(minor, 16), int(inode)
    except ValueError:
        return None


def _holder(pid: int) -> Holder:
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return Holder(pid, "", False)
    name, _, rest = stat.partition("(")[2].rpartition(")")
    return Holder(pid, name, rest.split()[0] in ("T", "t"))
