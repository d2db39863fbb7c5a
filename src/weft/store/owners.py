"""Who holds a lease: this process, named so that another one on the same machine can tell whether it still lives."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

_PROC = Path("/proc")
NOBODY = "nobody"
"""Who holds what was held in the origin of a copy."""


def process_owner(pid: int | None = None) -> str:
    """`machine/pid/start`, of this process if no other is named: unique until the machine restarts."""
    pid = pid or os.getpid()
    return f"{_machine()}/{pid}/{_started(pid) or ''}"


def owner_words(owner: str) -> str:
    """An owner as a person knows it; as it is where it names no process of a machine."""
    machine, pid, _ = owner.rsplit("/", 2) if owner.count("/") >= 2 else ("", "", "")
    host = machine.split(".", 2)[-1]
    return f"process {pid} of {host}" if host and pid.isdigit() else owner


def is_dead(owner: str) -> bool:
    """True only where it is certain; an owner elsewhere, or where the system does not tell, may be alive."""
    if owner == NOBODY:
        return True
    machine, pid, started = owner.rsplit("/", 2) if owner.count("/") >= 2 else ("", "", "")
    if not machine or machine != _machine() or not pid.isdigit():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    now = _started(int(pid))
    return now is not None and now != started


def process_of(owner: str) -> int | None:
    """The number of a process that lives here and is certainly this one."""
    machine, pid, started = owner.rsplit("/", 2) if owner.count("/") >= 2 else ("", "", "")
    is_here = bool(machine and started) and machine == _machine() and pid.isdigit()
    return int(pid) if is_here and _started(int(pid)) == started else None


def was_before_boot(owner: str) -> bool:
    """Whether an owner ran on a machine of this one's name, before it was last started. Machines may share a name: this
    tells why somebody is gone, and never that somebody is."""
    boot, _, rest = owner.partition(".")
    own_boot, _, own_rest = _machine().partition(".")
    host, own_host = rest.partition("/")[0].partition(".")[2], own_rest.partition(".")[2]
    return bool(own_host) and host == own_host and boot != own_boot


@lru_cache(maxsize=1)
def _machine() -> str:
    """This boot, this process namespace and the machine's name; empty where the system has no such names."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}.{(_PROC / 'self/ns/pid').stat().st_ino}.{os.uname().nodename.replace('/', '')}"
    except OSError:
        return ""


def _started(pid: int) -> str | None:
    """The kernel's start time of a process, empty for the mere remains of one; None where it does not tell."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return "" if fields[0] in ("Z", "X") else fields[19]
