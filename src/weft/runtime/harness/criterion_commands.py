"""Runs the commands of success criteria in the sandbox, with the task's workspace as the one place to write to."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from weft.programs.criteria import CommandResult
from weft.runtime.sandbox.command_runner import CommandRunner
from weft.runtime.sandbox.processes import Ending, Limits
from weft.runtime.sandbox.profiles import WORKSPACE_PROFILE

TIMEOUT_SECONDS = 60.0


class CriterionCommands:
    """The commands of one check. They run in a thread that may wait; another thread can cancel them."""

    def __init__(self, runner: CommandRunner) -> None:
        self._runner = runner
        self._lock = threading.Lock()
        self._is_cancelled = False
        self._running: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any] | None] | None = None

    def run(self, command: str | list[str], folder: Path, timeout: float | None) -> CommandResult:
        """As `complete_task` takes it: called where no event loop runs."""
        try:
            return asyncio.run(self._run(command, folder, timeout))
        finally:
            with self._lock:
                self._running = None

    def cancel(self) -> None:
        """End the command that runs, and run no other one: whoever waits for it gets `CancelledError`."""
        with self._lock:
            self._is_cancelled = True
            if self._running is not None:
                loop, task = self._running
                assert task is not None
                with suppress(RuntimeError):  # it has just ended by itself
                    loop.call_soon_threadsafe(task.cancel)

    async def _run(self, command: str | list[str], folder: Path, timeout: float | None) -> CommandResult:
        with self._lock:
            if self._is_cancelled:
                raise asyncio.CancelledError
            self._running = asyncio.get_running_loop(), asyncio.current_task()
        argv = command if isinstance(command, list) else ["/bin/sh", "-c", command]
        limits = Limits(seconds=TIMEOUT_SECONDS if timeout is None else timeout)
        outcome = await self._runner.run(WORKSPACE_PROFILE, argv, workspace=folder, limits=limits)
        return CommandResult(
            exit_code=outcome.code if outcome.ending is Ending.EXITED else None,
            stdout=outcome.stdout.decode(errors="replace"),
            stderr=outcome.stderr.decode(errors="replace"),
        )
