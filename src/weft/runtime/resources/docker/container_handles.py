"""A running container as something to act on: attach to it, run a command in it, end it, read what it printed.

Every act ends within its time and keeps a limited part of what is printed. An engine has no call that ends a
command: one whose time is over goes on inside the container, and its result says so.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from weft.kernel.enums import HandleCapability
from weft.kernel.errors import EngineObjectMissing, EngineRefused, InvalidInput
from weft.kernel.foreign_input import MIB
from weft.runtime.resources.docker.engine import About, ContainerEngine, EngineStream, checked_name, container_path
from weft.runtime.resources.docker.output import STDOUT, ContainerOutput, collected, frames

MOST_BYTES = 1 * MIB
_EXIT_LOOKS, _LOOK_SECONDS = 100, 0.02
_SIGNALS = frozenset("HUP INT QUIT KILL USR1 USR2 TERM CONT STOP".split())


class ExecResult(Struct, frozen=True, kw_only=True):
    """What became of a command in a container; `rc` is None while nobody knows."""

    rc: int | None
    stdout: str
    stderr: str
    duration_ms: int
    is_truncated: bool = False
    has_timed_out: bool = False
    """It was not waited for any longer; it may run on in the container."""


class AttachedOutput(Struct, frozen=True, kw_only=True):
    stdout: str
    stderr: str
    is_truncated: bool
    has_ended: bool
    """The container ended while it was listened to."""


class ContainerHandle:
    """By the id or the name of a container."""

    provider = "docker"

    def __init__(
        self, engine: ContainerEngine, container: str, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._engine, self._path = engine, container_path(container)
        self._about = About("container", container)
        self._monotonic = monotonic

    def capabilities(self) -> tuple[HandleCapability, ...]:
        """What can be done now: all of it while the container runs, afterwards its logs are there."""
        if self._inspect()["State"].get("Running"):
            return (HandleCapability.ATTACH, HandleCapability.EXEC, HandleCapability.KILL, HandleCapability.LOGS)
        return (HandleCapability.LOGS,)

    def exec(
        self,
        command: Sequence[str],
        *,
        seconds: float = 60,
        most_bytes: int = MOST_BYTES,
        folder: str | None = None,
        variables: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> ExecResult:
        """Runs a command in it and waits for its end, at most so long. Of each stream `most_bytes` are kept."""
        if not command:
            raise InvalidInput("a command has at least its own name")
        body: dict[str, object] = {
            "Cmd": list(command),
            "AttachStdout": True,
            "AttachStderr": True,
            "Privileged": False,
        }
        body |= {"WorkingDir": folder} if folder else {}
        body |= {"User": user} if user else {}
        body |= {"Env": [f"{name}={value}" for name, value in variables.items()]} if variables else {}
        asked = "run a command in the container"
        made = self._engine.call("POST", f"{self._path}/exec", asked=asked, about=self._about, body=body)
        path = f"/exec/{checked_name(str(made['Id']), 'command')}"
        begun = self._monotonic()
        with self._engine.stream(
            "POST", f"{path}/start", asked=asked, body={"Detach": False, "Tty": False}, seconds=seconds
        ) as stream:
            output = collected(frames(stream.chunks()), most_bytes)
        duration_ms = round((self._monotonic() - begun) * 1000)
        rc = None if stream.is_cut else self._exit_code(path)
        return ExecResult(
            rc=rc,
            stdout=_text(output.stdout),
            stderr=_text(output.stderr),
            duration_ms=duration_ms,
            is_truncated=output.is_truncated,
            has_timed_out=stream.is_cut,
        )

    def logs(self, *, lines: int = 1000, most_bytes: int = MOST_BYTES, seconds: float = 30) -> ContainerOutput:
        """The last lines that it printed."""
        query = {"stdout": "true", "stderr": "true", "tail": str(max(lines, 0))}
        has_terminal = self._has_terminal()
        with self._engine.stream(
            "GET", f"{self._path}/logs", asked="read its logs", about=self._about, query=query, seconds=seconds
        ) as stream:
            return collected(_pieces(stream, has_terminal), most_bytes)

    def attach(self, *, seconds: float = 10, most_bytes: int = MOST_BYTES) -> AttachedOutput:
        """What it prints from now on, for so long or until it ends."""
        query = {"stream": "true", "stdout": "true", "stderr": "true"}
        has_terminal = self._has_terminal()
        with self._engine.stream(
            "POST", f"{self._path}/attach", asked="attach to it", about=self._about, query=query, seconds=seconds
        ) as stream:
            output = collected(_pieces(stream, has_terminal), most_bytes)
        return AttachedOutput(
            stdout=_text(output.stdout),
            stderr=_text(output.stderr),
            is_truncated=output.is_truncated,
            has_ended=not stream.is_cut,
        )

    def kill(self, signal: str = "KILL") -> bool:
        """Sends a signal to its first process. Whether it was running."""
        if signal.removeprefix("SIG") not in _SIGNALS:
            raise InvalidInput(f"{signal!r} is no signal that is sent to a container")
        try:
            self._engine.call("POST", f"{self._path}/kill", asked="end it", about=self._about, query={"signal": signal})
        except EngineRefused as error:
            if error.status != 409 and self._inspect()["State"].get("Running"):
                raise
            return False
        return True

    def _inspect(self) -> Any:
        return self._engine.call("GET", f"{self._path}/json", asked="describe it", about=self._about)

    def _has_terminal(self) -> bool:
        return bool(self._inspect()["Config"].get("Tty"))

    def _exit_code(self, path: str) -> int | None:
        """An engine may close the streams of a command a moment before it notes its end."""
        pause = threading.Event()
        for _ in range(_EXIT_LOOKS):
            try:
                answer = self._engine.call("GET", f"{path}/json", asked="say how it ended", about=self._about)
            except EngineObjectMissing:
                return None
            if not answer.get("Running"):
                code = answer.get("ExitCode")
                return None if code is None else int(code)
            pause.wait(_LOOK_SECONDS)
        return None


def _pieces(stream: EngineStream, has_terminal: bool) -> Iterator[tuple[int, bytes]]:
    """What a terminal prints comes as it is, all else in frames."""
    if has_terminal:
        return ((STDOUT, chunk) for chunk in stream.chunks())
    return frames(stream.chunks())


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
