"""A program of the machine that one thread writes to and reads from, without an event loop, until it has its answer.

What is written is kept until the program takes it, and what it answers is taken in while it is written to: neither side
waits for the other for ever. It gets exactly the environment that it is given, a session of its own, and a time to
answer in, counted from the last bytes that were written to it. Leaving the `with` block kills its whole group, whatever
happened.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from weft.kernel.errors import StoreFailed

_CHUNK_BYTES = 256 * 1024
_MOST_UNSENT_BYTES = 4 * 1024 * 1024
_KEPT_ERROR_BYTES = 16 * 1024
_STOPPED = "find out why it was stopped, and try again"


class PipedProcess:
    """A running program. Every method raises StoreFailed where the program ended before its time, or takes too long."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        environment: Mapping[str, str],
        folder: Path,
        seconds: float,
        inherited: Sequence[int] = (),
    ) -> None:
        self._name = " ".join(argv[:1])
        self._seconds, self._deadline = seconds, time.monotonic() + seconds
        self._unsent: deque[memoryview] = deque()
        self._unsent_bytes = 0
        self._received, self._errors = bytearray(), bytearray()
        try:
            self._process = subprocess.Popen(
                list(argv),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=dict(environment),
                cwd=folder,
                start_new_session=True,
                pass_fds=tuple(inherited),
                bufsize=0,
            )
        except OSError as error:
            raise StoreFailed(
                f"{argv[0]} could not be started: {error.strerror}", "check that it is installed and may be run"
            ) from None
        assert self._process.stdin
        assert self._process.stdout
        assert self._process.stderr
        self._stdin, self._stdout, self._stderr = self._process.stdin, self._process.stdout, self._process.stderr
        self._selector = selectors.DefaultSelector()
        self._is_writing, self._is_open = False, True
        for pipe in (self._stdin, self._stdout, self._stderr):
            os.set_blocking(pipe.fileno(), False)
        self._selector.register(self._stdout, selectors.EVENT_READ)
        self._selector.register(self._stderr, selectors.EVENT_READ)

    def __enter__(self) -> PipedProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kill()
        self._process.wait()
        self._selector.close()
        for pipe in (self._stdin, self._stdout, self._stderr):
            pipe.close()

    @property
    def process_id(self) -> int:
        return self._process.pid

    @property
    def complaint(self) -> str:
        """The last line of what it said on its standard error."""
        lines = self._errors.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def write(self, data: bytes) -> None:
        """Have it take these bytes; returns once most of what was written before is taken."""
        self._deadline = time.monotonic() + self._seconds
        if data and not self._stdin.closed:  # else it ended, and whoever reads it learns why
            self._unsent.append(memoryview(data))
            self._unsent_bytes += len(data)
        while self._unsent_bytes > _MOST_UNSENT_BYTES:
            self._move()

    def read(self, size: int) -> bytes:
        """Exactly so many bytes of what it answers."""
        while len(self._received) < size:
            self._need_more()
        data = bytes(self._received[:size])
        del self._received[:size]
        return data

    def read_some(self) -> bytes:
        """What it answers next, some bytes of it; none once it answers nothing more."""
        while not self._received and self._is_open:
            self._move()
        data = bytes(self._received)
        self._received.clear()
        return data

    def read_until(self, end: bytes, most: int) -> bytes:
        """What it answers up to these bytes, which are taken and not returned."""
        searched = 0
        while (position := self._received.find(end, searched)) < 0:
            searched = max(0, len(self._received) - len(end) + 1)
            if searched > most:
                raise StoreFailed(f"{self._name} answers more than {most} bytes at once", _STOPPED)
            self._need_more()
        data = bytes(self._received[:position])
        del self._received[: position + len(end)]
        return data

    def finish(self, most: int) -> tuple[int, bytes]:
        """Tell it that nothing follows and wait for its end: the code it ended with, and the rest of its answer."""
        self.close_input()
        while self._is_open:
            self._move()
            if len(self._received) > most:
                raise StoreFailed(f"{self._name} answers more than {most} bytes", _STOPPED)
        try:
            code = self._process.wait(max(0.0, self._deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise self._too_slow() from None
        self._take_last_words()
        rest = bytes(self._received)
        self._received.clear()
        return code, rest

    def close_input(self) -> None:
        """Tell it that nothing follows, once it has taken everything."""
        while self._unsent and self._is_open:
            self._move()
        self._stop_writing()
        self._stdin.close()

    def _need_more(self) -> None:
        if not self._is_open:
            self._take_last_words()
            raise StoreFailed(
                f"{self._name} ended before its answer was whole: {self.complaint or 'no word'}", _STOPPED
            )
        self._move()

    def _move(self) -> None:
        """Wait until something can be moved, and move it."""
        pause = self._deadline - time.monotonic()
        if pause <= 0:
            raise self._too_slow()
        if self._unsent and not self._is_writing and not self._stdin.closed:
            self._selector.register(self._stdin, selectors.EVENT_WRITE)
            self._is_writing = True
        for key, _ in self._selector.select(pause):
            if key.fileobj is self._stdin:
                self._send()
            else:
                self._receive(key.fileobj)

    def _send(self) -> None:
        try:
            sent = os.write(self._stdin.fileno(), self._unsent[0][:_CHUNK_BYTES])
        except BlockingIOError:
            return
        except BrokenPipeError:  # it ended, or closed its input: its code and its complaint tell why
            self._unsent.clear()
            self._unsent_bytes = 0
            self._stop_writing()
            self._stdin.close()
            return
        self._unsent_bytes -= sent
        if sent == len(self._unsent[0]):
            self._unsent.popleft()
        else:
            self._unsent[0] = self._unsent[0][sent:]
        if not self._unsent:
            self._stop_writing()

    def _stop_writing(self) -> None:
        if self._is_writing:
            self._selector.unregister(self._stdin)
            self._is_writing = False

    def _receive(self, pipe: object) -> None:
        is_answer = pipe is self._stdout
        stream = self._stdout if is_answer else self._stderr
        try:
            piece = os.read(stream.fileno(), _CHUNK_BYTES)
        except BlockingIOError:
            return
        if not piece:
            self._selector.unregister(stream)
            if is_answer:
                self._is_open = False
        elif is_answer:
            self._received += piece
        else:
            self._errors += piece
            del self._errors[:-_KEPT_ERROR_BYTES]

    def _take_last_words(self) -> None:
        """What stands in the pipe of its standard error when it has ended."""
        while self._stderr in self._selector.get_map():
            if not self._selector.select(0):
                return
            self._receive(self._stderr)

    def _too_slow(self) -> StoreFailed:
        return StoreFailed(f"{self._name} took too long, and was stopped", "try again when the machine is less busy")

    def _kill(self) -> None:
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):  # nobody is left in it (macOS says it the second way)
            return
