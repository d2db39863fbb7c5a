"""The clock of a file system: it stands still for some milliseconds, so two changes can have one time."""

from __future__ import annotations

from pathlib import Path


def let_tick(folder: Path) -> None:
    """What changes beside this folder from now on has another time than what changed until now."""
    clock = folder.parent / "clock"
    clock.touch()
    before = clock.stat().st_ctime_ns
    while clock.stat().st_ctime_ns == before:
        clock.touch()
