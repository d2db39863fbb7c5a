"""What makes a process kill itself, or an operation fail, at a chosen statement or a chosen write to disk."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import apsw
from msgspec import Struct

Half = Callable[[], None] | None
Watch = Callable[[str, str, Half], None]  # operation, file, and half of it if it is a write


class Steps(Struct, frozen=True):
    """How often a tripwire was stepped on."""

    n: int


class Tripwire:
    """Kills its own process when it is stepped on for the n-th time after being armed. With 0 it kills nobody."""

    def __init__(self, n: int, *, torn: bool = False) -> None:
        self._n, self._torn, self._steps, self.armed = n, torn, 0, False

    def step(self, operation: str = "", file: str = "", half: Half = None) -> None:
        if not self.armed:
            return
        self._steps += 1
        if self._steps == self._n:
            if half is not None and self._torn:
                half()
            os.kill(os.getpid(), signal.SIGKILL)

    def disarm(self, say: Callable[[Any], object]) -> None:
        """Nothing kills from here on. One that was to count says how many steps there were."""
        self.armed = False
        if self._n == 0:
            say(Steps(self._steps))


def watch_statements(tripwire: Tripwire) -> None:
    """Every statement of every connection from now on, once before it begins and once after its end."""

    def hook(connection: apsw.Connection) -> None:
        connection.trace_v2(apsw.SQLITE_TRACE_STMT | apsw.SQLITE_TRACE_PROFILE, lambda _: tripwire.step())

    apsw.connection_hooks.append(hook)


def watch_disk(tripwire: Tripwire) -> WatchedVfs:
    """Every write, sync, truncation and deletion of every database from now on."""
    return WatchedVfs("watched", tripwire.step, default=True)


class WatchedVfs(apsw.VFS):
    """The system's files, with a word before everything that changes them."""

    def __init__(self, name: str, watch: Watch, *, default: bool = False) -> None:
        self.watch = watch
        super().__init__(name, "unix", makedefault=default)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        return _WatchedFile(self.watch, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        self.watch("delete", filename, None)
        super().xDelete(filename, syncdir)


class _WatchedFile(apsw.VFSFile):
    def __init__(self, watch: Watch, name: Any, flags: list[int]) -> None:
        super().__init__("unix", name, flags)
        self._watch = watch
        self._name = name.filename() if isinstance(name, apsw.URIFilename) else str(name)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        write = super().xWrite
        self._watch("write", self._name, lambda: write(data[: len(data) // 2], offset))
        write(data, offset)

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._watch("sync", self._name, None)
        super().xSync(flags)

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        self._watch("truncate", self._name, None)
        super().xTruncate(newsize)
