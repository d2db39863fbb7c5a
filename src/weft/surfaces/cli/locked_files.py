"""Files of the user's configuration that commands change, such as credentials and MCP servers.

A changed file is written beside the old one and put in its place, under a lock, so that two commands at once lose
nothing and a reader sees the one or the other. Others may not read it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from weft.store.private_files import make_folder, new_file


@contextmanager
def sole_writer(path: Path) -> Iterator[None]:
    """Whoever reads and changes the file inside does so alone. Its folder is made."""
    make_folder(path.parent)
    lock = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def replace_json(path: Path, value: Any) -> None:
    """Put a value in the place of what the file held."""
    with new_file(path) as file:
        file.write(msgspec.json.format(msgspec.json.encode(value)) + b"\n")
