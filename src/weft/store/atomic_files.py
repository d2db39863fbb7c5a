"""Files that are there whole or not at all: made beside their place, synced, and renamed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

BUFFER = 1024 * 1024


def aside_of(path: Path) -> Path:
    """Where a file lies while it is made; if its maker dies, that is what is left."""
    return path.with_name(f"{path.name}.partial")


@contextmanager
def new_file(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """To be written. Once the caller is through, it is in its place, instead of whatever was there; if the caller
    fails, nothing has changed."""
    aside = aside_of(path)
    try:
        aside.unlink(missing_ok=True)
        with open(aside, "wb", buffering=BUFFER, opener=lambda name, flags: os.open(name, flags, mode)) as file:
            yield file
        put_in_place(aside, path)
    except BaseException:  # also an interrupt from the keyboard leaves nothing half-made
        with suppress(OSError):
            aside.unlink()
        raise


def put_in_place(aside: Path, target: Path) -> None:
    sync(aside)
    aside.rename(target)
    sync(target.parent)


def sync(path: Path) -> None:
    """What is written to a file, or which names a folder holds, outlasts a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
