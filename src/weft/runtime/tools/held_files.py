"""The files that an approved command executes, read once and held while it runs.

Each is opened once; its bytes are compared with the digest that was approved, and exactly these bytes are what the
sandbox shows at its place: they lie in a sealed file in memory, bound over the name. Inside nobody can write, rename or
remove that. From outside a name can still be moved away from under a mount, which the kernel allows: other calls of
Weft are kept out of the workspace meanwhile (`folder_locks`), and whatever another program did to a held file, or to a
folder or link on the way to it, is found when the command has ended. Then its result says so.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping, Sequence

from msgspec import Struct

from weft.runtime.sandbox.processes import MIB
from weft.runtime.tools.calls import ToolFailure

MOST_HELD_BYTES = 64 * MIB
_DIGEST = "sha256 "


class HeldFile(Struct, frozen=True):
    """A file as it was read."""

    place: str
    """Where it lies, links resolved."""
    data: bytes
    mode: int
    """Its permissions for reading and executing."""
    traces: tuple[tuple[int, ...], ...]
    """What the file, and each folder and link on the way to it, were when it was read."""


def hold_files(workspace: str, names: Sequence[str], digests: Mapping[str, str]) -> dict[str, HeldFile]:
    """Files below the workspace by their names. Raises ToolFailure where one is not what the digests say."""
    held = {name: _hold(workspace, name, digests[name]) for name in names}
    if sum(len(file.data) for file in held.values()) > MOST_HELD_BYTES:
        raise ToolFailure("too_large", f"the files that it executes have more than {MOST_HELD_BYTES} bytes")
    return held


def replaced_files(workspace: str, held: Mapping[str, HeldFile]) -> list[str]:
    """Those that somebody changed, moved or replaced since they were read."""
    return [name for name, file in held.items() if _traces(workspace, name) != file.traces]


def can_be_held(description: str) -> bool:
    """Whether what was approved of a file is the digest of its bytes, and it lies in the workspace."""
    return _DIGEST in description


def _hold(workspace: str, name: str, description: str) -> HeldFile:
    traces = _traces(workspace, name)  # before it is opened: what happens from here on is seen
    path = os.path.join(workspace, name)
    place = os.path.realpath(path)
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        raise _changed(name) from None
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        data = file.read(MOST_HELD_BYTES + 1) if stat.S_ISREG(status.st_mode) else b""
    link = "" if place == path else f"link {os.path.relpath(place, workspace)} "
    if description != f"{link}{_DIGEST}{hashlib.sha256(data).hexdigest()}":
        raise _changed(name)
    return HeldFile(place, data, stat.S_IMODE(status.st_mode) & 0o555, traces)


def _traces(workspace: str, name: str) -> tuple[tuple[int, ...], ...]:
    """By what is seen whether somebody touched a file or moved something on the way to it. A folder is known by its
    number alone, since whatever is written in it changes its times."""
    path = os.path.join(workspace, name)
    real = os.path.relpath(os.path.realpath(path), os.path.realpath(workspace))
    names = [name] if real == name else [name, real]
    return tuple(
        _trace(os.path.join(workspace, *words[: depth + 1]))
        for words in (name.split("/") for name in names)
        for depth in range(len(words))
    )


def _trace(path: str) -> tuple[int, ...]:
    try:
        status = os.lstat(path)
    except OSError:
        return ()
    identity = (status.st_dev, status.st_ino, status.st_mode)
    return identity if stat.S_ISDIR(status.st_mode) else (*identity, status.st_mtime_ns, status.st_ctime_ns)


def _changed(name: str) -> ToolFailure:
    return ToolFailure("changed", f"changed since it was planned: {name}", {"changed": [name]})
