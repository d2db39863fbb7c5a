"""Folders in memory, which are named after the process that made them, and removed by the next one if it was killed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

MEMORY = Path("/dev/shm")


def has_memory(size: int) -> bool:
    return os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= size


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def remove_leftovers(prefix: str, *places: Path) -> None:
    """Folders, named by a prefix and the number of a process, whose process has ended."""
    for folder in (folder for place in places for folder in place.glob(f"{prefix}*-*")):
        owner = folder.name.removeprefix(prefix).partition("-")[0]
        if owner.isdigit() and not is_alive(int(owner)):
            shutil.rmtree(folder, ignore_errors=True)
