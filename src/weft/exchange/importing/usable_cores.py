"""How many cores this process may use: by its affinity, and by what its control groups allow it of the machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")


def usable_cores(groups: Path = GROUPS, own_groups: Path = OWN_GROUPS) -> float:
    """The machine's, where nothing says that it is fewer."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min([float(cores), *_quotas(groups, own_groups)])


def _quotas(groups: Path, own_groups: Path) -> Iterator[float]:
    """What each control group that the process is in allows, in cores."""
    try:
        lines = own_groups.read_text().splitlines()
    except OSError:  # not Linux, or hidden
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:  # the second version of control groups
            own = groups / path.lstrip("/")
            yield from (_quota(place / "cpu.max") for place in (own, *own.parents) if place.is_relative_to(groups))


def _quota(file: Path) -> float:
    try:
        most, period = file.read_text().split()
        return float("inf") if most == "max" else int(most) / int(period)
    except (OSError, ValueError):  # the group has no such limit
        return float("inf")
