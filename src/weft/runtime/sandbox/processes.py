"""The one place where processes are started.

A process gets exactly the environment it is given, a session of its own, and limits of time and output. A thread of its
own starts it, feeds it, reads it and waits for it, so that a busy event loop delays no limit. However the process ends,
and also when nobody waits for it any longer, its whole group is killed before anybody is answered.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import IO, Any, Protocol

from msgspec import Struct

from weft.kernel.errors import InvalidInput, StoreFailed
from weft.runtime.sandbox.git_settings import GitLeftovers

MIB = 1024 * 1024
GIB = 1024 * MIB
_CHUNK_BYTES = 64 * 1024
_GRACE_SECONDS = 1.0
"""So long is read on after the end, where something that left the group holds the pipes open."""
_POLL_SECONDS = 0.01
"""How often the end is looked for where the system cannot announce it."""


class Limits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much a process may take. Time and output hold for every process, the others for what runs in the sandbox."""

    seconds: float = 30.0
    output: int = MIB
    memory: int = 512 * MIB
    processes: int = 256
    """Processes and threads, together."""
    disk: int = GIB
    """Bytes by which the workspace may grow; no file is larger."""


DEFAULT_LIMITS = Limits()


class Ending(StrEnum):
    """How a process ended: by itself, or beyond a limit of time, output, memory, processes or disk, or because what it
    must not write was replaced.
    """

    EXITED = "exited"
    TIMED_OUT = "timed_out"
    TOO_MUCH_OUTPUT = "too_much_output"
    TOO_MUCH_MEMORY = "too_much_memory"
    TOO_MANY_PROCESSES = "too_many_processes"
    TOO_MUCH_DISK = "too_much_disk"
    UNCOVERED = "uncovered"
    """What it must not see or write was replaced from outside, and with that it could be."""


class ProcessOutcome(Struct, frozen=True, kw_only=True):
    """How a process ended; a negative `code` is the signal that ended it. Output is what came until then."""

    ending: Ending
    code: int
    stdout: bytes
    stderr: bytes
    refused_hosts: tuple[str, ...] = ()
    """What it asked the proxy of its sandbox for and did not get."""
    hidden: tuple[str, ...] = ()
    """Files of secrets that were hidden from it and that its words or errors name, where it failed; with a slash at its
    end, a folder that holds too much to be hidden file by file."""
    uncovered: str | None = None
    """Where it ended for that: a file that was hidden from it and was replaced meanwhile."""
    git: GitLeftovers = GitLeftovers()
    """What was taken away from repositories that it made in the workspace."""

    @property
    def succeeded(self) -> bool:
        return self.ending is Ending.EXITED and self.code == 0


class PreparedStart(Struct, frozen=True, kw_only=True):
    """What is really started for a command."""

    argv: list[str]
    environment: dict[str, str]
    descriptors: tuple[int, ...] = ()
    """Those that the process inherits."""


class StartAgain(Exception):
    """What a guard had prepared no longer holds. Nothing that is not trusted has run; the next start may succeed."""


STARTS = 3
"""So often a process is started until what was prepared for it holds; the last `StartAgain` says why it does not."""


class ProcessGuard(Protocol):
    """Confines a process beyond time and output. Every method is called by the thread that starts the process."""

    check_seconds: float
    """How often `check` is called."""

    def before_start(self, argv: Sequence[str], environment: Mapping[str, str]) -> PreparedStart:
        """Prepare to start a command; how. Called anew for each start."""

    def after_start(self, process_id: int) -> None:
        """Set limits on it before it runs anything that is not trusted. Raises StartAgain."""

    def check(self) -> Ending | None:
        """The limit that is exceeded now, if one is."""

    def after_end(self, ending: Ending) -> Ending:
        """Kill whatever is left, release what was prepared; how it really ended. Also called where nothing started."""


async def run_process(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str],
    folder: Path,
    stdin: bytes = b"",
    limits: Limits = DEFAULT_LIMITS,
    guard: ProcessGuard | None = None,
) -> ProcessOutcome:
    """Run a command to its end, or to its limits. What it is told on `argv` is seen by everybody on the machine."""
    run = ProcessRun(argv, environment, folder, stdin, limits, guard)
    thread = threading.Thread(target=run.run, name="weft-process", daemon=True)
    thread.start()
    outcome = asyncio.wrap_future(run.outcome)
    try:
        return await asyncio.shield(outcome)
    except asyncio.CancelledError:
        run.cancel()
        await _settled(outcome)
        raise
    except BaseException:  # interrupted right here, where nothing can be awaited
        run.cancel()
        raise
    finally:
        thread.join()  # it has handed its outcome over, and ends


async def _settled(outcome: asyncio.Future[ProcessOutcome]) -> None:
    """Wait until nothing of the process is left, however often the wait itself is cancelled: it was killed."""
    while not outcome.done():
        try:
            await asyncio.wait({outcome})
        except asyncio.CancelledError:
            continue
    outcome.exception()  # nobody is left to be told of it


class ProcessRun:
    """One process from start to end. The thread that starts it stays: the sandbox dies with the thread it came from."""

    def __init__(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        stdin: bytes,
        limits: Limits,
        guard: ProcessGuard | None,
    ) -> None:
        if not argv or any("\0" in word for word in (*argv, *environment, *environment.values())):
            raise InvalidInput("a command without words, or with a NUL in them", "give a program and its arguments")
        self._argv, self._environment, self._folder = list(argv), dict(environment), folder
        self._stdin, self._limits, self._guard = stdin, limits, guard
        self._woken, self._wake = os.pipe()
        self._lock = threading.Lock()
        self.outcome: Future[ProcessOutcome] = Future()

    def cancel(self) -> None:
        self.wake()

    def wake(self) -> None:
        """Have the thread call `was_cancelled`."""
        with self._lock:
            if self._wake >= 0:
                os.write(self._wake, b"!")

    def was_cancelled(self, woken: int, pipes: ProcessPipes) -> bool:
        """Called by the thread when it was woken; whether nobody waits for the process any longer."""
        return True

    def new_pipes(self) -> ProcessPipes:
        return ProcessPipes(self._limits.output)

    def run(self) -> None:
        """Whoever awaits the outcome finds nothing of the process left, nor of what attended it."""
        try:
            try:
                outcome = self._guarded()
            finally:
                self._close()
        except BaseException as error:  # it is raised where the process is awaited
            self.outcome.set_exception(error)
        else:
            self.outcome.set_result(outcome)

    def _close(self) -> None:
        with self._lock:
            os.close(self._woken)
            os.close(self._wake)
            self._wake = -1

    def _guarded(self) -> ProcessOutcome:
        for _ in range(STARTS - 1):
            with suppress(StartAgain):
                return self._run_once()
        try:
            return self._run_once()
        except StartAgain as error:
            raise StoreFailed(
                f"the command was not started, for the workspace changed each time that its sandbox was made: {error}",
                "run it again when nothing else moves folders in the workspace",
            ) from None

    def _run_once(self) -> ProcessOutcome:
        ending = Ending.EXITED
        pipes = self.new_pipes()
        try:
            process = self._start(self._prepared())
            try:
                if self._guard:
                    self._guard.after_start(process.pid)
                ending = self._attend(process, pipes)
            finally:
                _kill_group(process)
                process.wait()
                _close(process)
        finally:
            ending = self._guard.after_end(ending) if self._guard else ending
        return ProcessOutcome(
            ending=ending, code=process.returncode, stdout=bytes(pipes.stdout), stderr=bytes(pipes.stderr)
        )

    def _prepared(self) -> PreparedStart:
        if self._guard is None:
            return PreparedStart(argv=self._argv, environment=self._environment)
        return self._guard.before_start(self._argv, self._environment)

    def _start(self, start: PreparedStart) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                start.argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=start.environment,
                cwd=self._folder,
                start_new_session=True,
                pass_fds=start.descriptors,
                bufsize=0,
            )
        except OSError as error:
            raise StoreFailed(
                f"{start.argv[0]} could not be started: {error.strerror}", "check that it is installed and may be run"
            ) from None

    def _attend(self, process: subprocess.Popen[bytes], pipes: ProcessPipes) -> Ending:
        """Feed it, read it, measure it until it has ended and what it wrote is read, or a limit ends it."""
        deadline = time.monotonic() + self._limits.seconds
        grace: float | None = None
        with selectors.DefaultSelector() as selector, _EndOfProcess(process, selector) as end:
            selector.register(self._woken, selectors.EVENT_READ)
            pipes.register(process, self._stdin, selector)
            while grace is None or pipes.open_outputs:
                now = time.monotonic()
                if grace is not None and now >= grace:
                    break
                if now >= deadline:
                    return Ending.TIMED_OUT
                pause = min(grace or deadline, deadline) - now
                ready = selector.select(min(pause, end.poll_seconds, self.check_seconds))
                if any(key.fd == self._woken for key, _ in ready) and self.was_cancelled(self._woken, pipes):
                    break
                if not pipes.move(ready):
                    return Ending.TOO_MUCH_OUTPUT
                if self._guard and (exceeded := self._guard.check()):
                    return exceeded
                if grace is None and end.is_reached():
                    _kill_group(process)  # what it left behind may not keep the pipes open
                    grace = time.monotonic() + _GRACE_SECONDS
        return Ending.EXITED

    @property
    def check_seconds(self) -> float:
        return self._guard.check_seconds if self._guard else 60.0


class _EndOfProcess:
    """Tells when a process has ended: announced by the selector where the system can, else asked for often."""

    def __init__(self, process: subprocess.Popen[bytes], selector: selectors.BaseSelector) -> None:
        self._process, self._selector, self._descriptor = process, selector, -1
        self.poll_seconds = _POLL_SECONDS
        if sys.platform == "linux":
            try:
                self._descriptor = os.pidfd_open(process.pid)
            except OSError:  # an old kernel, or no descriptor left
                return
            selector.register(self._descriptor, selectors.EVENT_READ)
            self.poll_seconds = 60.0

    def is_reached(self) -> bool:
        """Whether it has ended. Linux does not reap it here: its id stays its own until its group is killed."""
        if sys.platform != "linux":
            return self._process.poll() is not None
        if os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return False
        if self._descriptor >= 0:
            self._selector.unregister(self._descriptor)
        return True

    def __enter__(self) -> _EndOfProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)


class ProcessPipes:
    """What goes into a process and what came on both of its pipes, together at most so many bytes."""

    def __init__(self, room: int) -> None:
        self.stdout, self.stderr, self._room = bytearray(), bytearray(), room
        self.open_outputs = 0

    def register(self, process: subprocess.Popen[bytes], stdin: bytes, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        for pipe, received in ((process.stdout, self.stdout), (process.stderr, self.stderr)):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
            selector.register(pipe, selectors.EVENT_READ, received)
            self.open_outputs += 1
        assert process.stdin is not None
        os.set_blocking(process.stdin.fileno(), False)
        self.begin_input(process.stdin, stdin)

    def begin_input(self, pipe: IO[bytes], stdin: bytes) -> None:
        self._unsent = memoryview(stdin)
        if stdin:
            self._selector.register(pipe, selectors.EVENT_WRITE, None)
        else:
            pipe.close()

    def move(self, ready: list[tuple[selectors.SelectorKey, int]]) -> bool:
        """Move what can be moved without waiting; False where more came than is taken."""
        for key, _ in ready:
            if isinstance(key.fileobj, int):
                continue
            if key.data is None:
                self._feed(key.fileobj)
            elif not self._read(key.fileobj, key.data):
                return False
        return True

    def _feed(self, pipe: Any) -> None:
        try:
            self._unsent = self._unsent[os.write(pipe.fileno(), self._unsent[:_CHUNK_BYTES]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:  # it does not read what it is told; that is its own affair
            self._unsent = self._unsent[:0]
        if not self._unsent:
            self.sent(pipe)

    def sent(self, pipe: Any) -> None:
        """All of the input was taken, and none follows."""
        self._selector.unregister(pipe)
        pipe.close()

    def _read(self, pipe: Any, received: bytearray) -> bool:
        try:
            piece = os.read(pipe.fileno(), _CHUNK_BYTES)
        except BlockingIOError:
            return True
        if not piece:
            self._selector.unregister(pipe)
            self.open_outputs -= 1
        return self.take(piece, received)

    def take(self, piece: bytes, received: bytearray) -> bool:
        """Keep what came, as far as there is room; False where there is none left."""
        received += piece[: self._room]
        self._room -= len(piece)
        return self._room >= 0


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # nobody is left in it (macOS says it the second way)
        return


def _close(process: subprocess.Popen[bytes]) -> None:
    pipes: tuple[IO[bytes] | None, ...] = (process.stdin, process.stdout, process.stderr)
    for pipe in pipes:
        if pipe is not None:
            pipe.close()
