"""Runs commands as a profile says: sandboxed, with a proxy for granted hosts, or without a sandbox.

Code programs run here, too: JavaScript and TypeScript by deno, Python by monty, each inside the
sandbox.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from enum import StrEnum
from importlib.util import cache_from_source, find_spec
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from weft.kernel.contents import dumps
from weft.kernel.errors import StoreFailed, Unsupported
from weft.runtime.sandbox.bubblewrap import Sandbox, find_sandbox, run_sandboxed, start_sandboxed
from weft.runtime.sandbox.hidden_places import ProtectedPlaces
from weft.runtime.sandbox.processes import DEFAULT_LIMITS, MIB, Ending, Limits, LineProcess, ProcessOutcome, run_process
from weft.runtime.sandbox.profiles import Mount, SandboxProfile
from weft.runtime.sandbox.sandbox_plan import (
    INSIDE_PATH,
    NO_FOLDERS,
    PROGRAM_FOLDER,
    PersonFolders,
    SystemFiles,
    interpreter_files,
)
from weft.runtime.sandbox.toolchains import NO_TOOLCHAINS, Toolchains, find_toolchains

# --- What runs in the sandbox before a command that has hosts granted: it forwards a local port to the proxy's socket.

PROXY_PORT = 3128

FORWARDER_SOURCE = f"""\
import _signal, _socket, _thread, os, sys


def pump(source, target):
    try:
        while piece := source.recv(65536):
            target.sendall(piece)
        target.shutdown(_socket.SHUT_WR)
    except OSError:  # one end is gone; the other direction ends too
        for end in (source, target):
            try:
                end.shutdown(_socket.SHUT_RDWR)
            except OSError:
                continue


def serve(listener, path):
    while True:
        near = _socket.socket(fileno=listener._accept()[0])
        far = _socket.socket(_socket.AF_UNIX)
        try:
            far.connect(path)
        except OSError:
            near.close()
            continue
        _thread.start_new_thread(pump, (near, far))
        _thread.start_new_thread(pump, (far, near))


path, *argv = sys.argv[1:]
listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
listener.bind(("127.0.0.1", {PROXY_PORT}))
listener.listen(64)
if os.fork() == 0:
    nothing = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    serve(listener, path)
listener.close()
for number in (_signal.SIGPIPE, _signal.SIGXFSZ):  # Python ignores them, and what it starts would too
    _signal.signal(number, _signal.SIG_DFL)
with open("/proc/self/environ", "rb") as file:  # without what Python sets for itself at its start
    pairs = [entry.partition(b"=") for entry in file.read().split(b"\\0") if entry]
try:
    os.execvpe(argv[0], argv, {{name: value for name, _, value in pairs}})
except OSError as error:
    sys.stderr.write(f"{{argv[0]}}: {{error.strerror}}\\n")
    os._exit(127 if isinstance(error, FileNotFoundError) else 126)
"""


# --- Runs commands as a profile says: in the sandbox, with a proxy where hosts are granted, or without a sandbox.

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
        place = folder or os.path.realpath(workspace)
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
            return _with_hidden_program(argv, await confined.run_with_hosts(argv, environment or {}), toolchains)
        outcome = await confined.run(argv, environment or {})
        failure = _START_FAILED.fullmatch(outcome.stderr) if outcome.code == 1 else None
        if failure is not None and failure[1] == os.fsencode(argv[0]):
            is_missing = failure[2].decode() == os.strerror(errno.ENOENT)
            outcome = _not_started(argv, failure[2].decode(), errno.ENOENT if is_missing else None)
        return _with_hidden_program(argv, outcome, toolchains)

    async def toolchains(
        self, workspace: Path | None, folder: str | None = None, readable: Sequence[Path] = ()
    ) -> Toolchains:
        """What a command in a folder of the workspace is shown of them."""
        if self.person.toolchain_home is None:
            return NO_TOOLCHAINS
        place = None if workspace is None else str(workspace)
        shown = [str(path) for path in (*self.readable, *readable)]
        return await asyncio.to_thread(find_toolchains, self.person.toolchain_home, place, folder, shown)

    async def explained(
        self, argv: Sequence[str], outcome: ProcessOutcome, workspace: Path | None, readable: Sequence[Path] = ()
    ) -> ProcessOutcome:
        """The outcome of what was started, with a line more where it failed for want of a program that is hidden."""
        return _with_hidden_program(argv, outcome, await self.toolchains(workspace, None, readable))

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
        from weft.runtime.egress.connections import HostProxy  # loads an HTTP client

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


def _with_hidden_program(argv: Sequence[str], outcome: ProcessOutcome, toolchains: Toolchains) -> ProcessOutcome:
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
        from weft.runtime.egress.connections import HostProxy  # loads an HTTP client

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


# --- Code programs: JavaScript and TypeScript by deno, Python by monty, each inside the sandbox.

CODE_LIMITS = Limits(memory=128 * MIB)
_RUNTIME_BYTES = 128 * MIB
"""What deno, or Python and monty, take for themselves at most."""
_HINT = "install it with `pip install 'weft[code]'`"
_DENO = ("run", "--no-remote", "--no-npm", "--no-prompt", "--no-config", "--no-lock", "--no-check", "--quiet")
_JAVASCRIPT_RUNNER = """\
const write = Deno.stdout.write.bind(Deno.stdout);
const shown = (error) => error instanceof Error ? (error.stack ?? String(error)) : String(error);
for (const name of ["log", "info", "debug", "warn"]) console[name] = console.error;
let answer;
try {
  const program = await import("./program.%s");
  if (typeof program.default !== "function") throw new Error("the program has no default export that is a function");
  const input = JSON.parse(await new Response(Deno.stdin.readable).text());
  answer = { result: await program.default(input) ?? null };
} catch (error) {
  answer = { error: shown(error) };
}
let bytes = new TextEncoder().encode(JSON.stringify(answer));
while (bytes.length) bytes = bytes.subarray(await write(bytes));
"""
_PYTHON_RUNNER = """\
import json, sys
sys.path.insert(0, sys.argv[1])
import pydantic_monty as monty
asked = json.load(sys.stdin)
limits = {"max_feed_duration_secs": asked["seconds"], "max_memory": asked["memory"]}
printed = monty.CollectString(max_bytes=asked["output"])
try:
    with monty.Monty(binary_path=sys.argv[2], max_processes=1) as pool, pool.checkout(limits=limits) as session:
        session.feed_run(asked["code"], print_callback=printed)
        result = session.feed_run("main(input)", inputs={"input": asked["input"]}, print_callback=printed)
    answer = {"result": result}
    text = json.dumps(answer, allow_nan=False)
except monty.MontyError as error:
    text = json.dumps({"error": error.display() if hasattr(error, "display") else str(error)})
except (TypeError, ValueError) as error:
    text = json.dumps({"error": f"the result is no JSON: {error}"})
sys.stderr.write(printed.output)
sys.stdout.write(text)
"""


class Language(StrEnum):
    """JavaScript, TypeScript or Python: what a code program is written in."""

    JAVASCRIPT = "javascript"
    TYPESCRIPT = "typescript"
    PYTHON = "python"


class CodeOutcome(Struct, frozen=True, kw_only=True):
    """What a program returned, or the error that it ended with; `ending` says whether it ran into a limit."""

    ending: Ending
    result: Any = None
    error: str | None = None
    printed: str = ""

    @property
    def succeeded(self) -> bool:
        return self.error is None


class _CodeAnswer(Struct, forbid_unknown_fields=True):
    result: Any = None
    error: str | None = None


async def run_code(
    runner: CommandRunner, language: Language, source: str, input: Any, limits: Limits = CODE_LIMITS
) -> CodeOutcome:
    """Run a program once. Its own faults are in the outcome; what is raised is that it could not be run."""
    data = dumps(input)
    run = _run_python if language is Language.PYTHON else _run_javascript
    return _code_outcome(await run(runner, language, source, data, limits), limits)


async def _run_javascript(
    runner: CommandRunner, language: Language, source: str, data: bytes, limits: Limits
) -> ProcessOutcome:
    deno = _deno()
    ending = "ts" if language is Language.TYPESCRIPT else "mjs"
    files = {f"program.{ending}": source.encode(), "runner.mjs": (_JAVASCRIPT_RUNNER % ending).encode()}
    heap = f"--v8-flags=--max-old-space-size={max(16, limits.memory // MIB)}"
    return await run_sandboxed(
        await runner.sandbox(),
        [str(deno), *_DENO, heap, "runner.mjs"],
        runner.protected,
        files=files,
        environment={"DENO_DIR": "/tmp/deno", "NO_COLOR": "1"},
        readable=[deno],
        system=SystemFiles.LIBRARIES,
        stdin=data,
        limits=limits,
        limit_address_space=False,
        extra_memory=_RUNTIME_BYTES,
    )


def _deno() -> Path:
    if find_spec("deno") is None:
        raise Unsupported("JavaScript and TypeScript need deno", _HINT)
    from deno import find_deno_bin

    try:
        return Path(find_deno_bin()).resolve()
    except FileNotFoundError:
        raise Unsupported("the package deno is here, its program is not", _HINT) from None


async def _run_python(runner: CommandRunner, _: Language, source: str, data: bytes, limits: Limits) -> ProcessOutcome:
    site, monty = _monty()
    asked = {"code": source, "input": msgspec.Raw(data), "seconds": limits.seconds}
    asked |= {"memory": limits.memory, "output": limits.output}
    python = Path(sys.executable).resolve()
    readable, hidden = interpreter_files()
    return await run_sandboxed(
        await runner.sandbox(),
        [str(python), "-I", "-S", "-B", "runner.py", str(site), str(monty)],
        runner.protected,
        files={"runner.py": _PYTHON_RUNNER.encode()},
        readable=[*readable, python, *_monty_files(site), monty],
        hidden=hidden,
        system=SystemFiles.LIBRARIES,
        stdin=msgspec.json.encode(asked),
        limits=msgspec.structs.replace(limits, seconds=limits.seconds + 5),  # monty ends it first, and says where
        limit_address_space=False,
        extra_memory=_RUNTIME_BYTES,
    )


def _monty() -> tuple[Path, Path]:
    spec = find_spec("pydantic_monty")
    if spec is None or not spec.submodule_search_locations:
        raise Unsupported("Python programs need pydantic-monty", _HINT)
    from pydantic_monty._binary import find_monty_binary

    try:
        return Path(spec.submodule_search_locations[0]).parent, Path(find_monty_binary()).resolve()
    except FileNotFoundError:
        raise Unsupported("the package pydantic-monty is here, its program is not", _HINT) from None


def _monty_files(site: Path) -> list[Path]:
    """The package, and what it imports of others: one module, and what Python compiled of it."""
    module = site / "typing_extensions.py"
    compiled = Path(cache_from_source(str(module)))
    return [site / "pydantic_monty", module, *([compiled] if compiled.is_file() else [])]


def _code_outcome(outcome: ProcessOutcome, limits: Limits) -> CodeOutcome:
    printed = outcome.stderr.decode(errors="replace")
    exceeded = {
        Ending.TIMED_OUT: f"it took longer than {limits.seconds} s",
        Ending.TOO_MUCH_OUTPUT: f"it wrote more than {limits.output} bytes",
        Ending.TOO_MUCH_MEMORY: f"it took more than {limits.memory} bytes of memory",
        Ending.TOO_MANY_PROCESSES: f"it had more than {limits.processes} processes and threads",
        Ending.TOO_MUCH_DISK: "it made more files than it may",
        Ending.UNCOVERED: "what it must not write was replaced from outside meanwhile",
    }
    if outcome.ending in exceeded:
        return CodeOutcome(ending=outcome.ending, error=exceeded[outcome.ending], printed=printed)
    try:
        answer = msgspec.json.decode(outcome.stdout, type=_CodeAnswer)
    except msgspec.DecodeError:
        why = printed.strip().splitlines()[-1:] or [f"exit code {outcome.code}"]
        return CodeOutcome(ending=outcome.ending, error=f"it ended without a result: {why[0]}", printed=printed)
    return CodeOutcome(ending=outcome.ending, result=answer.result, error=answer.error, printed=printed)
