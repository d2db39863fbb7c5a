"""Runs commands as a profile says: in the sandbox, with a proxy where hosts are granted, or without a sandbox."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from weft.kernel.errors import StoreFailed, Unsupported
from weft.runtime.sandbox.bubblewrap import (
    Sandbox,
    find_sandbox,
    run_sandboxed,
    start_sandboxed,
)
from weft.runtime.sandbox.line_process import LineProcess
from weft.runtime.sandbox.mounts import Mount
from weft.runtime.sandbox.network_forwarder import FORWARDER_SOURCE, PROXY_PORT
from weft.runtime.sandbox.processes import DEFAULT_LIMITS, Ending, Limits, ProcessOutcome, run_process
from weft.runtime.sandbox.profiles import SandboxProfile
from weft.runtime.sandbox.protected_places import ProtectedPlaces
from weft.runtime.sandbox.sandbox_plan import INSIDE_PATH, PROGRAM_FOLDER
from weft.runtime.sandbox.toolchains import Toolchains, find_toolchains
from weft.runtime.sandbox.visible_files import interpreter_files
from weft.runtime.sandbox.workspace_view import NO_FOLDERS, PersonFolders

_FORWARDER = "forwarder.py"
_PROXY_NAMES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
PROXY_VARIABLES = dict.fromkeys(_PROXY_NAMES, f"http://127.0.0.1:{PROXY_PORT}")
_CERTIFICATES = (
    "/etc/ssl/certs", "/etc/ssl/cert.pem", "/etc/ssl/openssl.cnf", "/etc/pki/tls/certs", "/etc/pki/ca-trust/extracted",
    "/etc/ca-certificates/extracted",
)  # fmt: skip
"""Whom a program trusts that speaks TLS through the proxy."""


_START_FAILED = re.compile(rb"bwrap: execvp (.*): ([ -9;-~]*)\n", re.DOTALL)
"""All that stands on the error stream where bubblewrap finds no such command, or may not start it."""


_FORWARDED_START_FAILED = re.compile(rb"(.*): ([ -9;-~]*)\n", re.DOTALL)
"""The same, where the forwarder to the proxy started it."""


class CommandRunner:
    """Runs commands in the sandbox of this machine, which it looks for once. `strict`: one without gaps, or none.

    `protected` is shown to no command. `readable` is shown to every one beside the workspace and the system, such as
    where a language is installed. Of the home folder of `person` those toolchains are shown that a workspace leads to,
    or that the person uses.
    """

    def __init__(
        self,
        protected: ProtectedPlaces,
        *,
        strict: bool = False,
        sandbox: Sandbox | None = None,
        readable: Sequence[Path] = (),
        person: PersonFolders = NO_FOLDERS,
    ) -> None:
        self._strict, self._sandbox = strict, sandbox
        self.protected, self.readable, self.person = protected, tuple(readable), person

    def _unconfined_variables(self) -> dict[str, str]:
        """For a command without a sandbox: what it does is done as the person, in their home folder if it is known."""
        home = {} if self.person.home is None else {"HOME": str(self.person.home)}
        return {"PATH": INSIDE_PATH, **home}

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
        held_files: Sequence[Mount] = (),
        uncovered_files: Sequence[Mount] = (),
        stdin: bytes = b"",
        limits: Limits = DEFAULT_LIMITS,
    ) -> ProcessOutcome:
        """Run a command in a folder of the workspace. Its environment is PATH, HOME and what is given, nothing else.
        `held_files` have given bytes there, whatever becomes of them outside; without a sandbox none can be held.
        `uncovered_files` are those of secrets that this one command may read, with their bytes.
        One that cannot be started ends as in a shell: with 127 where it is not there, else with 126."""
        place = folder or str(workspace.resolve())
        if profile.is_unconfined:
            if held_files:
                raise Unsupported("files cannot be held without a sandbox", "run it in one, or hold none")
            variables = {**self._unconfined_variables(), **(environment or {})}
            try:
                return await run_process(argv, environment=variables, folder=Path(place), stdin=stdin, limits=limits)
            except StoreFailed as error:
                if not isinstance(error.__context__, OSError):
                    raise
                return _not_started(argv, error.__context__.strerror or "", error.__context__.errno)
        confined = _ConfinedCommand(
            await self.sandbox(),
            profile,
            workspace=workspace,
            folder=place,
            protected=self.protected,
            readable=self.readable,
            person=self.person,
            toolchains=(toolchains := await self.toolchains(workspace, place)),
            held_files=held_files,
            uncovered_files=uncovered_files,
            stdin=stdin,
            limits=limits,
        )
        if profile.endpoints:
            return _explained(argv, await confined.run_with_hosts(argv, environment or {}), toolchains)
        outcome = await confined.run(argv, environment or {})
        failure = _START_FAILED.fullmatch(outcome.stderr) if outcome.code == 1 else None
        if failure is not None and failure[1] == os.fsencode(argv[0]):
            is_missing = failure[2].decode() == os.strerror(errno.ENOENT)
            outcome = _not_started(argv, failure[2].decode(), errno.ENOENT if is_missing else None)
        return _explained(argv, outcome, toolchains)

    async def toolchains(
        self, workspace: Path | None, folder: str | None = None, readable: Sequence[Path] = ()
    ) -> Toolchains:
        """What a command in a folder of the workspace is shown of them."""
        place = None if workspace is None else str(workspace)
        shown = [str(path) for path in (*self.readable, *readable)]
        return await asyncio.to_thread(find_toolchains, self.person.toolchain_home, place, folder, shown)

    async def explained(
        self, argv: Sequence[str], outcome: ProcessOutcome, workspace: Path | None, readable: Sequence[Path] = ()
    ) -> ProcessOutcome:
        """The outcome of what was started, with a line more where it failed for want of a program that is hidden."""
        return _explained(argv, outcome, await self.toolchains(workspace, None, readable))

    @asynccontextmanager
    async def started(
        self,
        profile: SandboxProfile,
        argv: Sequence[str],
        *,
        workspace: Path | None = None,
        environment: Mapping[str, str] | None = None,
        readable: Sequence[Path] = (),
        cache_name: str | None = None,
        limits: Limits = DEFAULT_LIMITS,
    ) -> AsyncIterator[LineProcess]:
        """Start a command that is spoken with in lines, and have its proxy run until the end. Whoever entered this
        stops the command. Without a workspace nothing that it writes stays, but for package caches under `cache_name`.
        Caches of that name are its own, also where it has a workspace, and under a profile that only reads.
        `readable` is shown to it beside."""
        if profile.is_unconfined:
            place = Path("/") if workspace is None else workspace.resolve()
            variables = {**self._unconfined_variables(), **(environment or {})}
            yield LineProcess(argv, environment=variables, folder=place, limits=limits)
            return
        sandbox, toolchains = await self.sandbox(), await self.toolchains(workspace, None, readable)
        if not profile.endpoints:
            yield start_sandboxed(
                sandbox,
                argv,
                self.protected,
                workspace=workspace,
                read_only=profile.is_read_only,
                environment=environment,
                shown=[*self.readable, *readable],
                person=self.person,
                cache_name=cache_name,
                toolchains=toolchains,
                limits=limits,
            )
            return
        from weft.runtime.egress.host_proxy import HostProxy  # loads an HTTP client

        async with HostProxy(profile.allows_endpoint) as proxy:
            forwarded = _Forwarded.through(proxy.socket, argv)
            yield start_sandboxed(
                sandbox,
                forwarded.argv,
                self.protected,
                workspace=workspace,
                read_only=profile.is_read_only,
                files=forwarded.files,
                environment={**(environment or {}), **PROXY_VARIABLES},
                shown=[*self.readable, *readable],
                readable=forwarded.readable,
                hidden=forwarded.hidden,
                person=self.person,
                cache_name=cache_name,
                toolchains=toolchains,
                limits=limits,
            )


def _not_started(argv: Sequence[str], why: str, code: int | None) -> ProcessOutcome:
    words = os.fsencode(argv[0]) + f": {why}\n".encode()
    return ProcessOutcome(ending=Ending.EXITED, code=127 if code == errno.ENOENT else 126, stdout=b"", stderr=words)


def _explained(argv: Sequence[str], outcome: ProcessOutcome, toolchains: Toolchains) -> ProcessOutcome:
    """With a line more on its error stream where a command failed for want of a program that is hidden."""
    if outcome.ending is not Ending.EXITED or outcome.code == 0:
        return outcome
    why = toolchains.explain(argv, outcome.stderr.decode(errors="replace"))
    if why is None:
        return outcome
    line_end = b"" if not outcome.stderr or outcome.stderr.endswith(b"\n") else b"\n"
    return msgspec.structs.replace(outcome, stderr=outcome.stderr + line_end + os.fsencode(why) + b"\n")


def start_failure(argv: Sequence[str], outcome: ProcessOutcome) -> str | None:
    """Why a command could not be started, as the system says it; None where it was."""
    failure = _START_FAILED.fullmatch(outcome.stderr) or _FORWARDED_START_FAILED.fullmatch(outcome.stderr)
    return failure[2].decode() if failure is not None and failure[1] == os.fsencode(argv[0]) else None


class _Forwarded(Struct, frozen=True, kw_only=True):
    """A command behind the forwarder to a proxy, and what that needs to see."""

    argv: list[str]
    files: dict[str, bytes]
    readable: list[Path]
    hidden: list[Path]

    @classmethod
    def through(cls, socket: Path, argv: Sequence[str]) -> _Forwarded:
        readable, hidden = _interpreter_beside_system()
        python = Path(sys.executable).resolve()
        certificates = [Path(path) for path in _CERTIFICATES if Path(path).exists()]
        return cls(
            argv=[str(python), "-I", "-S", "-B", f"{PROGRAM_FOLDER}/{_FORWARDER}", str(socket), *argv],
            files={_FORWARDER: FORWARDER_SOURCE.encode()},
            readable=[*readable, *certificates, socket],
            hidden=hidden,
        )


class _ConfinedCommand:
    """One command in the sandbox."""

    def __init__(
        self,
        sandbox: Sandbox,
        profile: SandboxProfile,
        *,
        workspace: Path,
        folder: str,
        protected: ProtectedPlaces,
        readable: Sequence[Path],
        person: PersonFolders,
        toolchains: Toolchains,
        held_files: Sequence[Mount],
        uncovered_files: Sequence[Mount],
        stdin: bytes,
        limits: Limits,
    ) -> None:
        self._sandbox, self._profile, self._workspace, self._folder = sandbox, profile, workspace, folder
        self._protected, self._readable, self._person = protected, readable, person
        self._toolchains, self._held_files, self._uncovered_files = toolchains, held_files, uncovered_files
        self._stdin, self._limits = stdin, limits

    async def run(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        *,
        files: Mapping[str, bytes] | None = None,
        readable: Sequence[Path] = (),
        hidden: Sequence[Path] = (),
    ) -> ProcessOutcome:
        return await run_sandboxed(
            self._sandbox,
            argv,
            self._protected,
            workspace=self._workspace,
            folder=self._folder,
            read_only=self._profile.is_read_only,
            files=files,
            environment=environment,
            shown=self._readable,
            readable=readable,
            hidden=hidden,
            person=self._person,
            toolchains=self._toolchains,
            held_files=self._held_files,
            uncovered_files=self._uncovered_files,
            stdin=self._stdin,
            limits=self._limits,
            limit_address_space=False,
        )

    async def run_with_hosts(self, argv: Sequence[str], environment: Mapping[str, str]) -> ProcessOutcome:
        """The same beside a proxy, which runs as long as the command."""
        from weft.runtime.egress.host_proxy import HostProxy  # loads an HTTP client

        async with HostProxy(self._profile.allows_endpoint) as proxy:
            forwarded = _Forwarded.through(proxy.socket, argv)
            outcome = await self.run(
                forwarded.argv,
                {**environment, **PROXY_VARIABLES},
                files=forwarded.files,
                readable=forwarded.readable,
                hidden=forwarded.hidden,
            )
            return msgspec.structs.replace(outcome, refused_hosts=tuple(proxy.refused))


def _interpreter_beside_system() -> tuple[list[Path], list[Path]]:
    """What this Python needs and the sandbox does not show anyway, and what in that stays hidden."""
    readable, hidden = interpreter_files()
    system = Path("/usr")
    paths = [*readable, Path(sys.executable).resolve()]
    return [path for path in paths if system not in path.parents], [
        path for path in hidden if system not in path.parents
    ]
