"""Folders to take snapshots of, and what they hold, byte for byte."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path


def contents(folder: Path) -> dict[bytes, tuple[str, int, bytes]]:
    """Everything in a folder but repositories: its kind, its mode, and its bytes or where a link leads."""
    found: dict[bytes, tuple[str, int, bytes]] = {}
    waiting = [b""]
    top = os.fsencode(folder)
    while waiting:
        path = waiting.pop()
        for name in os.listdir(os.path.join(top, path)):
            inner = os.path.join(path, name)
            if name == b".git":
                continue
            place = os.path.join(top, inner)
            status = os.lstat(place)
            mode = stat.S_IMODE(status.st_mode)
            if stat.S_ISLNK(status.st_mode):
                found[inner] = ("link", 0, os.readlink(place))
            elif stat.S_ISDIR(status.st_mode):
                found[inner] = ("folder", mode, b"")
                waiting.append(inner)
            elif stat.S_ISREG(status.st_mode):
                with open(place, "rb") as file:
                    found[inner] = ("file", mode, file.read())
            else:
                found[inner] = ("special", mode, b"")
    return found


def write(folder: Path, files: Mapping[str, bytes | str]) -> None:
    """Files by their paths; a path that ends in a slash is an empty folder."""
    for path, data in files.items():
        place = folder / path
        if path.endswith("/"):
            place.mkdir(parents=True, exist_ok=True)
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data.encode() if isinstance(data, str) else data)
