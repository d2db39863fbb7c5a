"""`weft` on a terminal without the start of an interpreter: one process has imported what a conversation needs, and
forks for each. Run as a program it is that process.

A fork differs from a fresh interpreter only in what is imported already. Its directory, environment, time zone,
streams, signals, session and terminal are its own.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
MODULES = (
    "weft.surfaces.cli.main",
    "weft.surfaces.cli.commands.chat",
    "weft.ledger.api.ledger",
    "weft.opening",
    "weft.runtime.inference.attempt",
    "weft.runtime.inference.dialects",
    "pydantic_ai.models.openai",
    "rich.console",
)
NUMBER_BYTES = 4


class Forked:
    """A process that the forking one started; ended and waited for like a `subprocess.Popen`."""

    def __init__(self, reports: socket.socket) -> None:
        self._socket, self._reports = reports, reports.makefile("r")
        self.pid = int(self._reports.readline())
        self._code: int | None = None

    def kill(self) -> None:
        if self._code is None:
            with suppress(ProcessLookupError):  # it has ended by itself
                os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, or the negative number of the signal that ended it."""
        if self._code is None:
            self._socket.settimeout(timeout)
            self._code = int(self._reports.readline())
            self._reports.close()
            self._socket.close()
        return self._code


class Forker:
    """Talks to the process that forks."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.surfaces.forking", str(theirs.fileno())],
                cwd=ROOT,
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
            )

    def start(self, arguments: Sequence[str], folder: Path, environment: Mapping[str, str], terminal: int) -> Forked:
        request = json.dumps([list(arguments), str(folder), dict(environment)]).encode()
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._socket, [len(request).to_bytes(NUMBER_BYTES)], [terminal, theirs.fileno()])
            self._socket.sendall(request)
        return Forked(ours)

    def end(self) -> None:
        self._socket.close()
        self._process.wait()


@cache
def shared_forker() -> Forker:
    """One for each process that runs tests."""
    forker = Forker()
    atexit.register(forker.end)
    return forker


def serve(requests: socket.socket) -> None:
    """Fork for each request, until nobody can ask any more."""
    while True:
        number, descriptors, _, _ = socket.recv_fds(requests, NUMBER_BYTES, 2)
        if not number:
            return
        request = _received(requests, int.from_bytes(number))
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how these end
        if os.fork() == 0:
            requests.close()
            _watch(request, *descriptors)
            return
        for descriptor in descriptors:
            os.close(descriptor)


def _received(requests: socket.socket, size: int) -> Any:
    data = b""
    while len(data) < size:
        data += requests.recv(size - len(data))
    return json.loads(data)


def _watch(request: Any, terminal: int, ending: int) -> None:
    """Fork the program itself; tell its number now, and how it ended when it has. Returns in the program alone."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    reports = socket.socket(fileno=ending)
    pid = os.fork()
    if pid:
        os.close(terminal)
        reports.sendall(b"%d\n" % pid)
        reports.sendall(b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        os._exit(0)
    reports.close()
    arguments, folder, environment = request
    _become_program(arguments, folder, environment, terminal)


def _become_program(arguments: list[str], folder: str, environment: dict[str, str], terminal: int) -> None:
    from weft.surfaces.cli.main import main

    os.setsid()
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
    for descriptor in (0, 1, 2):
        os.dup2(terminal, descriptor)
    os.close(terminal)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    sys.stdin = _stream(0, "r", "strict")
    sys.stdout = _stream(1, "w", "strict")
    sys.stderr = _stream(2, "w", "backslashreplace")
    sys.argv = [str(ROOT / "src" / "weft" / "surfaces" / "cli" / "__main__.py"), *arguments]
    sys.exit(main())


def _stream(descriptor: int, mode: str, errors: str) -> TextIOWrapper:
    buffered = open(descriptor, f"{mode}b", closefd=False)  # noqa: SIM115
    return TextIOWrapper(buffered, encoding="utf-8", errors=errors, line_buffering=True)


if __name__ == "__main__":
    for name in MODULES:
        import_module(name)
    assert "readline" not in sys.modules, "it looks at the terminal when it is imported"
    gc.collect()
    gc.freeze()  # a fork that ends would walk through all that is imported, and so copy it
    serve(socket.socket(fileno=int(sys.argv[1])))
