"""A process that is spoken with in lines until it ends or is stopped, such as an MCP server.

It is started, fed, read and measured by a thread of its own, as every process is. Each line that it writes is handed to
the event loop that started it. It may write so many bytes until it is asked something again, those included that nobody
has read yet: whoever writes more is killed. Of what it says on its standard error the last piece is kept.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from msgspec import structs

from weft.kernel.errors import StoreFailed
from weft.runtime.sandbox.processes import (
    DEFAULT_LIMITS,
    Limits,
    ProcessGuard,
    ProcessOutcome,
    ProcessPipes,
    ProcessRun,
)

_KEPT_ERROR_BYTES = 16 * 1024
_ACTIVE_SECONDS = 1.0
_IDLE_CHECK_FACTOR = 20
"""So much less often are the limits measured of a process that wrote nothing and was told nothing for a while."""


class LineProcess:
    """A running process. It belongs to the event loop that started it; `stop` must be awaited."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        environment: Mapping[str, str],
        folder: Path,
        limits: Limits = DEFAULT_LIMITS,
        guard: ProcessGuard | None = None,
    ) -> None:
        """`limits.seconds` is not looked at: whoever waits for an answer decides how long."""
        self._loop = asyncio.get_running_loop()
        self._lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._run = _LineRun(argv, environment, folder, limits, guard, self._deliver)
        self._outcome = asyncio.wrap_future(self._run.outcome)
        self._outcome.add_done_callback(lambda _: self._lines.put_nowait(None))
        self._thread = threading.Thread(target=self._run.run, name="weft-line-process", daemon=True)
        self._thread.start()

    def _deliver(self, line: bytes) -> None:
        """Called by the thread."""
        try:
            self._loop.call_soon_threadsafe(self._lines.put_nowait, line)
        except RuntimeError:  # the event loop was closed without `stop`: nobody reads it any longer
            self._run.cancel()

    @property
    def has_ended(self) -> bool:
        return self._outcome.done()

    def write(self, line: bytes, *, is_request: bool = True) -> None:
        """Have a line written to it, as soon as it reads. After a request it may write again."""
        if self._outcome.done():
            raise StoreFailed("the process has ended", "start it again")
        self._run.add_input(line + b"\n", is_request)

    async def line(self) -> bytes | None:
        """The next line that it wrote; None once it has ended and all were read."""
        line = await self._lines.get()
        if line is None:
            self._lines.put_nowait(None)  # for whoever asks again
        else:
            self._run.release(len(line))
        return line

    async def ended(self) -> ProcessOutcome:
        """Wait until nothing of it is left. Raises StoreFailed where it could not be started."""
        return await asyncio.shield(self._outcome)

    async def stop(self, grace_seconds: float = 0.0) -> ProcessOutcome:
        """Close its input, and after so many seconds kill it with all that it started. Nothing of it is left then."""
        was_cancelled: asyncio.CancelledError | None = None
        if grace_seconds:
            self._run.end_input()
            try:
                await asyncio.wait({self._outcome}, timeout=grace_seconds)
            except asyncio.CancelledError as error:
                was_cancelled = error
        self._run.cancel()
        while not self._outcome.done():
            try:
                await asyncio.wait({self._outcome})
            except asyncio.CancelledError as error:  # it was killed: that nothing is left does not take long
                was_cancelled = error
        self._thread.join()
        if was_cancelled is not None:
            raise was_cancelled
        return self._outcome.result()


class _LineRun(ProcessRun):
    def __init__(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        limits: Limits,
        guard: ProcessGuard | None,
        deliver: Callable[[bytes], None],
    ) -> None:
        super().__init__(argv, environment, folder, b"", structs.replace(limits, seconds=float("inf")), guard)
        self._limit = limits.output
        self._deliver = deliver
        self._input, self._input_lock = bytearray(), threading.Lock()
        self._released = 0
        self._is_cancelled = self._is_input_over = self._is_asked = False
        self._guarded_seconds = guard.check_seconds if guard else 60.0
        self._last_activity = time.monotonic()

    def cancel(self) -> None:
        self._is_cancelled = True
        self.wake()

    def end_input(self) -> None:
        self._is_input_over = True
        self.wake()

    def add_input(self, data: bytes, is_request: bool) -> None:
        with self._input_lock:
            if len(self._input) + len(data) > self._limit:
                raise StoreFailed("the process does not read what it is sent", "stop it")
            self._input += data
            self._is_asked |= is_request
        self.wake()

    def release(self, size: int) -> None:
        with self._input_lock:
            self._released += size

    def was_cancelled(self, woken: int, pipes: ProcessPipes) -> bool:
        os.read(woken, 4096)
        assert isinstance(pipes, _LinePipes)
        with self._input_lock:
            data, self._input = bytes(self._input), bytearray()
            released, self._released = self._released, 0
            is_asked, self._is_asked = self._is_asked, False
        pipes.release(released)
        if is_asked:
            pipes.make_room()
        if data:
            self._last_activity = time.monotonic()
            pipes.send(data)
        if self._is_input_over:
            pipes.end_input()
        return self._is_cancelled

    def new_pipes(self) -> ProcessPipes:
        return _LinePipes(self._limit, self._delivered)

    def _delivered(self, line: bytes) -> None:
        self._last_activity = time.monotonic()
        self._deliver(line)

    @property
    def check_seconds(self) -> float:
        is_idle = time.monotonic() - self._last_activity > _ACTIVE_SECONDS
        return min(60.0, self._guarded_seconds * (_IDLE_CHECK_FACTOR if is_idle else 1))


class _LinePipes(ProcessPipes):
    """Takes input at any time, and hands out each line of the output."""

    def __init__(self, limit: int, deliver: Callable[[bytes], None]) -> None:
        super().__init__(limit)
        self._limit, self._deliver, self._unread = limit, deliver, 0
        self._is_writing = self._is_over = False

    def begin_input(self, pipe: IO[bytes], stdin: bytes) -> None:
        self._stdin, self._unsent = pipe, memoryview(b"")

    def make_room(self) -> None:
        """It is asked something, so it may write again."""
        self._room = self._limit - self._unread

    def send(self, data: bytes) -> None:
        self._unsent = memoryview(bytes(self._unsent) + data)
        if not self._is_writing and not self._stdin.closed:
            self._selector.register(self._stdin, selectors.EVENT_WRITE, None)
            self._is_writing = True

    def release(self, size: int) -> None:
        """So many bytes of what it wrote were read."""
        self._unread = max(0, self._unread - size)

    def end_input(self) -> None:
        self._is_over = True
        if not self._is_writing:
            self._stdin.close()

    def sent(self, pipe: Any) -> None:
        self._selector.unregister(pipe)
        self._is_writing = False
        if self._is_over:
            pipe.close()

    def take(self, piece: bytes, received: bytearray) -> bool:
        self._room -= len(piece)
        if self._room < 0:
            return False
        received += piece
        if received is self.stderr:
            del received[:-_KEPT_ERROR_BYTES]
            return True
        *lines, rest = bytes(received).split(b"\n") if b"\n" in piece else (bytes(received),)
        if lines:
            received[:] = rest
        for line in lines:
            self._unread += len(line)
            self._deliver(line)
        return True
