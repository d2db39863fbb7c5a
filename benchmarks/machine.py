"""What the figures were measured on: without it they mean little."""

import os
import platform
import resource
import sqlite3
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import apsw

IN_MEMORY = {"tmpfs", "ramfs"}


def describe_machine(directory: Path) -> dict[str, str]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "CPU": f"{_cpu()}, {os.cpu_count()} cores, {platform.machine()}",
        "memory": f"{memory:.0f} GiB",
        "file system": file_system(directory) or "unknown",
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "SQLite": f"{apsw.sqlite_lib_version()} under Weft and the bare insert (apsw), "
        f"{sqlite3.sqlite_version} under the peers (standard library)",
    }


def peak_bytes(pid: int | str = "self") -> int:
    """The most memory that a process has had, this one where none is named. What `getrusage` says counts from before
    its program began: a small one that a large one started would look large."""
    status = Path(f"/proc/{pid}/status")
    if status.exists():
        (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def versions(packages: Iterable[str]) -> dict[str, str]:
    found = {}
    for package in dict.fromkeys(packages):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def file_system(directory: Path) -> str | None:
    """The type of the file system that holds the directory, where the kernel tells."""
    mounts = Path("/proc/self/mounts")
    if not mounts.exists():
        return None
    fields = [line.split()[1:3] for line in mounts.read_text().splitlines()]
    holding = [(where, kind) for where, kind in fields if directory.resolve().is_relative_to(where)]
    return max(holding, key=lambda mount: len(mount[0]))[1] if holding else None


def _cpu() -> str:
    for command in (["lscpu"], ["sysctl", "-n", "machdep.cpu.brand_string"]):
        try:
            output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError):
            continue
        names = [line.split(":")[1].strip() for line in output.splitlines() if line.startswith("Model name")]
        return names[0] if names else output.splitlines()[0]
    return platform.processor() or "unknown"
