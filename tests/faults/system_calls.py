"""strace, which makes a chosen system call of another process kill it, fail or take its time."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.faults.processes import Process, Say

CALLS = ("pwrite64", "fdatasync", "fsync", "ftruncate", "unlink")
_ALLOW_ANYBODY = (0x59616D61, ctypes.c_ulong(-1))  # PR_SET_PTRACER, for kernels that let only parents trace


def missing() -> str:
    """Why strace cannot be used here; empty if it can."""
    if shutil.which("strace") is None:
        return "strace is not installed; `make setup` installs it as root on Debian, else: apt install strace"
    tried = subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True, text=True, check=False)
    return f"strace may not trace here: {tried.stderr.strip()}" if tried.returncode else ""


def stop_before(say: Say, work: Callable[..., None], *args: Any) -> None:
    """Wait to be traced, then work."""
    ctypes.CDLL(None).prctl(*_ALLOW_ANYBODY)
    say(os.getpid())
    work(say, lambda: os.kill(os.getpid(), signal.SIGSTOP), *args)


@contextmanager
def traced(pid: int, out: Path, *options: str) -> Iterator[None]:
    """strace is attached to the process until it ends."""
    command = ["strace", "-f", "-o", str(out), *options, "-p", str(pid)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as strace:
        assert strace.stderr is not None
        for line in strace.stderr:
            if "attached" in line:
                break
        else:
            raise AssertionError(f"strace did not attach to {pid}")
        yield
        strace.stderr.read()


def wait_until_stopped(pid: int) -> None:
    status = Path(f"/proc/{pid}/stat")
    while (state := status.read_text().rpartition(")")[2].split()[0]) not in ("T", "t"):
        assert state not in ("Z", "X"), "it ended before it could be traced"
        time.sleep(0.001)


def run_traced(out: Path, options: tuple[str, ...], work: Callable[..., None], *args: Any) -> tuple[int, list[Any]]:
    """Run `work(say, stop, *args)` to its end, traced from where it stops: how it ended, and all it said."""
    process = Process(stop_before, work, *args)
    pid = process.hear()
    wait_until_stopped(pid)
    with traced(pid, out, *options):
        process.go_on()
        said = list(process.hear_all())
        code = process.end()
    return code, said


def counted(out: Path) -> Counter[str]:
    """How often each call was made, by what strace wrote."""
    return Counter(re.findall(r"^\d+ +(\w+)\(", out.read_text(), re.M))
