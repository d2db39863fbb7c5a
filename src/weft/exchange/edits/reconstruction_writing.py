"""Writes a reconstruction into a folder that is new or empty. What it holds was told by strangers: folders are opened
without following links, one below the other, and files are made where nothing is."""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from pathlib import Path

from weft.exchange.edits.reconstruction import Reconstruction
from weft.kernel.errors import InvalidInput, NotApplicable, StoreFailed

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_ANY_FILE, _ANY_FOLDER = 0o666, 0o777
"""As far as the umask lets them."""


def write_reconstruction(reconstruction: Reconstruction, folder: Path) -> None:
    """Raises NotApplicable where the folder holds something, StoreFailed where it cannot be written to: what was
    written by then stays."""
    for path in reconstruction.files:
        _ensure_below(path)
    place = str(folder)
    try:
        if not os.path.lexists(folder):
            os.mkdir(folder)
        root = os.open(folder, _FOLDER)
    except OSError as error:
        raise StoreFailed(f"{place}: {error.strerror}", "name a new folder in one that exists") from None
    with ExitStack() as stack:
        stack.callback(os.close, root)
        if os.listdir(root):
            raise NotApplicable(f"{place} exists and is not empty", "name a new folder")
        for path, data in reconstruction.files.items():
            try:
                _write(root, path.split("/"), data)
            except OSError as error:
                raise StoreFailed(f"{place}/{path}: {error.strerror}", "choose another folder") from None


def _ensure_below(path: str) -> None:
    parts = path.split("/")
    if "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise InvalidInput(f"{path!r} is no path below a folder", "leave it out")


def _write(root: int, parts: list[str], data: bytes) -> None:
    with ExitStack() as stack:
        folder = root
        for part in parts[:-1]:
            with suppress(FileExistsError):  # made for another file; what it is shows when it is opened
                os.mkdir(part, _ANY_FOLDER, dir_fd=folder)
            folder = os.open(part, _FOLDER, dir_fd=folder)
            stack.callback(os.close, folder)
        descriptor = os.open(parts[-1], _NEW_FILE, _ANY_FILE, dir_fd=folder)
        with open(descriptor, "wb") as file:
            file.write(data)
