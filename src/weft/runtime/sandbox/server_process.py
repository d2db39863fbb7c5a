"""A process of our own that serves until it is stopped, such as an embedded model.

It is told what to do in one line on its standard input, and says that it is ready in one line on its standard output.
Its input stays open: when it closes, because we stopped it or because we died, the process ends by itself.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from weft.kernel.errors import StoreFailed

_LONGEST_LINE_BYTES = 64 * 1024


class ServerProcess:
    """A running server. It is killed by `stop`, and also where nobody refers to it any longer."""

    def __init__(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        *,
        inherited: tuple[int, ...] = (),
    ) -> None:
        self._name = argv[0]
        try:
            self._process = subprocess.Popen(
                list(argv),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=dict(environment),
                cwd=folder,
                start_new_session=True,
                pass_fds=inherited,
                bufsize=0,
            )
        except OSError as error:
            raise StoreFailed(
                f"{argv[0]} could not be started: {error.strerror}", "check that it is installed and may be run"
            ) from None
        self._end = weakref.finalize(self, _kill, self._process)

    @property
    def process_id(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def ask(self, line: bytes, seconds: float) -> bytes | None:
        """Write a line and wait for the line that answers it; None where it ended or said nothing in time. Blocks."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + b"\n")
        except (BrokenPipeError, ValueError):  # it ended, or was stopped
            return None
        return self._line(time.monotonic() + seconds)

    def send(self, data: bytes, seconds: float) -> bool:
        """Write all of it; whether the process took it in time. Blocks."""
        assert self._process.stdin is not None
        deadline = time.monotonic() + seconds
        try:
            pipe, unsent = self._process.stdin.fileno(), memoryview(data)
            os.set_blocking(pipe, False)
            while unsent:
                if not select.select([], [pipe], [], max(0.0, deadline - time.monotonic()))[1]:
                    return False
                unsent = unsent[os.write(pipe, unsent) :]
        except (BrokenPipeError, ValueError):  # it ended, or was stopped
            return False
        return True

    def receive(self, longest: int, seconds: float) -> bytes | None:
        """Wait for output, and read at most so many bytes of it: none at its end, None where nothing came. Blocks."""
        assert self._process.stdout is not None
        output = self._process.stdout.fileno()
        return os.read(output, longest) if select.select([output], [], [], max(0.0, seconds))[0] else None

    def _line(self, deadline: float) -> bytes | None:
        assert self._process.stdout is not None
        output, line = self._process.stdout.fileno(), bytearray()
        while not line.endswith(b"\n") and len(line) < _LONGEST_LINE_BYTES:
            if not select.select([output], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return None
            piece = os.read(output, _LONGEST_LINE_BYTES)
            if not piece:
                return None
            line += piece
        return bytes(line)

    def stop(self) -> None:
        """Kill it with all that it started. It keeps nothing that would have to be saved."""
        self._end()


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):  # nobody is left in its group (macOS says it the second way)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
