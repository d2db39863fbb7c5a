"""`python -c SCRIPT` without the start of an interpreter: `tests.surfaces.forking` runs it."""

from __future__ import annotations

import sys


def main(script: str, *arguments: str) -> None:
    sys.argv = ["-c", *arguments]
    exec(script, {"__name__": "__main__"})
