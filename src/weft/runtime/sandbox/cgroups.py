"""A cgroup per run, where cgroups of version 2 are delegated to this user: the kernel limits memory and processes.

A run's cgroup is made beside this process's own, below the nearest ancestor that this user may write and that hands
the controllers `memory` and `pids` down. It is removed at the end, when nothing is left in it.
"""

from __future__ import annotations

import errno
import os
import tempfile
import time
from pathlib import Path

from weft.kernel.errors import StoreFailed

_ROOT = Path("/sys/fs/cgroup")
_CONTROLLERS = frozenset({"memory", "pids"})
_REMOVAL_ATTEMPTS, _REMOVAL_PAUSE_SECONDS = 200, 0.01


def delegated_cgroup(root: Path = _ROOT, membership: Path = Path("/proc/self/cgroup")) -> Path | None:
    """The cgroup below which runs get theirs; None where there is none."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return None
    own = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), None)
    if own is None or not (root / "cgroup.controllers").is_file():  # version 1, or both at once
        return None
    for ancestor in (root / own).parents:
        if ancestor != root and root not in ancestor.parents:
            return None
        if _is_delegated(ancestor):
            return ancestor if _is_usable(ancestor) else None
    return None


def _is_delegated(cgroup: Path) -> bool:
    try:
        controllers = set((cgroup / "cgroup.subtree_control").read_text().split())
    except OSError:
        return False
    return controllers >= _CONTROLLERS and all(os.access(path, os.W_OK) for path in (cgroup, cgroup / "cgroup.procs"))


def _is_usable(cgroup: Path) -> bool:
    """Whether a cgroup can be made in it; what may be written is not always allowed."""
    try:
        RunCgroup(cgroup, memory=1 << 30, processes=64).remove()
    except OSError:
        return False
    return True


class RunCgroup:
    """The cgroup of one run."""

    def __init__(self, parent: Path, memory: int, processes: int) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="weft-", dir=parent))
        try:
            self._write("memory.max", memory)
            self._write("memory.oom.group", 1)
            self._write("pids.max", processes)
            if (self._folder / "memory.swap.max").exists():
                self._write("memory.swap.max", 0)
        except OSError:
            self._folder.rmdir()
            raise

    def add(self, process_id: int) -> None:
        self._write("cgroup.procs", process_id)

    def ran_out_of_memory(self) -> bool:
        return self._count("memory.events", "oom_kill") > 0

    def remove(self) -> None:
        """When everything in it has ended. The kernel may take a moment to notice."""
        for _ in range(_REMOVAL_ATTEMPTS):
            try:
                return self._folder.rmdir()
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
            time.sleep(_REMOVAL_PAUSE_SECONDS)
        raise StoreFailed(f"the cgroup {self._folder} could not be removed", "remove it when nothing runs in it")

    def _count(self, file: str, name: str) -> int:
        counts = dict(line.split() for line in (self._folder / file).read_text().splitlines())
        return int(counts.get(name, 0))

    def _write(self, file: str, value: int) -> None:
        (self._folder / file).write_text(str(value))
