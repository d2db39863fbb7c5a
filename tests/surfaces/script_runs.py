"""`python -c SCRIPT` without the start of an interpreter: `tests.surfaces.forking` runs it."""

from __future__ import annotations

import sys


def main(script: str, *arguments: str) -> int:
    """Its exit code, where it exits by a number."""
    sys.argv = ["-c", *arguments]
    try:
        exec(script, {"__name__": "__main__"})
    except SystemExit as end:
        return int(end.code or 0)
    return 0
