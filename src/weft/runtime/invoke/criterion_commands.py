"""Runs the commands of success criteria in the sandbox, with the task's workspace as the one place to write to."""

from __future__ import annotations

import asyncio
from pathlib import Path

from weft.programs.criteria import CommandResult, RunCommand
from weft.programs.placeholders import Resolver
from weft.runtime.sandbox.bubblewrap import STRICT_VARIABLE, find_sandbox, is_strict, run_sandboxed
from weft.runtime.sandbox.processes import Ending, Limits

TIMEOUT_SECONDS = 60.0


def criterion_runner(variable: Resolver) -> RunCommand:
    """As `complete_task` takes it: called where no event loop runs, in a thread that may wait."""
    strict = is_strict(variable(STRICT_VARIABLE))

    def run_criterion(command: str | list[str], folder: Path, timeout: float | None) -> CommandResult:
        return asyncio.run(_run(command, folder, timeout, strict))

    return run_criterion


async def _run(command: str | list[str], folder: Path, timeout: float | None, strict: bool) -> CommandResult:
    argv = command if isinstance(command, list) else ["/bin/sh", "-c", command]
    limits = Limits(seconds=TIMEOUT_SECONDS if timeout is None else timeout)
    outcome = await run_sandboxed(await find_sandbox(strict=strict), argv, workspace=folder, limits=limits)
    return CommandResult(
        exit_code=outcome.code if outcome.ending is Ending.EXITED else None,
        stdout=outcome.stdout.decode(errors="replace"),
        stderr=outcome.stderr.decode(errors="replace"),
    )
