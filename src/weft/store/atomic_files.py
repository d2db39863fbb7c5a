"""Files that are there whole or not at all: made beside their place, synced, and renamed.

What Weft writes holds what people and agents said. So files are made for their owner alone (0600), also while they are
written, and so are folders (0700), whatever the umask is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

BUFFER = 1024 * 1024
PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700


def aside_of(path: Path) -> Path:
    """Where a file lies while it is made; if its maker dies, that is what is left."""
    return path.with_name(f"{path.name}.partial")


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """To be written. Once the caller is through, it is in its place, instead of whatever was there; if the caller
    fails, nothing has changed."""
    aside = aside_of(path)
    try:
        with open_aside(aside) as file:
            yield file
        put_in_place(aside, path)
    except BaseException:  # also an interrupt from the keyboard leaves nothing half-made
        with suppress(OSError):
            aside.unlink()
        raise


def open_aside(aside: Path) -> BinaryIO:
    """A new private file to be written and then put in its place; what a dead process left there is removed."""
    return open(_open_anew(aside), "wb", buffering=BUFFER)


def create_private(path: Path) -> None:
    """An empty private file, for an engine that opens it by name; what a dead process left there is removed."""
    os.close(_open_anew(path))


def _open_anew(path: Path) -> int:
    while True:
        path.unlink(missing_ok=True)
        with suppress(FileExistsError):  # somebody makes the same file at this moment; the last one counts
            return open_private(path)


def open_private(path: Path) -> int:
    """A file that was not there before, for its owner alone. Its descriptor reads and writes."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, PRIVATE_FILE)
    os.fchmod(descriptor, PRIVATE_FILE)  # the umask may have taken more away
    return descriptor


def open_to_append(path: Path) -> BinaryIO:
    """At its end, what lies there already stays. Never through a link; a file that was not there is private."""
    return open(path, "ab", opener=_open_for_owner)


def _open_for_owner(name: str, flags: int) -> int:
    return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, PRIVATE_FILE)


def make_folder(path: Path) -> None:
    """The folder, and those above it that are missing, each for its owner alone. One that is there stays as it is."""
    if path.is_dir():
        return
    make_folder(path.parent)
    try:
        path.mkdir(PRIVATE_FOLDER)
    except FileExistsError:
        if not path.is_dir():
            raise
    else:
        path.chmod(PRIVATE_FOLDER)


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
