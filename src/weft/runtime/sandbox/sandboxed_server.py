"""A server in the sandbox: a program of our own that answers until it is stopped, and runs what nobody vouches for.

It is the first process of its process namespace. It has no network, no workspace and nothing that it could write to.
The sandbox ends with the thread that started it, so one thread starts it, speaks with it and stops it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from weft.runtime.sandbox.bubblewrap import Sandbox, SandboxGuard
from weft.runtime.sandbox.confinement import CHECK_SECONDS, Confinement
from weft.runtime.sandbox.processes import Ending, Limits
from weft.runtime.sandbox.protected_places import ProtectedPlaces
from weft.runtime.sandbox.sandbox_plan import Surroundings
from weft.runtime.sandbox.server_process import ServerProcess
from weft.runtime.sandbox.visible_files import SystemFiles

_CHUNK_BYTES = 64 * 1024
_LOST = {
    Ending.TOO_MUCH_MEMORY: "it took more memory than it may",
    Ending.TOO_MANY_PROCESSES: "it had more processes and threads than it may",
    Ending.TOO_MUCH_DISK: "it made more files than it may",
    Ending.UNCOVERED: "what it must not write was replaced from outside meanwhile",
}


class ServerLost(Exception):
    """The server ended, said nothing in time or took more than it may. It must be stopped."""


class SandboxedServer:
    """A running server. `limits.seconds` and `limits.output` are the caller's to keep."""

    def __init__(
        self,
        sandbox: Sandbox,
        argv: Sequence[str],
        protected: ProtectedPlaces,
        *,
        files: Mapping[str, bytes],
        readable: Sequence[Path],
        hidden: Sequence[Path],
        limits: Limits,
    ) -> None:
        confinement = Confinement(
            limits=limits, call_filter=sandbox.call_filter, cgroup=sandbox.cgroup, limit_address_space=True
        )
        surroundings = Surroundings(files=files, readable=readable, hidden=hidden, system=SystemFiles.LIBRARIES)
        self._guard = SandboxGuard(sandbox, protected, confinement, surroundings, is_server=True)
        self._process: ServerProcess | None = None
        self._is_stopped = False
        self._received = bytearray()
        try:
            start = self._guard.before_start(argv, {})
            self._process = ServerProcess(start.argv, {}, Path("/"), inherited=start.descriptors)
            self._guard.after_start(self._process.process_id)
        except BaseException:  # nothing is left behind, whatever it was
            self.stop()
            raise

    @property
    def has_ended(self) -> bool:
        return self._process is None or self._process.has_ended

    def send(self, data: bytes, deadline: float) -> None:
        """Raises ServerLost where it is gone, or does not take it before a time of the monotonic clock."""
        assert self._process is not None
        if not self._process.send(data, deadline - time.monotonic()):
            raise ServerLost("its interpreter ended or took no call")

    def receive(self, count: int, deadline: float) -> bytes:
        """So many bytes of its output, before a time of the monotonic clock. Raises ServerLost."""
        while len(self._received) < count:
            self._received += self._piece(deadline)
        data = bytes(self._received[:count])
        del self._received[:count]
        return data

    def stop(self) -> None:
        """Kill it with all that it started, and wait until nothing is left."""
        if self._is_stopped:
            return
        self._is_stopped = True
        if self._process is not None:
            self._process.stop()
        self._guard.after_end(Ending.EXITED)

    def _piece(self, deadline: float) -> bytes:
        assert self._process is not None
        now = time.monotonic()
        if now >= deadline:
            raise ServerLost("its interpreter said nothing in time")
        piece = self._process.receive(_CHUNK_BYTES, min(deadline - now, CHECK_SECONDS))
        exceeded = self._guard.check()
        if exceeded is not None:
            raise ServerLost(_LOST[exceeded])
        if piece is None:
            return b""
        if not piece:
            raise ServerLost("its interpreter ended")
        return piece
