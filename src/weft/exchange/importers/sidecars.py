"""Files beside a source: opened below a folder without following links, regular files alone, up to a size.

Whoever wrote the source also chose what lies beside it: a link there may name any file of the reader's, a pipe would
never end, and so would a device. Each folder on the way is opened by its descriptor and without following a link, so
nothing can be put in its place in between.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from weft.exchange.importers.limits import SESSION_BYTES, SIDECAR_BYTES
from weft.exchange.importers.port import Report
from weft.exchange.importers.records.jsonl import FILE_FLAGS, FileRefused, checked_regular
from weft.kernel.errors import LimitExceeded

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = FILE_FLAGS | os.O_NOFOLLOW
_LINKED = (errno.ELOOP, errno.ENOTDIR)


@contextmanager
def open_beneath(path: Path, root: Path) -> Iterator[BinaryIO]:
    """A regular file at a path below the folder `root`, on a way without links."""
    folder = _open_folder(path.parent, root)
    try:
        if not stat.S_ISREG(os.stat(path.name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise FileRefused(errno.EINVAL, "it is a link or no regular file, and is not read")
        descriptor = os.open(path.name, _FILE, dir_fd=folder)
    finally:
        os.close(folder)
    with open(checked_regular(descriptor), "rb") as file:
        yield file


def read_beneath(path: Path, root: Path, most: int = SIDECAR_BYTES) -> bytes:
    """All of a file; one of more than `most` bytes is refused."""
    with open_beneath(path, root) as file:
        data = file.read(most + 1)
        if len(data) > most:
            size = max(os.fstat(file.fileno()).st_size, len(data))
            raise FileRefused(errno.EFBIG, f"it has {size} bytes; {most} is the most that is read of such a file")
    return data


def read_beside(path: Path, root: Path, report: Report) -> bytes | None:
    """All of a file that a session is spread over; None, and a problem in the report, where it cannot be read. It may
    vanish between being listed and being read."""
    try:
        data = read_beneath(path, root)
    except OSError as error:
        report.problem(None, f"{path.name}: {error.strerror}")
        return None
    report.budget.take_entries()
    report.held_bytes += len(data)
    if report.held_bytes > SESSION_BYTES:
        raise LimitExceeded(
            "the bytes of the files of one session", report.held_bytes, SESSION_BYTES, report.budget.limits.advice
        )
    return data


def names_beneath(folder: Path, root: Path) -> list[str]:
    """The names of the regular files in a folder below `root`, in order; none where the way to it has a link."""
    try:
        descriptor = _open_folder(folder, root)
    except OSError:
        return []
    try:
        with os.scandir(descriptor) as entries:
            return sorted(entry.name for entry in entries if entry.is_file(follow_symlinks=False))
    finally:
        os.close(descriptor)


def _open_folder(path: Path, root: Path) -> int:
    """The descriptor of a folder at or below `root`."""
    parts = path.relative_to(root).parts
    if ".." in parts:
        raise FileRefused(errno.EINVAL, "it lies elsewhere, and is not read")
    folder = os.open(root, _FOLDER)
    for part in parts:
        try:
            inner = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
        except OSError as error:
            if error.errno in _LINKED:
                raise FileRefused(error.errno, "a link or a file is on the way to it, and it is not read") from error
            raise
        finally:
            os.close(folder)
        folder = inner
    return folder
