"""`weft` without the start of an interpreter: one process has imported what commands need, and forks for each. Run as a
program it is that process. It runs `main` of other modules as well.

A fork differs from a fresh interpreter only in what is imported already. Its directory, environment, time zone,
streams, signals, session and terminal are its own.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import cache
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Any, BinaryIO

from tests.collector import count_no_memory

ROOT = Path(__file__).parents[2]
MODULES = (
    "weft.surfaces.cli.main",
    "weft.surfaces.cli.chat.chat",
    "weft.surfaces.cli.work.send",
    "weft.surfaces.cli.work.approvals",
    "weft.surfaces.cli.chat.conversation",
    "weft.surfaces.cli.chat.terminal",
    "weft.surfaces.cli.work.sandbox_access",
    "weft.surfaces.cli.turn_files",
    "weft.surfaces.cli.chat.models",
    "weft.ledger.api.ledger",
    "weft.ledger.api.resources",
    "weft.runtime.broker.broker",
    "weft.runtime.invoke.invocation",
    "weft.runtime.broker.broker",
    "weft.runtime.replies",
    "weft.surfaces.opening",
    "weft.runtime.inference.attempt",
    "weft.runtime.inference.dialects.model_clients",
    "weft.runtime.inference.dialects.openai",
    "rich.console",
)
NUMBER_BYTES = 4
forked_seconds: list[float] = []
"""The CPU time of each forked process that has ended."""


class Forked:
    """A process that the forking one started; used like a `subprocess.Popen`. Streams are those of its pipes that the
    test holds."""

    def __init__(self, reports: socket.socket) -> None:
        self._socket, self._reports = reports, reports.makefile("r")
        self.pid = int(self._reports.readline())
        self.stdin: BinaryIO | None = None
        self.stdout: BinaryIO | None = None
        self.stderr: BinaryIO | None = None
        self.returncode: int | None = None

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended by itself
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def poll(self) -> int | None:
        """The exit code of a process that has ended."""
        is_over = self.returncode is not None or select.select([self._socket], [], [], 0)[0]
        return self.wait() if is_over else None

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, or the negative number of the signal that ended it."""
        if self.returncode is None:
            self._socket.settimeout(timeout)
            code, seconds = self._reports.readline().split()
            self.returncode = int(code)
            forked_seconds.append(float(seconds))
            self._reports.close()
            self._socket.close()
        return self.returncode

    def communicate(self, given: bytes = b"", timeout: float | None = None) -> tuple[bytes, bytes]:
        """Write all, read all, and wait for the end."""
        with ThreadPoolExecutor() as readers:
            errors = readers.submit(self.stderr.read) if self.stderr is not None else None
            output = readers.submit(self.stdout.read) if self.stdout is not None else None
            if self.stdin is not None:
                with suppress(BrokenPipeError):  # it reads no further
                    self.stdin.write(given)
                    self.stdin.close()
            try:
                self.wait(timeout)
            except TimeoutError:
                self.kill()  # or its streams would be read for ever
                raise
            return output.result() if output else b"", errors.result() if errors else b""

    def close(self) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()


class Forker:
    """Talks to the process that forks."""

    def __init__(self) -> None:
        self._asking = threading.Lock()
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.surfaces.forking", str(theirs.fileno())],
                cwd=ROOT,
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
            )

    def start_on_terminal(
        self, arguments: Sequence[str], folder: Path, environment: Mapping[str, str], terminal: int
    ) -> Forked:
        return self._start(arguments, folder, environment, (terminal, terminal, terminal))

    def run_main(self, module: str, *arguments: str) -> Forked:
        """Another program than `weft`: the function `main` of a module, with the streams of this process."""
        return self._start(arguments, ROOT, os.environ, (0, 1, 2), module)

    def start(
        self, arguments: Sequence[str], folder: Path, environment: Mapping[str, str], **streams: int | None
    ) -> Forked:
        """Streams as `subprocess.Popen` takes them: a pipe, nothing, or by default what this process has."""
        with ExitStack() as theirs:
            ours: dict[str, BinaryIO] = {}
            descriptors = []
            for number, name in enumerate(("stdin", "stdout", "stderr")):
                descriptor = number
                if streams.get(name) == subprocess.DEVNULL:
                    descriptor = os.open(os.devnull, os.O_RDWR)
                    theirs.callback(os.close, descriptor)
                elif streams.get(name) == subprocess.PIPE:
                    ends = os.pipe()
                    descriptor, kept = ends if name == "stdin" else ends[::-1]
                    theirs.callback(os.close, descriptor)
                    ours[name] = open(kept, "wb" if name == "stdin" else "rb")  # noqa: SIM115
                descriptors.append(descriptor)
            forked = self._start(arguments, folder, environment, descriptors)
        for name, stream in ours.items():
            setattr(forked, name, stream)
        return forked

    def load(self, *modules: str) -> None:
        """Import more before the next fork, for tests that start one program several times."""
        self._request(["", *modules], [])

    def _start(
        self,
        arguments: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        streams: Sequence[int],
        module: str | None = None,
    ) -> Forked:
        ours, theirs = socket.socketpair()
        with theirs:
            self._request([module, list(arguments), str(folder), dict(environment)], [*streams, theirs.fileno()])
        return Forked(ours)

    def _request(self, what: Sequence[Any], descriptors: Sequence[int]) -> None:
        request = json.dumps(what).encode()
        with self._asking:
            socket.send_fds(self._socket, [len(request).to_bytes(NUMBER_BYTES)], descriptors)
            self._socket.sendall(request)

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
        number, descriptors, _, _ = socket.recv_fds(requests, NUMBER_BYTES, 4)
        _wait_for_ended()
        if not number:
            return
        module, *request = _received(requests, int.from_bytes(number))
        if not descriptors:
            _load(request)
        elif os.fork() == 0:
            requests.close()
            *streams, ending = descriptors
            _watch(module, request, streams, ending)
            return
        for descriptor in descriptors:
            os.close(descriptor)


def _wait_for_ended() -> None:
    """So that what they took counts as taken by this process."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


def _load(modules: Iterable[str]) -> None:
    for name in modules:
        import_module(name)
    assert "readline" not in sys.modules, "it looks at the terminal when it is imported"
    gc.collect()
    gc.freeze()  # a fork that ends would walk through all that is imported, and so copy it


def _received(requests: socket.socket, size: int) -> Any:
    data = b""
    while len(data) < size:
        data += requests.recv(size - len(data))
    return json.loads(data)


def _watch(module: str | None, request: list[Any], streams: Sequence[int], ending: int) -> None:
    """Fork the program itself; tell its number now, and how it ended when it has. Returns in the program alone."""
    reports = socket.socket(fileno=ending)
    pid = os.fork()
    if pid:
        for descriptor in streams:
            os.close(descriptor)
        reports.sendall(b"%d\n" % pid)
        _, status, used = os.wait4(pid, 0)
        reports.sendall(b"%d %f\n" % (os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime))
        os._exit(0)
    reports.close()
    arguments, folder, environment = request
    _become_program(arguments, folder, environment, streams, module)


def _become_program(
    arguments: list[str], folder: str, environment: dict[str, str], streams: Sequence[int], module: str | None
) -> None:
    from weft.surfaces.cli.entry import main

    os.setsid()
    if os.isatty(streams[0]):
        fcntl.ioctl(streams[0], termios.TIOCSCTTY, 0)
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    sys.stdin = _stream(0, "r", "strict")
    sys.stdout = _stream(1, "w", "strict")
    sys.stderr = _stream(2, "w", "backslashreplace")
    if module is not None:
        _exit(import_module(module).main(*arguments) or 0)
    sys.argv = [str(ROOT / "src" / "weft" / "surfaces" / "cli" / "__main__.py"), *arguments]
    _exit(main())


def _exit(code: int) -> None:
    """End as an interpreter does, without taking apart what is imported: that would copy all of it first."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _stream(descriptor: int, mode: str, errors: str) -> TextIOWrapper:
    buffered = open(descriptor, f"{mode}b", closefd=False)  # noqa: SIM115
    is_prompt = descriptor == 2 or os.isatty(descriptor)
    return TextIOWrapper(buffered, encoding="utf-8", errors=errors, line_buffering=is_prompt)


if __name__ == "__main__":
    count_no_memory()
    _load(MODULES)
    serve(socket.socket(fileno=int(sys.argv[1])))
