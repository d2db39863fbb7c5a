"""The one place where processes are started.

A process gets exactly the environment it is given, a session of its own, and limits of time and output. However it
ends, and also when nobody waits for it any longer, its whole group is killed before anybody is answered.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from msgspec import Struct

from weft.kernel.errors import InvalidInput, StoreFailed

MIB = 1024 * 1024
_CHUNK = 64 * 1024
_GRACE = 1.0
"""So long is read on after the end, where something that left the group holds the pipes open."""


class Limits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much a process may take. `memory` is address space and is set by whoever makes the command."""

    seconds: float = 30.0
    output: int = MIB
    memory: int = 512 * MIB


DEFAULT_LIMITS = Limits()


class Ending(StrEnum):
    EXITED = "exited"
    TIMED_OUT = "timed_out"
    TOO_MUCH_OUTPUT = "too_much_output"


class ProcessOutcome(Struct, frozen=True, kw_only=True):
    """How a process ended; a negative `code` is the signal that ended it. Output is what came until then."""

    ending: Ending
    code: int
    stdout: bytes
    stderr: bytes

    @property
    def succeeded(self) -> bool:
        return self.ending is Ending.EXITED and self.code == 0


class _TooMuch(Exception):
    """Inside: more came than is taken."""


async def run_process(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str],
    folder: Path,
    stdin: bytes = b"",
    limits: Limits = DEFAULT_LIMITS,
) -> ProcessOutcome:
    """Run a command to its end, or to its limits. What it is told on `argv` is seen by everybody on the machine."""
    if not argv or any("\0" in word for word in (*argv, *environment, *environment.values())):
        raise InvalidInput("a command without words, or with a NUL in them", "give a program and its arguments")
    process = await _whole(_started(argv, environment, folder))
    kept = _Kept(limits.output)
    ending = Ending.EXITED
    try:
        async with asyncio.timeout(limits.seconds):
            await _attended(process, stdin, kept)
    except TimeoutError:
        ending = Ending.TIMED_OUT
    except _TooMuch:
        ending = Ending.TOO_MUCH_OUTPUT
    finally:
        code = await asyncio.shield(asyncio.ensure_future(process.ended()))
    return ProcessOutcome(ending=ending, code=code, stdout=bytes(kept.stdout), stderr=bytes(kept.stderr))


class _Protocol(asyncio.subprocess.SubprocessStreamProtocol):
    """Tells of a process's end when it ends. `Process.wait` also waits for its pipes, which others may hold open."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(limit=_CHUNK, loop=loop)
        self.exited = asyncio.Event()

    def process_exited(self) -> None:
        super().process_exited()
        self.exited.set()


class _Process:
    """A running process and its pipes."""

    def __init__(self, transport: asyncio.SubprocessTransport, protocol: _Protocol) -> None:
        self._transport, self._protocol = transport, protocol
        assert protocol.stdin is not None
        assert protocol.stdout is not None
        assert protocol.stderr is not None
        self.stdin, self.stdout, self.stderr = protocol.stdin, protocol.stdout, protocol.stderr

    async def exited(self) -> None:
        await self._protocol.exited.wait()

    def kill_group(self) -> None:
        try:
            os.killpg(self._transport.get_pid(), signal.SIGKILL)
        except (ProcessLookupError, PermissionError):  # nobody is left in it (macOS says it the second way)
            return

    async def ended(self) -> int:
        """Kill whatever is left, and wait for it."""
        self.kill_group()
        await self.exited()
        self._transport.close()
        code = self._transport.get_returncode()
        assert code is not None
        return code


async def _started(argv: Sequence[str], environment: Mapping[str, str], folder: Path) -> _Process:
    loop = asyncio.get_running_loop()
    try:
        transport, protocol = await loop.subprocess_exec(
            lambda: _Protocol(loop),
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=dict(environment),
            cwd=folder,
            start_new_session=True,
        )
    except OSError as error:
        raise StoreFailed(
            f"{argv[0]} could not be started: {error.strerror}", "check that it is installed and may be run"
        ) from None
    return _Process(transport, protocol)


async def _whole(start: Coroutine[Any, Any, _Process]) -> _Process:
    """A start that is cancelled in its middle would leave what the process has started by then."""
    starting = asyncio.ensure_future(start)
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        await asyncio.wait({starting})
        if starting.exception() is None:
            await starting.result().ended()
        raise


class _Kept:
    """What came on both pipes, together at most so many bytes."""

    def __init__(self, room: int) -> None:
        self.stdout, self.stderr, self._room = bytearray(), bytearray(), room

    async def read(self, pipe: asyncio.StreamReader, into: bytearray) -> None:
        while piece := await pipe.read(_CHUNK):
            into += piece[: self._room]
            self._room -= len(piece)
            if self._room < 0:
                raise _TooMuch


async def _attended(process: _Process, stdin: bytes, kept: _Kept) -> None:
    """Feed it, read it, wait for it. Once it has ended, what it left behind may not keep the pipes open."""
    pumps = [
        asyncio.ensure_future(_fed(process.stdin, stdin)),
        asyncio.ensure_future(kept.read(process.stdout, kept.stdout)),
        asyncio.ensure_future(kept.read(process.stderr, kept.stderr)),
    ]
    end = asyncio.ensure_future(process.exited())
    try:
        await _first_failure({*pumps, end}, until=end)
        process.kill_group()
        done, _ = await asyncio.wait(pumps, timeout=_GRACE, return_when=asyncio.FIRST_EXCEPTION)
        for pump in done:
            pump.result()
    finally:
        for task in (*pumps, end):
            task.cancel()
        await asyncio.gather(*pumps, end, return_exceptions=True)


async def _first_failure(tasks: set[asyncio.Future[None]], until: asyncio.Future[None]) -> None:
    """Wait for one of them; what another one raises meanwhile is raised at once."""
    waiting = set(tasks)
    while not until.done():
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()


async def _fed(pipe: asyncio.StreamWriter, data: bytes) -> None:
    try:
        pipe.write(data)
        await pipe.drain()
        pipe.close()
        await pipe.wait_closed()
    except (BrokenPipeError, ConnectionResetError):  # it does not read what it is told; that is its own affair
        return
