"""The one place where commands of tools are started, and how processes are spoken with.

A process runs to its end within limits; another is spoken with in lines, or serves until it is
stopped.
"""

from __future__ import annotations

import asyncio
import os
import select
import selectors
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import IO, Any, Protocol

from msgspec import Struct, structs

from weft.kernel.errors import CredentialMissing, InvalidInput, StoreFailed
from weft.runtime.egress.credentials import RunCommand, Variable
from weft.runtime.sandbox.git_settings import GitLeftovers

# --- The one place where commands of tools are started; our own git is started by `own_git`.

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
    shared_files: tuple[str, ...] = ()
    """Files of the workspace that changed and have another name elsewhere, by a hard link: they changed there, too."""
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
                outcome = self._run_guarded()
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

    def _run_guarded(self) -> ProcessOutcome:
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
            process = self._start(self._prepared_start())
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

    def _prepared_start(self) -> PreparedStart:
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


# --- A process that is spoken with in lines until it ends or is stopped, such as an MCP server.

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

    async def wait_for_end(self) -> ProcessOutcome:
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


# --- A process of our own that serves until it is stopped, such as an embedded model.

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
        return self._read_line(time.monotonic() + seconds)

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

    def _read_line(self, deadline: float) -> bytes | None:
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


# --- Commands that print keys: the user's own, such as a password manager's, run with the little they need.

NEEDED = (
    "PATH HOME USER LOGNAME LANG LC_ALL TERM DISPLAY WAYLAND_DISPLAY XDG_RUNTIME_DIR DBUS_SESSION_BUS_ADDRESS "
    "SSH_AUTH_SOCK GPG_TTY GNUPGHOME PASSWORD_STORE_DIR"
).split()
"""What password managers look at. No other variable is passed on."""
_LIMITS = Limits(seconds=60, output=64 * 1024)


def command_runner(variable: Variable, limits: Limits = _LIMITS) -> RunCommand:
    """How credentials with a command are read. What the command prints is shown to nobody, also when it fails."""

    async def run(words: tuple[str, ...]) -> str:
        environment = {name: value for name in NEEDED if (value := variable(name)) is not None}
        try:
            outcome = await run_process(words, environment=environment, folder=Path("/"), limits=limits)
        except StoreFailed as error:
            raise CredentialMissing(words[0], str(error)) from None
        if not outcome.succeeded:
            ended = f"ended with {outcome.code}" if outcome.ending == "exited" else str(outcome.ending)
            raise CredentialMissing(words[0], f"its command {ended}", "run the command yourself and look")
        return outcome.stdout.decode(errors="replace")

    return run
