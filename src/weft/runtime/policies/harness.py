"""The server inside the sandbox that runs one policy, each decision in a process of its own.

It is the first process of its process namespace: processes beneath it can neither end nor stop it, and it ends all of
them after every decision. It is not dumpable, so they read and write neither its memory nor its descriptors. The next
process is forked before its call arrives, holds nothing but its own three pipes, and waits until there is input. What
went in and what came out is overwritten before the one after that is forked, so no decision knows of an earlier one.

The policy writes to its own pipe. What is written to the host, with the host's nonce around it, comes from here.

This file runs alone, with the standard library: the host imports it for the form of the frames, and nothing of weft
may be imported here.
"""

from __future__ import annotations

import atexit
import gc
import os
import resource
import select
import signal
import struct
import sys
import threading
import time
from contextlib import suppress
from importlib import import_module
from types import CodeType, ModuleType

REQUEST = struct.Struct("!16sII")
"""The nonce, the milliseconds that the decision may take, and the bytes of input that follow."""
REPLY = struct.Struct("!16sBiII")
"""The nonce, how it ended, the exit code, and the bytes of output and of error output that follow."""
POLICY_PATH = "/program/policy.py"
NO_NONCE = bytes(16)
OUTPUT_BYTES = 64 * 1024
ERROR_BYTES = 4 * 1024

READY, EXITED, TIMED_OUT, TOO_MUCH_OUTPUT, LEFT_PROCESSES, UNREAD_INPUT, CHANGED_SERVER = range(7)

_HOST_IN, _HOST_OUT = 0, 1
_CHUNK_BYTES = 64 * 1024
_PR_SET_DUMPABLE = 4
_COMMON_MODULES = ("dataclasses", "fnmatch", "json", "posixpath", "re", "shlex", "typing")
"""Loaded once, for policies that import them."""
_LIMITS = tuple(getattr(resource, name) for name in sorted(vars(resource)) if name.startswith("RLIMIT_"))
_UNUSABLE = 3
"""The exit code of a server that cannot shut itself off, or that a process beneath it has changed."""


_OUTPUT_LOST = 120
"""The exit code of Python where what was written last cannot be written."""


class WaitingProcess:
    """A forked process that waits for its input, and the ends of its pipes."""

    def __init__(self) -> None:
        self.input_read, self.input_write = os.pipe()
        self.output, output_write = os.pipe()
        self.errors, errors_write = os.pipe()
        self.process_id = os.fork()
        if self.process_id == 0:
            for number, pipe in enumerate((self.input_read, output_write, errors_write)):
                os.dup2(pipe, number)
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))
            return
        os.close(output_write)
        os.close(errors_write)
        for pipe in (self.input_write, self.output, self.errors):
            os.set_blocking(pipe, False)

    def close(self) -> None:
        for pipe in (self.input_read, self.input_write, self.output, self.errors):
            if pipe >= 0:
                os.close(pipe)


class DecisionProcess:
    """One decision: feeds the process, reads it, and waits for its end or for the end of its time."""

    def __init__(self, waiting: WaitingProcess, data: bytearray, seconds: float) -> None:
        self._process, self._data, self._deadline = waiting, data, time.monotonic() + seconds
        self.output, self.errors = bytearray(OUTPUT_BYTES + 1), bytearray(ERROR_BYTES)
        self.output_bytes = self.errors_bytes = 0
        self._sent = 0
        self.code = 0

    def run(self) -> int:
        ending = self._attend_process()
        status = _exit_status(self._process.process_id, wait=False)
        if ending == EXITED and status is not None:
            self.code = os.waitstatus_to_exitcode(status)
            if _has_children():
                ending = LEFT_PROCESSES
        end_all()
        self._read_output()
        self._read_errors()
        if self.output_bytes > OUTPUT_BYTES:
            return TOO_MUCH_OUTPUT
        if ending == EXITED and self.code == 0 and (self._sent < len(self._data) or self._has_unread_input()):
            return UNREAD_INPUT
        return ending

    def wipe(self) -> None:
        for buffer in (self._data, self.output, self.errors):
            buffer[:] = bytes(len(buffer))

    def _attend_process(self) -> int:
        waiting, poll = self._process, select.poll()
        end = os.pidfd_open(waiting.process_id)
        try:
            for descriptor, event in (
                (waiting.input_write, select.POLLOUT),
                (waiting.output, select.POLLIN),
                (waiting.errors, select.POLLIN),
                (end, select.POLLIN),
            ):
                poll.register(descriptor, event)
            while True:
                left = self._deadline - time.monotonic()
                if left <= 0:
                    return TIMED_OUT
                ready = {descriptor for descriptor, _ in poll.poll(left * 1000)}
                if waiting.input_write in ready and self._feed_input():
                    poll.unregister(waiting.input_write)
                    os.close(waiting.input_write)
                    waiting.input_write = -1
                if waiting.output in ready and self._read_output():
                    poll.unregister(waiting.output)
                if waiting.errors in ready and self._read_errors():
                    poll.unregister(waiting.errors)
                if self.output_bytes > OUTPUT_BYTES:
                    return TOO_MUCH_OUTPUT
                if end in ready:
                    return EXITED
        finally:
            os.close(end)

    def _feed_input(self) -> bool:
        """Write what the pipe takes; whether all is written."""
        with suppress(BlockingIOError):
            self._sent += os.write(self._process.input_write, memoryview(self._data)[self._sent :][:_CHUNK_BYTES])
        return self._sent == len(self._data)

    def _read_output(self) -> bool:
        """Read what is there; whether that was the end."""
        while self.output_bytes <= OUTPUT_BYTES:
            try:
                count = os.readv(self._process.output, [memoryview(self.output)[self.output_bytes :]])
            except BlockingIOError:
                return False
            if not count:
                return True
            self.output_bytes += count
        return True

    def _read_errors(self) -> bool:
        """Keep the end of what is written there."""
        piece, errors = memoryview(bytearray(ERROR_BYTES)), memoryview(self.errors)
        while True:
            try:
                count = os.readv(self._process.errors, [piece])
            except BlockingIOError:
                return False
            if not count:
                return True
            kept = min(self.errors_bytes, ERROR_BYTES - count)
            errors[:kept] = errors[self.errors_bytes - kept : self.errors_bytes]
            errors[kept : kept + count] = piece[:count]
            self.errors_bytes = kept + count
            piece[:count] = bytes(count)

    def _has_unread_input(self) -> bool:
        return _unread_bytes(self._process.input_read) > 0


def serve(code: CodeType | None) -> CodeType | None:
    """Answer the host until it goes away. Returns in the process that is to run the policy, and nowhere else."""
    limits = own_limits()
    waiting = WaitingProcess()
    if not waiting.process_id:
        return code
    _write_to_host(REPLY.pack(NO_NONCE, READY, 0, 0, 0))
    while True:
        header = bytearray(REQUEST.size)
        _fill_buffer(header)
        nonce, milliseconds, size = REQUEST.unpack(header)
        data = bytearray(size)
        _fill_buffer(data)
        decision = DecisionProcess(waiting, data, milliseconds / 1000)
        ending = decision.run()
        if own_limits() != limits:
            ending = CHANGED_SERVER
        output = memoryview(decision.output)[: min(decision.output_bytes, OUTPUT_BYTES)]
        errors = memoryview(decision.errors)[: decision.errors_bytes]
        _write_to_host(REPLY.pack(nonce, ending, decision.code, len(output), len(errors)))
        _write_to_host(output)
        _write_to_host(errors)
        decision.wipe()
        waiting.close()
        if ending == CHANGED_SERVER:
            os._exit(_UNUSABLE)
        waiting = WaitingProcess()
        if not waiting.process_id:
            return code


def own_limits() -> tuple[object, ...]:
    """What a process beneath could change of this one, for those after it to find."""
    limits = tuple(resource.getrlimit(kind) for kind in _LIMITS)
    return (limits, os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0), os.sched_getaffinity(0))


def end_all() -> None:
    """Kill every other process of the namespace, and wait until none is left."""
    with suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    while _has_children():
        _exit_status(-1, wait=True)


def run_policy(code: CodeType | None, path: str) -> None:
    """Run the policy as a script, once there is input. Ends the process as Python would, without taking apart what
    was loaded before it was forked, which takes longer than most policies do."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    select.select([0], [], [])
    module = ModuleType("__main__")
    module.__dict__["__file__"] = path
    sys.modules["__main__"] = module
    status = _status_of(code, path, module)
    for end in (threading._shutdown, atexit._run_exitfuncs, module.__dict__.clear, gc.collect):  # type: ignore[attr-defined]
        end()
        status = status or _flush_output()
    os._exit(status)


def _status_of(code: CodeType | None, path: str, module: ModuleType) -> int:
    """The exit status of the script; what Python says of an exception is said."""
    try:
        exec(code or _compile_source(path), module.__dict__)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        sys.stderr.write(f"{end.code}\n")
        return 1
    except BaseException:  # whatever the policy raised, as Python says it
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def _flush_output() -> int:
    """Write what is buffered; the status of a script whose output is lost."""
    try:
        if sys.stdout is not None and not sys.stdout.closed:
            sys.stdout.flush()
        if sys.stderr is not None and not sys.stderr.closed:
            sys.stderr.flush()
    except Exception:  # the policy may have put anything in the place of its output
        return _OUTPUT_LOST
    return 0


def prepare(path: str) -> CodeType | None:
    """Shut the memory and the descriptors of this process, and load what policies commonly import."""
    import ctypes

    for name in _COMMON_MODULES:
        import_module(name)
    if os.getpid() != 1 or ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        os._exit(_UNUSABLE)
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        code = _compile_source(path)
    except Exception:  # what is wrong with it is said by the process that runs it
        code = None
    gc.collect()
    gc.freeze()
    return code


def _compile_source(path: str) -> CodeType:
    with open(path, "rb") as file:
        return compile(file.read(), path, "exec", dont_inherit=True)


def _exit_status(process_id: int, wait: bool) -> int | None:
    """The status of a process that has ended; None where it has not."""
    try:
        ended, status = os.waitpid(process_id, 0 if wait else os.WNOHANG)
    except ChildProcessError:
        return None
    return status if ended else None


def _has_children() -> bool:
    """Whether a process is left. Those that have ended and were left to this one are reaped."""
    while True:
        try:
            ended, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if not ended:
            return True


def _unread_bytes(pipe: int) -> int:
    """How many bytes nobody has read."""
    import fcntl
    import termios

    return int(struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))[0])


def _fill_buffer(buffer: bytearray) -> None:
    filled = 0
    while filled < len(buffer):
        count = os.readv(_HOST_IN, [memoryview(buffer)[filled:]])
        if not count:
            os._exit(0)  # the host is gone
        filled += count


def _write_to_host(data: bytes | memoryview) -> None:
    while data:
        data = data[os.write(_HOST_OUT, data) :]


if __name__ == "__main__":
    run_policy(serve(prepare(POLICY_PATH)), POLICY_PATH)
