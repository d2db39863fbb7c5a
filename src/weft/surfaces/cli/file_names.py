"""Files as people name them on a command line."""

from __future__ import annotations

import os
from pathlib import Path


def as_wanted(path: str) -> str:
    """A path that begins with a dot or `~` is a place on this machine; any other is looked for as it is written."""
    if path.startswith("~"):
        return os.path.expanduser(path)
    return str(Path.cwd() / path) if path.startswith(".") else path
