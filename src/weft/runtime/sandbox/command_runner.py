"""Runs commands as a profile says: in the sandbox, with a proxy where hosts are granted, or without a sandbox."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from weft.kernel.errors import Unsupported
from weft.runtime.sandbox.bubblewrap import INSIDE_PATH, Sandbox, find_sandbox, run_sandboxed
from weft.runtime.sandbox.processes import DEFAULT_LIMITS, Limits, ProcessOutcome, run_process
from weft.runtime.sandbox.profiles import SandboxProfile


class CommandRunner:
    """Runs commands in the sandbox of this machine, which it looks for once. `strict`: one without gaps, or none."""

    def __init__(self, *, strict: bool = False, sandbox: Sandbox | None = None) -> None:
        self._strict, self._sandbox = strict, sandbox

    async def sandbox(self) -> Sandbox:
        """Raises Unsupported where there is none."""
        if self._sandbox is None:
            self._sandbox = await find_sandbox(strict=self._strict)
        return self._sandbox

    async def run(
        self,
        profile: SandboxProfile,
        argv: Sequence[str],
        *,
        workspace: Path,
        folder: str | None = None,
        environment: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        limits: Limits = DEFAULT_LIMITS,
    ) -> ProcessOutcome:
        """Run a command in a folder of the workspace. Its environment is PATH, HOME and what is given, nothing else."""
        place = folder or str(workspace.resolve())
        if profile.is_unconfined:
            variables = {"PATH": INSIDE_PATH, "HOME": place, **(environment or {})}
            return await run_process(argv, environment=variables, folder=Path(place), stdin=stdin, limits=limits)
        sandbox = await self.sandbox()
        if profile.endpoints:
            raise Unsupported("hosts cannot be granted to a sandbox here", "use the profile workspace")
        return await run_sandboxed(
            sandbox,
            argv,
            workspace=workspace,
            folder=place,
            read_only=profile.is_read_only,
            environment=environment,
            stdin=stdin,
            limits=limits,
            limit_address_space=False,
        )
