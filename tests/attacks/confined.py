"""A process of its own with a limit of memory, for inputs that try to take all of it."""

import resource
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_confined(code: str, *arguments: str | Path, megabytes: int = 400) -> subprocess.CompletedProcess[str]:
    """Runs Python code whose address space has so many megabytes; more than that is a MemoryError."""

    def confine() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))

    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, preexec_fn=confine, cwd=ROOT, check=False)
